"""Should the embeddings be tied, and if so for which part of training?"""

import importlib
import sys
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import TYPE_CHECKING, Any

from jaxtie.config import (
    LSTM,
    Arm,
    Decoder,
    Mixer,
    Optimizer,
    TaskConfig,
    Transformer,
    UserError,
    Variant,
)

if TYPE_CHECKING:
    from jaxtie import nnx
    from jaxtie.advise.answer import advise
    from jaxtie.compare.answer import compare
    from jaxtie.exor.config import Experiment, Process
    from jaxtie.run.lifecycle import load, run
    from jaxtie.text.config import TextExperiment
    from jaxtie.text.data.config import Corpus
    from jaxtie.training.task import Task, key_at
    from jaxtie.tying.budget import budget
    from jaxtie.tying.check import check
    from jaxtie.tying.cross_entropy import cross_entropy
    from jaxtie.tying.linen import Embedding, make_embedding
    from jaxtie.tying.resize import reset_rows, resize
    from jaxtie.tying.tie import is_tied, tie, untie

try:
    __version__ = version("jaxtie")
except PackageNotFoundError:  # a checkout that was never installed
    __version__ = "0+unknown"

# imported on first use, since they need xarray or jax
_LAZY = {
    **dict.fromkeys(("is_tied", "tie", "untie"), "jaxtie.tying.tie"),
    **dict.fromkeys(("Experiment", "Process"), "jaxtie.exor.config"),
    "Corpus": "jaxtie.text.data.config",
    "TextExperiment": "jaxtie.text.config",
    **dict.fromkeys(("load", "run"), "jaxtie.run.lifecycle"),
    **dict.fromkeys(("Task", "key_at"), "jaxtie.training.task"),
    **dict.fromkeys(("Embedding", "make_embedding"), "jaxtie.tying.linen"),
    "advise": "jaxtie.advise.answer",
    "budget": "jaxtie.tying.budget",
    "check": "jaxtie.tying.check",
    "compare": "jaxtie.compare.answer",
    "cross_entropy": "jaxtie.tying.cross_entropy",
    **dict.fromkeys(("reset_rows", "resize"), "jaxtie.tying.resize"),
}

__all__ = [
    "LSTM",
    "Arm",
    "Corpus",
    "Decoder",
    "Embedding",
    "Experiment",
    "Mixer",
    "Optimizer",
    "Process",
    "Task",
    "TaskConfig",
    "TextExperiment",
    "Transformer",
    "UserError",
    "Variant",
    "__version__",
    "advise",
    "budget",
    "check",
    "compare",
    "cross_entropy",
    "is_tied",
    "key_at",
    "load",
    "make_embedding",
    "nnx",
    "reset_rows",
    "resize",
    "run",
    "tie",
    "untie",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name == "nnx":
        return importlib.import_module("jaxtie.nnx")
    if name not in _LAZY:
        raise AttributeError(f"module 'jaxtie' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """Keep `jaxtie.run`, `advise` and `compare` functions when their packages are imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in ("run", "advise", "compare") or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
