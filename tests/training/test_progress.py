"""What progress shows of losses."""

import numpy as np
import pytest

from jaxtie.training import progress
from jaxtie.training.progress import Progress
from jaxtie.training.task import Chunk


@pytest.fixture(autouse=True)
def no_wait(monkeypatch):
    monkeypatch.setattr(progress, "PLAIN_SECONDS", 0.0)


def chunk(numbers: list[int], losses: list[float], tokens: int = 0) -> Chunk:
    records = {"loss": np.array([losses])}
    return Chunk(np.array(numbers), 0, records, None, 10 * len(numbers), tokens, 0.0)


def last_line(capsys) -> str:
    return capsys.readouterr().err.splitlines()[-1]


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
