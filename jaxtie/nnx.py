"""Tying for Flax NNX."""

from jaxtie.tying.check import check
from jaxtie.tying.nnx import Embedding, Transposed, UntiedEmbed
from jaxtie.tying.resize import reset_rows, resize
from jaxtie.tying.tie import is_tied, tie, untie

__all__ = [
    "Embedding",
    "Transposed",
    "UntiedEmbed",
    "check",
    "is_tied",
    "reset_rows",
    "resize",
    "tie",
    "untie",
]
