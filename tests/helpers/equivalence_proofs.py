"""Two equivalences of a law of whole sequences, and what equal rows cost. NumPy and SciPy; the
proofs are in README.md.

A law is known by its contexts, as in `jaxtie.exor.theory`: `tokens_CxL`, no two alike, each one
occurring, in each of them one mask, which is the last symbol and never a target; `joint_CxV` is
p(context and target). `ordered` says whether order matters; if not, a context is a bag, and its
tokens are sorted. A pair is (first, second), token ids.

Shapes: C contexts, L tokens, V symbols with the mask, W = V - 1 without, K parts, N hidden states,
D width.
"""

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from jaxtie.exor import theory


def masked_contexts(law_WxW: np.ndarray, *, ordered: bool) -> tuple[np.ndarray, np.ndarray]:
    """`tokens_CxL` and `joint_CxV` of a law of sequences, each place masked alike; contexts that
    never occur are left out.

    Args:
      law_WxW: p(sequence), W in each of L dimensions, summing to 1.
    """
    length, symbols = law_WxW.ndim, law_WxW.shape[0]
    others = np.indices((symbols,) * (length - 1)).reshape(length - 1, -1).T
    tokens_CxL = np.concatenate(
        [np.insert(others, place, symbols, axis=1) for place in range(length)]
    )
    joint_CxW = (
        np.concatenate(
            [np.moveaxis(law_WxW, place, -1).reshape(-1, symbols) for place in range(length)]
        )
        / length
    )
    occurs_C = joint_CxW.any(axis=1)
    return theory.merge_contexts(
        tokens_CxL[occurs_C], np.pad(joint_CxW[occurs_C], ((0, 0), (0, 1))), ordered=ordered
    )


def merge_spellings(
    tokens_CxL: np.ndarray, joint_CxV: np.ndarray, pair: tuple[int, int], *, ordered: bool
) -> tuple[np.ndarray, np.ndarray]:
    """The contexts as a model sees them whose input rows of the pair are equal: `first` stands for
    both.

    `theory.best_loss` of them is the best that equal input rows reach,
    `loss_with_equal_output_rows` of them the best that equal rows of a tied table reach.
    """
    first, second = pair
    return theory.merge_contexts(
        np.where(tokens_CxL == second, first, tokens_CxL), joint_CxV, ordered=ordered
    )


def _holes(tokens_CxL: np.ndarray, vocabulary: int, ordered: bool) -> np.ndarray:
    """`hole_CxL` numbers what is left of a context without the token at a place: alike if contexts
    differ in that alone.
    """
    contexts, length = tokens_CxL.shape
    opened_CxLxL = np.where(np.eye(length, dtype=bool), vocabulary, tokens_CxL[:, None])
    opened_CxLxL = opened_CxLxL if ordered else np.sort(opened_CxLxL)
    return np.unique(opened_CxLxL.reshape(-1, length), axis=0, return_inverse=True)[1].reshape(
        contexts, length
    )


def conditional_violation(joint_CxV: np.ndarray, pair: tuple[int, int]) -> float:
    """The largest |p(first | context) - p(second | context)|, in [0, 1]: 0 (but for rounding) if
    conditionally equivalent.

    NaN if one of them is never a target.
    """
    joint_Cx2 = joint_CxV[:, list(pair)]
    if not joint_Cx2.any(axis=0).all():
        return np.nan
    return float(np.max(np.abs(joint_Cx2[:, 0] - joint_Cx2[:, 1]) / joint_CxV.sum(axis=1)))


def semantic_violation(
    tokens_CxL: np.ndarray, joint_CxV: np.ndarray, pair: tuple[int, int], *, ordered: bool
) -> float:
    """The largest total variation that a swap makes, in [0, 1]: 0 (but for rounding) if
    semantically equivalent.

    A swap puts one of the pair for the other at one place of a context. NaN where no swapped
    context occurs.
    """
    before, after = theory.swaps(tokens_CxL, *pair, ordered=ordered)
    prediction_CxV = joint_CxV / joint_CxV.sum(axis=1, keepdims=True)
    variation = np.abs(prediction_CxV[before] - prediction_CxV[after]).sum(axis=1) / 2
    return float(variation.max()) if len(variation) else np.nan


def log_ratios(joint_CxV: np.ndarray, pair: tuple[int, int]) -> np.ndarray:
    """ln p(second | context) - ln p(first | context) of each context, in [-∞, ∞]; NaN where neither
    can stand.
    """
    first_C, second_C = joint_CxV[:, list(pair)].T
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(second_C) - np.log(first_C)


def support_parts(
    tokens_CxL: np.ndarray, joint_CxV: np.ndarray, pair: tuple[int, int], *, ordered: bool
) -> np.ndarray:
    """`part_C` numbers, from 0, the connected parts of the contexts where one of the pair can
    stand; -1 for other contexts.

    Two contexts are neighbours if they differ in one token, the mask staying where it is, and that
    token is asked for in
    other contexts: of one that is never masked, like EXor's label, no prediction tells. If order
    matters, a place is never masked or always as good as any other; if not, this goes by symbols.
    """
    contexts, length = tokens_CxL.shape
    stands_C = joint_CxV[:, list(pair)].any(axis=1)
    asked_LxV = np.tile(joint_CxV.sum(axis=0), (length, 1))
    if ordered:
        asked_LxV[:] = 0
        np.add.at(asked_LxV, np.argmax(tokens_CxL == joint_CxV.shape[1] - 1, axis=1), joint_CxV)
    context, place = np.nonzero(stands_C[:, None] & (asked_LxV[np.arange(length), tokens_CxL] > 0))
    hole = _holes(tokens_CxL, joint_CxV.shape[1], ordered)[context, place]
    # a context is joined to its holes, so to all contexts that have one of them
    nodes = contexts + hole.max(initial=-1) + 1
    graph = coo_array((np.ones(len(hole)), (context, contexts + hole)), shape=(nodes, nodes))
    _, label = connected_components(graph, directed=False)
    part_C = np.full(contexts, -1)
    part_C[stands_C] = np.unique(label[:contexts][stands_C], return_inverse=True)[1]
    return part_C


def log_ratios_of_parts(
    tokens_CxL: np.ndarray, joint_CxV: np.ndarray, pair: tuple[int, int], *, ordered: bool
) -> np.ndarray:
    """The lowest and the highest of `log_ratios` on each part, Kx2: the same if, and only if,
    semantically equivalent.
    """
    part_C, ratio_C = (
        support_parts(tokens_CxL, joint_CxV, pair, ordered=ordered),
        log_ratios(joint_CxV, pair),
    )
    bounds_Kx2 = np.tile([np.inf, -np.inf], (part_C.max(initial=-1) + 1, 1))
    stands_C = part_C >= 0
    np.minimum.at(bounds_Kx2[:, 0], part_C[stands_C], ratio_C[stands_C])
    np.maximum.at(bounds_Kx2[:, 1], part_C[stands_C], ratio_C[stands_C])
    return bounds_Kx2


def log_ratio_spread(joint_CxV: np.ndarray, pair: tuple[int, int]) -> float:
    """The highest of `log_ratios` less the lowest, over all parts, nats: 0 if, and only if, an
    output bias carries them.

    NaN if one of the pair is never a target.
    """
    if not joint_CxV[:, list(pair)].any(axis=0).all():
        return np.nan
    ratio_C = log_ratios(joint_CxV, pair)
    return float(np.nanmax(ratio_C) - np.nanmin(ratio_C))


def loss_with_equal_output_rows(
    joint_CxV: np.ndarray, pair: tuple[int, int], *, bias: bool
) -> float:
    """The lowest expected cross-entropy, nats, of any model whose output rows of the pair are
    equal.

    Its odds of the two are the same in every context: even ones, or with an output bias the best.
    """
    first, second = pair
    share_2 = joint_CxV[:, list(pair)].sum(axis=0)
    either_CxV = np.array(joint_CxV)
    either_CxV[:, first] += either_CxV[:, second]
    either_CxV[:, second] = 0
    which = theory.best_loss(share_2[None]) if bias else share_2.sum() * np.log(2)
    return float(theory.best_loss(either_CxV) + which)


def hidden_spreads(
    hidden_NxD: np.ndarray, *, bias: bool, weight_N: np.ndarray | None = None
) -> np.ndarray:
    """How far hidden states reach in each of their principal directions, the furthest first; min(N,
    D), in [0, 1].

    Singular values: of the differences from their mean with an output bias, of the hidden states
    themselves without; in either case beside the largest one of the hidden states themselves, so
    that rounding of states that are all alike is none.

    Args:
      weight_N: how often each occurs; alike if not given.
    """
    weight_N = np.ones(len(hidden_NxD)) if weight_N is None else weight_N
    root_Nx1, hidden_NxD = np.sqrt(weight_N)[:, None], np.asarray(hidden_NxD, np.float64)
    centre_D = np.average(hidden_NxD, axis=0, weights=weight_N) if bias else 0
    values = np.linalg.svd(root_Nx1 * (hidden_NxD - centre_D), compute_uv=False)
    reach = np.linalg.norm(root_Nx1 * hidden_NxD, ord=2)
    return values / reach if reach else values


def rank_of_hidden_states(hidden_NxD: np.ndarray, *, bias: bool, tolerance: float = 1e-6) -> int:
    """In how many directions hidden states bind the difference of two output rows.

    If it is D, odds that are everywhere the same force equal rows: with an output bias it is the
    rank of the differences of hidden states, without one (and then for even odds only) of the
    hidden states themselves.

    Args:
      tolerance: spreads up to this count as 0.
    """
    return int(np.sum(hidden_spreads(hidden_NxD, bias=bias) > tolerance))
