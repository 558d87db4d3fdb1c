"""Two equivalences of a distribution of sequences, and what equal rows cost, by their definitions.

The proofs are in `jaxtie/exor/README.md`. A distribution is known by its contexts: sequences with
the mask, which is the largest token, in place of the target. If order does not matter, the tokens
of a context are sorted. A pair is two token ids, first and second.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from jaxtie.exor import theory

Tokens = tuple[int, ...]
Contexts = dict[Tokens, dict[int, float]]  # context -> target -> p(context and target)
Pair = tuple[int, int]


def arrange(tokens: Iterable[int], ordered: bool) -> Tokens:
    """Return a context as a sequence or as a sorted bag."""
    return tuple(tokens if ordered else sorted(tokens))


def replace(tokens: Tokens, place: int, token: int) -> Tokens:
    """Put another token at a place."""
    return *tokens[:place], token, *tokens[place + 1 :]


def masked_contexts(
    law: dict[Tokens, float], mask: int, *, ordered: bool, places: Sequence[int] | None = None
) -> Contexts:
    """Return the contexts of sequence -> p where each place, or each of these, is masked alike."""
    contexts: Contexts = defaultdict(lambda: defaultdict(float))
    for sequence, p in law.items():
        chosen = range(len(sequence)) if places is None else places
        for place in chosen if p else ():
            context = arrange(replace(sequence, place, mask), ordered)
            contexts[context][sequence[place]] += p / len(chosen)
    return contexts


def as_arrays(contexts: Contexts) -> tuple[np.ndarray, np.ndarray]:
    """Return `tokens_CxL` and `joint_CxV` as `jaxtie.exor.theory` takes them, in order."""
    tokens_CxL = np.array(sorted(contexts))
    joint_CxV = np.zeros((len(contexts), tokens_CxL.max() + 1))
    for row, context in zip(joint_CxV, sorted(contexts)):
        row[list(contexts[context])] = list(contexts[context].values())
    return tokens_CxL, joint_CxV


def best_loss(contexts: Contexts) -> float:
    """Return the lowest expected cross-entropy, nats."""
    return theory.best_loss(as_arrays(contexts)[1])


def merge_spellings(contexts: Contexts, pair: Pair, *, ordered: bool) -> Contexts:
    """Return the contexts as a model with equal input rows sees them: the first for both."""
    merged: Contexts = defaultdict(lambda: defaultdict(float))
    for context, targets in contexts.items():
        seen = arrange((pair[0] if token == pair[1] else token for token in context), ordered)
        for target, p in targets.items():
            merged[seen][target] += p
    return merged


def conditional_violation(contexts: Contexts, pair: Pair) -> float:
    """Return the largest |p(first | context) - p(second | context)|, in [0, 1]."""
    return max(
        abs(targets.get(pair[0], 0) - targets.get(pair[1], 0)) / sum(targets.values())
        for targets in contexts.values()
    )


def semantic_violation(contexts: Contexts, pair: Pair, *, ordered: bool) -> float:
    """Return the largest total variation that a swap makes, in [0, 1]; NaN where none occurs."""
    variations = []
    for context, targets in contexts.items():
        for place in range(len(context)):
            swapped = arrange(replace(context, place, pair[1]), ordered)
            if context[place] == pair[0] and swapped in contexts:
                others = contexts[swapped]
                mass, mass_of_others = sum(targets.values()), sum(others.values())
                differences = (
                    abs(targets.get(symbol, 0) / mass - others.get(symbol, 0) / mass_of_others)
                    for symbol in {*targets, *others}
                )
                variations.append(sum(differences) / 2)
    return max(variations, default=math.nan)


def log_ratio(targets: dict[int, float], pair: Pair) -> float:
    """Return ln p(second) - ln p(first), in [-infinity, infinity], where one of them can stand."""
    first, second = (targets.get(symbol, 0) for symbol in pair)
    return math.log(second / first) if first and second else math.inf if second else -math.inf


def support_parts(contexts: Contexts, pair: Pair, *, ordered: bool) -> list[set[Tokens]]:
    """Return the connected parts of the contexts where one of the pair can stand.

    Two contexts are neighbours if they differ in one token, the mask staying where it is, and that
    token is a target of other contexts: at that place if order matters.
    """
    mask = max(max(context) for context in contexts)
    asked = {
        (context.index(mask) if ordered else None, target)
        for context, targets in contexts.items()
        for target in targets
    }

    def holes(context: Tokens) -> list[Tokens]:
        """Return the contexts with a gap in place of a token that is a target elsewhere."""
        return [
            arrange(replace(context, place, -1), ordered)
            for place, token in enumerate(context)
            if (place if ordered else None, token) in asked
        ]

    left = {context for context, targets in contexts.items() if {*pair} & {*targets}}
    by_hole = defaultdict(set)
    for context in left:
        for hole in holes(context):
            by_hole[hole].add(context)
    parts = []
    while left:
        part, new = set(), {left.pop()}
        while new:
            part |= new
            new = {near for each in new for hole in holes(each) for near in by_hole[hole]} - part
        left -= part
        parts.append(part)
    return parts


def log_ratios_of_parts(contexts: Contexts, pair: Pair, *, ordered: bool) -> np.ndarray:
    """Return the lowest and the highest log ratio of each part, Kx2, in order."""
    parts = support_parts(contexts, pair, ordered=ordered)
    ratios = ([log_ratio(contexts[context], pair) for context in part] for part in parts)
    return np.array(sorted((min(of_part), max(of_part)) for of_part in ratios))


def log_ratio_spread(contexts: Contexts, pair: Pair) -> float:
    """Return the highest less the lowest log ratio: 0 if, and only if, an output bias is enough."""
    ratios = [log_ratio(each, pair) for each in contexts.values() if {*pair} & {*each}]
    return max(ratios) - min(ratios)


def loss_with_equal_output_rows(contexts: Contexts, pair: Pair, *, bias: bool) -> float:
    """Return the lowest loss, nats, of any model whose output rows of the pair are equal.

    Its odds of the two are the same in every context: even, or with an output bias the best.
    """
    _, joint_CxV = as_arrays(contexts)
    share_2 = joint_CxV[:, list(pair)].sum(axis=0)
    joint_CxV[:, pair[0]] += joint_CxV[:, pair[1]]
    joint_CxV[:, pair[1]] = 0
    which = theory.best_loss(share_2[None]) if bias else share_2.sum() * math.log(2)
    return theory.best_loss(joint_CxV) + which


def rank_of_hidden_states(hidden_NxD: np.ndarray, *, bias: bool, tolerance: float = 1e-6) -> int:
    """Return in how many directions hidden states bind the difference of two output rows.

    If it is D, odds that are the same everywhere force equal rows. `tolerance`: what counts as 0,
    relative to the largest singular value of the hidden states themselves.
    """
    centred_NxD = hidden_NxD - bias * hidden_NxD.mean(axis=0)
    largest = np.linalg.norm(hidden_NxD, ord=2)
    return int(np.linalg.matrix_rank(centred_NxD, tol=tolerance * largest))
