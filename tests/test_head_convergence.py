"""Heads on text: steps to a loss, verdicts, equal starts and batches, a tiny study from end to end."""

import dataclasses
import json
import math

import jax
import numpy as np
import optax
import pytest
import xarray as xr
from bodies import once

from jaxtie import convergence, figures, head_convergence, report, run, sweep
from jaxtie.config import HeadConvergence, UserError
from jaxtie.convergence import ALIKE, SMALL, TIED, UNTIED, steps_to_reach
from jaxtie.data import text
from jaxtie.head_convergence import HEADS
from jaxtie.results import RunFolder
from jaxtie.train import initial_state

TINY = HeadConvergence(
    name="tiny", vocab_size=150, width=16, feedforward=16, attention_heads=2, batch_size=2, length=8, valid_rows=4,
    steps=20, eval_every=5, seeds=(0, 3),
)  # fmt: skip


@pytest.fixture
def book(tmp_path, monkeypatch):
    """A folder with a made-up text, and caches of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abcdefgh"), 4)) for _ in range(60)]
    sentence = lambda: " ".join(rng.choice(words, 12)).capitalize() + "."
    (tmp_path / "book").mkdir()
    paragraphs = [" ".join(sentence() for _ in range(4)) for _ in range(60)]
    (tmp_path / "book" / "one.txt").write_text("\n\n".join(paragraphs))
    return tmp_path / "book"


def test_steps_to_reach():
    steps = np.array([0, 10, 20, 30])
    losses = [[8, 6, 4, 2], [8, 4, 6, 3], [8, 8, 8, 8], [2, 2, 2, 2], [8, 6, np.nan, np.nan], [9, 5, 5, 1]]
    found = steps_to_reach(steps, np.array(losses, np.float32), 5.0)
    np.testing.assert_allclose(found, [15, 7.5, np.inf, 1, np.inf, 10])


def test_what_was_not_reached_bounds_the_pace():
    never, soon = np.array([np.inf, np.inf, 90.0]), np.array([20.0, 22.0, 21.0])
    compared = convergence.compare_pace("", never, soon, 100)
    assert 0 < compared.low < math.log(100 / 21) and compared.high == math.inf
    assert convergence.compare_pace("", never, never, 100)[1:4:2] == (-math.inf, math.inf)


def made_up(speed: dict[str, float], start: dict[str, float], end: dict[str, float], spread=0.002, seeds=8) -> xr.Dataset:
    """Exponential curves: per head `start` above log n, `end`, and `speed` (1 where not given), with spread over seeds."""
    steps, n = np.arange(0, 3001, 25), 2000
    rng, loss = np.random.default_rng(0), np.empty((len(HEADS), seeds, len(steps)))
    for h, head in enumerate(HEADS):
        first, last = math.log(n) + start.get(head, 0.4), end.get(head, 5.0)
        curve = last + (first - last) * np.exp(-speed.get(head, 1) * steps / 300)
        loss[h] = curve + spread * rng.standard_normal((seeds, 1))
    dims = ("head", "seed", "step")
    attributes = {"vocabulary": n, "shares": np.array([0.5, 0.9]), "experiment": "made-up", "claim": "", "command": ""}
    return xr.Dataset(
        {"loss": (dims, loss), "valid_loss": (dims, loss), "estimate": ("head", np.full(len(HEADS), 8.0))},
        {"head": list(HEADS), "seed": np.arange(seeds), "step": steps},
        attributes | {"model": "", "text": ""},
    )


def verdicts(results: xr.Dataset) -> list[str]:
    return [row[1] for row in convergence.verdict_table(results).rows]


def test_verdicts_follow_the_data():
    high = {TIED: 8.0, SMALL: 0.7}
    assert verdicts(made_up({SMALL: 0.7}, high, {TIED: 5.5})) == ["holds"] * 4
    assert verdicts(made_up({SMALL: 1.5, ALIKE[1]: 0.7}, high | {ALIKE[2]: 2.0}, {SMALL: 5.1})) == ["fails"] * 4
    assert verdicts(made_up({SMALL: 0.7}, high, {}, seeds=1)) == ["undecided"] * 4
    noisy = verdicts(made_up({SMALL: 0.97}, high, {}, spread=0.2))
    assert noisy == ["holds", "undecided", "undecided", "undecided"]
    crossing = made_up({SMALL: 1.5}, high, {SMALL: 5.25})  # sooner half way, later at nine tenths
    assert verdicts(crossing)[1] == "fails at 50%; holds at 90%"
    row = list(HEADS).index(SMALL)
    assert "; × 1." in convergence.pace_table(crossing).rows[row][-1]
    assert convergence.pace_table(made_up({}, high, {SMALL: 5.5})).rows[row][-1] == "8 of 8 not reached"


def test_heads_share_what_they_have_in_common():
    """Bit for bit: body and tables, these up to the deviation."""
    still = optax.set_to_zero()
    draw = lambda head: initial_state(head_convergence.make_model(TINY, head, 100), still, jax.random.key(3), 8).params
    drawn = once(lambda: {head: draw(head) for head in HEADS})()
    reference = drawn[UNTIED]
    for head, options in HEADS.items():
        params = drawn[head]
        jax.tree.map(np.testing.assert_array_equal, params["body"], reference["body"])
        factor = math.log(100) / 16 / 0.25 if head == SMALL else 1
        table_VxD = reference["embedding"]["input"] * factor
        np.testing.assert_allclose(params["embedding"]["input"], table_VxD, rtol=2e-6 if factor != 1 else 0)
        assert ("output" not in params["embedding"]) == options.get("tied", False)


@pytest.fixture
def without_training(monkeypatch):
    """Programs that compute nothing: what they are given, head by head."""
    given = {}

    def programs(study, head, vocabulary, padding):
        seen = given.setdefault(head, [])

        def step(state, tokens, valid):
            seen.append((np.array(tokens), np.array(valid)))
            losses = np.full(len(study.seeds), 5.0 + 1 / len(seen), np.float32)
            return state, (losses, losses)

        return step, step

    monkeypatch.setattr(head_convergence, "make_programs", programs)
    return given


def test_batches_are_the_same_for_every_head_and_differ_by_seed(book, without_training):
    study = dataclasses.replace(TINY, text=(str(book),))
    prepared = text.prepare(study.corpus)
    for head in (TIED, UNTIED):
        head_convergence.train(study, head, prepared)
    assert len(without_training[TIED]) == 1 + 4
    jax.tree.map(np.testing.assert_array_equal, without_training[TIED], without_training[UNTIED])
    first, *chunks = without_training[TIED]
    tokens = np.concatenate([tokens for tokens, _ in chunks], axis=1)
    assert tokens.shape == (2, 20, 2, 9) and not np.array_equal(tokens[0], tokens[1])
    np.testing.assert_array_equal(first[0], tokens[:, 0])


def test_finished_heads_are_not_trained_again(book, without_training, tmp_path, monkeypatch, capsys):
    file = tmp_path / "tiny.py"
    file.write_text(f"from jaxtie import HeadConvergence\nexperiment = {TINY!r}")
    command = [str(file), "--text", str(book), "--out", str(tmp_path / "run")]
    train, third = head_convergence.train, list(HEADS)[2]

    def stop(study, head, *rest):
        if head == third:
            raise KeyboardInterrupt
        return train(study, head, *rest)

    monkeypatch.setattr(head_convergence, "train", stop)
    assert run.main(command) == 130
    assert len(without_training) == 2 and "the same command goes on" in capsys.readouterr().err
    monkeypatch.setattr(head_convergence, "train", train)
    without_training.clear()
    assert run.main([*command, "--text", str(book)]) == 2  # another text, as far as can be seen
    assert run.main([*command, "--steps", "40"]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert "differs in text" in errors[-2] and "differs in steps" in errors[-1]
    assert run.main(command) == 0
    assert list(without_training) == list(HEADS)[2:]
    assert f"{TIED}: trained before" in capsys.readouterr().err
    assert run.main(command) == 0  # it is shown again
    (book / "one.txt").write_text("Another. " * 500 + "\n\n".join(f"Number {i} is here." for i in range(300)))
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    for finished in (True, False):
        (tmp_path / "run" / "config.json").write_text(json.dumps(config | {"finished": finished}))
        assert run.main(command) == 2
        assert "text that has changed" in capsys.readouterr().err


def test_all_experiments_wait_for_text_where_they_need_it(book, without_training, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "tiny.py").write_text(f"from jaxtie import HeadConvergence\nexperiment = {TINY!r}")
    page, command = tmp_path / "runs" / "index.html", ["--all", "--quiet", "--seeds", "64", "--scale", "0.5"]
    assert run.main(command) == 0
    assert report.SKIPPED in page.read_text() and not without_training
    assert run.main([*command, "--text", str(book)]) == 0
    assert report.SKIPPED not in page.read_text() and "not reached" in page.read_text()
    sizes = RunFolder(tmp_path / "runs" / "tiny").load().sizes
    assert (sizes["seed"], sizes["step"]) == (2, 3)


def test_a_tiny_study_from_end_to_end(book, tmp_path, monkeypatch, capsys):
    """Two heads, truly trained: a program takes seconds to compile."""
    monkeypatch.setattr(head_convergence, "HEADS", {head: HEADS[head] for head in (SMALL, UNTIED)})
    monkeypatch.setattr(convergence, "REMEDIES", (SMALL, UNTIED))
    monkeypatch.setattr(convergence, "ALIKE", (UNTIED, SMALL))
    monkeypatch.setattr(head_convergence, "FAST", sweep.ONCE)
    file, folder = tmp_path / "tiny.py", RunFolder(tmp_path / "run")
    file.write_text(f"from jaxtie import HeadConvergence\nexperiment = {dataclasses.replace(TINY, learning_rate=0.01)!r}")
    command = [str(file), "--text", str(book), "--out", str(folder.path)]
    assert run.main(command) == 0
    out, error = capsys.readouterr()
    assert "Verdicts" in out and "20/20 steps" in error
    results = folder.load()
    assert results["loss"].dims == ("head", "seed", "step") and dict(results.sizes) == {"head": 2, "seed": 2, "step": 5}
    assert np.isfinite(results["loss"]).all() and np.isfinite(results["valid_loss"]).all()
    assert (results["valid_loss"].isel(step=-1) < results["valid_loss"].isel(step=0)).all()
    np.testing.assert_allclose(results["valid_loss"].isel(step=0).mean("seed"), results["estimate"], rtol=0.1)
    assert (folder.figures / "head_convergence.pdf").exists()
    assert folder.summary.read_text().rstrip() == out.rstrip()
    assert run.main(command) == 0
    assert capsys.readouterr() == (out, "")
    section = report.Section(str(file), "tiny")
    section.read(folder)
    assert len(section.tables) == 3 and [image.name for image in section.images] == ["head_convergence"]
    (folder.figures / "head_convergence.png").unlink()
    assert figures.main([str(folder.path), "--csv"]) == 0
    assert (folder.figures / "head_convergence.png").exists()
    assert (folder.path / "csv" / "steps.csv").read_text().startswith("head,seed,step,loss,valid_loss")
    assert figures.main([str(folder.path), "--animate"]) == 2


def test_what_cannot_be_meant():
    for bad in ({"steps": 31}, {"seeds": ()}, {"width": 18}, {"shares": (0.0,)}, {"eta_min": 1.0}, {"learning_rate": -1.0}):
        with pytest.raises(UserError):
            dataclasses.replace(TINY, **bad)
    assert TINY.scaled(1.6).steps == 30 and TINY.scaled(1e-9).steps == 5
