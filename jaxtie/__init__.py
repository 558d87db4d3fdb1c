"""Should input and output embeddings be tied, from when to when, and how?"""

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from jaxtie.experiment import Arm, Optimiser, UserError
from jaxtie.models.sizes import LSTM, Mixer, Transformer

if TYPE_CHECKING:
    from jaxtie import nnx
    from jaxtie.exor.declaration import Experiment, Process
    from jaxtie.models.cross_entropy import cross_entropy
    from jaxtie.models.embedding import Embedding
    from jaxtie.models.tying import is_tied, saved_by_tying, tie, untie
    from jaxtie.runs import load, run
    from jaxtie.text.declaration import Corpus, TextExperiment

try:
    __version__ = version("jaxtie")
except PackageNotFoundError:  # a checkout that was never installed
    __version__ = "0+unknown"

# imported when they are asked for: what is declared in a room, and what needs xarray or jax
_LATER = {
    **dict.fromkeys(("is_tied", "saved_by_tying", "tie", "untie"), "jaxtie.models.tying"),
    "Embedding": "jaxtie.models.embedding",
    "cross_entropy": "jaxtie.models.cross_entropy",
    "Experiment": "jaxtie.exor.declaration",
    "Process": "jaxtie.exor.declaration",
    "Corpus": "jaxtie.text.declaration",
    "TextExperiment": "jaxtie.text.declaration",
    "load": "jaxtie.runs",
    "run": "jaxtie.runs",
}

__all__ = [
    "LSTM",
    "Arm",
    "Corpus",
    "Embedding",
    "Experiment",
    "Mixer",
    "Optimiser",
    "Process",
    "TextExperiment",
    "Transformer",
    "UserError",
    "__version__",
    "cross_entropy",
    "is_tied",
    "load",
    "nnx",
    "run",
    "saved_by_tying",
    "tie",
    "untie",
]


def __getattr__(name: str) -> Any:
    if name == "nnx":
        return importlib.import_module("jaxtie.nnx")
    if name not in _LATER:
        raise AttributeError(f"module 'jaxtie' has no attribute {name!r}")
    return getattr(importlib.import_module(_LATER[name]), name)
