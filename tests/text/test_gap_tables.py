"""Tables of the tying gap on made-up members with known coefficients."""

import itertools

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t

from jaxtie.results.plots import draw_for_document
from jaxtie.run.experiment_files import installed_data
from jaxtie.text import gap_model, gap_tables
from jaxtie.text.gap_model import USUAL

CELLS = [(*cell[:4], None if cell[4] == USUAL else cell[4]) for cell in sorted(gap_tables.CELLS)]
B, C = 0.05, -0.04


def members(
    *, deep_gain: float = 0.01, of_branches: float = 0.03, b: float = B, c: float = C
) -> pd.DataFrame:
    """Five seeds: the gap is 0.1 + b·ln(tokens per row) + c·ln(width); rates 1 to 3, 2 is best."""
    rng, rows = np.random.default_rng(0), []
    for (width, vocabulary, epochs, layers, branch), arm, rate in itertools.product(
        CELLS, ("tied", "untied", "tied+half-swap"), (1, 2, 3)
    ):
        tokens = int(epochs * 1_500_000)
        loss = 4 + 0.1 * (rate != 2)
        if arm != "untied":
            loss += 0.1 + b * np.log(tokens / vocabulary) + c * np.log(width)
            loss += of_branches * (branch is not None)
        if arm == "tied+half-swap":
            loss -= 0.03 if layers == 2 else deep_gain
        for seed in range(5 if rate == 2 else 2):
            own = loss + 0.003 * rng.standard_normal(2)
            rows.append(
                {
                    "width": width,
                    "vocabulary": vocabulary,
                    "epochs": epochs,
                    "layers": layers,
                    "branch_scale": branch,
                    "arm": arm,
                    "learning_rate": rate,
                    "seed": seed,
                    "steps": tokens // 256,
                    "tokens": tokens,
                    "parameters": 2 * vocabulary * width + 10**5,
                    "bigram": 3.9 if vocabulary == 2048 else 4.1,
                    "loss_even": own[0],
                    "loss_odd": own[1],
                }
            )
    return pd.DataFrame(rows)


def verdicts(**changes) -> list[str]:
    return [row[-1].strip("*") for row in gap_tables.claims_table(members(**changes)).rows]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ["holds", "holds", "holds", "holds"]),
        ({"deep_gain": 0.06, "of_branches": -0.05}, ["holds", "holds", "fails", "fails"]),
        ({"deep_gain": 0.03, "of_branches": 0.0}, ["holds", "holds", *["inconclusive"] * 2]),
        ({"b": -0.05, "c": 0.04}, ["fails", "fails", "holds", "holds"]),
    ],
)
def test_claims_are_judged_by_what_was_put_in(changes, expected):
    assert verdicts(**changes) == expected


def test_claims_wait_for_all_their_cells_and_seeds():
    """Otherwise one could stop when they hold."""
    found = members()
    last = (found["width"] == 128) & (found["epochs"] == 4)
    for some in (
        found[~last],
        found[~(last & (found["seed"] == 4))],
        found[found["layers"] == 2],
        found[found["branch_scale"].isna()],
    ):
        judged = [row[-1] for row in gap_tables.claims_table(some).rows]
        assert judged == ["**waits for all cells**"] * 4


def test_half_swap_waits_for_its_own_members():
    found = members()
    swap = found["arm"] == "tied+half-swap"
    for some in (found[~(swap & (found["layers"] == 4))], found[~(swap & (found["width"] == 128))]):
        judged = [row[-1] for row in gap_tables.claims_table(some).rows]
        assert judged[2] == "**waits for all cells**" and judged[3] == "**holds**"


def test_the_fit_finds_the_coefficients():
    fit = gap_model.fit_cells(members())
    for i, expected in ((1, B), (2, C)):
        low, _, high = fit.interval(np.eye(5)[i], 0.001)
        assert low < expected < high and high - low < 0.02
    published = pd.read_csv(installed_data("published-comparisons.csv"))
    rows = gap_tables.fit_table(members(), published).rows
    found = {name: float(cell.split(" [")[0]) for name, cell in rows}
    at_fixed_share = found["derived: ln(width) at fixed tokens per other parameter"]
    assert at_fixed_share == pytest.approx(C + 2 * B, abs=0.01)
    for vocabulary in ("2,048", "8,192"):
        alone = found[f"ln(width), vocabulary {vocabulary} alone"]
        assert alone == pytest.approx(C, abs=0.01)
    (far,) = (value for name, value in found.items() if name.endswith("published -0.049"))
    assert far == pytest.approx(0.1 + B * np.log(1.966e9 / 32_000) + C * np.log(640), abs=0.05)


def test_what_was_left_out_is_predicted_from_the_rest():
    """Exactly, where the others have the same gap; not at all where a width differs by 0.3."""
    published = pd.read_csv(installed_data("published-comparisons.csv"))
    found = members(b=0.0, c=0.0)
    targets = pd.read_csv(installed_data("advice-on-text.csv")).iloc[6:8].assign(gap=0.05)
    rows = {row[0]: row for row in gap_tables.left_out_table(found, published, targets).rows}
    gaps = len(gap_model.usual_cells(found)) + len(targets)
    assert rows["all of a width"][1] == f"{gaps} of {gaps}"
    assert rows["all with four layers"][1] == "2 of 2"
    assert rows["all of a published source"][1] == "7 of 7"
    bent = (found["width"] == 128) & (found["arm"] == "tied")
    found["loss_odd"] += 0.3 * bent
    targets["gap"] += 0.3 * (targets["width"] == 128)
    worse = {row[0]: row for row in gap_tables.left_out_table(found, published, targets).rows}
    name = "all of a width"
    assert float(worse[name][2]) > 0.1 > 10 * float(rows[name][2])


def test_the_advice_is_scored_by_coverage_width_and_regret():
    names = ("gap", "mean", "word", "word_without_pilots", "pilot_gap", "factor")
    rows = [
        (0.10, 0.10, "do not tie", "not decided", 0.1, 1.0),  # right
        (-0.10, 0.00, "do not tie", "tie", 0.1, 2.0),  # missed by 0.05; wrong
        (0.04, 0.00, "not decided", "do not tie", -0.1, 2.0),  # tied by default, costs 0.04
        (-0.02, 0.00, "tie", "tie", -0.1, 9.0),
    ]
    targets = pd.DataFrame([dict(zip(names, row)) for row in rows])
    targets = targets.assign(std=0.03 / 1.645, error=0.04 / 1.645)  # half an interval: 0.05
    targets = targets.assign(seeds=4, deviation=0.2 / 1.645)  # by its own seeds: 0.104
    targets = targets.assign(text="a", width=64, layers=2, vocabulary=9, tokens=9)
    last = targets.assign(test=3, mean_without_pilots=9.0, std_without_pilots=0.1)
    both = pd.concat([targets.assign(test=1), last])
    assert gap_tables.advice_coverage(both) == (6, 8)
    _, first, table, scores = gap_tables.advice_tables(both)
    assert (table.title, scores.title) == ("Advice, test 3", "How good the advice was, test 3")
    assert "4 of 4 would be" in first.note and "would be" not in scores.note
    found = [row[1] for row in scores.rows]
    assert found[:2] == ["3 of 4", "0 of 4"] and found[4:6] == ["2 of 3", "1 of 2"]
    assert list(map(float, found[2:4])) == pytest.approx([0.1, 0.1 + 20 * 0.05 / 4], abs=6e-4)
    regrets = [float(each) for row in found[6:] for each in row.split(", ")]
    expected = [0.11 + 0.03, 0.10 + 0.04, 0.09, 0.10, 0.09 + 0.03, 0.10 + 0.04]
    expected += [0.11 + 0.03, 0.10 + 0.02, 0.11 + 0.03, 0.10 + 0.04]
    assert regrets == pytest.approx(np.array(expected) / 4, abs=6e-4)


def test_a_row_per_cell_and_arm():
    table = gap_tables.cells_table(members())
    assert len(table.rows) == len(CELLS)
    (narrow,) = (row for row in table.rows if row[:2] == ("32, 2,048, 2", "0.25"))
    expected = 0.1 + B * np.log(375_000 / 2048) + C * np.log(32)
    assert narrow[2:5] == ("183", "3.8", "1.00") and narrow[-2] == "no"
    assert float(narrow[-1].split(" ± ")[0]) == pytest.approx(expected, abs=0.005)
    assert sum("branches 0.01" in row[0] for row in table.rows) == 1
    (other,) = (
        row
        for row in gap_tables.arms_table(members()).rows
        if row[:2] == ("tied+half-swap", "64, 2,048, 4, 1")
    )
    assert float(other[3].split(" ± ")[0]) == pytest.approx(-0.01, abs=0.005)


def test_a_cell_has_its_own_interval():
    """Student's t of its five seeds: no other cell's noise makes it wider."""
    found = members()
    noisy = (found["width"] == 128) & (found["arm"] == "tied") & (found["learning_rate"] == 2)
    found.loc[noisy, "loss_odd"] += 0.1 * found.loc[noisy, "seed"]
    half = {row[:2]: float(row[-1].split(" ± ")[1]) for row in gap_tables.cells_table(found).rows}
    assert half["128, 2,048, 2", "1"] > 0.15 and half["32, 2,048, 2", "1"] < 0.02
    own = found[(found["width"] == 32) & (found["vocabulary"] == 2048) & (found["epochs"] == 1)]
    losses = own[own["learning_rate"] == 2].pivot(index="seed", columns="arm", values="loss_odd")
    gap = losses["tied"] - losses["untied"]
    expected = t.ppf(0.975, 4) * gap.std() / np.sqrt(5)
    assert half["32, 2,048, 2", "1"] == pytest.approx(expected, abs=6e-4)


def test_the_figure_is_drawn(tmp_path):
    path = draw_for_document(lambda: gap_tables.draw_gaps(members()), tmp_path / "gaps.png")
    assert path.stat().st_size > 10_000
