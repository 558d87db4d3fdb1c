"""Conclusions: diverged seeds are missing, sweeps skip undecided points, one sign convention."""

import numpy as np
import pytest
import xarray as xr
from made_up import BEST, exor_results

import jaxtie
from jaxtie.exor.conclusion import exor_conclusion
from jaxtie.results import analysis
from jaxtie.results.conclusion import answer_picture, gap_sentences, verdict
from jaxtie.results.tables import arm_cells, arm_header

NAN = np.nan
MODEL = "Transformer(layers=1, heads=1, width=4, feedforward=4, independent_layers=False)"
PROCESS = "EXor, 7 bits; p(X) = 0.1, p(Y) = 0.9, p(A) = 0.5, p(B) = 0.5"


def losses(**of_arms):
    arms = [arm.replace("_", "+") for arm in of_arms]
    return xr.DataArray(np.array([*of_arms.values()], float), {"arm": arms}, ("arm", "seed"))


def said(*arms, **of_arms):
    return gap_sentences(losses(**of_arms), "training loss", "step 9, 4 seeds")


def run_of(*arms, gap=0.2, seeds=8, **swept):
    """Make a run in which `tied` loses `gap` nats and all seeds have left the plateau."""
    made = exor_results(*arms, seeds=seeds, **swept).assign_attrs(model=MODEL, process=PROCESS)
    spread = xr.DataArray(0.001 * np.linspace(-1, 1, seeds), dims="seed")
    loss = BEST["loss"] + 0.1 + spread + 0 * made["train_loss"]
    loss.loc[{"arm": "tied"}] += gap - 2 * spread  # the mean of the difference is the gap
    made["train_loss"] = loss.transpose(*made["train_loss"].dims)
    return made


def diverge(made, **at):
    """Make members diverge, as a run writes it: everything is missing from then on."""
    made["diverged_at"].loc[at] = 50
    for name, values in made.data_vars.items():
        if {"arm", "seed"} <= {*values.dims} and name != "diverged_at":
            steps = next(dim for dim in values.dims if str(dim).endswith("step"))
            made[name].loc[at | {steps: values[steps] >= 50}] = NAN
    return made


@pytest.mark.parametrize(
    ("gap", "found"),
    [
        ([0.1, 0.2, 0.15], "higher"),
        ([-0.1, -0.2, -0.15], "lower"),
        ([-0.001, 0.0, 0.001], "no difference above 0.003"),  # 0.001 · 4.303 / √3 = 0.0025
        ([-0.1, 0.1, 0.0], "inconclusive"),
        ([0.0], "inconclusive"),
    ],
)
def test_a_tight_interval_around_0_is_a_bound_and_not_inconclusive(gap, found):
    assert verdict(np.array(gap)) == found


def test_the_bound_of_no_difference_is_at_most_what_matters():
    x = 0.02 / (4.302653 / 3**0.5)  # the interval of (-x, 0, x) ends at 0.02
    assert verdict(np.array([-x, 0, x]) * 0.999) == "no difference above 0.020"
    assert verdict(np.array([-x, 0, x]) * 1.001) == "inconclusive"


def test_the_answer_says_how_small_a_gap_is():
    (line,) = said(tied=[2.0, 1.5, 1.0], untied=[1.999, 1.5, 1.001])
    assert line.startswith("Tying makes no difference above 0.003 nats: tied − untied = 0.000 ±")


def test_diverged_seeds_come_first_and_leave_no_verdict():
    first, second = said(tied=[1.0, 1.2, NAN, NAN], untied=[0.9, 1.1, 1.0, NAN])
    assert first == "2 of 4 tied and 1 of 4 untied seeds diverged."
    assert second == (
        "tied − untied = 0.100 ± 0.000 nats of training loss over the 2 of 4 seeds that diverged in"
        " neither (selected by outcome) (step 9, 4 seeds)."
    )


def test_without_a_seed_that_has_both_arms_there_is_no_gap():
    first, second = said(tied=[NAN, 1.2], untied=[0.9, NAN])
    assert first == "1 of 2 tied and 1 of 2 untied seeds diverged."
    assert "No seed has both tied and untied" in second and "±" not in second


def test_each_further_arm_is_compared_with_tied_and_with_untied():
    rest = [0.0, 0.001, -0.001, 0.0]
    primary, bias, late = gap_sentences(
        losses(
            tied=np.add(1.2, rest),
            untied=np.add(1.0, rest[::-1]),
            tied_bias=np.add(1.1, rest),
            **{"untied@5": np.add(1.0, rest[1:] + rest[:1])},
        ),
        "loss",
        "step 9",
    )
    assert primary.startswith("Tying costs loss: tied − untied = 0.200 ±")
    assert bias.startswith(
        "tied+bias − tied = -0.100 ± 0.000 (lower); tied+bias − untied = 0.100 ±"
    )
    assert bias.endswith("(higher).")
    assert late.startswith("untied@5 − tied = -0.200 ±") and "(no difference above" in late
    assert late.endswith("The intervals of these 4 differences hold together at 95 %.")


def test_without_a_pair_arms_are_compared_with_the_first():
    means, difference = said(untied=[1.0, 1.1, 1.2], untied_bias=[0.8, 0.9, 1.0])
    assert means.startswith("Training loss, nats: untied 1.100")
    assert difference.startswith("untied+bias − untied = -0.200 ± 0.000 (lower)")


def test_tables_subtract_the_reference():
    values = losses(tied=[3.0, 5.0], untied=[1.0, 2.0], tied_bias=[2.0, 4.0])
    assert arm_header(values)[3:] == ("tied − untied", "tied+bias − untied")
    assert [cell.split(" ")[0] for cell in arm_cells(values)[3:]] == ["2.500", "1.500"]


def test_every_table_has_one_sign():
    made = run_of("tied", "untied", p_A=[0.1, 0.2, 0.3])
    table = exor_conclusion(made).table
    assert table.rows[0][table.header.index("tied − untied")].startswith("0.200")
    table = exor_conclusion(run_of("tied", "untied")).table
    assert table.rows[0][table.header.index("− untied")].startswith("0.200")


def test_a_run_on_exor_counts_diverged_seeds_apart():
    made = diverge(run_of("tied", "untied"), arm="tied", seed=[0, 1])
    conclusion = exor_conclusion(made)
    assert conclusion.lines()[0] == "2 of 8 tied and 0 of 8 untied seeds diverged."
    assert "over the 6 of 8 seeds that diverged in neither" in conclusion.lines()[1]
    assert conclusion.lines()[2].startswith("0 of 6 tied and 0 of 8 untied seeds are stuck")
    row = dict(zip(conclusion.table.header, conclusion.table.rows[0]))
    assert row["stuck"] == "0 (2 diverged)" and row["loss above the best, nat"].startswith("0.300")


def test_a_run_whose_seeds_all_diverged_concludes_nothing():
    made = diverge(run_of("tied", "untied"))
    conclusion = exor_conclusion(made)
    assert conclusion.lines()[0] == "8 of 8 tied and 8 of 8 untied seeds diverged."
    assert not any("±" in line or "held apart" in line for line in conclusion.lines())
    answer_picture(conclusion).draw()


def test_the_scope_of_a_sweep_has_the_swept_values_only():
    width = exor_conclusion(run_of("tied", "untied", width=[4.0, 8.0])).lines()[-1]
    assert width.startswith("Scope: width = 4, 8; a Transformer of 1 layer on EXor, 7 bits; p(X)")
    p_x = exor_conclusion(run_of("tied", "untied", p_X=[0.1, 0.2, 0.3, 0.4, 0.5])).lines()[-1]
    assert p_x.startswith(
        "Scope: p_X = 0.1 to 0.5 (5 values); a Transformer of 1 layer and width 4"
    )
    assert "p(X)" not in p_x and "p(Y)" not in p_x and "p(A) = 0.5" in p_x
    both = run_of("tied", "untied", length=[5.0, 6.0], p_A=[0.5, 0.6])
    assert (
        exor_conclusion(both)
        .lines()[-1]
        .startswith(
            "Scope: length = 5, 6; p_A = 0.5, 0.6; a Transformer of 1 layer and width 4 on EXor;"
            " p(X) = 0.1, p(Y) = 0.9. "
        )
    )


def test_sweep_points_on_the_plateau_are_not_judged():
    made = run_of("tied", "untied", width=[4.0, 8.0, 16.0])
    made["train_loss"].loc[{"width": [4, 8]}] = BEST["loss"] + np.log(2)
    conclusion = exor_conclusion(made)
    assert conclusion.too_short == ""
    assert conclusion.lines()[0] == (
        "At 2 of 3 sweep points most seeds of every arm are still on the first plateau, so they are"
        " not judged: width = 4; width = 8."
    )
    assert "At 1 sweep point, the exact training loss of tied" in conclusion.lines()[1]
    assert "is higher at 1 (" in conclusion.lines()[1]
    assert [row[-1] for row in conclusion.table.rows] == ["8 / 8", "8 / 8", "0 / 0"]


def test_a_sweep_on_the_plateau_is_too_short():
    made = run_of("tied", "untied", width=[4.0, 8.0])
    made["train_loss"][:] = BEST["loss"] + np.log(2)
    made["train_loss"].loc[{"arm": "untied", "seed": [0, 1, 2]}] = BEST["loss"]
    lines = exor_conclusion(made).lines()
    assert lines[0].startswith("Too short to conclude: most seeds of every arm are still on the")
    assert not any("is higher" in line or "inconclusive" in line for line in lines)
    made = diverge(made, width=8)
    assert exor_conclusion(made).too_short == exor_conclusion(made.sel(width=[4])).too_short != ""


def test_each_arm_is_compared_at_its_own_best_point():
    made = run_of("tied", "untied", gap=0.0, learning_rate=[0.1, 0.2, 0.3])
    made["train_loss"].loc[{"arm": "tied", "learning_rate": 0.2}] -= 0.05
    made["train_loss"].loc[{"arm": "untied", "learning_rate": 0.3}] -= 0.08
    *_, best, edge, _scope = exor_conclusion(made).lines()
    assert best.startswith("Each arm at its own best point, chosen by these seeds (exact training")
    assert "tied 0.050 ± 0.001 at learning_rate = 0.2" in best
    assert "untied 0.020 ± 0.001 at learning_rate = 0.3; tied − untied = 0.030 ±" in best
    assert edge.startswith(
        "The best point is at the edge of the sweep for untied (learning_rate): a wider"
    )


def test_a_point_at_which_seeds_diverged_is_neither_judged_nor_the_best():
    made = run_of("tied", "untied", gap=0.0, learning_rate=[0.1, 0.2, 0.3])
    made["train_loss"].loc[{"learning_rate": 0.3}] -= 0.09
    made = diverge(made, arm="tied", seed=[2], learning_rate=0.3)
    first, counted, best, *_ = exor_conclusion(made).lines()
    assert first == (
        "Seeds diverged at 1 of 3 sweep points, where their arms are not judged (learning_rate ="
        " 0.3: 1 of 8 tied and 0 of 8 untied)."
    )
    assert "At 2 sweep points" in counted and "differs by at most 0.02 nats at 2" in counted
    assert "tied 0.100" in best and "untied 0.010 ± 0.001 at learning_rate = 0.3" in best


def test_the_best_point_is_chosen_on_one_half_and_reported_on_the_other():
    """At 0.1 the half that chooses is better by luck for `tied`, the other one is worse."""
    made = run_of("tied", "untied", seeds=2, learning_rate=[0.01, 0.1]).assign_attrs(task="another")
    made["valid_loss"] = made["train_loss"]
    halves = {
        "even": [[[0.9, 0.8], [0.5, 0.5]], [[0.4, 0.2], [0.5, 0.5]]],
        "odd": [[[0.7, 0.6], [0.8, 0.9]], [[0.3, 0.3], [0.6, 0.6]]],
    }
    for half, values in halves.items():
        made[f"valid_loss_{half}"] = 0 * made["valid_loss"] + np.array(values)[..., None]
    (best,) = (line for line in analysis.conclude(made).lines() if "own best point" in line)
    assert "reported on the other" in best
    assert "tied 0.850 ± 0.635 at learning_rate = 0.1; untied 0.300 ± 0.000 at learn" in best
    assert "tied − untied = 0.550 ±" in best


def test_probabilities_of_symbols_have_no_best_point():
    lines = exor_conclusion(run_of("tied", "untied", p_X=[0.1, 0.2])).lines()
    assert not any("best point" in line for line in lines)


@pytest.mark.parametrize("swept", [{}, {"width": [4.0, 8.0]}])
def test_a_task_without_a_conclusion_has_the_same_sentences(swept):
    made = run_of("tied", "untied", "tied+bias", **swept).assign_attrs(task="another")
    made["valid_loss"] = made["train_loss"]
    conclusion = analysis.conclude(made)
    assert "validation loss" in conclusion.lines()[0] and conclusion.loss.name == "valid_loss"
    assert any("best point" in line for line in conclusion.lines()) == bool(swept)
    table = conclusion.table
    assert table.header[-2:] == ("tied − untied", "tied+bias − untied")
    if swept:
        rows = [(row[0], row[-2]) for row in table.rows]
        assert rows == [("4", "0.200 ± 0.001"), ("8", "0.200 ± 0.001")]


@pytest.mark.slow
def test_members_that_diverge_are_missing_from_then_on():
    experiment = jaxtie.Experiment(
        steps=200,
        record_every=20,
        eval_every=40,
        seeds=range(6),
        process=jaxtie.Process(length=4),  # sooner compiled and evaluated
        optimizer=jaxtie.Optimizer(learning_rate=1e30),
    )
    results = jaxtie.run(experiment, quiet=True)
    at = results["diverged_at"]
    assert (at > 0).all()
    for name in ("loss", "train_loss", "input_distance", "log_odds"):
        steps = next(dim for dim in results[name].dims if str(dim).endswith("step"))
        assert results[name].where(results[steps] >= at).isnull().all()
        assert results[name].where(results[steps] == 0, drop=True).notnull().any()
    lines = analysis.conclude(results).lines()
    assert lines[0] == "6 of 6 tied and 6 of 6 untied seeds diverged."
    assert "±" not in "".join(lines)
