"""Measure both divergences of many pairs of tokens with two trained models of text.

Shapes: V vocabulary, P pairs, N contexts of a token, K evaluated tokens.
"""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xarray as xr

from equivalence import estimators, inference, judgement, models, swaps
from equivalence.report import Answer
from equivalence.swaps import Windows, places_of, windows_at
from equivalence.trained import Trained, batches_of, check_gain, load_trained, mean_loss, planted_of
from jaxtie.config import check
from jaxtie.results.folder import Say
from jaxtie.text.data.tokens import count_whole_words
from jaxtie.text.pairs import BEFORE, Stream, stream_of
from jaxtie.tying.head import get_tables

WHOLE = 0.9  # minimum share of a token's occurrences that are whole words
VALIDATION = 100  # batches for the losses
LISTED = 20  # offenders of each kind
REPORT_EVERY = 15.0  # seconds between two lines of progress
MASKED_NOTE = (
    "Masked models, contexts on both sides: there tokens that are equally likely up to a constant"
    " have the same consequences. So the hypothesis can fail by constants alone, which an output"
    " bias carries, as long as single changes of tokens connect all contexts; pairs near in C and"
    " far in S are errors of the models, or differ outside of the context."
)
Found = Mapping[tuple[int, int], swaps.Swapped]


class Measurement(NamedTuple):
    """Measurements of all pairs."""

    pairs: xr.Dataset  # see `judgement.measured_pairs`
    skipped: list[str]  # tokens that are too rare to be evaluated
    found: Found  # (token, other) -> predictions with the other token in its place
    windows: Mapping[int, Windows]  # token -> its contexts
    words: tuple[str, ...]  # names of all tokens


def evaluate(paths: Sequence[Path], tokens: int, contexts: int, say: Say) -> Answer:
    """Load the models of two runs, measure the most frequent words and judge.

    The embeddings of a third run choose the pairs; without one, those of the first do.

    Raises:
      UserError: a run cannot be evaluated, the two do not match, or the text is too small.
    """
    check(
        paths[0].resolve() != paths[1].resolve(),
        f"--second {paths[1]}: is the first run; expected another model",
    )
    trained = a, b, *_ = [load_trained(path, say) for path in paths]
    one, other = (each.experiment.objective for each in (a, b))
    check(
        one == other,
        f"--second {b.folder}: is of a {other} model, {a.folder} of a {one} one; expected two of"
        " one kind",
    )
    check(
        a.corpus.vocabulary == b.corpus.vocabulary,
        f"--second {b.folder}: has another vocabulary than {a.folder}; expected two runs on one"
        " text, or with one --vocab",
    )
    models.check_tokens(tokens, len(a.corpus.vocabulary))
    validation = batches_of(a, a.corpus.text.valid, VALIDATION, seed=2)
    losses = [mean_loss(each, validation) for each in (a, b)]
    for each, loss in zip((a, b), losses):
        check_gain(each, loss, VALIDATION)
    measurement = measure_text(a, b, trained[-1 if len(trained) > 2 else 0], tokens, contexts, say)
    offenders = judgement.offenders(measurement.pairs, LISTED)
    examples = {
        int(i): example(measurement, int(i), far=far)
        for numbers, far in zip(offenders.values(), judgement.SENSES[::-1])
        for i in numbers
    }
    notes = [f"Validation loss of the two models: {losses[0]:.3f} and {losses[1]:.3f} nat."]
    notes += _notes(a, b, measurement.skipped)
    verdict = judgement.verdict(measurement.pairs)
    return Answer(measurement.pairs, verdict, offenders, examples, measurement.skipped, notes)


def _notes(a: Trained, b: Trained, skipped: list[str]) -> list[str]:
    """Return caveats for the reader."""
    notes = []
    if a.experiment.objective == "masked":
        notes.append(MASKED_NOTE)
    if skipped:
        notes.append(f"Skipped, seen fewer than {inference.SEEN} times: {', '.join(skipped)}.")
    halves = {getattr(each.experiment, "half", None) for each in (a, b)}
    if a.corpus.text.key != b.corpus.text.key:
        notes.append(
            "The two runs had different texts: the second may have seen some of the evaluated"
            " sentences."
        )
    elif None in halves or len(halves) == 1:
        notes.append(
            "Both models saw the same sentences: what these have by chance in common is not"
            " distinguished from the truth."
        )
    if not len(planted_of(a).words_K):
        notes.append(
            "There are no synthetic duplicates: nulls and intervals know nothing of errors that all"
            " sentences share."
        )
    return notes


def measure_text(
    a: Trained, b: Trained, chooser: Trained, tokens: int, contexts: int, say: Say
) -> Measurement:
    """Measure pairs of the most frequent words on the validation text of the first model.

    The embeddings of `chooser` say which pairs are near.

    Raises:
      UserError: the text has too few frequent tokens.
    """
    words, special = a.corpus.vocabulary, a.corpus.text.special
    is_masked = a.experiment.objective == "masked"
    stream = stream_of(a.corpus.text.valid, special.sep)
    places = (swaps.places_in_rows if is_masked else places_of)(stream, len(words))
    selected, skipped = _select(chooser, places, tokens)
    rng = np.random.default_rng(0)
    windows = {}
    for token in np.unique(selected["token"]).tolist():
        chosen_N = _choose_places(rng, stream, places[token], contexts)
        if is_masked:
            windows[token] = swaps.masked_windows(stream, chosen_N, special, rng)
        else:
            windows[token] = windows_at(stream, chosen_N)
    others = defaultdict(list)
    for first, second in selected["token"].values.tolist():
        others[first].append(second)
        others[second].append(first)
    found = _swap_with_progress(a, b, windows, others, say)
    numbers = selected["token"].values.tolist()
    sums = [sums_of_pair(found, windows, *pair, is_masked=is_masked) for pair in numbers]
    say("p-values and intervals")
    pairs = judgement.measured_pairs(selected, sums)
    return Measurement(pairs, skipped, found, windows, words)


def _select(
    chooser: Trained, places: list[np.ndarray], tokens: int
) -> tuple[xr.Dataset, list[str]]:
    """Select the pairs to measure; return them and the tokens that are too rare."""
    words, train, planted = (
        chooser.corpus.vocabulary,
        chooser.corpus.text.train,
        planted_of(chooser),
    )
    count_V = np.array([len(each) for each in places])
    total_V = np.bincount(train.tokens_N, minlength=len(words))
    # Whole words: no punctuation, no word pieces, no synthetic duplicates.
    whole_V = np.array([word.isalpha() for word in words]) & (total_V > 0)
    whole_V &= count_whole_words(train, words) >= WHOLE * total_V
    wanted = np.argsort(-count_V * whole_V, kind="stable")[:tokens]
    token_K = wanted[(count_V[wanted] >= inference.SEEN) & whole_V[wanted]]
    skipped = [words[token] for token in wanted if token not in set(token_K.tolist())]
    tables = get_tables(chooser.params["embedding"], chooser.model.embedding.untied_rows)
    input_VxD, output_VxD = map(np.asarray, tables)
    candidates = inference.candidate_pairs(input_VxD, output_VxD, count_V, token_K, whole_V)
    duplicate_Qx2 = np.stack([planted.words_K, planted.duplicates_K], axis=1).astype(np.int64)
    seen_Q = np.all(count_V[duplicate_Qx2] >= inference.SEEN, axis=1)
    skipped += [name for name, seen in zip(planted.names, seen_Q) if not seen]
    selected = judgement.select_pairs(
        candidates, duplicate_Qx2[seen_Q], planted.probability_K[seen_Q], words, count_V
    )
    return selected, skipped


def _choose_places(
    rng: np.random.Generator, stream: Stream, places_N: np.ndarray, number: int
) -> np.ndarray:
    """Draw occurrences from as many different sentences as possible."""
    mixed_N = rng.permutation(places_N)
    _, first_of = np.unique(stream.row_N[mixed_N], return_index=True)
    again = np.ones(len(mixed_N), bool)
    again[first_of] = False
    return mixed_N[np.argsort(again, kind="stable")][:number]


def _swap_with_progress(a: Trained, b: Trained, windows: dict, others: dict, say: Say) -> Found:
    total, found, last = sum(map(len, others.values())), {}, time.monotonic()
    is_masked = a.experiment.objective == "masked"
    swap = swaps.make_swap((a.model, b.model), a.corpus.text.special.mask if is_masked else None)
    say(f"measuring {total:,} swaps of tokens, {len(windows):,} tokens; compiling")
    for token, other, each in swaps.swap_all(swap, (a.params, b.params), windows, others):
        found[token, other] = each
        if time.monotonic() - last > REPORT_EVERY:
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
    """Sum the measurements of a pair by sentence, with equally many contexts of either token."""
    of_first, of_second = found[first, second], found[second, first]
    number = min(len(windows[first].sentence_N), len(windows[second].sentence_N))

    def joined(one: np.ndarray, other: np.ndarray, axis: int) -> np.ndarray:
        return np.concatenate([np.take(x, np.arange(number), axis) for x in (one, other)], axis)

    sentence_N = joined(windows[first].sentence_N, windows[second].sentence_N, 0)
    log_first_2xN = joined(of_first.log_true_2xN, of_second.log_other_2xN, 1)
    log_second_2xN = joined(of_first.log_other_2xN, of_second.log_true_2xN, 1)
    conditional = estimators.conditional_sums(log_first_2xN, log_second_2xN, sentence_N)
    cross_NxK = joined(of_first.cross_NxK, of_second.cross_NxK, 0).astype(np.float64)
    own_2xNxK = joined(of_first.own_2xNxK, of_second.own_2xNxK, 1).astype(np.float64)
    if is_masked:  # each side is a context of its own: S² is their mean
        sentence_N = np.repeat(sentence_N, cross_NxK.shape[1])
        present_N = np.isfinite(cross_NxK.ravel())
        sentence_N, cross_NxK = sentence_N[present_N], cross_NxK.reshape(-1, 1)[present_N]
        own_2xNxK = own_2xNxK.reshape(2, -1, 1)[:, present_N]
    semantic = estimators.semantic_sums(cross_NxK, own_2xNxK, sentence_N)
    return judgement.Sums(conditional, semantic)


def example(measurement: Measurement, number: int, *, far: str) -> tuple[str, str]:
    """Return a context of each token of a pair: where both models most reject the other token.

    `far` is the sense in which the tokens are far apart, "conditional" or "semantic".
    """
    first, second = measurement.pairs["token"].values[number].tolist()
    return _example(measurement, first, second, far), _example(measurement, second, first, far)


def _example(measurement: Measurement, token: int, other: int, far: str) -> str:
    swapped, windows = measurement.found[token, other], measurement.windows[token]
    if far == "conditional":
        distance_N = (swapped.log_true_2xN - swapped.log_other_2xN).min(axis=0)
    else:
        distance_N = np.nansum(swapped.cross_NxK, axis=1)
    ids, words = windows.tokens_NxL[int(np.argmax(distance_N))], measurement.words
    middle, ids = (BEFORE, ids) if ids.ndim == 1 else (swaps.SIDE, ids[0])
    before, after = ids[middle - 6 : middle], ids[middle + 1 : middle + 5]
    return f"{_text(words, before)} [{words[token]}] {_text(words, after)}".strip()


def _text(words: tuple[str, ...], ids: np.ndarray) -> str:
    """Join tokens: a bar for the end of a sentence, the word for a synthetic duplicate."""
    shown = (words[i].replace("[SEP]", "|") for i in ids if words[i] not in ("[PAD]", "[CLS]"))
    text = " ".join(word if len(word) == 1 else word.removesuffix("*") for word in shown)
    return text.replace(" ##", "")
