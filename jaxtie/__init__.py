"""Should input and output embeddings be tied, from when to when, and how?"""

import importlib
import sys
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import TYPE_CHECKING, Any

from jaxtie.config import LSTM, Arm, Mixer, Optimizer, Transformer, UserError

if TYPE_CHECKING:
    from jaxtie import nnx
    from jaxtie.exor.config import Experiment, Process
    from jaxtie.run.lifecycle import load, run
    from jaxtie.text.config import Corpus, TextExperiment
    from jaxtie.tying.cross_entropy import cross_entropy
    from jaxtie.tying.linen import Embedding
    from jaxtie.tying.tie import is_tied, saved_by_tying, tie, untie

try:
    __version__ = version("jaxtie")
except PackageNotFoundError:  # a checkout that was never installed
    __version__ = "0+unknown"

# imported when they are asked for: what is declared in a room, and what needs xarray or jax
_LATER = {
    **dict.fromkeys(("is_tied", "saved_by_tying", "tie", "untie"), "jaxtie.tying.tie"),
    "Embedding": "jaxtie.tying.linen",
    "cross_entropy": "jaxtie.tying.cross_entropy",
    "Experiment": "jaxtie.exor.config",
    "Process": "jaxtie.exor.config",
    "Corpus": "jaxtie.text.config",
    "TextExperiment": "jaxtie.text.config",
    "load": "jaxtie.run.lifecycle",
    "run": "jaxtie.run.lifecycle",
}

__all__ = [
    "LSTM",
    "Arm",
    "Corpus",
    "Embedding",
    "Experiment",
    "Mixer",
    "Optimizer",
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


class _Package(ModuleType):
    """Keeps `jaxtie.run` the function when the package of that name is imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "run" or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
