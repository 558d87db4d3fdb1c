"""Heads on text, on made-up results: who plays which part, steps to a loss, verdicts, tables,
figure.
"""

import math
import runpy
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from jaxtie.config import Arm, names_of
from jaxtie.results.claims import compare
from jaxtie.results.plots import draw_all
from jaxtie.results.statistics import first_at_level
from jaxtie.text import heads
from jaxtie.text.heads import (
    SHARES,
    Remedies,
    compare_pace,
    compares_heads,
    head_loss_table,
    judge_heads,
    pace_table,
)
from jaxtie.text.plots import draw_heads, text_pictures
from jaxtie.text.tables import text_tables, text_verdict_table

FILE = Path(__file__).parents[2] / "experiments" / "head_convergence.py"
STUDY = runpy.run_path(str(FILE))["experiment"]
ARMS = names_of(STUDY.arms)
TIED, SMALL, UNTIED, PROJECTION, HALF_SWAP, SHUFFLE, SCALED = ARMS
ALIKE = UNTIED, PROJECTION, HALF_SWAP, SHUFFLE
N = 2000


def made_up(speed: dict, start: dict, end: dict, spread=0.002, seeds=8, arms=ARMS) -> xr.Dataset:
    """Exponential curves: per head `start` above log n, `end`, and `speed` (1 where not given),
    with spread over seeds.
    """
    rng, steps = np.random.default_rng(0), np.arange(0, 3001, 25)
    loss = np.empty((len(arms), seeds, len(steps)))
    for a, arm in enumerate(arms):
        first, last = math.log(N) + start.get(arm, 0.4), end.get(arm, 5.0)
        curve = last + (first - last) * np.exp(-speed.get(arm, 1) * steps / 300)
        loss[a] = curve + spread * rng.standard_normal((seeds, 1))
    every, looked = ("arm", "seed", "step"), ("arm", "seed", "eval_step")
    measured = {name: (looked, loss) for name in ("valid_loss", "valid_accuracy", "perplexity")}
    apart = {
        f"{table}_distance": ((*looked, "kind", "pair"), np.ones((*loss.shape, 1, 3)))
        for table in ("input", "output")
    }
    near = {
        f"{table}_neighbour": ((*looked, "probe", "rank"), np.ones((*loss.shape, 1, 2)))
        for table in ("input", "output")
    }
    constants = {
        "diverged_at": (("arm", "seed"), np.full((len(arms), seeds), -1)),
        "parameters": ("arm", [60 if arm.startswith("tied") else 100 for arm in arms]),
        "estimated_initial_loss": ("arm", np.full(len(arms), 8.0)),
        "token": ("token_number", np.full(N, "word")),
        "probe_word": ("probe", ["word"]),
    }
    return xr.Dataset(
        {"loss": (every, loss + 0.1), **measured, **apart, **near, **constants},
        {
            "arm": list(arms),
            "seed": np.arange(seeds),
            "step": steps,
            "eval_step": steps,
            "kind": ["random"],
        },
        {
            "task": "text",
            "objective": "causal",
            "experiment": "made-up",
            "claim": "",
            "command": "",
        },
    )


HIGH = {TIED: 8.0, SMALL: 0.7}


def verdicts(results: xr.Dataset) -> list[str]:
    """Of the claims on heads; those on tying stand before them."""
    told = {row[0]: row[1] for row in text_verdict_table(results).rows}
    return [told[claim] for claim in judge_heads(results)]


def test_heads_are_compared_where_it_can_be_seen():
    """A tied model's own logit, √D, is far above log n; there are seeds enough for intervals; every
    part is played.
    """
    assert len(STUDY.seeds) >= 8 and STUDY.objective == "causal" and not STUDY.duplicates
    assert STUDY.model.width**0.5 > 2 * np.log(STUDY.corpus.vocab_size)
    assert STUDY.steps == STUDY.optimizer.half_period and STUDY.eval_batches * STUDY.batch == 64
    assert f"python -m jaxtie.run experiments/{FILE.name} --text " in FILE.read_text(
        encoding="utf-8"
    )
    small, alike = Remedies.of(made_up({}, {}, {}, seeds=1))
    assert (str(small), names_of(alike)) == (SMALL, list(ALIKE))


def test_the_part_of_an_arm_follows_from_its_head():
    arms = (
        "untied",
        "tied",
        "untied+bias",
        "untied+half-swap",
        "untied@25",
        "untied+projection@25",
        "tied+bert-head",
        "tied+shuffle",
        "tied+shuffle=4",
        "tied+half-swap+bias",
        "tied+half-swap+input-gradient=1",
        "tied+init-std=log-n-by-D+bias",
        "untied+init-std=log-n-by-D",
        "tied+init-std=0.03",
    )
    small, alike = Remedies.of(made_up({}, {}, {}, seeds=1, arms=arms))
    assert small is None
    assert names_of(alike) == [
        "untied",
        "tied+shuffle",
        "tied+shuffle=4",
        "tied+half-swap+input-gradient=1",
    ]


def test_first_at_level():
    steps = np.array([0, 10, 20, 30])
    losses = [
        [8, 6, 4, 2],
        [8, 4, 6, 3],
        [8, 8, 8, 8],
        [2, 2, 2, 2],
        [8, 6, np.nan, np.nan],
        [9, 5, 5, 1],
    ]
    found = first_at_level(steps, np.array(losses, np.float32), 5.0)
    np.testing.assert_allclose(found, [15, 7.5, np.inf, 1, np.inf, 10])


def test_what_was_not_reached_bounds_the_pace():
    never, soon = np.array([np.inf, np.inf, 90.0]), np.array([20.0, 22.0, 21.0])
    compared = compare_pace("", never, soon, 100)
    assert 0 < compared.low < math.log(100 / 21) and compared.high == math.inf
    assert compare_pace("", never, never, 100)[1:4:2] == (-math.inf, math.inf)


def test_verdicts_follow_the_data():
    assert verdicts(made_up({SMALL: 0.7}, HIGH, {TIED: 5.5})) == ["holds"] * 4
    assert (
        verdicts(made_up({SMALL: 1.5, ALIKE[1]: 0.7}, HIGH | {ALIKE[2]: 2.0}, {SMALL: 5.1}))
        == ["fails"] * 4
    )
    assert verdicts(made_up({SMALL: 0.7}, HIGH, {}, seeds=1)) == ["inconclusive"] * 4
    noisy = verdicts(made_up({SMALL: 0.97}, HIGH, {}, spread=0.2))
    assert noisy == ["holds", "inconclusive", "inconclusive", "inconclusive"]
    crossing = made_up({SMALL: 1.5}, HIGH, {SMALL: 5.25})  # sooner half way, later at nine tenths
    assert verdicts(crossing)[1] == "fails at 50%, 75%; holds at 90%, 95%"
    row = ARMS.index(SMALL)
    assert "; × 1." in pace_table(crossing).rows[row][-2]
    assert (
        pace_table(crossing).rows[row][-1]
        == pace_table(made_up({}, HIGH, {SMALL: 5.5})).rows[row][-1]
    )
    assert pace_table(made_up({}, HIGH, {SMALL: 5.5})).rows[row][-1] == "8 of 8 not reached"


def test_claims_about_arms_that_are_not_there_are_left_out():
    started, slower, same, ended = judge_heads(made_up({}, HIGH, {}))
    told = {
        (UNTIED, TIED, SCALED): [],
        (UNTIED, TIED, SMALL): [started, slower, ended],
        (HALF_SWAP, UNTIED, TIED): [started, same, ended],
        (SHUFFLE, UNTIED, SMALL): [started, slower, same, ended],
    }
    for arms, claims in told.items():
        results = made_up({}, HIGH, {}, arms=arms)
        assert list(judge_heads(results)) == claims
        shown = [row[0] for row in text_verdict_table(results).rows]
        assert shown[len(shown) - len(claims) :] == claims
        # whether untied is better, is for plain arms
        assert len(shown) - len(claims) == (TIED in arms)


def test_intervals_are_right_together_over_pairs_and_shares():
    """A claim that is looked at at four shares of the way looks at each of its pairs four times."""
    results = made_up({SMALL: 0.7}, HIGH, {}, spread=0.05)
    found, (steps, curves) = judge_heads(results), heads.valid_curves(results)
    for claim, pairs in (
        ("σ (log n)/D takes more steps than any other remedy", 4),
        ("the other remedies take", 6),
    ):
        (at,) = (at for each, at in found.items() if each.startswith(claim))
        assert list(at) == [f"{share:.0%}" for share in SHARES]
        for share, level in heads.levels(results).items():
            decisive = at[share].decisive
            a, b = (
                first_at_level(steps, curves[Arm.parse(name)], level)
                for name in decisive.label.split(" / ")
            )
            expected = compare("", np.log(a / b), pairs * len(SHARES))
            np.testing.assert_allclose(decisive[1:4], expected[1:4])
            assert decisive.low < compare("", np.log(a / b), pairs).low
    assert "counts its pairs at all of them" in text_verdict_table(results).note


@pytest.mark.parametrize(
    ("arms", "objective", "begun"),
    [
        (ARMS, "masked", True),
        ([TIED, UNTIED], "causal", True),
        ([TIED, SMALL, PROJECTION], "causal", True),
        (ARMS, "causal", False),
    ],
    ids=["masked", "one head", "no untied", "not begun"],
)
def test_where_no_heads_are_compared_nothing_is_said_of_them(arms, objective, begun):
    results = made_up({}, HIGH, {}, arms=arms).assign_attrs(objective=objective)
    if not begun:
        results["valid_loss"][:, :, 1:] = np.nan
    assert not compares_heads(results) and "heads" not in text_pictures(results)
    titles = [table.title for table in text_tables(results)]
    assert not [title for title in titles if title.startswith(("Loss", "Steps"))]
    assert "Verdicts" not in titles or "shares" not in text_verdict_table(results).note


def test_tables_tell_of_heads_between_verdicts_and_neighbours():
    results = made_up({SMALL: 0.7}, HIGH, {TIED: 5.5})
    # there is no estimate for every head
    results["estimated_initial_loss"][ARMS.index(SCALED)] = np.nan
    tables = text_tables(results)
    starts = [
        "made-up: step 3,000",
        "Distances",
        "Verdicts",
        "Loss, nat (log n = 7.601)",
        "Steps to a",
        "Nearest",
    ]
    assert [table.title.startswith(start) for table, start in zip(tables, starts, strict=True)] == [
        True
    ] * 6
    assert [table.long for table in tables] == [False] * 5 + [True]
    *_, loss, pace, _ = tables
    assert [row[0] for row in loss.rows] == [row[0] for row in pace.rows] == ARMS
    rows = {row[0]: row[1:] for row in loss.rows}
    assert rows[TIED][0].startswith("15.60") and rows[TIED][1] == "8.000" and rows[SCALED][1] == "–"
    assert (
        rows[TIED][3].startswith("0.50")
        and rows[TIED][5].startswith("0.50")
        and rows[UNTIED][3] == rows[UNTIED][5] == ""
    )
    assert rows[UNTIED][2].startswith("5.10") and rows[UNTIED][4].startswith("5.00")
    np.testing.assert_allclose(
        [float(column.split()[1]) for column in pace.header[1:]], [6.3, 5.65, 5.26, 5.13], atol=0.01
    )
    assert pace.header[1].startswith("50%: ")


def test_members_that_diverged_and_steps_to_come_leave_the_rest():
    results = made_up({SMALL: 0.7}, HIGH, {})
    results["valid_loss"][ARMS.index(HALF_SWAP), 0, 60:] = np.nan
    results["diverged_at"][ARMS.index(HALF_SWAP), 0] = 1500
    assert head_loss_table(results).title.endswith("1 members diverged and are left out")
    # it had come to the levels
    assert verdicts(results) == [
        "holds",
        "holds",
        "holds",
        "inconclusive",
    ]
    results["valid_loss"][:, :, 100:] = np.nan
    assert head_loss_table(results).title.split("; ")[1] == "the end is step 2,475"
    assert heads.valid_curves(results)[0][-1] == 2475


def test_heads_with_a_bias_are_held_beside_those_without():
    arms = [*ARMS, *(f"{arm}+bias" for arm in ARMS)]
    results = made_up({}, HIGH, {f"{HALF_SWAP}+bias": 5.2}, arms=arms)
    found = judge_heads(results)
    (moved,) = (claim for claim in found if claim.startswith("an output bias moves"))
    assert found[moved][""].verdict == "fails"
    assert found[moved][""].decisive.label == f"{HALF_SWAP}+bias − {HALF_SWAP}"
    (same,) = (claim for claim in found if claim.startswith("all remedies end"))
    assert found[same][""].verdict == "holds"  # those with a bias are no remedies
    assert len(draw_heads(results).axes) == 6


def test_the_figure_shows_every_head(tmp_path):
    results = made_up({SMALL: 0.7}, HIGH, {TIED: 5.5})
    start, course, difference = draw_heads(results).axes
    assert [line.get_label() for line in difference.lines] == ARMS
    assert "7.60" in start.get_title() and start.get_ylim()[1] > 15
    assert course.get_ylim() == pytest.approx((4.9, math.log(N) + 0.2), abs=0.01)
    assert not difference.lines[ARMS.index(UNTIED)].get_ydata().any()
    assert difference.get_ylim()[1] > 0.5 > 0 > difference.get_ylim()[0]
    picture = text_pictures(results)["heads"]
    assert picture.main and "Heads" in picture.caption
    results["valid_loss"][:, :, 1:] = np.nan  # nothing but the start, of anybody
    results["diverged_at"][:] = 25
    (path,) = draw_all({"heads": text_pictures(results)["heads"]}, tmp_path)
    assert path.stat().st_size > 10_000 and path.with_suffix(".pdf").exists()
    assert len(text_tables(results)) == 6 and set(verdicts(results)) <= {"holds", "inconclusive"}
