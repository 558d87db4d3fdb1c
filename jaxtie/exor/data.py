"""The EXor process: masked language modelling of binary parity (paper, section 5).

A string of n bits is followed by its parity label. A zero is written X or Y, a one A or B, drawn
anew each time. One of the n bits is masked and is to be predicted.

Shapes: B samples, L = n + 1 tokens, P = 1 masked position, V = 7 symbols, C contexts.
"""

import itertools
import random
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import threefry_2x32

from jaxtie.exor import theory

X, A, EVEN, MASK = 0, 2, 4, 6  # token ids; Y, B and the odd label follow X, A and EVEN
VOCABULARY = 7
# Sets of rows that a head can name.
EXOR_ROW_SETS = {"mask": (6,), "labels": (4, 5), "never-targets": (4, 5, 6), "all": tuple(range(7))}


class Batch(NamedTuple):
    """Masked samples, int32: tokens, masked position, and the symbol that was there."""

    tokens_BxL: jax.Array
    at_BxP: jax.Array
    target_BxP: jax.Array


class Contexts(NamedTuple):
    """Every context of a split, and p(context and target), float64, which sums to 1."""

    tokens_CxL: np.ndarray
    at_CxP: np.ndarray
    joint_CxV: np.ndarray


class Split(NamedTuple):
    """Bits of the training, validation and test strings, each (strings, n), int32."""

    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray


def split(length: int, all_strings: bool, data_seed: int) -> Split:
    """Split the strings as published: 114, 12 and 1 of 7 bits.

    The published code shuffles the strings 00...0 to 11...10 (not 11...11, unless `all_strings`)
    once by Python's `random` with a fixed seed and cuts at 90 % and 10 %.
    """
    numbers = list(range(2**length - (not all_strings)))
    random.Random(data_seed).shuffle(numbers)
    bits = (np.array(numbers)[:, None] >> np.arange(length)[::-1]) & 1
    bits = bits.astype(np.int32)
    train, valid = len(bits) * 9 // 10, len(bits) // 10
    return Split(bits[:train], bits[train : train + valid], bits[train + valid :])


def sample(
    stream: jax.Array,
    step: jax.typing.ArrayLike,
    bits_Bxn: np.ndarray,
    zeros: jax.Array,
    ones: jax.Array,
    zeros_by_label: bool = False,
) -> Batch:
    """Write and mask each string once; a batch depends on the stream and the step alone.

    The generator is used by its counter, (step, place), so no key is derived for a step.

    Args:
      stream: see `jaxtie.training.task.stream`.
      step: 0 or more.
      bits_Bxn: the strings.
      zeros: p(X), p(Y); draws have 16 bits.
      ones: p(A), p(B).
      zeros_by_label: see `jaxtie.exor.config.Process`.
    """
    size, length = bits_Bxn.shape
    blocks = -(-size * (length + 1) // 4)
    counter = jnp.concatenate(
        [jnp.full(blocks, step, jnp.uint32), jnp.arange(blocks, dtype=jnp.uint32)]
    )
    words = threefry_2x32(stream, counter)
    draws = jnp.concatenate([words >> 16, words & 0xFFFF])[: size * (length + 1)].astype(jnp.int32)
    draw = draws.reshape(length + 1, size).T
    threshold = jnp.round(jnp.stack([zeros[0], ones[0]]) * 2**16).astype(jnp.int32)
    second = draw[:, :length] >= jnp.where(bits_Bxn == 0, threshold[0], threshold[1])
    odd_Bx1 = bits_Bxn.sum(axis=1, keepdims=True) % 2
    if zeros_by_label:
        second ^= (bits_Bxn == 0) & (odd_Bx1 == 1)
    symbols = np.where(bits_Bxn == 0, X, A) + second
    at_Bx1 = (draw[:, length:] * length) >> 16
    masked = np.arange(length)[None] == at_Bx1
    target_Bx1 = jnp.sum(jnp.where(masked, symbols, 0), axis=1, keepdims=True)
    label_Bx1 = EVEN + odd_Bx1
    tokens = jnp.concatenate([jnp.where(masked, MASK, symbols), label_Bx1], axis=1)
    return Batch(tokens.astype(jnp.int32), at_Bx1, target_Bx1)


def enumerate_contexts(
    bits_Bxn: np.ndarray,
    zeros: tuple[float, float],
    ones: tuple[float, float],
    *,
    ordered: bool,
    zeros_by_label: bool = False,
) -> Contexts:
    """Enumerate every string of a split, masked position and way to write the other bits.

    The contexts and their order do not depend on the probabilities: some have probability 0 if one
    of these is 0. If order does not matter, contexts with the same symbols are one, its tokens
    sorted.
    """
    size, length = bits_Bxn.shape
    # [label, bit, first or second]
    p_written = np.array([[zeros, ones], [zeros[::-1] if zeros_by_label else zeros, ones]])
    odd_Bx1x1 = bits_Bxn.sum(1)[:, None, None] % 2
    choices = np.array(list(itertools.product([0, 1], repeat=length - 1)))
    tokens, weights, targets = [], [], []
    for at in range(length):
        others_BxM = np.delete(bits_Bxn, at, axis=1)
        # [strings, choices]
        probability = p_written[odd_Bx1x1, others_BxM[:, None], choices[None]].prod(-1)
        symbols = np.where(others_BxM[:, None] == 0, X, A) + choices[None]
        symbols = np.insert(symbols, at, MASK, axis=2)
        label = np.broadcast_to(EVEN + odd_Bx1x1, (*symbols.shape[:2], 1))
        tokens.append(np.concatenate([symbols, label], axis=2).reshape(-1, length + 1))
        masked_bit = bits_Bxn[:, at]
        joint = np.zeros((size, VOCABULARY))
        for second in (0, 1):
            target = np.where(masked_bit == 0, X, A) + second
            joint[np.arange(size), target] = p_written[odd_Bx1x1[:, 0, 0], masked_bit, second]
        weights.append(probability.ravel() / (size * length))
        targets.append(np.repeat(joint, len(choices), axis=0))
    joint = np.concatenate(weights)[:, None] * np.concatenate(targets)
    tokens_CxL, merged = theory.merge_contexts(np.concatenate(tokens), joint, ordered=ordered)
    at_Cx1 = np.argmax(tokens_CxL == MASK, axis=1)[:, None]
    return Contexts(tokens_CxL.astype(np.int32), at_Cx1.astype(np.int32), merged)


def share_of_odd_zeros(bits_Bxn: np.ndarray) -> float:
    """Return the share of the zeros of some strings that are in strings of odd parity."""
    zeros_B = (bits_Bxn == 0).sum(axis=1)
    return float(zeros_B[bits_Bxn.sum(axis=1) % 2 == 1].sum() / zeros_B.sum())


def enumerate_process(
    length: int,
    zeros: tuple[float, float],
    ones: tuple[float, float],
    *,
    zeros_by_label: bool = False,
) -> Contexts:
    """Enumerate the contexts that occur, where all strings of `length` bits are equally likely.

    Equivalences are of the process, not of a split: X in place of A makes a string of another
    parity, or flips the masked bit too, so the result can be missing from a split.
    """
    bits = np.array(list(itertools.product([0, 1], repeat=length)))
    contexts = enumerate_contexts(bits, zeros, ones, ordered=False, zeros_by_label=zeros_by_label)
    occurs = contexts.joint_CxV.any(axis=1)
    return Contexts(*(array[occurs] for array in contexts))
