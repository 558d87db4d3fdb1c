"""Write a text sampled from a source of known equivalences; any text experiment can declare it as
its corpus.
"""

from pathlib import Path
from typing import NamedTuple

from jaxtie.hypothesis import sources
from jaxtie.text.corpus.vocabulary import SPECIAL_TOKENS, vocabulary_file


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
    source: sources.KnownSource,
    sentences: int = 60_000,
    length: int = 32,
    seed: int = 0,
) -> KnownText:
    """Sample sentences into `known.txt`, and write `vocab.txt`, in which each token is a word."""
    tokens_BxL = sources.sample_sentences(source, sentences, length, seed)[:, 1:]
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
