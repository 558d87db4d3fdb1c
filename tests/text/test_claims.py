"""Groups of pairs, and tables, claims and figures of them, on made-up results."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from condense import condense_text
from matplotlib.figure import Figure
from text_results import BY_PAIR, text_results

from jaxtie.config import UserError
from jaxtie.results.claims import Estimate, claims_table, judge_claims
from jaxtie.run.experiment_files import load_experiment_and_claims
from jaxtie.text.analysis import groups_of, log_decay_ratio
from jaxtie.text.claims import TextClaim
from jaxtie.text.plots import text_panels
from jaxtie.text.tables import validation_table, word_pairs_table

ARMS, SEEDS, PAIRS = ("tied", "tied+bias", "untied", "untied@500"), 3, 6
P = np.resize([0.5, 0.1], PAIRS)
DECAY = 0.9


def made_up(ratio, odds=None, swap=0.1) -> xr.Dataset:
    """Results whose distances end near `ratio(arm, table, kind, probability)` times the decay."""
    kinds, rng = ["duplicate", "matched", "random"], np.random.default_rng(0)
    start = rng.uniform(1, 2, (len(ARMS), SEEDS, 1, 3, PAIRS))
    distances = []
    for table in ("input", "output"):
        end = [[[ratio(arm, table, kind, p) for p in P] for kind in kinds] for arm in ARMS]
        noise = 1 + 0.001 * rng.standard_normal((len(ARMS), SEEDS, 1, 1, 1))
        end = np.array(end)[:, None, None] * start * DECAY * noise
        distances.append(np.concatenate([start, end], axis=2))
    predicted = {
        "log_odds": np.log(1 / P - 1) if odds is None else odds,
        "log_odds_deviation": 0.2,
        "swap_divergence": swap,
    }
    shape = (len(ARMS), SEEDS, 2, 3, PAIRS)
    found = {
        name: (BY_PAIR, np.broadcast_to(value, shape) + 1e-3 * rng.standard_normal(shape))
        for name, value in predicted.items()
    }
    noise = 0.001 * rng.standard_normal((len(ARMS), SEEDS, 2))
    loss = np.array([4.0, 3.9, 3.8, 3.85])[:, None, None] + noise
    found["duplicate_probability"], found["decay_factor"] = ("pair", P), ("step", [1.0, DECAY])
    found["unigram_loss"], found["bigram_loss"] = ((), 6.0), ((), 4.5)
    found["kneser_ney_loss"] = ((), 4.4)
    return text_results(ARMS, loss, [0, 40], kinds, *distances, **found)


def as_claimed(arm: str, table: str, kind: str, p: float) -> float:
    """Apart where a table writes logits and no bias does; near as inputs; other pairs far."""
    if kind != "duplicate":
        return 4.0
    apart = {"tied": ("input", "output"), "untied": ("output",), "untied@500": ("output",)}
    return 2.0 if p == 0.1 and table in apart.get(arm, ()) else 1.0


def test_groups_are_kinds_and_probabilities():
    results = made_up(as_claimed)
    found = groups_of(results)
    assert [group.label for group in found] == [
        "word–duplicate at 0.5",
        "word–duplicate at 0.1",
        "as frequent as word–duplicate at 0.5",
        "as frequent as word–duplicate at 0.1",
        "random pairs",
    ]
    assert [group.hypothesis for group in found] == [" (DH holds)", " (DH fails)", "", "", ""]
    assert found[0].pairs.tolist() == [0, 2, 4] and found[0].true_odds == 0
    assert found[1].true_odds == pytest.approx(math.log(9))
    old = results.drop_vars("duplicate_probability").sel(kind=["duplicate", "random"])
    assert [group.label for group in groups_of(old)] == ["word–duplicate", "random pairs"]


def test_distances_are_divided_by_the_decay_factor():
    results = made_up(as_claimed)
    for group, expected in zip(groups_of(results), (1, 2, 4, 4, 4)):
        ratio_S = np.exp(log_decay_ratio(results, group, "tied", "input"))
        np.testing.assert_allclose(ratio_S, expected, rtol=0.01)


def test_the_table_has_a_row_for_each_table_and_group():
    table = word_pairs_table(made_up(as_claimed))
    assert len(table.rows) == (1 + 1 + 2 + 2) * 5 and "decay alone leaves 0.900" in table.title
    rows = {row[:2]: dict(zip(table.header, row)) for row in table.rows}
    rare = rows["untied output", "word–duplicate at 0.1"]
    assert float(rare["ratio to decay alone"].split()[0]) == pytest.approx(2, rel=0.01)
    assert float(rare["ln of odds, nat"].split()[0]) == pytest.approx(math.log(9), abs=0.01)
    assert rare["true"] == "2.197"
    assert rows["tied", "random pairs"]["true"] == "–" and rare["swap divergence"].startswith("0.1")
    assert "±" not in str(word_pairs_table(made_up(as_claimed).isel(seed=[0])).rows)


def test_baselines_follow_the_loss():
    rows = {row[0]: row[1:] for row in validation_table(made_up(as_claimed)).rows}
    assert rows["loss of frequencies alone (unigram), nat"][:4] == ("6.000",) * 4
    assert rows["loss of the token on the left alone (bigram), nat"][0] == "4.500"


PATH = Path(__file__).parents[2] / "experiments" / "duplicates_causal.py"
CLAIMS = load_experiment_and_claims(PATH)[1]


def judged(results: xr.Dataset) -> list[tuple[str, Estimate]]:
    return judge_claims(CLAIMS, results, {})


@pytest.mark.parametrize(
    "results, verdict",
    [(made_up(as_claimed), "holds"), (made_up(lambda *_: 1.0, odds=np.zeros(PAIRS)), "fails")],
    ids=["as claimed", "all distances grow alike"],
)
def test_verdicts_follow_the_data(results, verdict):
    """But for claims about swaps, which are all of one size, and about the loss."""
    found = [verdict for verdict, _ in judged(results)]
    assert found == [verdict] * 10 + ["fails", "inconclusive", "holds"]


def test_swaps_are_compared_as_ratios():
    results = made_up(as_claimed)
    own = {"kind": "duplicate", "pair": np.arange(PAIRS)[P == 0.1]}
    results["swap_divergence"].loc[own | {"arm": "tied"}] = 0.03
    results["swap_divergence"].loc[own | {"arm": "untied"}] = 0.01
    half, farther = judged(results)[10:12]
    assert half[0] == "holds" and half[1].found.split()[0] == "0.30"
    assert farther[0] == "holds"
    assert CLAIMS[11].expression == (
        "swap divergence: tied, duplicates at 0.1 · untied, duplicates at 0.5"
        " ÷ tied, duplicates at 0.5 ÷ untied, duplicates at 0.1"
    )


def test_an_interval_of_few_seeds_is_students():
    """Of 3 seeds, at q = 1 - 0.05 / (2 · 13): t of two degrees of freedom by its closed form."""
    results = made_up(as_claimed)
    loss = results["valid_loss"].sel(eval_step=40)
    values = (loss.sel(arm="tied+bias") - loss.sel(arm="tied")).values
    q = 1 - 0.05 / (2 * len(CLAIMS))
    t = (2 * q - 1) * math.sqrt(2 / (4 * q * (1 - q)))
    _, low, _, high, *_ = judged(results)[-1][1]
    assert high - low == pytest.approx(2 * t * values.std(ddof=1) / math.sqrt(SEEDS), rel=1e-9)


def test_committed_results_give_the_same_tables_and_verdicts(tmp_path):
    """But for what 1 in 2,048 of a distance leaves."""
    results = made_up(as_claimed)
    condense_text(results, tmp_path).to_netcdf(tmp_path / "committed.nc", engine="h5netcdf")
    committed = xr.load_dataset(tmp_path / "committed.nc", engine="h5netcdf")
    assert np.nanmax(np.abs(committed["input_distance"] / results["input_distance"] - 1)) < 1 / 2048
    missing = committed["output_distance"].isnull().all(["seed", "eval_step", "kind", "pair"])
    assert missing.values.tolist() == [True, True, False, False]
    assert validation_table(committed).rows == validation_table(results).rows
    for name in ("unigram_loss", "bigram_loss", "kneser_ney_loss"):
        assert float(committed[name]) == float(results[name])
    tables = [claims_table("", {"made-up": it}, {"made-up": CLAIMS}) for it in (committed, results)]
    assert [row[-1] for row in tables[0].rows] == [row[-1] for row in tables[1].rows]
    of_committed, whole = (word_pairs_table(each).rows for each in (committed, results))
    assert [row[:2] for row in of_committed] == [row[:2] for row in whole]
    numbers = [
        re.findall(r"-?[0-9.]+", str([row[2:] for row in rows])) for rows in (of_committed, whole)
    ]
    np.testing.assert_allclose(*(np.array(each, float) for each in numbers), atol=2e-3)


@pytest.mark.parametrize(
    "term, message",
    [
        ("tied+shuffle, duplicates at 0.5", r"no arm tied\+shuffle, which a claim is about: So\."),
        ("tied, duplicates at 0.3", "no pairs 'duplicates at 0.3', which a claim is about"),
    ],
)
def test_a_missing_arm_or_group_is_a_user_error(term, message):
    with pytest.raises(UserError, match=message):
        judge_claims([TextClaim("So.", "decay ratio", term, high=1)], made_up(as_claimed), {})


def test_the_panel_of_losses_has_a_curve_for_each_arm_and_known_values():
    axes = Figure().subplots()
    text_panels(made_up(as_claimed))["loss"](axes)
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == [*ARMS, "unigram", "bigram", "kneser-ney"]
    heights = [line.get_ydata()[0] for line in axes.lines[len(ARMS) :]]
    assert heights == pytest.approx([6.0, 4.5, 4.4])


def test_the_panel_of_distances_has_a_colour_for_each_group():
    axes, results = Figure().subplots(), made_up(as_claimed)
    text_panels(results)["distances of tied"](axes)
    first, second, *_, last = labels = [each.get_text() for each in axes.get_legend().get_texts()]
    assert first == "duplicate at 0.5 (DH holds)" and last == "random pairs"
    assert second == "duplicate at 0.1 (DH fails)"
    assert len({line.get_color() for line in axes.lines}) == len(labels) == len(axes.lines) == 5
