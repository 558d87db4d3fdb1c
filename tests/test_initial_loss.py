"""Estimates of the initial loss, by hand and against models; the measurement in blocks, against whole tables; its engine."""

import dataclasses
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from bodies import once
from scipy.special import logsumexp

from jaxtie.experiment import Arm, UserError
from jaxtie.initial_loss import engine as engine_module
from jaxtie.initial_loss import kind, measurement
from jaxtie.initial_loss.declaration import ARMS, InitialLoss
from jaxtie.models.embedding import make_embedding
from jaxtie.models.initial_loss import initial_loss
from jaxtie.models.transforms import Projection
from jaxtie.results.folder import RunFolder
from jaxtie.results.kept import write_kept
from jaxtie.results.plots import draw_all, write_frames
from jaxtie.results.tables import summary_markdown
from jaxtie.training import checkpoints
from jaxtie.training.engine import phases_of
from jaxtie.training.members import Control, merge
from jaxtie.training.processes import Processes

SMALL = InitialLoss(claim="fresh", vocabularies=(100, 3000), widths=(16, 256), seeds=tuple(range(4)))
TINY = InitialLoss(arms=("tied", "tied+half-swap"), vocabularies=(100, 1500), widths=(8,), seeds=(0, 7), tokens=16)


@pytest.fixture(autouse=True, scope="module")
def compiled_once():
    """Nothing is optimised: compiling takes longer than measuring."""
    measure = once(measurement.measure.__wrapped__, static_argnames=("arms", "vocabulary", "width", "tokens"))
    with pytest.MonkeyPatch.context() as patch:
        for module in (measurement, engine_module):
            patch.setattr(module, "measure", measure)
        yield


def test_estimates():
    """Check values of the protocol: D 512, n 30,000."""
    estimate = partial(initial_loss, 30_000, 512)
    for deviation, simple, corrected in ((512**-0.5, 22.6, 22.6), (math.log(30_000) / 512, 11.00, 11.06)):
        assert estimate(deviation, corrected=False) == pytest.approx(simple, abs=0.06)
        assert estimate(deviation) == pytest.approx(corrected, abs=0.06)
    assert estimate(1, overlap=0, corrected=False) == pytest.approx(math.log(30_000), rel=1e-12)
    assert estimate(1, overlap=0) == pytest.approx(math.sqrt(2 * 512 * math.log(30_000)), rel=1e-12)
    assert estimate(0.05, overlap=0) == pytest.approx(math.log(30_000) + 512 * 0.05**2 / 2, rel=1e-12)
    assert estimate(2, logit_scale=0.03) == pytest.approx(estimate(0.06), rel=1e-12)
    assert estimate(0.05, overlap=0.5) == pytest.approx(math.log(math.exp(12.8) + 29_999 * math.exp(0.64)), rel=1e-12)
    assert estimate(100) == pytest.approx(51_200, rel=1e-12)  # and no overflow


def test_blocks_are_the_whole_vocabulary():
    """What `measure` adds up in blocks is what an `Embedding` of each arm gives with whole tables."""
    vocabulary, width, tokens, deviations = 2500, 32, 64, (0.02, 32**-0.5, 1.0)
    arms = tuple(map(Arm.parse, (*ARMS, "tied+shuffle=8+logit-scale=0.5", "untied+bert-head")))
    key, drawn = jax.random.key(3), measurement.draw_projections(arms, 4, width)
    assert drawn.keys() == {"projection", "bert-head"}
    np.testing.assert_allclose(
        drawn["projection"]["weight"], Projection().init(jax.random.key(4), width)["weight"], atol=1e-6
    )
    sizes = {"vocabulary": vocabulary, "width": width, "tokens": tokens}
    measured_SxA = measurement.measure(key, jnp.array(deviations), drawn, arms=arms, **sizes)

    keys = jax.random.split(key, 4)
    token = np.asarray(jax.random.randint(keys[0], (tokens,), 0, vocabulary))
    target = (token + np.asarray(jax.random.randint(keys[1], (tokens,), 1, vocabulary))) % vocabulary
    assert np.all(token != target)
    table, other = (measurement.word_rows(key, jnp.arange(vocabulary), width) for key in keys[2:])
    assert np.mean(table) == pytest.approx(0, abs=0.02) and np.var(table) == pytest.approx(1, abs=0.02)
    for s, deviation in enumerate(deviations):
        for a, arm in enumerate(arms):
            tree = {"input": deviation * (table if arm.tied else other), "output": deviation * table}
            if arm.head.transform in drawn:
                tree["projection"] = drawn[arm.head.transform]
            embedding = make_embedding(arm.head, vocabulary, width, tied=arm.tied)
            h = embedding.apply({"params": tree}, token)
            h = h / jnp.sqrt(jnp.mean(h**2, axis=-1, keepdims=True))
            logits = np.asarray(embedding.apply({"params": tree}, h, method="logits"), np.float64)
            loss = np.mean(logsumexp(logits, axis=-1) - logits[np.arange(tokens), target])
            np.testing.assert_allclose(measured_SxA[s, a], loss, rtol=1e-5, err_msg=arm.name)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A folder with results of `SMALL`, and these."""
    folder, engine = RunFolder(tmp_path_factory.mktemp("initial-loss")), kind.engine(SMALL, None, Processes())
    folder.start_records({}, SMALL.record_every)
    for arm in SMALL.arms:
        (phase,) = phases_of(arm, SMALL.steps)
        pieces = list(engine.run(engine.compile(phase), SMALL.members, None, phase.until, Control([])))
        assert len(pieces) == (4 * 4 if arm == SMALL.arms[0] else 4)  # the first arm measures for the others
        for piece in pieces:
            folder.append(arm.name, piece.first_record, piece.numbers, piece.records)
    attributes = {"experiment": SMALL.name, "claim": SMALL.claim, "command": "", **kind.attributes(SMALL, None)}
    folder.assemble(SMALL, kind.schema(SMALL), attributes, kind.constants(SMALL, None))
    return folder, folder.load()


def test_the_corrected_estimate_holds_where_logits_spread_little(small):
    table = kind.frames(small[1])["initial_loss"]
    assert len(table) == 2 * 2 * 4 * 6
    little = table[table["spread"] < 1 + 1e-5]
    assert len(little) == 60
    assert np.max(np.abs(little["corrected"] / little["measured"] - 1)) < 0.03
    assert np.max(np.abs(little["simple"] / little["measured"] - 1)) > 0.05  # the simple one does not
    tied = table.loc[:, :, :, ["tied", "tied+logit-scale=1-by-root-D"]]  # its own logit rules, whatever the spread
    assert len(tied) == 32 and np.max(np.abs(tied["corrected"] / tied["measured"] - 1)) < 0.05


def test_what_is_left(small):
    folder, results = small
    assert kind.required <= results.data_vars.keys() and np.all(results["diverged_at"] == -1)
    assert np.all(np.isfinite(results["initial_loss"]))
    summary = summary_markdown(results, kind.tables(results))
    assert "D 256, n 3,000 (log n = 8.006)" in summary and summary.count("| tied |") == 5
    assert summary.count(" ± ") == 1 + 4 * 6  # the title says what of
    pictures = kind.pictures(results)
    assert [path.name for path in draw_all(pictures, folder.figures)] == ["initial_loss.png"]
    assert "log n (dashed)" in pictures["initial_loss"].caption
    (path,) = write_frames(kind.frames(results), folder.path)
    assert path.name == "initial_loss.csv" and path.read_text().startswith("width,vocabulary,deviation,arm,spread,measured,")
    with pytest.raises(UserError, match="no animation"):
        kind.animate(results, folder.path)


def test_what_is_kept_tells_what_the_run_tells(small, tmp_path):
    write_kept(kind.condensed(small[1], tmp_path, SMALL), path := tmp_path / "kept.nc")
    kept, whole = (kind.frames(each)["initial_loss"] for each in (xr.load_dataset(path, engine="h5netcdf"), small[1]))
    pd.testing.assert_frame_equal(kept.drop(columns="standard_error"), whole.drop(columns="standard_error"), rtol=2e-5)
    np.testing.assert_allclose(kept["standard_error"], whole["standard_error"], rtol=0.02, atol=1e-5)
    assert path.stat().st_size < 40_000 and "command" not in xr.load_dataset(path, engine="h5netcdf").attrs


def test_what_was_not_reached_is_told_as_missing(small):
    results = small[1].copy(deep=True)
    results["initial_loss"].loc[{"arm": "untied"}] = np.nan
    results = results.isel(seed=[0])
    whole, part = kind.tables(results)
    assert whole.rows[-1] == ("untied", "–", "–", "–", "–")
    assert part.rows[-1][3] == "–" and "±" not in part.rows[0][3]  # of a single seed, no error is known
    figure = kind.pictures(results)["initial_loss"].draw()
    assert len(figure.axes) == 6


def test_stopped_between_members_it_goes_on(tmp_path):
    """What stands is not measured again; the rest comes out with the bits of a run that was never stopped."""
    (phase,) = phases_of(TINY.arms[1], TINY.steps)
    whole = measured(TINY, phase, None, Control([]))
    assert whole.numbers.tolist() == sorted(TINY.members) and np.all(whole.steps == 0)

    stopped: list[int] = []
    engine = kind.engine(TINY, None, Processes())
    pieces = engine.run(engine.compile(phase), TINY.members, None, phase.until, Control(stopped))
    first = next(pieces).members
    stopped.append(2)
    assert list(pieces) == []
    assert first.numbers.tolist() == [TINY.members[0]]
    with checkpoints.opened(tmp_path / "checkpoints") as kept:
        kept.save({phase.name: first}, {})
    with checkpoints.opened(tmp_path / "checkpoints") as kept:
        standing = kept.load(print)[phase.name]

    rest = measured(TINY, phase, standing, Control([]))
    assert rest.numbers.tolist() == sorted(TINY.members)[1:]
    both = merge(standing, rest)
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(both), strict=True):
        np.testing.assert_array_equal(one, other)


def measured(experiment, phase, standing, control):
    """Members of all pieces that a new engine hands out."""
    engine = kind.engine(experiment, None, Processes())
    pieces = engine.run(engine.compile(phase), experiment.members, standing, phase.until, control)
    return merge(*(piece.members for piece in pieces))


def test_a_quick_look_measures_the_same():
    """By programs of its own."""
    small = dataclasses.replace(TINY, vocabularies=(100,))
    engines = [kind.engine(small, None, Processes(), coming) for coming in ((), None)]
    assert engines[0]._program is not engines[1]._program
    found = [
        [piece.records for piece in engine.run(small.arms[0], small.members, None, 0, Control([]))] for engine in engines
    ]
    assert len(found[0]) == 2
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5), *found)


def test_every_member_is_measured_by_one_process(monkeypatch):
    shares = []
    for index in range(2):
        processes = Processes(index, 2)
        monkeypatch.setattr(processes, "together", lambda pieces, stopped: pieces)
        engine = kind.engine(TINY, None, processes)
        (phase,) = phases_of(TINY.arms[0], TINY.steps)
        shares.append([piece.members for piece in engine.run(phase.arm, TINY.members, None, 0, Control([]))])
    alone = measured(TINY, phase, None, Control([]))
    np.testing.assert_array_equal(merge(*shares[0], *shares[1]).states["initial_loss"], alone.states["initial_loss"])
    assert [len(share) for share in shares] == [2, 2]


def test_a_loss_that_is_not_finite_is_recorded():
    wild = InitialLoss(arms=("tied",), deviations=(1e38,), widths=(64,), vocabularies=(100,))
    (piece,) = kind.engine(wild, None, Processes()).run(wild.arms[0], wild.members[:1], None, 0, Control([]))
    assert piece.records["diverged_at"].tolist() == [[0]] and not np.isfinite(piece.records["initial_loss"]).any()


def test_the_time_is_estimated():
    estimate = kind.engine(TINY, None, Processes()).estimate(TINY.arms[0])
    assert 0 < estimate.seconds < 60 and estimate.device_bytes > 4 * 2 * 16 * 1000 and "model" in estimate.speed


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"arms": ("untied@5",)}, "arm untied@5: expected tied or untied"),
        ({"arms": ("tied", "tied+bias")}, r"arm tied\+bias: expected no options but"),
        ({"arms": ("tied+deviation=0.1",)}, "deviation=0.1: expected no options but"),
        ({"arms": ("tied+soft-cap=30",)}, "soft-cap=30: expected no options but"),
        ({"arms": ("tied+input-gradient=0",)}, "input-gradient=0: expected no options but"),
        ({"arms": ("tied+half-swap",), "widths": (16, 15)}, "half-swap: width = 15.*multiple of 2"),
        ({"arms": ("tied+shuffle=16",), "widths": (8, 16)}, "shuffle=16: width = 8.*multiple of 16"),
        ({"arms": ("tied", "tied")}, "each may be named once"),
        ({"deviations": (1, 1.0)}, "deviations: each may be named once"),
        ({"deviations": ("D",)}, "deviations = 'D'"),
        ({"widths": (1,)}, "widths = "),
        ({"vocabularies": ()}, "vocabularies = "),
        ({"tokens": 0}, "tokens = 0"),
        ({"seeds": (-1,)}, "seed -1"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_a_line(fields, word):
    with pytest.raises(UserError, match=word) as caught:
        InitialLoss(**fields)
    assert "\n" not in str(caught.value)


def test_a_folder_of_the_version_that_left_no_results_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"results\.nc.*--overwrite"):
        kind.check_unchanged(SMALL, RunFolder(tmp_path), {"finished": True})
    kind.check_unchanged(SMALL, RunFolder(tmp_path), {"finished": False})


def test_at_a_small_scale_the_largest_sizes_are_left_out():
    """So `--all --scale` is quick there too: of words times widths at most so large a share is measured."""
    full = InitialLoss(claim="fresh")

    def cost(experiment):
        return sum(width * words for width in experiment.widths for words in experiment.vocabularies)

    for factor in (0.9, 0.1, 0.002):
        part = full.scaled(factor)
        assert cost(part) <= factor * cost(full) and part.widths[:2] == (16, 32) and part.vocabularies[:2] == (100, 1000)
    assert full.scaled(1) == full.scaled(3.0) == full
    smallest = full.scaled(1e-9)
    assert (smallest.widths, smallest.vocabularies) == ((16, 32), (100, 1000))
    assert SMALL.scaled(1e-9) == SMALL
