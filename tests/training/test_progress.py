"""What progress shows of losses."""

import numpy as np
import pytest

from jaxtie.config import member_number
from jaxtie.training import progress
from jaxtie.training.progress import Progress
from jaxtie.training.task import Chunk

RATES = ["learning_rate 0.001", "learning_rate 0.1"]


@pytest.fixture(autouse=True)
def no_wait(monkeypatch):
    monkeypatch.setattr(progress, "PLAIN_SECONDS", 0.0)


def chunk(numbers: list[int], losses: list[float], tokens: int = 0) -> Chunk:
    records = {"loss": np.array([losses])}
    return Chunk(np.array(numbers), 0, records, None, 10 * len(numbers), tokens, 0.0)


def last_line(capsys) -> str:
    return capsys.readouterr().err.splitlines()[-1]


def test_a_sweep_shows_its_best_and_worst_point(capsys):
    seeds = [member_number(point, seed) for point in (0, 1) for seed in (0, 1, 2)]
    with Progress("tied", 100, 6, 0, [0.5], RATES, quiet=False) as shown:
        shown.add(chunk(seeds[:3], [0.9, 1.0, 1.1]))
        shown.add(chunk(seeds[3:], [0.6, 0.7, np.nan]))
    best, worst = "loss 0.650 at learning_rate 0.1", "1.000 at learning_rate 0.001"
    assert last_line(capsys).endswith(f"{best} to {worst} (best 0.500)")


def test_text_shows_the_loss_after_the_one_before(capsys):
    with Progress("tied", 100, 1, 0, quiet=False) as shown:
        for loss in (6.0, 5.5, 5.25):
            shown.add(chunk([0], [loss], tokens=64))
    assert last_line(capsys).endswith("loss 5.500 → 5.250")


def test_a_run_shows_the_median_over_its_latest_members(capsys):
    with Progress("tied", 100, 3, 0, [0.508], quiet=False) as shown:
        shown.add(chunk([0, 1, 2], [3.0, 3.0, 3.0]))
        shown.add(chunk([0, 1, 2], [1.0, 2.0, 9.0]))
    assert last_line(capsys).endswith("loss 2.000 (best 0.508)")
