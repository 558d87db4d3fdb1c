"""Sample text from a source with known equivalences.

The source is a Markov chain of words of order 1; each word is rendered as one token. Token 0 begins
every sentence and never occurs again. `KnownSource.pairs` lists the pairs of each class, where S is
the semantic divergence, C the conditional one, and m the mean log-odds:

- "duplicate": a fair coin chooses the token of the word. S 0, C 0, m 0.
- "skewed duplicate": an unfair coin chooses it. S 0, C 0, m the log-odds of the coin.
- "allomorph": the token on the left chooses it, as in a/an. S 0, C far.
- "antonym": a fair coin chooses it, but after the second token the next word is permuted with some
  probability. S far, C 0.
- "near neighbours": two words with similar distributions that are not equivalent.
- "homograph": its first token (the same in both pairs) renders two words, each of which has a
  second token of its own. The left token tells them apart, so S varies over contexts.
- "plain": other words, in pairs of neighbouring numbers.

The two words of the homograph never follow each other, so the last two tokens always determine the
distribution of the next one.

Imports no jax. Shapes: W words, N states (a token each, the homograph two), B sentences, L tokens.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxtie.text.data.vocabulary import SPECIAL_TOKENS, vocabulary_file

BEGINNING = 0
CLASSES = ("duplicate", "skewed duplicate", "allomorph", "antonym")


class Plan(NamedTuple):
    """What a source contains; by default 256 tokens.

    Attributes:
      pairs: number of pairs of each of `CLASSES`.
      near: pairs of near neighbours.
      plain: plain tokens.
      homograph: whether there is one.
      skew: how often a skewed duplicate is rendered as its first token.
      follow: in [0, 1]: how often the left token chooses an allomorph; otherwise a fair coin does.
      permuted: in [0, 1]: how often the word after an antonym's second token is permuted.
      apart: in [0, 1]: how far near neighbours are apart; 1: nothing in common.
      contrast: standard deviation of the log-probabilities of words.
      rank: of the matrix of log-probabilities, apart from the frequencies of words: about the width
        that a model needs.
      aligned: whether words with similar right contexts also have similar left contexts, so that
        the distributional hypothesis holds for words and fails for the classes above only.
      sides: in how many ways left tokens are divided into those that choose an allomorph's first
        token and those that choose its second; pairs have them in turn. In English a/an has one.
      seed: of all draws.
    """

    pairs: tuple[int, int, int, int] = (16, 16, 16, 16)
    near: int = 16
    plain: int = 92
    homograph: bool = True
    skew: float = 0.1
    follow: float = 0.96
    permuted: float = 1.0
    apart: float = 0.4
    contrast: float = 2.0
    rank: int = 8
    aligned: bool = False
    sides: int = 1
    seed: int = 0


class KnownSource(NamedTuple):
    """A Markov chain of states, each rendered as a token.

    Attributes:
      transition_NxN: p(next state | state); state 0 is the beginning. After it, states are as
        likely as they are frequent, so the distribution is the same at every position.
      token_N: of each state.
      share_N: how often each state occurs among all but the beginning.
      pairs: class -> pairs of tokens, Px2.
    """

    transition_NxN: np.ndarray
    token_N: np.ndarray
    share_N: np.ndarray
    pairs: dict[str, np.ndarray]


def planted(plan: Plan) -> KnownSource:
    """Make the source of a plan; the same plan gives the same source."""
    kinds = [*CLASSES, "near neighbours", "homograph", "plain"]
    kind_W = np.repeat(kinds, [*plan.pairs, 2 * plan.near, 2 * plan.homograph, plan.plain])
    has_two_W = np.isin(kind_W, [*CLASSES, "homograph"])
    word_N = np.repeat(np.arange(len(kind_W)), np.where(has_two_W, 2, 1))
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
    law_WxW = _transitions_of_words(plan, kind_W, rng)
    order_W, permuted_W = rng.permutation(len(kind_W)), np.empty(len(kind_W), int)
    permuted_W[order_W] = np.roll(order_W, 1)  # one cycle: every word changes
    # which token of an allomorph comes after the word
    side_SxW = rng.choice([-1, 1], (plan.sides, len(kind_W)))
    near_P = np.flatnonzero(kind_W == "near neighbours")[::2]
    side_SxW[:, near_P + 1] = side_SxW[:, near_P]
    chance_N = np.where(has_two_W[word_N], 0.5, 1.0)
    skewed_N = kind_N == "skewed duplicate"
    chance_N[skewed_N] = np.where(second_N, 1 - plan.skew, plan.skew)[skewed_N]
    leaning_N = np.where(kind_N == "allomorph", np.where(second_N, 0.5, -0.5) * plan.follow, 0)
    permuted_Nx1 = (plan.permuted * (second_N & (kind_N == "antonym")))[:, None]
    next_NxW = (1 - permuted_Nx1) * law_WxW[word_N] + permuted_Nx1 * law_WxW[word_N][:, permuted_W]
    side_NxN = side_SxW[word_N % plan.sides][:, word_N].T  # of a state, for the one after it
    transition_NxN = next_NxW[:, word_N] * (chance_N + side_NxN * leaning_N)
    share_N = _stationary(transition_NxN)
    transition_NxN = np.pad(np.concatenate([share_N[None], transition_NxN]), ((0, 0), (1, 0)))
    return KnownSource(transition_NxN, np.append(BEGINNING, token_N), np.append(0, share_N), pairs)


def _transitions_of_words(plan: Plan, kind_W: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw p(next word | word): frequencies times the exponential of a matrix of low rank."""
    words = len(kind_W)
    frequency_W = 1 / (rng.permutation(words) + 10)
    left_WxD, right_WxD = rng.normal(size=(2, words, plan.rank))
    near_P = np.flatnonzero(kind_W == "near neighbours")[::2]
    frequency_W[near_P + 1] = frequency_W[near_P]
    for side_WxD in (left_WxD, right_WxD):
        side_WxD[near_P + 1] *= plan.apart
        side_WxD[near_P + 1] += np.sqrt(1 - plan.apart**2) * side_WxD[near_P]
    if plan.aligned:  # both sides are one vector, rotated
        right_WxD = left_WxD @ np.linalg.qr(right_WxD[: plan.rank])[0]
    law_WxW = frequency_W * np.exp(plan.contrast / np.sqrt(plan.rank) * left_WxD @ right_WxD.T)
    homograph_W = kind_W == "homograph"
    law_WxW[homograph_W[:, None] & homograph_W] = 0
    return law_WxW / law_WxW.sum(axis=1, keepdims=True)


def _stationary(transition_NxN: np.ndarray) -> np.ndarray:
    """Compute how often each state occurs in the long run."""
    states = len(transition_NxN)
    equations = np.concatenate([transition_NxN.T - np.eye(states), np.ones((1, states))])
    return np.linalg.lstsq(equations, np.append(np.zeros(states), 1))[0]


def sample_sentences(source: KnownSource, sentences: int, length: int, seed: int) -> np.ndarray:
    """Sample sentences: the beginning and `length` tokens after it; tokens_BxL."""
    rng = np.random.default_rng(seed)
    ends_NxN = np.cumsum(source.transition_NxN, axis=1)
    state_BxL = np.zeros((sentences, length + 1), np.int64)
    for place in range(length):
        ends_BxN = ends_NxN[state_BxL[:, place]]
        draw_Bx1 = rng.random((sentences, 1)) * ends_BxN[:, -1:]
        state_BxL[:, place + 1] = np.sum(ends_BxN <= draw_Bx1, axis=1)
    return source.token_N[state_BxL]


class KnownText(NamedTuple):
    """Files sampled from a source: text and vocabulary; and its pairs by class, as words."""

    text: Path
    vocabulary: Path
    pairs: dict[str, list[tuple[str, str]]]


def word_of(token: int) -> str:
    """Return three letters for a token; none is the beginning of another."""
    return "q" + chr(ord("a") + token // 26) + chr(ord("a") + token % 26)


def write_known_text(
    folder: Path,
    source: KnownSource,
    sentences: int = 60_000,
    length: int = 32,
    seed: int = 0,
) -> KnownText:
    """Sample sentences into `known.txt`, a paragraph each, and write a vocabulary of words."""
    tokens_BxL = sample_sentences(source, sentences, length, seed)[:, 1:].tolist()
    names = [word_of(token) for token in range(source.token_N.max() + 1)]
    paragraphs = (" ".join(names[token] for token in tokens_L) for tokens_L in tokens_BxL)
    folder.mkdir(parents=True, exist_ok=True)
    text, vocabulary = folder / "known.txt", folder / "vocab.txt"
    text.write_text("\n\n".join(paragraphs) + "\n")
    vocabulary.write_bytes(vocabulary_file([*SPECIAL_TOKENS, *names[1:]]))
    pairs = {
        kind: [(names[first], names[second]) for first, second in found]
        for kind, found in source.pairs.items()
    }
    return KnownText(text, vocabulary, pairs)
