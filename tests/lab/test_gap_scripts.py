"""The script that trains the cells of the tying gap, its training replaced by made-up losses."""

import sys
from pathlib import Path

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
