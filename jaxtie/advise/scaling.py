"""Advice by pilots: read the target, train, answer. Imports jax only to train."""

import json
import re
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from jaxtie.advise import answer, pilots
from jaxtie.config import UserError, check, check_path
from jaxtie.results.folder import RunFolder, replacing
from jaxtie.results.statistics import mean_interval
from jaxtie.results.tables import json_numbers, print_tables, with_interval
from jaxtie.run.experiment_files import installed_data
from jaxtie.run.lifecycle import Session
from jaxtie.text.config import Corpus
from jaxtie.text.gap_model import Size

VOCAB_SIZE = 2_048  # of trained vocabularies
PARAGRAPHS = 10**9  # documents from which on a document is in one split: the split is by paragraph
PLAN = "plan.json"
COUNTS = ("step", "iter", "epoch", "tokens")  # columns of logs that are no losses
# Names of width, layers and vocabulary in configurations on the hub.
CONFIG_NAMES = {
    "width": ("hidden_size", "n_embd", "d_model", "dim"),
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "vocabulary": ("vocab_size",),
}


@cache
def committed_members() -> pd.DataFrame:
    """Return the members of `experiments/tying_gap_on_text.py`, which come with the package."""
    return pd.read_csv(installed_data("tying-gap-on-text.csv"))


def advise(options: Any, session: Session) -> int:
    """Train pilots on a text and answer; return the exit status."""
    from jaxtie.text.data.tokens import prepare_text

    target = read_target(options)
    corpus = Corpus(
        paths=tuple(map(str, options.text)),
        tfds=options.tfds,
        field=options.text_field or Corpus.field,
        document=options.document,
        skip_bad=options.skip_bad,
        vocab=str(options.vocab) if options.vocab else None,
        vocab_size=options.vocab_size or VOCAB_SIZE,
        documents_to_split=PARAGRAPHS,
    )
    for path in corpus.paths:
        check_path(Path(path))
    out = options.out or Path(f"runs/advise-{corpus.label}")
    check(not RunFolder(out).config(), f"--out {out}: holds a run; choose another folder")
    text = prepare_text(corpus, say=session.say)
    tokens = text.report.tokens["train"] + text.report.rows["train"]  # each row ends by [SEP]
    plan = _plan(corpus, tokens, options, out, session)
    if options.dry_run:
        return 0
    members = pilots.train_pilots(plan, corpus, committed_members(), out / "pilots", session)
    largest = Size(*members[list(Size._fields)].max())
    same = re.sub(r" --(minutes[ =]\S+|overwrite)", "", session.command)
    retry = f"{same} --minutes {4 * options.minutes:g} --overwrite"
    found = answer.make_answer(
        members,
        committed_members(),
        pd.read_csv(installed_data("published-comparisons.csv")),
        largest._replace(**target),
        retry,
    )
    answer.write(found, out, session.command)
    if options.json:
        print(json.dumps(json_numbers(found.as_dict())))
        return 0
    print(*found.sentences, sep="\n")
    print_tables(*found.tables)
    print(f"Figure: {out / 'figures' / 'answer.png'}; summary: {out / 'summary.md'}")
    return 0


def _plan(corpus: Corpus, tokens: int, options: Any, out: Path, session: Session) -> pilots.Plan:
    """Return the plan of the folder, or make one, so that a resumed command has the same."""
    path, asked = out / PLAN, {"minutes": options.minutes, "tokens": tokens}
    if path.exists() and not options.overwrite:
        try:
            found = json.loads(path.read_text())
            plan = pilots.Plan(**found.pop("plan"))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UserError(f"{path}: cannot be read as a plan; remove it") from None
        differ = [name for name in asked if found.get(name) != asked[name]]
        check(
            not differ,
            f"--out {out}: holds pilots of other {' and '.join(differ)}; choose another --out, or"
            " --overwrite it",
        )
        return plan
    rates = pilots.Rates.fit(committed_members())
    of_step = pilots.measure_speed(corpus, rates, out, session)
    epoch = tokens / (pilots.BATCH * pilots.LENGTH)
    plan = pilots.make_plan(of_step, epoch, options.minutes)
    session.say(
        f"plan: {2 * len(plan.pilots)} runs of {plan.seeds} seeds; width"
        f" {', '.join(map(str, pilots.WIDTHS))}, {plan.pilots[-1].tokens:,} and"
        f" {plan.pilots[0].tokens:,} tokens ({plan.steps / epoch:.2g} epochs); about"
        f" {plan.seconds(of_step) / 60:.0f} minutes"
    )
    if not options.dry_run:
        out.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(asked | {"plan": plan._asdict()}))
    return plan


def read_target(options: Any) -> dict[str, float]:
    """Return the given fields of the target's size; options override the configuration."""
    found = read_config(options.config) if options.config else {}
    given = {name: getattr(options, name) for name in Size._fields}
    return found | {name: value for name, value in given.items() if value is not None}


def read_config(path: Path) -> dict[str, int]:
    """Return width, layers and vocabulary from a model's `config.json`.

    Raises:
      UserError: where it cannot be read or lacks one.
    """
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        config = config | (config.get("text_config") or {})
    except (OSError, ValueError, RecursionError, TypeError, AttributeError):
        raise UserError(f"--config {path}: expected a model's config.json") from None
    found: dict[str, int] = {}
    for name, keys in CONFIG_NAMES.items():
        value = next((config[key] for key in keys if key in config), None)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UserError(f"--config {path}: has no {keys[0]}; give --{name} N")
        found[name] = value
    return found


def answer_from_logs(tied: Path, untied: Path, *, as_json: bool) -> int:
    """Answer from files of final losses; print it and return the exit status."""
    losses = [read_losses(path) for path in (tied, untied)]
    gap, half = difference(*losses)
    shown = with_interval(gap - half, gap, gap + half, lambda value: f"{value:+.4f}")
    margin = answer.MARGIN
    if np.isnan(half):
        advice = "not decided: one seed says nothing about the next; train at least two of each"
    elif gap + half <= margin:
        advice = "tie the embeddings"
    elif gap - half > margin:
        advice = "do not tie"
    else:
        advice = "not decided; train more seeds"
    counts = " and ".join(str(len(each)) for each in losses)
    lines = [
        f"Recommendation: {advice} (at the size that you trained).",
        f"Why: loss(tied) − loss(untied) is {shown} nat (90 % interval; margin {margin:g}).",
        f"Confidence: {counts} seeds, tied and untied"
        f"{', paired by seed' * (losses[0].index.equals(losses[1].index))}.",
    ]
    if as_json:
        own = {"answer": lines, "gap": gap, "half": half, "margin": margin}
        print(json.dumps(json_numbers(own)))
    else:
        print(*lines, sep="\n")
    return 0


def difference(tied: pd.Series, untied: pd.Series) -> tuple[float, float]:
    """Return the difference of means and half its 90 % interval: paired, else Welch's."""
    from scipy.stats import ttest_ind  # heavy

    if tied.index.equals(untied.index):
        mean, half = mean_interval((tied - untied).to_numpy(), error=answer.ERROR)
        return float(mean), float(half)
    gap = float(tied.mean() - untied.mean())
    if min(len(tied), len(untied)) < 2:
        return gap, float("nan")
    test = ttest_ind(tied, untied, equal_var=False)
    low, high = test.confidence_interval(1 - answer.ERROR)
    return gap, float(high - low) / 2


def read_losses(path: Path) -> pd.Series:
    """Return the last loss of each seed: of a column `loss` by `seed`, or of each other column.

    Raises:
      UserError: where the file has no numbers.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            table = pd.read_csv(path)
        named = {str(name).strip().lower(): name for name in table.columns}
        if "loss" in named:
            seeds = table[named["seed"]] if "seed" in named else pd.Series(0, table.index)
            last = table[named["loss"]].astype(float).groupby(seeds).last()
        else:
            columns = [name for low, name in named.items() if low not in COUNTS]
            last = table[columns].astype(float).iloc[-1]
        check(bool(len(last)) and bool(np.isfinite(last).all()), f"{path}: a last loss is missing")
        return last
    except (OSError, ValueError, KeyError, IndexError, TypeError, Warning) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(
            f"{path}: expected a CSV file with a column loss (and seed), or a column a seed"
        ) from None
