"""Sample text from a source with known equivalences.

Sample sentences from a source whose equivalences are known by construction. NumPy only.

It is a chain of words of order 1, and each word is spelled as one token. Token 0 begins every
sentence and never comes again. What is planted (`KnownSource.pairs`, by the name of its class):

- "duplicate": a fair coin chooses the spelling. S 0, C 0, m 0.
- "skewed duplicate": so does a coin that is not fair. S 0, C 0, m the log of its odds.
- "allomorph": the token on the left chooses, as in a/an. S 0, C far.
- "antonym": a fair coin chooses, but the next word is permuted with some probability after the
  second. S far, C 0.
- "near neighbours": two words with like laws, which are not equivalent: what duplicates must be
  told from.
- "homograph": one token (the first of two pairs) spells two words, each of which has a spelling of
  its own, too: the second. Its meaning is told by the left token, so S varies over contexts.
- "plain": not planted: tokens with a word of their own, in pairs of neighbouring numbers.

So the chain of tokens is of order 1, too, but for the homograph. Its two words never follow each
other; so the last two tokens always tell the law of the next one.

Shapes: W words, N states (a token each, and the homograph twice), B sentences, L tokens.

Write a text sampled from a source of known equivalences; any text experiment can declare it as
its corpus.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxtie.text.data.vocabulary import SPECIAL_TOKENS, vocabulary_file

BEGINNING = 0
CLASSES = ("duplicate", "skewed duplicate", "allomorph", "antonym")


class Plan(NamedTuple):
    """What is planted, and how strong; as it stands, 256 tokens.

    Attributes:
      pairs: how many of each of `CLASSES`.
      near: pairs of near neighbours.
      plain: tokens that are nothing but themselves.
      homograph: whether there is one, with the two tokens that it is told from.
      skew: how often a skewed duplicate is spelled as its first token.
      follow: in [0, 1]: how often the left token chooses an allomorph's spelling; otherwise a fair
        coin does.
      permuted: in [0, 1]: how often the word after an antonym's second token is permuted.
      apart: in [0, 1]: how far near neighbours are apart, 1 for words that have nothing in common.
      contrast: how much the words differ in their laws: standard deviation of log-probabilities.
      rank: of the matrix of log-probabilities, but for the frequencies of words: the width that a
        model needs, about.
      aligned: whether words that are followed alike also follow alike, so that the distributional
        hypothesis holds of words, and what is planted alone breaks it; otherwise the two have
        nothing to do with each other.
      sides: how many ways there are to divide left tokens into those after which an allomorph is
        spelled as its second
        token, and others: pairs have them in turn. In a/an it is one, for all such pairs.
      seed: of all that is drawn.
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
    """The law of the states, and how they show.

    Attributes:
      transition_NxN: p(next state | state); state 0 is the beginning. The next states after it are
        in proportion to how often they occur, so the law is the same at every place.
      token_N: of each state.
      share_N: how often each state occurs among all but the beginning.
      pairs: class -> pairs of tokens, Px2.
    """

    transition_NxN: np.ndarray
    token_N: np.ndarray
    share_N: np.ndarray
    pairs: dict[str, np.ndarray]


def planted(plan: Plan) -> KnownSource:
    """The source of a plan; the same plan, the same source."""
    kinds = [*CLASSES, "near neighbours", "homograph", "plain"]
    kind_W = np.repeat(kinds, [*plan.pairs, 2 * plan.near, 2 * plan.homograph, plan.plain])
    word_N = np.repeat(
        np.arange(len(kind_W)), np.where(np.isin(kind_W, [*CLASSES, "homograph"]), 2, 1)
    )
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
    law_WxW = _law_of_words(plan, kind_W, rng)
    order_W, permuted_W = rng.permutation(len(kind_W)), np.empty(len(kind_W), int)
    permuted_W[order_W] = np.roll(order_W, 1)  # one cycle: no word stays what it is
    # which spelling of an allomorph comes after the word
    side_SxW = rng.choice([-1, 1], (plan.sides, len(kind_W)))
    near_P = np.flatnonzero(kind_W == "near neighbours")[::2]
    side_SxW[:, near_P + 1] = side_SxW[:, near_P]
    chance_N = np.select(
        [kind_N == "skewed duplicate", np.isin(kind_N, kinds[:-1]) & (kind_N != "near neighbours")],
        [np.where(second_N, 1 - plan.skew, plan.skew), 0.5],
        1.0,
    )
    leaning_N = np.where(kind_N == "allomorph", np.where(second_N, 0.5, -0.5) * plan.follow, 0)
    permuted_Nx1 = (plan.permuted * (second_N & (kind_N == "antonym")))[:, None]
    next_NxW = (1 - permuted_Nx1) * law_WxW[word_N] + permuted_Nx1 * law_WxW[word_N][:, permuted_W]
    side_NxN = side_SxW[word_N % plan.sides][:, word_N].T  # of a state, for the one after it
    transition_NxN = next_NxW[:, word_N] * (chance_N + side_NxN * leaning_N)
    share_N = _stationary(transition_NxN)
    transition_NxN = np.pad(np.concatenate([share_N[None], transition_NxN]), ((0, 0), (1, 0)))
    return KnownSource(transition_NxN, np.append(BEGINNING, token_N), np.append(0, share_N), pairs)


def _law_of_words(plan: Plan, kind_W: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """p(next word | word): frequencies, which fall as 1 / (rank + 10), times the exponential of a
    matrix of low rank.
    """
    words = len(kind_W)
    frequency_W = 1 / (rng.permutation(words) + 10)
    left_WxD, right_WxD = rng.normal(size=(2, words, plan.rank))
    near_P = np.flatnonzero(kind_W == "near neighbours")[::2]
    frequency_W[near_P + 1] = frequency_W[near_P]
    for side_WxD in (left_WxD, right_WxD):
        side_WxD[near_P + 1] *= plan.apart
        side_WxD[near_P + 1] += np.sqrt(1 - plan.apart**2) * side_WxD[near_P]
    # what follows a word and what it follows are one vector, turned: Q of as many of the other
    # draws
    if plan.aligned:
        right_WxD = left_WxD @ np.linalg.qr(right_WxD[: plan.rank])[0]
    law_WxW = frequency_W * np.exp(plan.contrast / np.sqrt(plan.rank) * left_WxD @ right_WxD.T)
    homograph_W = kind_W == "homograph"
    law_WxW[homograph_W[:, None] & homograph_W] = 0
    return law_WxW / law_WxW.sum(axis=1, keepdims=True)


def _stationary(transition_NxN: np.ndarray) -> np.ndarray:
    """How often each state occurs in the long run."""
    states = len(transition_NxN)
    equations = np.concatenate([transition_NxN.T - np.eye(states), np.ones((1, states))])
    return np.linalg.lstsq(equations, np.append(np.zeros(states), 1))[0]


def sample_sentences(source: KnownSource, sentences: int, length: int, seed: int) -> np.ndarray:
    """`tokens_BxL`: the beginning, and so many tokens after it."""
    rng = np.random.default_rng(seed)
    ends_NxN = np.cumsum(source.transition_NxN, axis=1)
    state_BxL = np.zeros((sentences, length + 1), np.int64)
    for place in range(length):
        ends_BxN = ends_NxN[state_BxL[:, place]]
        draw_Bx1 = rng.random((sentences, 1)) * ends_BxN[:, -1:]
        state_BxL[:, place + 1] = np.sum(ends_BxN <= draw_Bx1, axis=1)
    return source.token_N[state_BxL]


class KnownText(NamedTuple):
    """Files of a source: sentences, a paragraph each, and the vocabulary; and its pairs by class,
    as words.
    """

    text: Path
    vocabulary: Path
    pairs: dict[str, list[tuple[str, str]]]


def word_of(token: int) -> str:
    """Three letters for a token; none is the beginning of another."""
    return "q" + chr(ord("a") + token // 26) + chr(ord("a") + token % 26)


def write_known_text(
    folder: Path,
    source: KnownSource,
    sentences: int = 60_000,
    length: int = 32,
    seed: int = 0,
) -> KnownText:
    """Sample sentences into `known.txt`, and write `vocab.txt`, in which each token is a word."""
    tokens_BxL = sample_sentences(source, sentences, length, seed)[:, 1:]
    names = [word_of(token) for token in range(source.token_N.max() + 1)]
    folder.mkdir(parents=True, exist_ok=True)
    text, vocabulary = folder / "known.txt", folder / "vocab.txt"
    text.write_text(
        "\n\n".join(
            " ".join(names[token] for token in tokens_L) for tokens_L in tokens_BxL.tolist()
        )
        + "\n"
    )
    vocabulary.write_bytes(vocabulary_file([*SPECIAL_TOKENS, *names[1:]]))
    pairs = {
        kind: [(names[first], names[second]) for first, second in found]
        for kind, found in source.pairs.items()
    }
    return KnownText(text, vocabulary, pairs)
