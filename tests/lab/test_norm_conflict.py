"""Pages and figures that `experiments/lab` writes are those of the committed data."""

import math
import re
from pathlib import Path

import norm_conflict as lab
import pandas as pd
import pytest
from commit import Committed

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.fixture(scope="module")
def runs():
    return Committed(EXPERIMENTS / "data")


@pytest.mark.slow  # as the other documents, see test_commit.py
def test_the_page_is_what_the_script_writes(runs):
    assert lab.page(runs) == lab.PAGE.read_text()


def test_numbers_of_the_text_are_in_the_tables_of_the_page():
    tables = re.compile(r"<!-- table.*?end of table -->", re.DOTALL)
    shown = "".join(tables.findall(lab.PAGE.read_text()))
    prose = re.sub(r"\]\([^)]*\)", "", tables.sub("", lab.PAGE.read_text()))
    numbers = {number.strip() for number in re.findall(r"(?<![\d,])\d+\.\d+", prose)}
    assert not {number for number in numbers if number not in shown}


def test_the_page_counts_its_verdicts():
    text = lab.PAGE.read_text()
    counts = (text.count(f"| **{each}** |") for each in ("holds", "inconclusive"))
    expected = "{} hold, {} are inconclusive, none fails".format(*counts)
    assert expected in text and not {"**fails**", "**no data yet**"} & {*text.split()}
    assert text.count("| **") == 15


@pytest.mark.parametrize("name", ["norm_conflict_norms.png", "norm_conflict_leaving.png"])
def test_figures_are_of_the_committed_data(runs, name):
    """Lines end where the tables say."""
    axes = lab.FIGURES[name](runs).axes[0]
    ends = {line.get_label(): line.get_ydata()[-1] for line in axes.lines}
    results = runs[lab.HALF]
    if name == "norm_conflict_leaving.png":
        assert ends["tied"] > ends["tied+input-norm=0.05"] > ends["untied"]
    else:
        rows = {row[:2]: row[2:] for row in lab.norms_table(runs).rows}
        stuck, _, free = rows[lab.WHERE[lab.HALF], "tied"][:3]
        held = ends[f"{stuck} seeds stuck at the end"]
        assert f"{held:.2f}" == rows[lab.WHERE[lab.HALF], "tied"][1] and held > float(free)
        assert results.sizes["seed"] == sum(int(label.split()[0]) for label in ends)


def test_the_forecast_by_pilots_has_no_skill():
    """Coverage and errors, counted here once more."""
    import advice_on_text

    targets = pd.read_csv(advice_on_text.DATA)
    found = advice_on_text.findings(targets)
    inside = [
        abs(own.gap - own.mean) <= 1.645 * math.hypot(own.std, own.error)
        for own in targets.itertuples()
    ]
    assert found.startswith(f"{sum(inside)} of {len(targets)} gaps are within")
    others = [own for own in targets.itertuples() if own.text != "zstandard"]
    predicted = math.sqrt(sum((own.gap - own.mean) ** 2 for own in others) / len(others))
    zero = math.sqrt(sum(own.gap**2 for own in others) / len(others))
    assert predicted > zero
    assert f"is {predicted:.3f} nat, that of predicting 0 {zero:.3f}" in found
    text = (EXPERIMENTS / "README.md").read_text()
    assert f"{len(targets)} blind targets" in text and f"{sum(inside)} are within its 90 %" in text
