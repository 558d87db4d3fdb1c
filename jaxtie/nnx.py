"""Tying for Flax NNX."""

from jaxtie.tying.nnx import Embedding, Transposed, UntiedEmbed
from jaxtie.tying.tie import is_tied, saved_by_tying, tie, untie

__all__ = ["Embedding", "Transposed", "UntiedEmbed", "is_tied", "saved_by_tying", "tie", "untie"]
