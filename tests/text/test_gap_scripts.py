"""The script that trains the cells of the tying gap, its training replaced by made-up losses."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.fixture(scope="module")
def script():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXPERIMENTS / "scripts"))
        import tying_gap_on_text

        yield tying_gap_on_text
        del sys.modules["tying_gap_on_text"]


def trained(script, place: Path, best: int = 7):
    """A trainer whose loss is least at the rate number `best`, and the runs that it did."""
    runs = []

    def train(cell, arm, k, seeds):
        runs.append((k, tuple(seeds)))
        for seed in seeds:
            row = {**cell._asdict(), "arm": arm, "learning_rate": script.rate_of(k), "seed": seed}
            loss = 4 + 0.1 * abs(k - best)
            yield seed, {**row, "tokens": 9, "loss_even": loss, "loss_odd": loss}

    trainer = script.Trainer((), place)
    trainer._train = train
    return trainer, runs


def test_the_search_goes_on_past_an_edge_and_judges_five_seeds(script, tmp_path):
    trainer, runs = trained(script, tmp_path)
    trainer.search(script.Cell(32), "tied")
    assert [run for run in runs if run[1] == (0, 1)] == [(k, (0, 1)) for k in (4, 5, 6, 7, 8)]
    assert runs[-1] == (7, (2, 3, 4))
    runs.clear()
    trainer.done(script.Cell(32), "tied").touch()
    trainer.search(script.Cell(32, epochs=4), "tied")  # begins where the other cell ended
    assert [run[0] for run in runs] == [6, 7, 8, 7]


def test_all_arms_are_shared_gathered_and_restored(script, tmp_path, monkeypatch):
    """Also those whose names cannot be names of files."""
    monkeypatch.setattr(script, "DATA", tmp_path / "data.csv")
    monkeypatch.setattr(sys, "argv", ["script", "--out", str(tmp_path / "out"), "--gather"])
    trainer, runs = trained(script, tmp_path / "out")
    jobs = [(script.Cell(64), arm) for arm in ("tied", "untied", *script.OTHERS)]
    trainer.share(jobs)
    script.main()
    found = pd.read_csv(tmp_path / "data.csv")
    assert {*found["arm"]} == {arm for _, arm in jobs}
    runs.clear()
    script.restore(tmp_path / "new")
    again, runs = trained(script, tmp_path / "new")
    again.share(jobs)
    assert not runs
    assert len(again.members(script.Cell(64))) == len(found)


@pytest.mark.parametrize(("name", "choosing"), [("books", (0,)), ("sqlalchemy", (0, 1))])
def test_targets_of_the_advice_have_three_seeds(script, tmp_path, monkeypatch, name, choosing):
    """The first one, or two, choose the rate."""
    import advice_on_text

    targets = advice_on_text.Targets(name, "", tmp_path)
    monkeypatch.setattr(targets, "first_guess", lambda cell, arm: 4)
    runs = []

    def train(cell, arm, k, seeds):
        runs.append((k, tuple(seeds)))
        for seed in seeds:
            row = {**cell._asdict(), "arm": arm, "learning_rate": script.rate_of(k), "seed": seed}
            loss = 4 + 0.1 * abs(k - 4) + 0.5 * seed + 0.02 * seed * (arm == "tied")
            yield seed, {**row, "tokens": 9, "loss_even": loss, "loss_odd": loss}

    targets._train = train
    cell = script.Cell(96)
    assert not advice_on_text.measured(targets, cell)
    targets.share([(cell, "tied"), (cell, "untied")])
    rest = (0, 1, 2)[len(choosing) :]
    assert runs == 2 * [(3, choosing), (4, choosing), (5, choosing), (4, rest)]
    found = advice_on_text.measured(targets, cell)
    assert (found["gap"], found["seeds"]) == (pytest.approx(0.02), 3)
    assert found["deviation"] == pytest.approx(0.02)


def test_errors_of_targets_are_by_the_cells_then_by_their_own_seeds(script):
    import advice_on_text

    rows = {"text": ["books", "a", "a", "a"], "test": [1, 2, 2, 2], "gap": [0.1, 0.1, 0.1, np.nan]}
    rows |= {"deviation": [9.0, 0.03, 0.04, np.nan], "seeds": [3, 3, 3, 0]}
    first, *own = advice_on_text.with_errors(pd.DataFrame(rows))["error"]
    assert 0.003 < first < 0.02
    expected = np.sqrt((0.03**2 + 0.04**2) / 2 / 3)
    assert own == pytest.approx([expected, expected, np.nan], nan_ok=True)
