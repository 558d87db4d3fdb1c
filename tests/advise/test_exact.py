"""`python -m jaxtie.advise EXPERIMENT.py`: exact figures of EXor, against the estimators and in
what is printed.
"""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from exact_source import exor_pair

from jaxtie import Experiment, Process
from jaxtie.advise import report
from jaxtie.advise.command import main_advise
from jaxtie.run import kinds

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
LN9 = math.log(9)


def exact_of(**process):
    experiment = Experiment(process=Process(**process))
    return kinds.of(experiment).exact_divergences(experiment)


@pytest.mark.parametrize("pair", [(0, 1), (2, 3), (0, 2), (1, 3)])
def test_they_are_what_the_estimators_find_with_models_that_know_the_law(pair):
    """Contexts that are alike are weighed there once each: for X and Y, whose ratio is constant,
    that does not matter.
    """
    conditional, semantic = exor_pair(*pair)
    own = exact_of().sel(pair="-".join("XYAB"[i] for i in pair))
    found = [float(own[name]) for name in ("semantic", "conditional", "bias", "overlap")]
    expected = list(
        map(
            float,
            (semantic.divergence, conditional.divergence, conditional.bias, conditional.overlap),
        )
    )
    assert found == pytest.approx(expected, abs=1e-12, nan_ok=True)


def test_what_the_command_must_show(capsys):
    """X-Y: S 0, C 0, m ln 9; A-B all 0; X-A no overlap."""
    assert main_advise([str(EXPERIMENTS / "transformer_small.py"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = {
        pair: [found[name][i] for name in ("semantic", "conditional", "bias")]
        for i, pair in enumerate(found["pair"])
    }
    overlap = dict(zip(found["pair"], found["overlap"]))
    assert rows["X-Y"] == pytest.approx([0, 0, LN9], abs=1e-12) and overlap["X-Y"] == pytest.approx(
        0.36
    )
    assert rows["A-B"] == pytest.approx([0, 0, 0], abs=1e-12) and overlap["A-B"] == pytest.approx(1)
    assert rows["X-A"] == [pytest.approx(1), None, None] and overlap["X-A"] == 0
    assert main_advise([str(EXPERIMENTS / "transformer_small.py")]) == 0
    shown = capsys.readouterr().out
    assert (
        "hypothesis fails: X-Y are semantically equivalent" in shown
        and "output bias carries" in shown
    )
    assert "2.197" in shown and "no overlap" in shown


def test_where_the_hypothesis_holds_it_is_said():
    holds = exact_of(zeros=(0.5, 0.5))
    assert "holds: X-Y, A-B" in report.exact_sentence(holds)


def test_where_no_bias_helps_it_is_said():
    """Log odds of either sign: their variance is (ln 9)², and m is 0 but for the unequal number of
    strings of a parity.
    """
    control = exact_of(zeros_by_label=True)
    own = control.sel(pair="X-Y")
    assert float(own["semantic"]) == pytest.approx(0, abs=1e-12)
    assert float(own["conditional"]) + float(own["bias"]) ** 2 == pytest.approx(LN9**2)
    assert "no output bias carries it" in report.exact_sentence(control)


def test_a_symbol_that_never_occurs_is_left_out():
    assert exact_of(zeros=(1.0, 0.0))["pair"].values.tolist() == ["X-A", "X-B", "A-B"]


def test_what_has_no_law_is_refused(capsys):
    assert main_advise([str(EXPERIMENTS / "text_clm.py")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "law" in error


def test_arrays_are_finite_where_both_can_stand():
    exact = exact_of()
    assert np.isfinite(exact["conditional"].sel(pair=["X-Y", "A-B"])).all()
