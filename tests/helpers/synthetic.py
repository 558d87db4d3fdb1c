"""Sample text from a source with known equivalences. NumPy only.

The source is a first-order chain of words, each rendered as one token. Token 0 begins every
sentence and never occurs again. Pairs of tokens, by class:

- "duplicate": two surface forms of a word, chosen by a fair coin. S 0, C 0, m 0.
- "skewed duplicate": chosen by an unfair coin. S 0, C 0, m the log odds.
- "allomorph": chosen by the token on the left, as in a/an. S 0, C far.
- "antonym": chosen by a fair coin, but the next word is permuted with some probability after the
  second. S far, C 0.
- "near neighbours": two words with similar distributions, not equivalent.
- "homograph": one token (the first of two pairs) is a form of two words; each has its own form, too
  (the second). The meaning depends on the left token, so S varies over contexts.
- "plain": tokens with a word of their own, in pairs of neighbouring numbers.

The chain of tokens has order 1 too, except at the homograph, whose two words never follow each
other: the last two tokens always determine the distribution of the next one.

Shapes: W words, N states (one per token, two for the homograph), B sentences, L tokens.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxtie.text.data.vocabulary import SPECIAL_TOKENS, vocabulary_file

BEGINNING = 0
SKEW = 0.1  # probability of the first form of a skewed duplicate
CONTRAST = 2.0  # standard deviation of the words' log-probabilities
RANK = 8  # of these without word frequencies: about the width that a model needs
CLASSES = ("duplicate", "skewed duplicate", "allomorph", "antonym")


class Plan(NamedTuple):
    """Numbers and strengths of the known equivalences; 256 tokens by default.

    If `aligned`, words that precede similar words also follow similar words: the distributional
    hypothesis holds for words, and only the pairs violate it. Otherwise the two similarities are
    independent.
    """

    pairs: tuple[int, int, int, int] = (16, 16, 16, 16)  # of each of `CLASSES`
    near: int = 16  # pairs of near neighbours
    plain: int = 92  # plain tokens
    homograph: bool = True  # with its two partners
    follow: float = 0.96  # how often the left token chooses an allomorph's form, not a fair coin
    permuted: float = 1.0  # how often the word after an antonym's second token is permuted
    apart: float = 0.4  # distance of near neighbours, 1 for independent words
    aligned: bool = False
    seed: int = 0


class Source(NamedTuple):
    """A chain of states and the tokens that they emit.

    State 0 is the beginning. Its row is the stationary distribution, so the marginal distribution
    is the same at every place.
    """

    transition_NxN: np.ndarray  # p(next state | state)
    token_N: np.ndarray  # of each state
    pairs: dict[str, np.ndarray]  # class -> pairs of tokens, Px2


def make_source(plan: Plan) -> Source:
    """Build the source of a plan, deterministically."""
    kinds = [*CLASSES, "near neighbours", "homograph", "plain"]
    kind_W = np.repeat(kinds, [*plan.pairs, 2 * plan.near, 2 * plan.homograph, plan.plain])
    forms_W = np.where(np.isin(kind_W, [*CLASSES, "homograph"]), 2, 1)
    word_N = np.repeat(np.arange(len(kind_W)), forms_W)
    second_N = np.append(False, word_N[1:] == word_N[:-1])
    kind_N = kind_W[word_N]
    shared_N = second_N & (kind_N == "homograph")
    token_N = np.cumsum(~shared_N)
    token_N[shared_N] = token_N.max() + 1
    pairs = {}
    for kind in kinds:
        token_2P = token_N[kind_N == kind]
        pairs[kind] = token_2P[: len(token_2P) // 2 * 2].reshape(-1, 2)
    pairs["homograph"] = pairs["homograph"][:, ::-1]

    rng = np.random.default_rng(plan.seed)
    next_WxW = _word_transitions(plan, kind_W, rng)
    order_W, permuted_W = rng.permutation(len(kind_W)), np.empty(len(kind_W), int)
    permuted_W[order_W] = np.roll(order_W, 1)  # one cycle: no word maps to itself
    side_W = rng.choice([-1, 1], len(kind_W))  # the form of an allomorph after each word
    near_P = np.flatnonzero(kind_W == "near neighbours")[::2]
    side_W[near_P + 1] = side_W[near_P]
    chance_N = np.where(forms_W[word_N] == 2, 0.5, 1.0)
    skewed_N = kind_N == "skewed duplicate"
    chance_N[skewed_N] = np.where(second_N, 1 - SKEW, SKEW)[skewed_N]
    leaning_N = np.where(kind_N == "allomorph", np.where(second_N, 0.5, -0.5) * plan.follow, 0)
    permuted_Nx1 = (plan.permuted * (second_N & (kind_N == "antonym")))[:, None]
    next_NxW = next_WxW[word_N]
    next_NxW = (1 - permuted_Nx1) * next_NxW + permuted_Nx1 * next_NxW[:, permuted_W]
    transition_NxN = next_NxW[:, word_N] * (chance_N + side_W[word_N, None] * leaning_N)
    first_1xN = _stationary(transition_NxN)[None]
    transition_NxN = np.pad(np.concatenate([first_1xN, transition_NxN]), ((0, 0), (1, 0)))
    return Source(transition_NxN, np.append(BEGINNING, token_N), pairs)


def _word_transitions(plan: Plan, kind_W: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw p(next word | word): frequencies 1 / (rank + 10) times the exponential of low rank."""
    words = len(kind_W)
    frequency_W = 1 / (rng.permutation(words) + 10)
    left_WxD, right_WxD = rng.normal(size=(2, words, RANK))
    near_P = np.flatnonzero(kind_W == "near neighbours")[::2]
    frequency_W[near_P + 1] = frequency_W[near_P]
    for side_WxD in (left_WxD, right_WxD):
        side_WxD[near_P + 1] *= plan.apart
        side_WxD[near_P + 1] += np.sqrt(1 - plan.apart**2) * side_WxD[near_P]
    if plan.aligned:  # one vector per word, rotated by the Q of draws that are not needed otherwise
        right_WxD = left_WxD @ np.linalg.qr(right_WxD[:RANK])[0]
    next_WxW = frequency_W * np.exp(CONTRAST / np.sqrt(RANK) * left_WxD @ right_WxD.T)
    homograph_W = kind_W == "homograph"
    next_WxW[homograph_W[:, None] & homograph_W] = 0
    return next_WxW / next_WxW.sum(axis=1, keepdims=True)


def _stationary(transition_NxN: np.ndarray) -> np.ndarray:
    """Return the stationary distribution."""
    states = len(transition_NxN)
    equations = np.concatenate([transition_NxN.T - np.eye(states), np.ones((1, states))])
    return np.linalg.lstsq(equations, np.append(np.zeros(states), 1))[0]


def sample_sentences(source: Source, sentences: int, length: int, seed: int) -> np.ndarray:
    """Sample `tokens_BxL`: the beginning and `length` tokens after it."""
    rng = np.random.default_rng(seed)
    ends_NxN = np.cumsum(source.transition_NxN, axis=1)
    state_BxL = np.zeros((sentences, length + 1), np.int64)
    for place in range(length):
        ends_BxN = ends_NxN[state_BxL[:, place]]
        draw_Bx1 = rng.random((sentences, 1)) * ends_BxN[:, -1:]
        state_BxL[:, place + 1] = np.sum(ends_BxN <= draw_Bx1, axis=1)
    return source.token_N[state_BxL]


def word_of(token: int) -> str:
    """Return three letters for a token; no word is a prefix of another."""
    return "q" + chr(ord("a") + token // 26) + chr(ord("a") + token % 26)


def write_sampled_text(
    folder: Path, source: Source, sentences: int = 60_000, length: int = 32
) -> dict[str, list[tuple[str, str]]]:
    """Write sampled sentences, one per paragraph, to `known.txt`, and the words to `vocab.txt`.

    Returns:
      The pairs of each class, as words.
    """
    tokens_BxL = sample_sentences(source, sentences, length, seed=0)[:, 1:]
    names = [word_of(token) for token in range(source.token_N.max() + 1)]
    lines = [" ".join(names[token] for token in tokens_L) for tokens_L in tokens_BxL.tolist()]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "known.txt").write_text("\n\n".join(lines) + "\n")
    (folder / "vocab.txt").write_bytes(vocabulary_file([*SPECIAL_TOKENS, *names[1:]]))
    return {
        kind: [(names[first], names[second]) for first, second in pairs]
        for kind, pairs in source.pairs.items()
    }
