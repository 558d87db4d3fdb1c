"""Two trained models of text -> both divergences of many pairs of tokens.

Shapes: V vocabulary, P pairs, N contexts of a token, K tokens asked about.
"""

import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xarray as xr

from jaxtie.advise import estimators, inference, judgement, swaps
from jaxtie.advise.models import Trained
from jaxtie.config import UserError
from jaxtie.results.folder import Say
from jaxtie.text.data.words import count_whole_words
from jaxtie.text.pairs import BEFORE, Stream, Windows, places_of, stream_of, windows_at
from jaxtie.tying.head import get_tables

TOKENS, CONTEXTS, MANTEL = 200, 32, 24
NEAREST_OF_TABLE, RANDOM = 5, 2
WHOLE = 0.9  # of its occurrences a token is a word by itself, to be one that is asked about
TOLD_EVERY = 15.0  # between two lines of progress
Found = Mapping[tuple[int, int], swaps.Swapped]


class Extent(NamedTuple):
    """How much is looked at: tokens asked about, contexts of each token of a pair, tokens of the
    Mantel correlation.
    """

    tokens: int = TOKENS
    contexts: int = CONTEXTS
    mantel: int = MANTEL
    seed: int = 0


class Measurement(NamedTuple):
    """What came out.

    Attributes:
      pairs: see `judgement.measured_pairs`.
      skipped: tokens that are seen too rarely to be asked about.
      found: (token, other) -> what the models make of the other one in its place.
      windows: token -> its contexts.
      words: names of all tokens.
    """

    pairs: xr.Dataset
    skipped: list[str]
    found: Found
    windows: Mapping[int, Windows]
    words: tuple[str, ...]


def check_two(a: Trained, b: Trained) -> None:
    """UserError where they do not speak of the same tokens, or are not asked in the same way."""
    if a.experiment.objective != b.experiment.objective:
        raise UserError(
            f"--second {b.folder}: is of a {b.experiment.objective} model, {a.folder} of a"
            f" {a.experiment.objective} one; expected two of one kind"
        )
    if a.material.vocabulary != b.material.vocabulary:
        raise UserError(
            f"--second {b.folder}: has another vocabulary than {a.folder}; expected two runs on one"
            " text, or with one --vocab"
        )


def check_tokens(tokens: int, vocabulary: int) -> None:
    """UserError where more tokens are asked about than there are."""
    if tokens > vocabulary:
        raise UserError(
            f"--tokens {tokens}: expected at most the vocabulary's {vocabulary:,} entries"
        )


def measure_text(a: Trained, b: Trained, plan: Extent, say: Say) -> Measurement:
    """Both divergences of the pairs that are worth a look, on the validation text of the first
    model.

    Raises:
      UserError: where the text has too few frequent tokens.
    """
    words, sep = a.material.vocabulary, a.material.text.special.sep
    stream, is_masked = stream_of(a.material.text.valid, sep), a.experiment.objective == "masked"
    places = (swaps.places_in_rows if is_masked else places_of)(stream, len(words))
    count_V = np.array([len(each) for each in places])
    whole_V = _whole_words(a)
    wanted = np.argsort(-count_V * whole_V, kind="stable")[: plan.tokens]
    token_K = wanted[(count_V[wanted] >= inference.SEEN) & whole_V[wanted]]
    skipped = [words[token] for token in wanted if token not in set(token_K.tolist())]
    asked, rare = _pairs(a, count_V, token_K, whole_V, plan)
    rng = np.random.default_rng(plan.seed)
    tokens = np.unique(asked.pair_Px2)
    windows = {}
    for token in tokens.tolist():
        chosen_N = _chosen(rng, stream, places[token], plan.contexts)
        if is_masked:
            windows[token] = swaps.masked_windows(stream, chosen_N, a.material.text.special, rng)
        else:
            windows[token] = windows_at(stream, chosen_N)
    others = defaultdict(list)
    for first, second in asked.pair_Px2.tolist():
        others[first].append(second)
        others[second].append(first)
    found = _swap_with_progress(a, b, windows, others, say)
    sums = [
        sums_of_pair(found, windows, *pair, is_masked=is_masked) for pair in asked.pair_Px2.tolist()
    ]
    say("nulls and intervals")
    pairs = judgement.measured_pairs(asked, sums, words, count_V, plan.seed)
    return Measurement(pairs, skipped + rare, found, windows, words)


def _whole_words(a: Trained) -> np.ndarray:
    """Which tokens stand for a word nearly always: no sign, no piece or beginning of a word, no
    duplicate.
    """
    words, train = a.material.vocabulary, a.material.text.train
    total_V = np.bincount(train.tokens_N, minlength=len(words))
    alone_V = count_whole_words(train, words)
    return (
        np.array([word.isalpha() for word in words]) & (alone_V >= WHOLE * total_V) & (total_V > 0)
    )


def _pairs(
    a: Trained, count_V: np.ndarray, token_K: np.ndarray, whole_V: np.ndarray, plan: Extent
) -> tuple[judgement.AskedPairs, list[str]]:
    """Which pairs are measured; and duplicates that are too rare to be."""
    input_VxD, output_VxD = map(
        np.asarray, get_tables(a.params["embedding"], a.model.embedding.untied_rows)
    )
    candidates = inference.pairs_to_look_at(
        input_VxD, output_VxD, count_V, token_K, whole_V, plan.seed, NEAREST_OF_TABLE, RANDOM
    )
    planted = a.material.planted
    planted_Qx2 = np.stack([planted.words_K, planted.duplicates_K], axis=1).astype(np.int64)
    seen_Q = np.all(count_V[planted_Qx2] >= inference.SEEN, axis=1)
    mantel_T = np.sort(
        token_K[np.linspace(0, len(token_K) - 1, min(plan.mantel, len(token_K))).astype(int)]
    )
    known = planted_Qx2[seen_Q], planted.probability_K[seen_Q]
    asked = judgement.all_asked(candidates, *known, np.unique(mantel_T))
    return asked, [name for name, seen in zip(planted.names, seen_Q) if not seen]


def _chosen(
    rng: np.random.Generator, stream: Stream, places_N: np.ndarray, number: int
) -> np.ndarray:
    """So many occurrences at random, of as many sentences as there are: sentences are what is
    independent.
    """
    mixed_N = rng.permutation(places_N)
    _, first_of = np.unique(stream.row_N[mixed_N], return_index=True)
    again = np.ones(len(mixed_N), bool)
    again[first_of] = False
    return mixed_N[np.argsort(again, kind="stable")][:number]


def _swap_with_progress(a: Trained, b: Trained, windows: dict, others: dict, say: Say) -> Found:
    total, found, last = sum(map(len, others.values())), {}, time.monotonic()
    models = a.model, b.model
    is_masked, mask = a.experiment.objective == "masked", a.material.text.special.mask
    swap = swaps.make_masked_swap(models, mask) if is_masked else swaps.make_swap(models)
    say(f"measuring {total:,} swaps of tokens, {len(windows):,} tokens; compiling")
    for token, other, each in swaps.swap_all(swap, (a.params, b.params), windows, others):
        found[token, other] = each
        if time.monotonic() - last > TOLD_EVERY:
            last = time.monotonic()
            say(f"measured {len(found):,} of {total:,} swaps")
    return found


def sums_of_pair(
    found: Found,
    windows: Mapping[int, Windows],
    first: int,
    second: int,
    *,
    is_masked: bool = False,
) -> judgement.Sums:
    """What was found of a pair, by sentence; as many contexts of either token."""
    of_first, of_second = found[first, second], found[second, first]
    number = min(len(windows[first].sentence_N), len(windows[second].sentence_N))

    def joined(one: np.ndarray, other: np.ndarray, axis: int) -> np.ndarray:
        return np.concatenate([np.take(x, np.arange(number), axis) for x in (one, other)], axis)

    sentence_N = joined(windows[first].sentence_N, windows[second].sentence_N, 0)
    log_first_2xN = joined(of_first.own_2xN, of_second.other_2xN, 1)
    log_second_2xN = joined(of_first.other_2xN, of_second.own_2xN, 1)
    cross_NxK = joined(of_first.cross_NxK, of_second.cross_NxK, 0).astype(np.float64)
    own_2xNxK = joined(of_first.own_2xNxK, of_second.own_2xNxK, 1).astype(np.float64)
    products, of_semantic_N = estimators.Products(cross_NxK, own_2xNxK), sentence_N
    if is_masked:  # either side is a context of its own: S² is their mean
        there_N, of_semantic_N = (
            np.isfinite(cross_NxK.ravel()),
            np.repeat(sentence_N, cross_NxK.shape[1]),
        )
        products = estimators.Products(
            cross_NxK.reshape(-1, 1)[there_N], own_2xNxK.reshape(2, -1, 1)[:, there_N]
        )
        of_semantic_N = of_semantic_N[there_N]
    return judgement.Sums(
        estimators.conditional_sums(log_first_2xN, log_second_2xN, sentence_N),
        estimators.semantic_sums(products, of_semantic_N),
    )


def example(measurement: Measurement, number: int, *, far: str) -> tuple[str, str]:
    """A context of each token of a pair, in words: where the two models agree most that the other
    one would not do.

    Args:
      far: the sense in which they are far, "conditional" or "semantic".
    """
    first, second = measurement.pairs["token"].values[number].tolist()
    return _example(measurement, first, second, far), _example(measurement, second, first, far)


def _example(measurement: Measurement, token: int, other: int, far: str) -> str:
    swapped, windows = measurement.found[token, other], measurement.windows[token]
    if far == "conditional":
        apart_N = (swapped.own_2xN - swapped.other_2xN).min(axis=0)
    else:
        apart_N = np.nansum(swapped.cross_NxK, axis=1)
    ids, words = windows.tokens_NxL[int(np.argmax(apart_N))], measurement.words
    middle, ids = (BEFORE, ids) if ids.ndim == 1 else (swaps.SIDE, ids[0])
    before, after = ids[middle - 6 : middle], ids[middle + 1 : middle + 5]
    return f"{_text(words, before)} [{words[token]}] {_text(words, after)}".strip()


def _text(words: tuple[str, ...], ids: np.ndarray) -> str:
    """Tokens as text; the end of a sentence is a bar, and a duplicate is the word that it stands
    for.
    """
    shown = (
        "|" if words[i] == "[SEP]" else words[i] for i in ids if words[i] not in ("[PAD]", "[CLS]")
    )
    return " ".join(word if len(word) == 1 else word.removesuffix("*") for word in shown).replace(
        " ##", ""
    )


def write_pairs(pairs: xr.Dataset, path: Path) -> None:
    """Write what was measured of pairs as NetCDF, which knows no booleans; what is there stays
    until all is written.
    """
    known = pairs.assign(
        {name: pairs[name].astype(np.int8) for name in pairs if pairs[name].dtype == bool}
    )
    temporary = path.with_name(f".{path.name}")
    known.to_netcdf(temporary, engine="h5netcdf")
    temporary.replace(path)
