"""The blind test, carried out: a text of each source, two models, all pairs measured; then counted.

Killed at any time and started again it goes on; what is finished is left as it is. A folder holds, for each source,
`NAME/text`, `NAME/A`, `NAME/B` (runs as any) and `NAME/pairs.nc` (all that is measured); of all together `kinds.csv`,
`answers.csv` and `summary.md`.
"""

import dataclasses
import time
from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr

from jaxtie import runs
from jaxtie.experiment import check
from jaxtie.hypothesis import blind, inference, judgement, sources
from jaxtie.hypothesis.blind import COUNTED, BlindSource, BlindTest
from jaxtie.instrument import of_price, of_text
from jaxtie.instrument.known import class_of_pairs, told, word_of, write_known_text
from jaxtie.results.folder import RunFolder
from jaxtie.runs import Outcome, Session
from jaxtie.text.declaration import Corpus
from jaxtie.text.trained import batches_of, check_knows_more_than_frequencies, load_trained, losses
from jaxtie.text.two_models import NAMES, two_models

EXACT_PLACES = 33  # of a sentence, in the first of which exact values are taken


def carry_out_blind(test: BlindTest, out: Path, session: Session) -> Outcome:
    """Train and ask what is not there yet.

    Raises:
      UserError: where the folder holds runs that differ.
    """
    todo = [each for each in test.sources if session.overwrite or not _is_measured(test, each, out)]
    for number, source in enumerate(todo):
        session.say(f"source {len(test.sources) - len(todo) + number + 1} of {len(test.sources)}: {source.name}")
        if _train_and_measure(test, source, out / source.name, session) is Outcome.INTERRUPTED:
            return Outcome.INTERRUPTED
        count(test, out)
    count(test, out)
    return Outcome.DONE if todo else Outcome.BEFORE


def _is_measured(test: BlindTest, source: BlindSource, out: Path) -> bool:
    """Whether all of a source is there; UserError where what is there was declared otherwise."""
    path = out / source.name / "pairs.nc"
    if not path.exists():
        return False
    with xr.open_dataset(path, engine="h5netcdf") as pairs:
        check(
            pairs.attrs["source"] == test.told(source),
            f"{path}: was declared otherwise; choose another --out, or --overwrite",
        )
    return True


def _train_and_measure(test: BlindTest, source: BlindSource, folder: Path, session: Session) -> Outcome:
    law = sources.planted(source.plan)
    text = write_known_text(folder / "text", law, test.sentences, test.length, source.plan.seed)
    corpus = Corpus(paths=(str(text.text),), vocab=str(text.vocabulary))
    own = dataclasses.replace(session, draws=False)
    for name, declared in zip(NAMES, two_models(corpus, test.size, test.steps)):
        if runs.carry_out(declared, RunFolder(folder / name), own) is Outcome.INTERRUPTED:
            return Outcome.INTERRUPTED
    began = time.process_time()
    a, b = (load_trained(folder / name, session.say) for name in NAMES)
    validation = batches_of(a, a.material.text.valid, of_price.VALIDATION, seed=2)
    found = [losses(each, validation).mean for each in (a, b)]
    for each, loss in zip((a, b), found):
        check_knows_more_than_frequencies(each, loss)
    seen_V = np.bincount(np.asarray(a.material.text.valid.tokens_N), minlength=len(a.material.vocabulary))
    seen = {word: seen_V[i] for i, word in enumerate(a.material.vocabulary)}
    asked = [pair for kind in text.pairs.values() for pair in kind if min(seen[word] for word in pair) >= inference.SEEN]
    pairs = of_text.measure_text(a, b, of_text.Extent(), session.say, asked).pairs
    pairs.attrs |= {"loss_a": found[0], "loss_b": found[1], "best_loss": sources.entropy_rate(law)}
    pairs.attrs |= {"processor_seconds": time.process_time() - began, "source": test.told(source)}
    of_text.write_pairs(pairs, folder / "pairs.nc")
    return Outcome.DONE


def count(test: BlindTest, out: Path) -> blind.Counted | None:
    """All that is finished, in two files; None where nothing is."""
    kinds, answers = [], []
    for source in test.sources:
        if not (path := out / source.name / "pairs.nc").exists():
            continue
        pairs = xr.load_dataset(path, engine="h5netcdf")
        if pairs.attrs["source"] == test.told(source):
            kinds += counts_of(pairs, source)
            answers.append(_answer_of(pairs, source.name))
    if not answers:
        return None
    for name, rows, columns in zip(COUNTED, (kinds, answers), (blind.KINDS, blind.ANSWERS)):
        pd.DataFrame(rows, columns=list(columns)).to_csv(out / name, index=False, float_format="%.4g")
    return blind.counted(test, *(pd.read_csv(out / name) for name in COUNTED))


def _answer_of(pairs: xr.Dataset, name: str) -> tuple:
    near = pairs.assign(near=pairs["near"].astype(bool))
    answers = []
    for found in (judgement.near_in_both(near), judgement.verdict(near)):
        answers += [found.word, *(value for share in found[1:] for value in share)]
    return (name, *answers, *(pairs.attrs[what] for what in blind.ANSWERS[-4:]))


def counts_of(pairs: xr.Dataset, source: BlindSource) -> list[tuple]:
    """Rows of `blind.KINDS`, one for each kind of pairs that the source has."""
    law = sources.planted(source.plan)
    known = {kind: [(word_of(one), word_of(other)) for one, other in found] for kind, found in law.pairs.items()}
    kind_P, told_P = class_of_pairs(pairs, known), told(pairs)
    relative = [pairs[f"{sense}_relative"].values for sense in judgement.SENSES]
    neighbours_P = (kind_P == "") & pairs["near"].values.astype(bool) & (pairs["planted"].values == 0)
    hard_P, variance_P = neighbours_P | (kind_P == "near neighbours"), pairs["semantic_variance"].values
    rest_P = neighbours_P | ((kind_P != "") & (kind_P != "homograph") & (kind_P != "plain"))
    rows = []
    for kind in blind.KINDS_LOOKED_AT:
        own_P = neighbours_P if kind == blind.NEIGHBOURING else kind_P == kind
        if not own_P.any():
            continue
        areas = [np.nan] * 4
        if kind in sources.CLASSES[:2]:
            areas[:3] = [judgement.auc(x[own_P], x[hard_P]) for x in (*relative, np.maximum(*relative))]
        if kind == "homograph":
            areas[3] = judgement.auc(-variance_P[own_P], -variance_P[rest_P])
        there = int(own_P.sum())
        rare = 0 if kind == blind.NEIGHBOURING else len(known[kind]) - there
        counts = [int(np.sum(told_P[own_P] == each)) for each in blind.TOLD]
        medians = [float(np.nanmedian(x[own_P])) for x in relative]
        exact = _beside_exact(pairs, law, own_P) if kind != blind.NEIGHBOURING else [np.nan] * 12
        rows.append((source.name, kind, there, rare, *counts, *areas, *exact, *medians))
    return rows


def _beside_exact(pairs: xr.Dataset, law: sources.KnownSource, own_P: np.ndarray) -> list[float]:
    """Of each sense: intervals that cover the exact value, out of how many, medians measured and exact; of |m| the same."""
    own = pairs.isel(pair=np.flatnonzero(own_P))
    number = {word_of(token): token for token in range(law.token_N.max() + 1)}
    tokens_Px2 = np.array([[number[word] for word in pair] for pair in zip(own["first"].values, own["second"].values)])
    conditional, semantic = sources.exact(law, tokens_Px2, EXACT_PLACES)
    found = []
    for sense, exact in zip(judgement.SENSES, (semantic.divergence, conditional.divergence)):
        exact = np.where(np.abs(exact) < 1e-9, 0, exact)
        by_rule = [
            _ends(pairs, sense, scale)[:, own_P] for scale in (pairs[f"{sense}_level"].values, judgement.rarity_of(pairs))
        ]
        is_there_P = np.isfinite(exact) & np.isfinite(by_rule[0]).all(axis=0)
        found += [int(np.sum((low_P <= exact) & (exact <= high_P) & is_there_P)) for low_P, high_P in by_rule]
        found += [int(is_there_P.sum()), np.nanmedian(own[sense].values), np.nanmedian(exact)]
    return [*found, np.nanmedian(np.abs(own["bias"].values)), np.nanmedian(np.abs(conditional.bias))]


def _ends(pairs: xr.Dataset, sense: str, scale_P: np.ndarray) -> np.ndarray:
    """Ends of all intervals with shared errors in proportion to a scale: the level until the blind test, now rarity."""
    sampling = [pairs[f"{sense}_sampling_{what}"].values for what in ("variance", "low", "high")]
    planted_P = pairs["planted"].values > 0
    return judgement.with_shared_errors(pairs[sense].values, sampling[0], np.array(sampling[1:]), scale_P, planted_P).ends_2xP
