"""Should input and output embeddings be tied, from when to when, and how?"""

from importlib.metadata import PackageNotFoundError, version

from jaxtie.config import (
    LSTM,
    Corpus,
    Experiment,
    HeadConvergence,
    InitialLoss,
    Mixer,
    Optimiser,
    Process,
    TextExperiment,
    Transformer,
    UserError,
)

try:
    __version__ = version("jaxtie")
except PackageNotFoundError:  # a checkout that was never installed
    __version__ = "0+unknown"

__all__ = [
    "LSTM",
    "Corpus",
    "Experiment",
    "HeadConvergence",
    "InitialLoss",
    "Mixer",
    "Optimiser",
    "Process",
    "TextExperiment",
    "Transformer",
    "UserError",
    "__version__",
]
