"""Tables of the tying gap on made-up members with known coefficients."""

import itertools

import numpy as np
import pandas as pd
import pytest
import tying_gap
from never_targets import draw_for_document
from pages import COMPARISONS
from scipy.stats import t
from tying_gap import USUAL

CELLS = [(*cell[:4], None if cell[4] == USUAL else cell[4]) for cell in sorted(tying_gap.CELLS)]
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
    return [row[-1] for row in tying_gap.claims_table(members(**changes)).rows]


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
        judged = [row[-1] for row in tying_gap.claims_table(some).rows]
        assert judged == ["waits for all cells"] * 4


def test_half_swap_waits_for_its_own_members():
    found = members()
    swap = found["arm"] == "tied+half-swap"
    for some in (found[~(swap & (found["layers"] == 4))], found[~(swap & (found["width"] == 128))]):
        judged = [row[-1] for row in tying_gap.claims_table(some).rows]
        assert judged[2] == "waits for all cells" and judged[3] == "holds"


def test_the_fit_finds_the_coefficients():
    fit = tying_gap.fit_cells(members())
    for i, expected in ((1, B), (2, C)):
        low, _, high = fit.interval(np.eye(5)[i], 0.001)
        assert low < expected < high and high - low < 0.02
    published = pd.read_csv(COMPARISONS)
    rows = tying_gap.fit_table(members(), published).rows
    found = {name: float(cell.split(" [")[0]) for name, cell in rows[:-1]}
    at_fixed_share = found["derived: ln(width) at fixed tokens per other parameter"]
    assert at_fixed_share == pytest.approx(C + 2 * B, abs=0.01)
    for vocabulary in ("2,048", "8,192"):
        alone = found[f"ln(width), vocabulary {vocabulary} alone"]
        assert alone == pytest.approx(C, abs=0.01)
    is_known = (published["objective"] == "causal") & ~published["source"].str.startswith("jaxtie")
    whole = published[is_known]
    whole = whole.dropna(subset=["gap_nats", "width", "layers", "vocabulary", "tokens"])
    assert str(len(whole)) in rows[-1][0]
    predicted = 0.1 + B * np.log(whole["tokens"] / whole["vocabulary"]) + C * np.log(whole["width"])
    errors = whole["gap_nats"] - predicted, whole["gap_nats"]
    expected = [float(np.sqrt((each**2).mean())) for each in errors]
    assert list(map(float, rows[-1][1].split(" and "))) == pytest.approx(expected, abs=0.05)


def test_a_row_per_cell_and_arm():
    table = tying_gap.cells_table(members())
    assert len(table.rows) == len(CELLS)
    (narrow,) = (row for row in table.rows if row[:2] == ("32, 2,048, 2", "0.25"))
    expected = 0.1 + B * np.log(375_000 / 2048) + C * np.log(32)
    assert narrow[2:5] == ("183", "3.8", "1.00") and narrow[-2] == "no"
    assert float(narrow[-1].split(" ± ")[0]) == pytest.approx(expected, abs=0.005)
    assert sum("branches 0.01" in row[0] for row in table.rows) == 1
    (other,) = (
        row
        for row in tying_gap.arms_table(members()).rows
        if row[:2] == ("tied+half-swap", "64, 2,048, 4, 1")
    )
    assert float(other[3].split(" ± ")[0]) == pytest.approx(-0.01, abs=0.005)


def test_a_cell_has_its_own_interval():
    """Student's t of its five seeds: no other cell's noise makes it wider."""
    found = members()
    noisy = (found["width"] == 128) & (found["arm"] == "tied") & (found["learning_rate"] == 2)
    found.loc[noisy, "loss_odd"] += 0.1 * found.loc[noisy, "seed"]
    half = {row[:2]: float(row[-1].split(" ± ")[1]) for row in tying_gap.cells_table(found).rows}
    assert half["128, 2,048, 2", "1"] > 0.15 and half["32, 2,048, 2", "1"] < 0.02
    own = found[(found["width"] == 32) & (found["vocabulary"] == 2048) & (found["epochs"] == 1)]
    losses = own[own["learning_rate"] == 2].pivot(index="seed", columns="arm", values="loss_odd")
    gap = losses["tied"] - losses["untied"]
    expected = t.ppf(0.975, 4) * gap.std() / np.sqrt(5)
    assert half["32, 2,048, 2", "1"] == pytest.approx(expected, abs=6e-4)


def test_the_figure_is_drawn(tmp_path):
    path = draw_for_document(lambda: tying_gap.draw_gaps(members()), tmp_path / "gaps.png")
    assert path.stat().st_size > 10_000
