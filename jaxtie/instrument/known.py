"""A source of known truth as a text that the instrument reads like any other, and how well it tells the planted classes.

Shapes: P pairs.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xarray as xr

from jaxtie.hypothesis import judgement, sources
from jaxtie.hypothesis.blind import OTHER
from jaxtie.results.tables import Table
from jaxtie.text.corpus.vocabulary import SPECIAL_TOKENS, vocabulary_file

SAMPLED, LENGTH = 60_000, 32  # of the text that proves the instrument
SKEWED_FROM = math.log(3)  # nats: from an |m| above it a duplicate is a skewed one


class Truth(NamedTuple):
    """A source, and its pairs by class, as words."""

    source: sources.KnownSource
    pairs: dict[str, list[tuple[str, str]]]


def proof_tables(pairs: xr.Dataset, truth: Truth) -> list[Table]:
    """What was found, beside what was planted."""
    return [confusion_table(pairs, truth.pairs), exact_comparison(pairs, truth.source, truth.pairs)]


class KnownText(NamedTuple):
    """Files of a source: sentences, a paragraph each, and the vocabulary; and its pairs by class, as words."""

    text: Path
    vocabulary: Path
    pairs: dict[str, list[tuple[str, str]]]


def word_of(token: int) -> str:
    """Three letters for a token; none is the beginning of another."""
    return "q" + chr(ord("a") + token // 26) + chr(ord("a") + token % 26)


def write_known_text(folder: Path, source: sources.KnownSource, sentences: int, length: int, seed: int = 0) -> KnownText:
    """Sample sentences into `known.txt`, and write `vocab.txt`, in which each token is a word."""
    tokens_BxL = sources.sample_sentences(source, sentences, length, seed)[:, 1:]
    names = [word_of(token) for token in range(source.token_N.max() + 1)]
    folder.mkdir(parents=True, exist_ok=True)
    text, vocabulary = folder / "known.txt", folder / "vocab.txt"
    text.write_text("\n\n".join(" ".join(names[token] for token in tokens_L) for tokens_L in tokens_BxL.tolist()) + "\n")
    vocabulary.write_bytes(vocabulary_file([*SPECIAL_TOKENS, *names[1:]]))
    pairs = {kind: [(names[first], names[second]) for first, second in found] for kind, found in source.pairs.items()}
    return KnownText(text, vocabulary, pairs)


def told(pairs: xr.Dataset) -> np.ndarray:
    """The class of every pair by what is measured of it: near or far in S, near or far in C, how large m is."""
    near_S, near_C = (pairs[f"{sense}_relative"].values < judgement.NEAR for sense in judgement.SENSES)
    skewed_P = np.abs(pairs["bias"].values) > SKEWED_FROM
    duplicate, skewed, allomorph, antonym = sources.CLASSES
    cases = {
        duplicate: near_S & near_C & ~skewed_P,
        skewed: near_S & near_C & skewed_P,
        allomorph: near_S & ~near_C,
        antonym: ~near_S & near_C & ~skewed_P,
    }
    return np.select(list(cases.values()), list(cases), OTHER)


def class_of_pairs(pairs: xr.Dataset, known: Mapping[str, list[tuple[str, str]]]) -> np.ndarray:
    """What each measured pair was planted as; "" of one that was not."""
    kind_of = {frozenset(pair): kind for kind, found in known.items() for pair in found}
    names = zip(pairs["first"].values, pairs["second"].values)
    return np.array([kind_of.get(frozenset(pair), "") for pair in names], object)


def confusion_table(pairs: xr.Dataset, known: Mapping[str, list[tuple[str, str]]]) -> Table:
    """What was planted by what it was told to be; and AUC of S², of C² and of the larger of both against hard negatives."""
    kind_P, told_P = class_of_pairs(pairs, known), told(pairs)
    relative = [pairs[f"{sense}_relative"].values for sense in judgement.SENSES]
    hard_P = (kind_P == "near neighbours") | ((kind_P == "") & pairs["near"].values & (pairs["planted"].values == 0))
    rows = []
    for kind in (*sources.CLASSES, "near neighbours", "homograph"):
        own_P = kind_P == kind
        shown = [str(int(np.sum(told_P[own_P] == each))) for each in (*sources.CLASSES, OTHER)]
        areas = [judgement.auc(x[own_P], x[hard_P]) for x in (*relative, np.maximum(*relative))]
        rows.append((kind, str(int(own_P.sum())), *shown, *(f"{area:.2f}" for area in areas)))
    hard = [str(int(np.sum(told_P[hard_P] == each))) for each in (*sources.CLASSES, OTHER)]
    rows.append(("neighbours in a table", str(int(hard_P.sum())), *hard, "", "", ""))
    header = ("planted", "pairs", *sources.CLASSES, OTHER, "AUC of S²", "of C²", "of the larger")
    note = (
        f"Told by thresholds that were fixed before: near below {judgement.NEAR} of unrelated pairs, skewed above |m| ln 3. "
        "AUC: against near neighbours and neighbours in the tables."
    )
    return Table("Planted classes", header, rows, note)


def exact_comparison(pairs: xr.Dataset, source: sources.KnownSource, known: Mapping[str, list[tuple[str, str]]]) -> Table:
    """Medians of each class beside the exact ones, in the first 33 places of a sentence."""
    kind_P, rows = class_of_pairs(pairs, known), []
    for kind in (*sources.CLASSES, "near neighbours", "homograph"):
        own = pairs.isel(pair=np.flatnonzero(kind_P == kind))
        conditional, semantic = sources.exact(source, source.pairs[kind], 33)
        cells = [str(len(own["first"]))]
        for found, exact in (
            (own["semantic"].values, semantic.divergence),
            (own["conditional"].values, conditional.divergence),
            (np.abs(own["bias"].values), np.abs(conditional.bias)),
        ):
            cells.append(f"{np.median(found):.3f} ({np.median(exact):.3f})" if len(found) else "–")
        for sense, exact in (("semantic", semantic.divergence), ("conditional", conditional.divergence)):
            is_0 = np.all(np.abs(exact) < 1e-9)
            covers_P = (own[f"{sense}_low"].values <= 0) & (own[f"{sense}_high"].values >= 0)
            cells.append(f"{np.mean(covers_P):.0%}" if is_0 and len(covers_P) else "–")
        rows.append((kind, *cells))
    header = ("planted", "pairs", "S²", "C²", "|m|", "S² covers 0", "C² covers 0")
    note = "Medians over pairs; share of 95 % intervals that cover 0 where it is 0. None of these pairs made the intervals."
    return Table("Measured, and exact in brackets", header, rows, note)
