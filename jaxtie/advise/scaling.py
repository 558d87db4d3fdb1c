"""Advice by pilots: read the target, train, answer. Imports jax only to train."""

import dataclasses
import json
import math
import re
import shutil
import sys
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from jaxtie.advise import answer, models, pilots
from jaxtie.config import UserError, check, check_path, natural
from jaxtie.results.folder import RunFolder, replacing
from jaxtie.results.tables import json_numbers
from jaxtie.run.experiment_files import installed_data
from jaxtie.run.lifecycle import Session
from jaxtie.text import gap_process
from jaxtie.text.config import Corpus
from jaxtie.text.gap_model import Size

VOCAB_SIZE = 2_048  # of trained vocabularies
PLAN, PILOTS = "plan.json", "pilots"
MINUTES = 15.0  # unless a user says so
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


def answer_by_pilots(options: Any, session: Session) -> answer.Answer | None:
    """Train pilots on a text and write the answer; a dry run has none."""
    from jaxtie.text.data.tokens import prepare_text

    target = read_target(options)
    vocabulary = options.vocab_size or VOCAB_SIZE
    corpus = dataclasses.replace(
        models.corpus_of(options), vocab_size=vocabulary, documents_to_split=pilots.PARAGRAPHS
    )
    out = options.out or Path(f"runs/advise-{corpus.label}")
    check(not RunFolder(out).config(), f"--out {out}: holds a run; choose another folder")
    _check_target(target, width=min(pilots.WIDTHS), layers=pilots.LAYERS)
    tokens = prepare_text(corpus, say=session.say).report.stream
    plan, rates, minutes = _plan(corpus, tokens, options, out, session)
    _check_target(target, tokens=plan.pilots[-1].tokens)
    if options.dry_run:
        return None
    if options.overwrite:
        shutil.rmtree(out / PILOTS, ignore_errors=True)
        for name in answer.FILES:
            (out / name).unlink(missing_ok=True)
    out.mkdir(parents=True, exist_ok=True)
    with replacing(out / PLAN) as temporary:
        own = {"minutes": minutes, "tokens": tokens, "plan": plan._asdict(), "rates": rates[0]}
        temporary.write_text(json.dumps(own))
    members = pilots.train_pilots(plan, corpus, rates, out / PILOTS, session)
    largest = Size(*members[list(Size._fields)].max())
    same = re.sub(r" --(minutes[ =]\S+|overwrite)", "", session.command)
    again = f"run `{same} --minutes {4 * minutes:g} --overwrite`: longer pilots or more seeds."
    # most seeds: only where the longest budget is reached; fewer tokens than planned: overfits
    if plan.seeds == pilots.SEEDS[-1] or largest.tokens < plan.pilots[0].tokens:
        again = "give more text; on this one pilots are not trained longer, lest they overfit."
    size, gaps = largest._replace(**target), answer.pilot_gaps(members)
    published = pd.read_csv(installed_data("published-comparisons.csv"))
    known = gap_process.measured_gaps(committed_members(), published, answer.measured_targets())
    process = answer.process_after(gaps, known)
    (prediction,) = answer.predict(process, [size], gaps)
    found = answer.Answer(size, prediction, gaps, process, published, again, out)
    answer.write(found, session.command)
    return found


def _check_target(target: dict[str, float], **least: int) -> None:
    """Raise UserError if the target is smaller than all pilots."""
    for name in least.keys() & target.keys():
        check(
            target[name] >= least[name],
            f"--{name} {target[name]:g}: the smallest pilot has {least[name]:,}; train your model"
            " both ways and compare them by --from-logs",
        )


def _plan(
    corpus: Corpus, tokens: int, options: Any, out: Path, session: Session
) -> tuple[pilots.Plan, pilots.Rates, float]:
    """Return plan, rates and minutes: those of the folder, so that a run resumes, or new ones."""
    path, minutes = out / PLAN, options.minutes or MINUTES
    if path.exists() and not options.overwrite:
        plan, rates, found = _read_plan(path)
        same_time = options.minutes in (None, found["minutes"])
        other = (
            f"{found['minutes']:g} minutes"
            if found["tokens"] == tokens
            else "another text or vocabulary"
        )
        check(
            found["tokens"] == tokens and same_time,
            f"--out {out}: holds pilots of {other}; choose another --out, or --overwrite it",
        )
        _say_plan(plan, tokens, "", options)
        return plan, rates, found["minutes"]
    rates = pilots.Rates.fit(committed_members())
    costs = pilots.measure_costs(corpus, rates, out, session)
    plan = pilots.make_plan(costs, tokens / (pilots.BATCH * pilots.LENGTH), minutes)
    _say_plan(plan, tokens, f"; about {plan.seconds(costs) / 60:.0f} minutes", options)
    return plan, rates, minutes


def _read_plan(path: Path) -> tuple[pilots.Plan, pilots.Rates, dict[str, float]]:
    try:
        found = json.loads(path.read_text())
        plan, rates = pilots.Plan(**found.pop("plan")), pilots.Rates(found.pop("rates"))
        for arm in pilots.ARMS:
            rates.of(arm, plan.pilots[0])  # bad rates raise an error
        for number in (*plan, found["tokens"]):
            if type(number) is not int or not 0 < number < 2**40:
                raise ValueError
        if plan.steps % pilots.RECORDS or not 0 < found["minutes"] < math.inf:
            raise ValueError
    except (
        OSError,
        ArithmeticError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
    ):
        raise UserError(
            f"{path}: cannot be read as a plan; remove it, or --overwrite it, to plan again"
        ) from None
    return plan, rates, found


def _say_plan(plan: pilots.Plan, tokens: int, time: str, options: Any) -> None:
    """Print the plan: where nothing is trained on standard output, else as progress."""
    if options.quiet and not options.dry_run:
        return
    line = (
        f"plan: {2 * len(plan.pilots)} models of {plan.seeds} seeds, each at its best learning"
        f" rate; widths {', '.join(map(str, pilots.WIDTHS))}; {plan.pilots[0].tokens:,} tokens"
        f" ({plan.pilots[0].tokens / tokens:.2g} epochs){time}"
    )
    print(line, file=sys.stdout if options.dry_run else sys.stderr)


def read_target(options: Any) -> dict[str, float]:
    """Return the given fields of the target's size; options override the configuration.

    Raises:
      UserError: where the configuration cannot be read, or lacks a size that was not given.
    """
    given = {name: getattr(options, name) for name in Size._fields}
    given = {name: value for name, value in given.items() if value is not None}
    if not options.config:
        return given
    config = _read_config(options.config)
    found: dict[str, float] = {}
    for name, keys in CONFIG_NAMES.items():
        key = next((key for key in keys if config.get(key) is not None), "")
        if name in given:
            continue
        check(bool(key), f"--config {options.config}: has no {keys[0]}; give --{name} N")
        value = config[key]
        if type(value) is not int or not 0 < value < 2**31:
            raise UserError(
                f"--config {options.config}: {key} = {value!r}: expected a positive integer"
            )
        found[name] = value
    return found | given


def _read_config(path: Path) -> dict[str, Any]:
    check_path(path)
    try:
        config = json.loads(path.read_text(encoding="utf-8-sig"))
        return config | (config.get("text_config") or {})
    except (OSError, ValueError, RecursionError, TypeError, AttributeError):
        raise UserError(f"--config {path}: expected a model's config.json") from None


def answer_from_logs(tied: Path, untied: Path, *, as_json: bool) -> int:
    """Answer from files of final losses; print it and return the exit status."""
    check(tied.resolve() != untied.resolve(), f"--from-logs {tied}: is given twice")
    losses = [read_losses(path) for path in (tied, untied)]
    gap = float(losses[0].mean() - losses[1].mean())
    found, word, interval, risk = difference(*losses), "not decided", "", None
    ends: dict[str, float | None] = {"low": None, "mean": gap, "high": None}
    if found is not None:
        low, high = (float(end) for end in found.interval(1 - answer.ERROR))
        risk = float(found.sf(gap_process.MARGIN))
        word, ends = answer.recommend(risk), {"low": low, "mean": gap, "high": high}
        interval = f" (90 % interval {low:+.4f} to {high:+.4f})"
        interval += (
            f"; with probability {100 * risk:.0f} % it costs more than {gap_process.MARGIN:g}"
        )
    after = {"not decided": "not decided; train more seeds", "tie": "tie the embeddings"}
    counts = " and ".join(str(len(each)) for each in losses)
    paired = found is not None and bool(losses[0].index.equals(losses[1].index))
    lines = [
        f"Recommendation: {after.get(word, 'do not tie the embeddings')}, at the size you trained.",
        f"Why: tying changes the loss by {gap:+.4f} nat{interval}.",
        f"Confidence: {counts} seeds, tied and untied{', paired by seed' * paired}"
        f"{'; an interval needs two or more seeds in each file' * (found is None)}.",
    ]
    if as_json:
        own = {"recommendation": word, "answer": lines, "gap": ends, "margin": gap_process.MARGIN}
        own["probability_above_margin"] = risk
        print(json.dumps(json_numbers(own)))
    else:
        print(*lines, sep="\n")
    return 0


def difference(tied: pd.Series, untied: pd.Series) -> Any:
    """Return the distribution of the mean difference: Student's t, paired, else Welch's.

    One seed has none.
    """
    from scipy.stats import t, ttest_ind, ttest_rel  # heavy

    paired = tied.index.equals(untied.index)
    if min(len(tied), len(untied)) < 2:
        return None
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # equal differences
        test = ttest_rel(tied, untied) if paired else ttest_ind(tied, untied, equal_var=False)
    low, high = test.confidence_interval(0.5)
    degrees = float(test.df)
    scale = max(float(high - low) / 2 / t.ppf(0.75, degrees), 1e-12)
    return t(degrees, (low + high) / 2, scale)


def read_losses(path: Path) -> pd.Series:
    """Return the last loss of each seed: of a column `loss` by `seed`, or of columns 0, 1, ...

    Raises:
      UserError: where the file has other columns, or a last loss is no finite number.
    """
    expected = (
        "expected a CSV file with the columns loss and seed, or with a column 0, 1, ... a seed"
    )
    check_path(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # of rows that have more fields than the header
            table = pd.read_csv(path, index_col=False)
        table.columns = table.columns.map(lambda name: str(name).strip().lower())
        seeds = [name for name in table.columns if natural(name) >= 0]
        losses = [name for name in table.columns if "loss" in name]
        if losses == ["loss"] and not seeds and ("seed" in table or len(table) == 1):
            last = table.assign(seed=table.get("seed", 0)).dropna(subset=["seed"])
            last = last.groupby("seed").tail(1)
            last = last.set_index("seed")["loss"].astype(float)
        elif (
            seeds and not losses and not any(map(re.compile(r"\d*\.\d*").fullmatch, table.columns))
        ):
            last = table[seeds].astype(float).iloc[-1]
        else:
            raise UserError(f"{path}: has the columns {', '.join(table.columns)}; {expected}")
        last.index = last.index.astype(float)
    except (OSError, ValueError, KeyError, IndexError, TypeError, Warning) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path}: {expected}") from None
    check(len(last) > 0, f"{path}: has no losses; {expected}")
    good = bool((last.abs() < 1e6).all())
    check(good, f"{path}: the last loss of a seed is missing, or too large for a loss in nats")
    return last.sort_index()
