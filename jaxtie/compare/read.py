"""Read the losses of an arm from the files that people have, or from a run. Imports no jax."""

import fnmatch
import glob
import io
import itertools
import json
import math
import os
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from jaxtie.config import UserError, check, check_path

# Patterns of the names of columns, see `_normal`.
AXES = {
    "step": r"(.*_)?global_step|(training_|train_|num_)?(step|iteration|iter|update)s?|it",
    "tokens": r"(.*_)?tokens?(_seen|_trained)?",
    "epoch": r"(train_)?epochs?",
}
SEED_COLUMNS = r"(config_|random_)?seed|run(_?(id|name))?|name|trial|replicate"
ARMS = r"(config_)?(arm|variant|group|tied|tying|tie_.*|.*_tying)"
SPLITS = r"split|subset|phase|stage|mode|tag|metric|key"  # columns that name a split
WHERE = {
    "validation": r"(^|_)(val|valid|validation|eval|evaluation|test|dev|heldout)(_|loss|$)",
    "training": r"(^|_)(train|training)(_|loss|$)",
}
UNITS = {  # the best first; ln of a perplexity is a loss in nats
    "nat": r"(log|ln)_?(ppl|perplexity)",
    "perplexity": "ppl|perplexity",
    "bit per byte": "bpb|per_byte",
}
LOSS = re.compile(
    r"(.*_|val|valid|eval|train|test)?"
    r"(loss|nll|cross_entropy|xent|value|(log_?|ln_?)?(ppl|perplexity)|bpb|bits_per_byte)"
    r"(_(val|valid|validation|eval|test|train|training|step|epoch|nats?|\d+))*"
)
# Words of rows and columns that are no loss of one run, and of columns that are no loss at all.
SUMMARY = set("min max mean avg average median std sem ci".split())
NOT_OF_ONE_RUN = SUMMARY | set("best lower upper scale norm aux delta diff gap ratio".split())
NO_LOSS = set("acc accuracy f1 bleu score reward lr rate time".split())
# Settings in names of runs.
SETTINGS = r"(?<![a-z])(?:lr|wd|width|dim|layers?|bs|batch|vocab)[-_=]?\d+(?:\.\d+)?(?:e-?\d+)?"
VARIED = r"(.*_)?(lr|learning_rate|wd|weight_decay|width|dim|d_model|layers?|batch_size|model)"
NUMBER = r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?"
BLANK = {"", "-", "--", "null", "none", "na", "n/a", "#n/a", "<na>"}
SUFFIXES = {".csv", ".tsv", ".txt", ".md", ".json", ".jsonl", ".ndjson"}
LARGEST, MOST_BARE = 2**28, 64  # bytes of a file; losses without step and seed, if no curve
WANTED = "expected columns such as step, seed and val_loss, or step and a column for each seed"


@dataclass(frozen=True)
class Logs:
    """The losses of the seeds of one arm.

    Attributes:
      name: as given; `short`: as shown.
      rows: one per loss, as written: seed, step, tokens, epoch (NaN if not given), loss (NaN if
        it was not finite), text (as printed), file, line.
      column: name of the loss; `source`: "validation", "training" or ""; `unit`: "nat" or "bit per
        byte".
      notes: sentences on what was converted.
    """

    name: str
    rows: pd.DataFrame
    column: str
    source: str
    unit: str
    notes: tuple[str, ...]

    @property
    def short(self) -> str:
        """The name of the arm, or of its files without folder, suffix and asterisks."""
        last = Path(self.name).name.rpartition(":")[2].replace("*", "")
        return last.removesuffix(Path(last).suffix if Path(last).suffix in SUFFIXES else "")

    @property
    def is_run(self) -> bool:
        """Whether they are of a run of jaxtie, whose arms share seeds."""
        return bool((self.rows["line"] == 0).all())

    @property
    def axes(self) -> list[str]:
        """Axes on which every loss has a place."""
        return [axis for axis in AXES if self.rows[axis].notna().all()]

    def curves(self, axis: str) -> pd.DataFrame:
        """Return the losses by place, ascending, and seed; of several at a place the last."""
        rows = self.rows.drop_duplicates(["seed", axis], keep="last")
        return rows.pivot(index=axis, columns="seed", values="loss").sort_index()

    @property
    def digit(self) -> float:
        """Size of the last printed digit, in the unit of the losses."""
        size = min((10.0 ** -_decimals(text) for text in self.rows["text"] if text), default=0.0)
        return size / math.exp(self.rows["loss"].min()) if "perplexity" in self.column else size


def read_arm(words: str | Path | Sequence[str | Path], column: str | None = None) -> Logs:
    """Read an arm.

    Args:
      words: a file, a folder, a pattern such as `runs/tied*.csv`, several of these, or the folder
        of a run of jaxtie; `PATH:NAME` takes the runs of that name, or that arm.
      column: name of the loss, or several with commas between, of which each file has one.

    Raises:
      UserError: in one line, if there is no such file, or a file has no losses that are clear.
    """
    given = [words] if isinstance(words, str | Path) else list(words)
    check(bool(given), "expected a file, a folder or a pattern")
    label, wanted, parts = ", ".join(map(str, given)), column.split(",") if column else [], []
    for word in given:
        paths, selected = _find(str(word))
        if (paths[0] / "results.nc").is_file():
            check(len(given) == 1, f"{word}: is a run; give it alone")
            return _read_run(paths[0], selected, column)
        parts += [(*_read_losses(path, wanted, selected), path) for path in paths]
    kinds = {(source, unit): f"{name} in {path}" for _, name, source, unit, path in parts}
    if len(kinds) > 1 and (not wanted or len({unit for _, unit in kinds}) > 1):
        shown = " and ".join(kinds.values())
        raise UserError(f"{label}: has {shown}; choose one by --column, or give files of one loss")
    rows = pd.concat([own[0] for own in parts], ignore_index=True)
    check(len(rows) > 0, f"{label}: has no losses; {WANTED}")
    rows, notes = _name_seeds(rows, label)
    notes += _check_repeats(rows, label)
    _, name, source, unit, _ = parts[0]
    if len(named := dict.fromkeys(each[1] for each in parts)) > 1:
        notes.append(f"{label} has {' and '.join(named)}: check that they are alike.")
    if unit == "perplexity":
        rows["loss"], unit, name = np.log(rows["loss"]), "nat", f"ln of perplexity, {name}"
        notes.append(f"The perplexity of {label} was converted to nats by ln.")
    return Logs(label, rows, name, source, unit, tuple(notes))


def _read_run(folder: Path, arm: str | None, column: str | None) -> Logs:
    from jaxtie.results.conclusion import TOO_SHORT
    from jaxtie.results.folder import RunFolder
    from jaxtie.results.tables import swept

    run, name = RunFolder(folder), column or "valid_loss"
    results = run.load()
    arms = list(map(str, results["arm"].values))
    chosen = arms[0] if arm is None and len(arms) == 1 else arm
    check(chosen in arms, f"{folder}:{arm or ''}: expected one of its arms, {', '.join(arms)}")
    check(not swept(results), f"{folder}: is a sweep; its report compares the arms")
    known = [str(own) for own in results if results[own].attrs.get("units") == "nat"]
    known = [own for own in known if results[own].dims[2:] in (("step",), ("eval_step",))]
    check(name in known, f"{folder}: has no {name}; --column: one of {', '.join(known)}")
    loss, diverged = (results[own].sel(arm=chosen) for own in (name, "diverged_at"))
    axis, reached = str(loss.dims[1]), loss.notnull() | (diverged >= 0)
    loss = loss.where((diverged < 0) | (loss[axis] < diverged)).transpose("seed", axis)
    rows = loss.to_series().rename("loss").reset_index().rename(columns={axis: "step"})
    rows = rows[reached.transpose("seed", axis).values.ravel()].astype({"step": float, "seed": str})
    rows = rows.assign(tokens=np.nan, epoch=np.nan, text="", file=str(folder), line=0)
    source = "validation" if "valid" in name else "training"
    shown = f"{name} of {results.attrs['experiment']}" if "experiment" in results.attrs else name
    summary = run.summary.read_bytes().decode(errors="replace") if run.summary.exists() else ""
    short = [line for line in summary.splitlines() if line.startswith(TOO_SHORT)]
    notes = tuple(f"The summary of {folder} says: {line}" for line in short)
    return Logs(f"{folder}:{chosen}", rows, shown, source, "nat", notes)


# ----- Files.


def _find(word: str) -> tuple[list[Path], str | None]:
    """Return the files that a word means, or the folder of a run; and the name after a colon."""
    found, name = [word] if os.path.exists(word) else glob.glob(word, recursive=True), None
    before, _, after = word.rpartition(":")
    if not found and before:
        found, name = [before] if os.path.exists(before) else glob.glob(before), after
    files: list[Path] = []
    for path in map(Path, sorted(found)):
        check_path(path)
        if (path / "results.nc").is_file():
            return [path], name
        files += _in_folder(path) if path.is_dir() else [path]
    check(bool(files), f"{word}: no such file or folder, and no file matches it")
    return files, name


def _in_folder(folder: Path) -> list[Path]:
    """Return the files of losses in a folder and below: those of transformers, else tables."""
    runs = sorted(map(str, folder.rglob("results.nc")))
    check(not runs, f"{folder}: holds runs; give one, {runs and Path(runs[0]).parent}:ARM")
    kinds = SUFFIXES - {".md"}  # which is a text about the runs
    inside = [path for path in sorted(folder.rglob("[!.]*")) if path.suffix in kinds]
    inside = [path for path in inside if "/." not in str(path.relative_to(folder.parent))]
    states = [path for path in inside if path.name == "trainer_state.json"]
    found = states or [path for path in inside if path.suffix != ".json"] or inside
    check(bool(found), f"{folder}: has no file {', '.join(sorted(kinds))}")
    return found


def _name_seeds(rows: pd.DataFrame, label: str) -> tuple[pd.DataFrame, list[str]]:
    """Return the rows with runs and the names of seeds, without rows of means; and a note on these.

    A seed is the number after "seed", or the only one that differs between the names of the runs.
    Others keep their names; seeds of one name in both arms are pairs.
    """
    names = rows["seed"].unique().tolist()
    dropped = [name for name in names if not set(_normal(name).split("_")) - SUMMARY]
    names = [name for name in names if name not in dropped]
    check(bool(names), f"{label}: has no losses but {', '.join(dropped)}; {WANTED}")
    rows = rows[~rows["seed"].isin(dropped)]
    short = [re.sub(r"checkpoint-\d+/", "", name) for name in names]
    settings = dict.fromkeys(" ".join(re.findall(SETTINGS, own, re.I)) for own in short)
    shown = f"{label}: runs differ in {' and '.join(settings)}, not in the seed alone"
    check(len(settings) < 2, f"{shown}; give runs of one arm")
    parts = [name.split("/") for name in short]
    while len(set(short)) > 1 and len({tuple(own[:1]) for own in parts}) == 1:  # a common folder
        parts = [own[1:] for own in parts]
    short = ["/".join(own) for own in parts]
    found = [re.findall(r"(?<![a-z])(?:seed|s)[ _=-]?(\d+)", name, re.I)[-1:] for name in short]
    if all(re.fullmatch(r"\d+(\.0*)?", name) for name in names):
        found = [[name.partition(".")[0]] for name in names]
    elif not all(found) and len({re.sub(r"\d+", "#", name) for name in short}) == 1:
        places = [own for own in zip(*(re.findall(r"\d+", name) for name in short))]
        differing = [own for own in places if len(set(own)) > 1]
        found = [[number] for number in differing[0]] if len(differing) == 1 else found
    is_named = all(found) and not any(", line " in name for name in names)
    labels = {name: str(int(own[0])) if is_named else name for name, own in zip(names, found)}
    rows = rows.assign(run=rows["seed"], seed=rows["seed"].map(labels))
    return rows, [f"{label}: rows of {', '.join(dropped)} are left out."] * bool(dropped)


def _check_repeats(rows: pd.DataFrame, label: str) -> list[str]:
    """Return notes on repeated steps; raise UserError if several seeds look like one."""
    axis = next((axis for axis in AXES if rows[axis].notna().all()), "")
    partly = next((own for own in AXES if not axis and rows[own].notna().any()), None)
    if partly:
        row = rows[rows[partly].isna()].iloc[0]
        raise UserError(f"{row['file']}, line {row['line']}: has no {partly}; add it, or drop it")
    runs = rows.assign(run=rows["run"].str.replace(r"checkpoint-\d+/", "", regex=True))
    runs = runs.drop_duplicates(["seed", "run"])
    for seed, names in runs[runs.duplicated("seed", keep=False)].groupby("seed")["run"]:
        both = " and ".join(map(str, names[:2]))
        raise UserError(f"{label}: {both} both look like seed {seed}; give runs of one arm")
    found = rows.groupby(["seed", axis] if axis else ["seed"])["loss"]
    counts = found.nunique(dropna=False) if axis else found.size()
    every = counts.groupby(level=0).min()
    check(
        (every < 2).all(),
        f"{label}: has {f'every {axis}' if axis else 'a loss'} {every.max()} times for seed"
        f" {every.idxmax()}; add a column {'seed' if axis else 'step'}, or give a file a seed",
    )
    count = int((counts > 1).sum())
    return [f"{label}: at {count} {axis}s logged repeatedly the last loss counts."] * bool(count)


# ----- Tables.


def _read_losses(
    path: Path, wanted: list[str], selected: str | None
) -> tuple[pd.DataFrame, str, str, str]:
    """Return the losses of a file as `Logs.rows`, their column, its source and its unit."""
    table, comma = _read_table(path)
    if tag := re.search(r"(?<![a-z])tag[-_](.+)", path.stem):  # a file of TensorBoard
        table = table.rename(columns={"Value": tag[1]})
    is_other = "Value" in table and {"acc", "accuracy", "f1"} & {*_normal(path.stem).split("_")}
    check(not is_other, f"{path}: holds no loss by its name")
    table, selected = _select(table, selected, wanted, path)
    names = {name: _normal(name) for name in table.columns}
    axes = {}
    for axis, pattern in AXES.items():
        found = [name for name, own in names.items() if re.fullmatch(pattern, own)]
        found.sort(key=lambda name: ("global" not in names[name], name.startswith("_")))
        axes[axis] = next(iter(found), "")
    seeds = [name for name, own in names.items() if re.fullmatch(SEED_COLUMNS, own)]
    varied = [n for n in names if re.fullmatch(VARIED, names[n]) and table[n].nunique() > 1]
    check(any(axes.values()) or not varied, f"{path}: rows differ in {', '.join(varied)}; keep one")
    seed = min(seeds, key=lambda name: "seed" not in names[name], default="")
    others = [name for name in names if name not in (*axes.values(), *seeds)]
    runs, metrics = ({name: _split(name)[i] for name in others} for i in (0, 1))
    metric, source, unit = _choose(set(metrics.values()), wanted, path)
    marks = [path.stem, *(m for n in names if re.fullmatch(SPLITS, names[n]) for m in {*table[n]})]
    where = [own for own in WHERE if any(re.search(WHERE[own], _normal(mark)) for mark in marks)]
    source = source or (where[0] if len(where) == 1 else "")
    columns = [name for name in others if metrics[name] == metric]
    if selected is not None:
        columns = [name for name in columns if fnmatch.fnmatch(runs[name], selected)]
        check(bool(columns), f"{path}: has no run or arm {selected}")
    grouped = any(re.match(r"[\w.]+: ", runs[name]) for name in columns)
    check(not grouped, f"{path}: has a mean over runs; export the runs ungrouped")
    many = len(columns) > len({runs[name] for name in columns}) or (seed and len(columns) > 1)
    check(not many, f"{path}: has several columns {metric} of a run; keep one")
    numbers = [int(name) for name in columns if name.isdigit()]
    gaps = set(np.diff(numbers)) if len(numbers) > 2 and not any(axes.values()) else {1}
    is_clear = len(gaps) > 1 or gaps == {1}
    check(is_clear, f"{path}: are {numbers[:3]} steps or seeds? Give a row a step, or a seed")
    for axis, name in axes.items():
        table[axis] = _numbers(table[name], path, comma) if name else np.nan
    parts = []
    for name in columns:
        own = table[[*AXES]].assign(text=table[name], seed=runs[name] or str(path))
        own["loss"] = _numbers(table[name], path, comma, float(unit == "perplexity"))
        if seed and not runs[name]:
            own["seed"] = table[seed]
        elif not runs[name] and not any(axes.values()):
            own["seed"] = [f"{path}, line {line}" for line in table.index]
            trend = own["loss"].reset_index().corr("spearman").iloc[0, 1] * (len(own) - 1) ** 0.5
            check(
                len(own) <= MOST_BARE and not trend < -1.99,  # 0.02 by chance; NaN of one
                f"{path}: has {len(own)} losses without step and seed; add a column step, or seed",
            )
        is_blank = table[name].str.lower().isin(BLANK)  # another loss was logged, or none
        has_any = (~is_blank).groupby(own["seed"].to_numpy()).transform("any")
        own = own[~is_blank | ~has_any]
        check((own["seed"] != "").all(), f"{path}: has rows without a {seed}; fill it in")
        parts.append(own.rename_axis("line").reset_index().assign(file=str(path)))
    rows = pd.concat(parts)
    steps = rows["step"][rows["seed"] == rows["seed"].iloc[0]] if len(rows) else rows["step"]
    is_descending = len(steps) > 1 and steps.iloc[-1] < steps.iloc[0]  # the newest first
    return rows[::-1] if is_descending else rows, metric or "loss", source, unit


def _read_table(path: Path) -> tuple[pd.DataFrame, bool]:
    """Return the cells of a file as text, by line, and whether a comma may be a decimal point."""
    check_path(path)
    check(path.stat().st_size < LARGEST, f"{path}: has over {LARGEST:,} bytes; give another file")
    text = path.read_bytes().decode("utf-8-sig", errors="replace")
    check(bool(text.strip()), f"{path}: is empty; {WANTED}")
    is_text = "\0" not in text and text.count("\ufffd") < 0.1 * len(text)
    check(is_text, f"{path}: is compressed, or no text; unpack it, or export it as CSV")
    if text.lstrip()[0] in "{[":
        return _read_json(text, path), False
    lines = {i: own.strip(" ") for i, own in enumerate(text.splitlines(), 1)}
    lines = {i: own for i, own in lines.items() if own and own[0] != "#"}
    header = re.sub(r'"[^"]*"', "", next(iter(lines.values()), ""))
    mark = next((mark for mark in "|\t;," if mark in header), " ")
    if mark == "|":  # Markdown
        lines = {i: own.strip("|") for i, own in lines.items() if own.strip("|-: ")}
    cells = header.split(mark)
    if all(re.fullmatch(r"[\d.,]+(e[+-]?\d+)?", cell.strip()) for cell in cells):
        is_bare = len(cells) == 1 and not header.isdigit()
        check(is_bare or all(map(str.isdigit, cells)), f"{path}: has no header; {WANTED}")
        lines = {0: "loss"} | lines if is_bare else lines
    whole = "\n".join(own.rstrip(mark) for own in lines.values())
    try:
        with warnings.catch_warnings(action="error"):  # of rows with more fields than the header
            table = pd.read_csv(
                io.StringIO(whole),
                sep=mark,
                dtype=str,
                index_col=False,
                keep_default_na=False,
                skipinitialspace=True,
            )
    except (ValueError, Warning) as error:
        reason = re.sub(r"\s+", " ", str(error).rpartition("error: ")[2])[:90]
        raise UserError(f"{path}: cannot be read as a table ({reason}); {WANTED}") from None
    check(len(table) > 0, f"{path}: has a header only; {WANTED}")
    is_whole = mark not in " |" or bool(table.notna().all(axis=None))
    check(is_whole, f"{path}: has rows that are shorter than its header; separate cells by commas")
    if len(table) == len(lines) - 1:
        table.index = pd.Index([*lines][1:])
    table = table.fillna("").apply(lambda own: own.str.strip(" `*"))
    return table.rename(columns=str.strip), mark in ";\t" and _has_decimal_commas(table, path)


def _has_decimal_commas(table: pd.DataFrame, path: Path) -> bool:
    cells = table.to_numpy().ravel().tolist()
    commas, dots = (
        next((cell for cell in cells if re.fullmatch(rf"[+-]?\d+{mark}\d+", cell)), "")
        for mark in (",", r"\.")
    )
    text = f"{path}: has {commas} and {dots}: which is the decimal mark? Export numbers"
    check(not (commas and dots), f"{text} without marks of thousands")
    return bool(commas)


def _read_json(text: str, path: Path) -> pd.DataFrame:
    """Return a table of text from JSON lines, a list of objects, or `trainer_state.json`."""
    rule: dict[str, Any] = {"parse_float": str, "parse_int": str, "parse_constant": str}
    try:
        try:
            found = json.loads(text, **rule)
        except json.JSONDecodeError:
            found = [json.loads(own, **rule) for own in text.splitlines() if own.strip()]
        if isinstance(found, dict):
            found = found.get("log_history", found)
        if isinstance(found, dict) and any(isinstance(own, list) for own in found.values()):
            table = pd.DataFrame(found)  # of columns
        else:
            table = pd.json_normalize([found] if isinstance(found, dict) else found, sep="/")
        check(len(table.columns) > 0, f"{path}: has no losses; {WANTED}")
    except (ValueError, TypeError, RecursionError, AttributeError, NotImplementedError):
        raise UserError(f"{path}: expected a table, JSON lines or trainer_state.json") from None
    table = table.set_axis(range(1, len(table) + 1)).rename(columns=str)
    return table.map(lambda own: "" if own is None or own != own else str(own))


def _select(
    table: pd.DataFrame, selected: str | None, wanted: list[str], path: Path
) -> tuple[pd.DataFrame, str | None]:
    """Return the rows of an arm or of runs, by name; and the name, if columns may still have it."""
    columns = {name: _normal(name) for name in table}
    arms, seeds, splits = (
        [name for name in columns if re.fullmatch(pattern, columns[name])]
        for pattern in (ARMS, SEED_COLUMNS, SPLITS)
    )
    texts = [name for name in columns if not table[name].str.fullmatch(r"[\d.,e+-]*").all()]
    for name in () if selected is None else (*arms, *seeds, *texts):
        if any(found := [fnmatch.fnmatch(value, selected or "") for value in table[name]]):
            table, selected, arms = table[found], None, []
            break
    for name in arms:
        kinds = sorted(set(table[name]) - {""})
        shown = f"has the arms {', '.join(kinds[:4])}; choose one by {path}:{kinds and kinds[0]}"
        check(len(kinds) < 2, f"{path}: {shown}")
    for name in splits:
        kinds = sorted(set(table[name]) - {""})
        if any(map(_kind, kinds)):  # names of losses, in rows
            kept = [_choose(set(kinds), wanted, path)[0]]
            table = table.rename(
                columns={own: kept[0] for own in columns if columns[own] == "value"}
            )
        else:
            kept = [own for own in kinds if re.search(WHERE["validation"], _normal(own))]
        if len(kinds) > 1:
            shown = f"{path}: {name} has {', '.join(kinds[:6])}; keep the rows of one"
            check(len(kept) == 1, shown)
            table = table[table[name] == kept[0]]
    return table, selected


def _normal(name: str) -> str:
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    return re.sub(r"[^a-z0-9]+", "_", name).strip("_")


def _split(name: str) -> tuple[str, str]:
    """Return the run and the loss that a column's name holds, "" where it has none."""
    if found := re.fullmatch(r"(.*) - (.*?)(\.\d+)?", name):  # .1: another run of that name
        return found[1] + (found[3] or ""), found[2]
    found = re.fullmatch(r"(.*?)(?<![a-z])(?:seed|run|s)[ _-]?(\d+)(.*)", name, re.I)
    if name.isdigit() or not found:
        return (name, "") if name.isdigit() else ("", name)
    return found[2], f"{found[1]}{found[3]}".strip(" _-/.")


def _kind(metric: str, is_chosen: bool = False) -> tuple[str, str] | None:
    """Return the source and the unit of a loss by its name; None of other columns."""
    own = _normal(metric or "loss")
    if not is_chosen and (not LOSS.fullmatch(own) or NOT_OF_ONE_RUN & set(own.split("_"))):
        return None
    source = next((name for name, pattern in WHERE.items() if re.search(pattern, own)), "")
    known = "nat" if LOSS.fullmatch(own) else "units"
    return source, next((name for name in UNITS if re.search(UNITS[name], own)), known)


def _choose(metrics: set[str], wanted: list[str], path: Path) -> tuple[str, str, str]:
    """Return the loss to compare with its source and unit: that of validation in nats, if any."""
    for name, own in itertools.product(map(str.strip, wanted), sorted(metrics)):
        if name in (own, _normal(own)):
            is_loss = not NO_LOSS & set(_normal(own).split("_"))
            check(is_loss, f"{path}: {own} is no loss; choose another column by --column")
            return own, *(_kind(own, is_chosen=True) or ("", "nat"))
    listed = ", ".join(sorted(filter(None, metrics))[:12])
    check(not wanted, f"{path}: has no column {','.join(wanted)}; --column: one of {listed}")
    kinds = {own: kind for own in metrics if (kind := _kind(own)) is not None}
    check(bool(kinds), f"{path}: has no loss among its columns ({listed}); {WANTED}, or --column")
    order = ("validation", "", "training")
    rank = {own: (order.index(kind[0]), [*UNITS].index(kind[1])) for own, kind in kinds.items()}
    best = sorted(own for own in rank if rank[own] == min(rank.values()))
    check(len(best) == 1, f"{path}: has {', '.join(best)}; choose one by --column")
    return best[0], *kinds[best[0]]


def _numbers(cells: pd.Series, path: Path, comma: bool, least: float = 0.0) -> list[float]:
    """Return the numbers in cells, NaN of those that are blank or not finite."""
    values = []
    for line, cell in zip(cells.index, cells.tolist()):
        text = cell.lower().replace(",", ".") if comma else cell.lower()
        is_named = text in BLANK or re.fullmatch(r"[+-]?(nan|inf|infinity)", text)
        values.append(float(text) if re.fullmatch(NUMBER, text) else math.nan)
        if is_named or least <= values[-1] < math.inf:
            continue
        why = "is no number; correct it or drop the row"
        if values[-1] < least:
            why = f"is impossible, expected at least {least:g}; correct it, or use --column"
        raise UserError(f"{path}, line {line}, {cells.name}: {cell[:40]!r} {why}")
    return values


def _decimals(text: str) -> int:
    mantissa, _, exponent = text.lower().replace(",", ".").partition("e")
    is_number = re.fullmatch(r"[+-]?\d+", exponent)
    return len(mantissa.partition(".")[2]) - (int(exponent) if is_number else 0)
