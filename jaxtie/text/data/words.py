"""The most frequent words of a text, or the published list of them."""

from collections.abc import Sequence

import numpy as np

from jaxtie.config import UserError
from jaxtie.text.data.batches import Rows, Special
from jaxtie.text.data.tokens import Text

ROWS_AT_A_TIME = 2**16
BERT_ENTRIES = 30_522
# The published list (paper's code), its "I" in lower case.
PUBLISHED_WORDS = tuple(
    """the be to of and a in that have i it for not on with he as you do at this but his by from
    they we say her she or an will my one all would there their what so up out if about who get
    which go me when make can like time no just him know take people into year your good some
    could them see other than then now look only come its over think also back after use two how
    our work first well way even new want because any these give day most us""".split()
)


def frequent_words(text: Text, count: int = 100) -> tuple[np.ndarray, tuple[str, ...]]:
    """The most frequent words of the training split that are single tokens, most frequent first:
    their ids, int32, and they.

    Words are of letters alone. A token counts where no `##` continues it and no apostrophe is
    before it (the s of "it's" is no word). A text with BERT's own vocabulary of 30,522 entries gets
    those of the published list instead, if they are enough.

    Raises:
      UserError: where there are fewer.
    """
    ids = {token: i for i, token in enumerate(text.vocabulary)}
    published = count <= len(PUBLISHED_WORDS)
    if (
        published
        and len(ids) == BERT_ENTRIES
        and text.special == Special(0, 100, 101, 102, 103)
        and ids.keys() >= set(PUBLISHED_WORDS)
    ):
        words = PUBLISHED_WORDS[:count]
    else:
        is_word = np.array([token.isalpha() for token in text.vocabulary])
        frequency = count_whole_words(text.train, text.vocabulary)
        order = np.argsort(-frequency * is_word, kind="stable")[:count]
        words = tuple(text.vocabulary[i] for i in order if is_word[i] and frequency[i])
    if len(words) < count:
        raise UserError(
            f"text: only {len(words)} of its words are single tokens, {count} are needed; take more"
            " text"
        )
    return np.array([ids[word] for word in words], np.int32), words


def chosen_words(text: Text, words: int | Sequence[str]) -> tuple[np.ndarray, tuple[str, ...]]:
    """So many frequent words, or just these: their ids, int32, and they.

    Raises:
      UserError: where there are fewer, or the text lacks one of these as a single token.
    """
    if isinstance(words, int):
        return frequent_words(text, words)
    ids = {token: i for i, token in enumerate(text.vocabulary)}
    known = {word: ids[word] for word in words if word in ids}
    count_V = np.bincount(np.asarray(text.train.tokens_N), minlength=len(ids))
    if missing := [word for word in words if word not in known or not count_V[known[word]]]:
        shown = ", ".join(missing[:8]) + (
            f" and {len(missing) - 8} more" if len(missing) > 8 else ""
        )
        raise UserError(
            f"words: the text to train on has no token {shown}; leave these out, or give more text"
        )
    return np.array([known[word] for word in words], np.int32), tuple(words)


def count_whole_words(rows: Rows, vocabulary: tuple[str, ...]) -> np.ndarray:
    """How often each token stands with no `##` behind it and no apostrophe before it."""
    continues = np.array([token.startswith("##") for token in vocabulary])
    apostrophe = np.array([token in ("'", "’") for token in vocabulary])
    frequency = np.zeros(len(vocabulary), np.int64)
    for row in range(0, rows.count, ROWS_AT_A_TIME):
        bounds = rows.offsets[row : row + ROWS_AT_A_TIME + 1]
        here = rows.tokens_N[bounds[0] : bounds[-1]]
        no_word, ends = np.zeros(len(here), bool), bounds[1:] - bounds[0] - 1
        no_word[:-1] = continues[here[1:]]
        no_word[ends] = False  # nothing goes on over the end of a row
        after = np.append(False, apostrophe[here[:-1]])
        after[ends[:-1] + 1] = False
        frequency += np.bincount(here[~(no_word | after)], minlength=len(vocabulary))
    return frequency
