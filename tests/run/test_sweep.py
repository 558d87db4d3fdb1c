"""Sweeps over any numeric field: a run at each static value, joined; best settings."""

import dataclasses
import functools
import io
import itertools
import json
import os
import re
import shutil
import signal
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import xarray as xr
from corpora import random_text
from drawing import save_small
from draws import draws
from recall import Recall

import jaxtie
from jaxtie import Transformer
from jaxtie.config import UserError, differing_fields, number_label
from jaxtie.results import plots
from jaxtie.results.analysis import final_table, join_points
from jaxtie.results.folder import RunFolder
from jaxtie.run import lifecycle
from jaxtie.run.command import main
from jaxtie.run.lifecycle import static_runs
from jaxtie.training.progress import Progress

TINY = "--arms untied --seeds 2 --steps 40 --record-every 20 --eval-every 40 --quiet".split()
SWEPT = ["--sweep", "layers=1,2", "--sweep", "weight_decay=0,0.1"]


@pytest.fixture(autouse=True)
def small_figures(monkeypatch):
    monkeypatch.setattr(plots, "save", save_small)


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "save", save_small)
        assert main([*TINY, *SWEPT, "--out", str(folder)]) == 0
    return folder


@pytest.mark.slow
def test_a_sweep_point_has_the_bits_of_a_run_of_its_own(swept, tmp_path):
    """`layers` makes a run per value, `weight_decay` is an argument of their programs."""
    results = jaxtie.load(swept)
    assert results["valid_loss"].dims == ("arm", "layers", "weight_decay", "seed", "eval_step")
    options = ["--sweep", "weight_decay=0.1", "--out", str(tmp_path / "own")]
    path = tmp_path / "deep.py"
    path.write_text(
        "import jaxtie\n"
        "experiment = jaxtie.Experiment(name='deep', model=jaxtie.Transformer(layers=2))\n"
    )
    assert main([str(path), *TINY, *options]) == 0
    own = jaxtie.load(tmp_path / "own")
    for name in ("loss", "valid_loss", "input_distance", "log_odds"):
        found = results[name].sel(layers=2, weight_decay=[0.1])
        np.testing.assert_array_equal(found.values, own[name].values, err_msg=name)
    assert (swept / "figures").is_dir() and "layers" in (swept / "summary.md").read_text()


@pytest.mark.slow
def test_a_finished_sweep_is_shown_again_and_extended(swept):
    before = (swept / "results.nc").stat().st_mtime_ns
    assert main([*TINY, *SWEPT, "--out", str(swept)]) == 0
    assert (swept / "results.nc").stat().st_mtime_ns == before
    assert main([*TINY, *SWEPT, "--seeds", "3", "--out", str(swept)]) == 0
    assert jaxtie.load(swept).sizes["seed"] == 3


OTHER = [*TINY, *SWEPT, "--zeros", "0.2,0.8"]


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> xr.Dataset:
    """The results of another sweep of the same points."""
    folder = tmp_path_factory.mktemp("other") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lifecycle, "_show", lambda *_: None)
        assert main([*OTHER, "--out", str(folder)]) == 0
    return jaxtie.load(folder).drop_attrs()


@pytest.mark.slow
@pytest.mark.parametrize("layers", [1, 2])
def test_an_overwritten_sweep_that_is_interrupted_goes_on_by_the_command_it_prints(
    swept, other, tmp_path, monkeypatch, capsys, layers
):
    """At either point; the earlier sweep's points are gone."""
    folder, add = shutil.copytree(swept, tmp_path / "run"), Progress.add
    monkeypatch.setattr(lifecycle, "_show", lambda *_: None)

    def stop(progress, *chunk):
        add(progress, *chunk)
        if (folder / "points" / f"layers={layers}" / "records").exists():
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "add", stop)
        assert main([*OTHER, "--overwrite", "--out", str(folder)]) == 130
    assert not (folder / "results.nc").exists()
    end = "jaxtie: interrupted; run the same command without --overwrite to resume\n"
    shown = capsys.readouterr().err
    assert main([*OTHER, "--out", str(folder)]) == 0, capsys.readouterr().err
    assert jaxtie.load(folder).drop_attrs().identical(other)
    assert shown.endswith(end)


class Killed(BaseException):
    """Ends the process."""


def kill_after(patch: pytest.MonkeyPatch, changes: int) -> list[int]:
    """End the process before a change to the folder; return the changes that are left."""
    left = [*range(changes)]

    def dying(change):
        def call(*arguments, **options):
            if not left:
                raise Killed
            left.pop()
            return change(*arguments, **options)

        return call

    for owner, name in ((shutil, "rmtree"), (Path, "unlink"), (Path, "replace")):
        patch.setattr(owner, name, dying(getattr(owner, name)))
    return left


@pytest.mark.slow
def test_an_overwrite_that_is_killed_leaves_the_earlier_sweep_or_starts_the_new_one(
    swept, tmp_path, monkeypatch, capsys
):
    """At each of its changes: results or points of one are never taken for those of the other."""
    line, earlier = [*OTHER, "--out", str(tmp_path / "run")], jaxtie.load(swept)

    def killed(*_: object) -> None:
        raise Killed

    monkeypatch.setattr(lifecycle, "_Run", killed)  # where a point would be trained
    for changes in itertools.count():
        folder = shutil.copytree(swept, tmp_path / "run")
        with monkeypatch.context() as patch, pytest.raises(Killed):
            left = kill_after(patch, changes)
            main([*line, "--overwrite"])
        try:
            assert main(line) == 2
            assert RunFolder(folder).config() == RunFolder(swept).config()
            error = capsys.readouterr().err
            assert error.count("\n") == 1 and "--overwrite" in error
            if (folder / "results.nc").exists():
                assert jaxtie.load(folder).identical(earlier)
        except Killed:
            assert not (folder / "points").exists() and not (folder / "report.html").exists()
            with pytest.raises(UserError, match=r"holds no results\.nc"):
                jaxtie.load(folder)
        shutil.rmtree(folder)
        if left:
            break
    assert changes > 10


def test_feedforward_can_follow_the_width():
    assert Transformer(width=12, heads=4, feedforward="4x").hidden == 48
    with pytest.raises(UserError, match="feedforward = 'x4': expected a number, or a multiple"):
        Transformer(feedforward="x4")


# ----- Labels, configurations and results agree for every swept field.


@dataclass(frozen=True)
class Noise:
    eps: float = 0.5
    width: int = 3  # as the task itself has


@dataclass(frozen=True, kw_only=True)
class Nested(Recall):
    task: ClassVar[str] = "nested"
    noise: Noise = Noise()
    scale: float = 1  # declared as a float


CAUSAL = jaxtie.TextExperiment(
    objective="causal", model=Transformer(heads=2, width=8), duplicates=False, contexts=0
)
TASKS = {
    "transformer": jaxtie.Experiment(),
    "lstm": jaxtie.Experiment(model=jaxtie.LSTM()),
    "mixer": jaxtie.Experiment(model=jaxtie.Mixer()),
    "masked": jaxtie.TextExperiment(duplicates=False),
    "causal": CAUSAL,
    "decoder": dataclasses.replace(CAUSAL, model=jaxtie.Decoder(heads=2, width=8)),
    "recall": Recall(),
    "nested": Nested(),
}
NEVER = {"steps", "record_every", "eval_every"}
# Numbers by their declaration; by their value now they are None, a text, a tuple.
DECLARED = {"branch_scale": (0.25, 0.5), "feedforward": (8, 16)}
PROBABILITIES = {"p_X": "process.zeros", "p_A": "process.ones"}


def get(config, path):
    return functools.reduce(getattr, path.split("."), config)


def put(config, path, value):
    """Return a configuration with another value, set by `dataclasses.replace` alone."""
    owner, _, name = path.rpartition(".")
    if not owner:
        return dataclasses.replace(config, **{name: value})
    return put(config, owner, put(get(config, owner), name, value))


def number_paths(config, prefix=""):
    """Yield the dotted names of all numbers of a configuration, by the values that it has."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from number_paths(value, f"{field.name}.")
        elif prefix + field.name not in NEVER and (
            type(value) in (int, float) or field.name in DECLARED
        ):
            yield prefix + field.name


def valid(config, path, value) -> bool:
    try:
        return put(config, path, value) is not None
    except UserError:
        return False


@functools.cache
def values_of(task: str) -> dict[str, tuple[str, tuple[float, ...]]]:
    """Map the full name of all that can be swept to its path and to values that are valid alone."""
    config, found = TASKS[task], {}
    for path in number_paths(config):
        now = get(config, path)
        if path.rpartition(".")[2] in DECLARED:
            tried = DECLARED[path.rpartition(".")[2]]
        elif type(now) is int and "scale" not in path:
            tried = (1, 2, now - 1, now + 1, now + 2, 2 * now, 3 * now, 4 * now)
        else:
            tried = (now / 2, now / 3, (now + 1) / 4, 0.125, now + 1e-3)
        values = [value for value in tried if value != now and valid(config, path, value)]
        if path == "blanks" and not valid(config, path, 0.5):
            continue  # of causal models alone
        assert len(set(values)) >= 2, path
        found[path] = path, tuple(dict.fromkeys(values))
    if hasattr(config, "process"):
        for name, path in PROBABILITIES.items():
            found[f"process.{name}"] = path, (0.0, 0.25, 0.3, 1.0)
    return found


def at(config, task, values):
    """Return the configuration at a sweep point, without the code of sweeps."""
    owners = defaultdict(dict)
    for full, value in values.items():
        path = values_of(task)[full][0]
        owner, _, name = path.rpartition(".")
        pair = path in PROBABILITIES.values()
        owners[owner][name] = (value, 1 - value) if pair else value
    own = owners.pop("", {})
    for owner, fields in owners.items():
        own[owner] = dataclasses.replace(getattr(config, owner), **fields)
    return dataclasses.replace(config, **own)


def aliases(task, full) -> list[str]:
    """Return the names by which a sweep may call a field."""
    short = full.rpartition(".")[2]
    same = [name for name in values_of(task) if name.rpartition(".")[2] == short]
    return [full, short] if len(same) == 1 and short != full else [full]


def points_of_sweep(experiment):
    """Return the labels and the configuration of every point, traced and static."""
    return [
        (static | dict(zip(point.swept, values, strict=True)), each)
        for static, point in experiment.static_points
        for values, each in zip(
            itertools.product(*point.swept.values()), point.traced_points, strict=True
        )
    ]


def check_declaration(task, swept, named, folder):
    """Check all that a sweep says of its points; `swept`: full name -> values, `named`: as given.

    Its points are those of `dataclasses.replace`, or where one is invalid it is refused.
    """
    config = TASKS[task]
    combinations = [dict(zip(swept, each)) for each in itertools.product(*swept.values())]
    try:
        expected = [at(config, task, values) for values in combinations]
    except UserError as error:
        with pytest.raises(UserError, match=re.escape(str(error)[:20])):
            dataclasses.replace(config, sweep=named)
        return
    experiment = dataclasses.replace(config, sweep=named)
    assert all(dict(experiment.sweep)[label] for label in dict(experiment.sweep))
    labels = {full: label for full, label in zip(swept, dict(experiment.sweep), strict=True)}
    assert all(labels[full] in aliases(task, full) for full in swept)
    found = {tuple(sorted(values.items())): each for values, each in points_of_sweep(experiment)}
    assert len(found) == len(combinations)
    for values, each in zip(combinations, expected, strict=True):
        label = tuple(sorted((labels[full], value) for full, value in values.items()))
        assert found[label] == each
        now, before = found[label].as_dict(), config.as_dict()
        paths = {values_of(task)[full][0] for full in swept}
        assert set(differing_fields(now, before)) <= paths
        json.dumps(now)
    runs = [*static_runs(experiment, RunFolder(folder))] * experiment.is_static_sweep
    for values, point, run in runs:
        pairs = (part.split("=") for part in run.path.name.split(","))
        assert {name: float(value) for name, value in pairs} == values
        assert all(type(value) in (int, float) for value in values.values())
        assert dict(point.sweep) == experiment.swept
    assert len({run.path for *_, run in runs}) == len(runs)
    as_read = {"experiment": json.loads(json.dumps(experiment.as_dict()))}
    assert not RunFolder(folder).differences(experiment, as_read)
    assert dataclasses.replace(config, sweep=dict(experiment.sweep)) == experiment


@pytest.mark.parametrize("task", TASKS)
def test_every_number_can_be_swept_and_changes_alone(task, tmp_path):
    config = TASKS[task]
    with pytest.raises(UserError, match="none: no number of the experiment; expected") as caught:
        dataclasses.replace(config, sweep={"none": (1,)})
    named = set(str(caught.value).partition("one of ")[2].partition(";")[0].split(", "))
    of_causal = {"blanks"} - {*values_of(task)}  # a masked model refuses all values but 0
    assert named - of_causal == {full.rpartition(".")[2] for full in values_of(task)}
    for full, (path, values) in values_of(task).items():
        experiment = dataclasses.replace(config, sweep={full: values})
        for name in aliases(task, full):
            assert dataclasses.replace(config, sweep={name: values}) == experiment
        for value, (label, point) in zip(values, points_of_sweep(experiment), strict=True):
            assert [*label.values()] == [value]
            assert differing_fields(point.as_dict(), config.as_dict()) == [path]
        check_declaration(task, {full: values}, {full: values}, tmp_path)


AS = (lambda value: value, np.float64, np.float32, lambda value: np.array(value)[()])


def random_declaration(rng):
    """Return a task, the sweep by full names and plain values, and as someone may declare it."""
    task = str(rng.choice([*TASKS]))
    swept, named = {}, {}
    for full in rng.choice([*values_of(task)], rng.integers(1, 4), replace=False).tolist():
        values = values_of(task)[full][1]
        values = rng.permutation(np.array(values, object))[: rng.integers(1, 4)].tolist()
        cast = AS[rng.integers(len(AS))]
        given = [cast(value) for value in values]
        kind = type(values[0])
        swept[full] = tuple(kind(value) for value in given)
        as_array = np.array(given) if rng.random() < 0.3 else given
        named[str(rng.choice(aliases(task, full)))] = as_array
    return task, swept, named


def test_random_sweeps_have_the_points_that_they_declare(tmp_path):
    rng = np.random.default_rng(40)
    for _ in range(draws(40)):
        check_declaration(*random_declaration(rng), tmp_path)


def test_numbers_are_by_their_declaration_not_by_the_value_that_they_have():
    """An int where a float is declared, a text, None; and an invalid combination of valid ones."""
    whole = jaxtie.Experiment(init_std=1, sweep={"init_std": (0.5, 2)})
    assert [point.init_std for point in whole.traced_points] == [0.5, 2.0]
    text = dataclasses.replace(CAUSAL, init_std="1/sqrt(D)", sweep={"init_std": (1, 0.02)})
    assert [point.init_std for _, point in text.static_points] == [1.0, 0.02]
    wide = jaxtie.Experiment(sweep={"heads": (2, 3), "width": (6, 12)})
    assert len(wide.static_points) == 4  # three heads do not divide the width that it has now
    assert Nested(sweep={"width": (4, 5)}).static_points[1][1].width == 5


REFUSED = [
    (Recall(), {"learning_rate": (1e-3,), "optimizer.learning_rate": (1e-4,)}, "each field may be"),
    (Nested(), {"eps": (0.1,)}, "of the experiment; expected one of optimizer.eps, noise.eps"),
    (Nested(), {"scale": (True, False)}, "expected numbers"),
    (Nested(), {"scale": ("1",)}, "expected numbers"),
    (Nested(), {"scale": "12"}, "expected numbers"),
    (Nested(), {"scale": np.eye(2)}, "expected numbers"),
    (Nested(), {"scale": (10**400,)}, "expected numbers"),
    (Nested(), {"scale": np.float32(1)}, "expected names and values"),
    (Nested(), {"scale": (0.1, np.float64(0.1))}, "each value may be named once"),
    (Nested(), {"scale": np.array([1, np.inf])}, "expected numbers"),
    (Nested(), {"pairs": (2, 2.5)}, "sweep of pairs: 2.5: expected integers"),
    (Nested(), {"roles": (0, 1)}, "roles: no number of the experiment; expected"),
    (Nested(), {"pairs": np.arange(2, 2)}, "expected at least one value"),
    (Nested(), {3: (1, 2)}, "3: no number of the experiment; expected"),
    (Nested(), {"pairs": range(1, 2000), "scale": range(2000)}, "too many"),
    (TASKS["mixer"], {"length": (8, 9)}, "length = 9: expected at most 8 bits with Mixer"),
    (TASKS["transformer"], {"p_X": (0, 1.5)}, "expected two probabilities"),
    (TASKS["transformer"], {"p_X": (0.1,), "process.p_X": (0.2,)}, "each field may be named once"),
    (TASKS["causal"], {"heads": (2, 4), "width": (8, 12)}, "expected width / heads to be even"),
]


@pytest.mark.parametrize(("experiment", "sweep", "words"), REFUSED, ids=range(len(REFUSED)))
def test_an_invalid_sweep_is_refused_where_it_is_declared(experiment, sweep, words):
    with pytest.raises(UserError, match=re.escape(words)) as caught:
        dataclasses.replace(experiment, sweep=sweep)
    assert "\n" not in str(caught.value)


def test_a_field_that_a_program_would_take_for_the_optimizers_is_refused():
    @dataclass(frozen=True, kw_only=True)
    class Smoothed(Recall):
        task: ClassVar[str] = "smoothed"
        eps: float = 0.1

    with pytest.raises(UserError, match="task 'smoothed': eps: the optimizer has it; rename"):
        Smoothed()


@pytest.mark.parametrize("task", TASKS)
def test_numbers_of_numpy_are_those_of_python(task):
    """In every field; a run folder can be written, and equals the same run declared again."""
    config = TASKS[task]
    given = dataclasses.replace(config, seeds=np.arange(3), steps=np.int64(300))
    plain = dataclasses.replace(config, seeds=(0, 1, 2), steps=300)
    for path in number_paths(config):
        if type(value := get(config, path)) in (int, float):
            cast = np.int32 if type(value) is int else np.float64
            given = put(given, path, cast(value))
            assert type(get(given, path)) is type(value), path
    if hasattr(config, "process"):
        given = put(given, "process.zeros", np.array(config.process.zeros))
        assert type(put(plain, "init_std", np.float32(0.3)).init_std) is float
    assert given == plain and hash(given) == hash(plain)
    assert json.loads(json.dumps(given.as_dict())) == json.loads(json.dumps(plain.as_dict()))
    assert {type(seed) for seed in given.seeds} == {int}


@pytest.mark.parametrize(
    "changes",
    [{"steps": True}, {"seeds": (True,)}, {"steps": np.bool_(True)}, {"seeds": np.ones(1)}],
    ids=str,
)
def test_bools_and_floats_are_no_integers(changes):
    with pytest.raises(UserError, match=r"expected an? (positive )?integer"):
        jaxtie.Experiment(**changes)
    with pytest.raises(UserError, match="learning_rate = True: expected a number"):
        jaxtie.Optimizer(learning_rate=True)


def test_other_values_have_other_labels():
    """In the names of folders, and where tables and figures name a point."""
    third, large = (
        (1 / 3, np.nextafter(1 / 3, 1), 0.3333333333),
        (1234567, 1234568, 2**40, 2**40 + 1),
    )
    values = (*third, *large, 0.1, 1e-5, 4.0)
    labels = [*map(number_label, values)]
    assert len({*labels}) == len(values) and [*map(float, labels)] == [*values]
    assert labels[-3:] == ["0.1", "1e-05", "4"]  # as they have always been
    results = xr.Dataset(
        {"loss": (("arm", "data_seed", "seed", "step"), np.zeros((2, 2, 3, 1)))},
        {"arm": ["tied", "untied"], "data_seed": [1234567, 1234568], "step": [0]},
        {"task": "recall", "experiment": "recall"},
    )
    results["diverged_at"] = results["loss"].isel(step=0, drop=True)
    rows = [row[0] for row in final_table(results).rows]
    assert len({*rows}) == len(rows) and all("123456" in row for row in rows)


def test_texts_of_a_later_point_are_not_cut_to_the_length_of_the_first():
    def read_again(results):
        return xr.load_dataset(io.BytesIO(results.to_netcdf(engine="h5netcdf")), engine="h5netcdf")

    found = [
        (
            {"split_seed": seed, "batch": 8},
            read_again(xr.Dataset({"word": ("pair", [word, "cat"])})),
        )
        for seed, word in ((1, "tree"), (2, "bread"))
    ]
    words = read_again(join_points(found))["word"]
    assert words.sel(split_seed=2, batch=8).values.tolist() == ["bread", "cat"]
    assert words.sel(split_seed=1, batch=8).values.tolist() == ["tree", "cat"]


@pytest.mark.parametrize("field", ["seed", "loss"])
def test_a_field_with_the_name_of_a_dimension_or_a_metric_is_not_swept(field, tmp_path):
    kind = dataclasses.make_dataclass(
        "Kind", [(field, int, 1)], bases=(Recall,), frozen=True, kw_only=True
    )
    experiment = dataclasses.replace(kind(), sweep={field: (1, 2)})
    with pytest.raises(UserError, match=rf"task 'recall': \{{'{field}'\}}: dimensions of the"):
        jaxtie.run(experiment, out=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


TRAINED = [
    ("transformer", {"length": (5, 6)}),
    ("transformer", {"process.data_seed": (1, 14), "process.p_X": np.float32([0.25, 0.5])}),
    ("nested", {"optimizer.eps": (1e-8, 1e-2), "width": (4,)}),
    ("causal", {"corpus.split_seed": (1, 2), "blanks": (0.1,)}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("task", "sweep"), TRAINED, ids=str)
def test_points_of_a_trained_sweep_are_runs_of_their_own(task, sweep, tmp_path, monkeypatch):
    """To the bit; and no two are the same run under two labels."""
    config = dataclasses.replace(TASKS[task], steps=20, record_every=10, eval_every=20, seeds=(3,))
    if isinstance(config, jaxtie.TextExperiment):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        (tmp_path / "a.txt").write_text(random_text(np.random.default_rng(7), 150))
        corpus = jaxtie.Corpus((str(tmp_path / "a.txt"),), vocab_size=120, form="sentences")
        model = dataclasses.replace(config.model, layers=1, heads=2, width=8, feedforward=8)
        short = {"batch": 16, "length": 16, "buckets": (8, 16), "words": 10}
        config = dataclasses.replace(config, corpus=corpus, model=model, **short)
    experiment = dataclasses.replace(config, sweep=sweep)
    joined, losses = jaxtie.run(experiment, quiet=True), []
    assert joined["loss"].dims == ("arm", *dict(experiment.sweep), "seed", "step")
    for labels, point in points_of_sweep(experiment):
        here, alone = joined.sel(labels), jaxtie.run(point, quiet=True)
        assert not dict(point.sweep) and {"loss", "diverged_at"} <= {*here.data_vars}
        for name, values in here.data_vars.items():
            np.testing.assert_array_equal(values.values, alone[name].values, err_msg=str(name))
        losses.append(alone["loss"].values.tobytes())
    assert len({*losses}) == len(losses)
