"""`token_pairs.py EXPERIMENT.py`: exact values of EXor, and the printed answer."""

import json
import math
from pathlib import Path

import pytest
from equivalence import report
from exact import pair_divergences
from ground_truth import exor_pair
from token_pairs import main

from jaxtie import Process

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
LN9 = math.log(9)


def exact_of(**process):
    return pair_divergences(Process(**process))


@pytest.mark.parametrize("pair", [(0, 1), (2, 3), (0, 2)])
def test_exact_values_match_the_estimators_with_perfect_models(pair):
    """The estimators weight equal contexts once: no matter where the ratio is constant."""
    conditional, semantic = exor_pair(*pair)
    own = exact_of().sel(pair="-".join("XYAB"[i] for i in pair))
    found = [float(own[name]) for name in ("semantic", "conditional", "bias", "overlap")]
    expected = [semantic.divergence, conditional.divergence, conditional.bias, conditional.overlap]
    assert found == pytest.approx([*map(float, expected)], abs=1e-12, nan_ok=True)
    assert semantic.variance == pytest.approx(0, abs=1e-12)


def test_command_prints_the_exact_answer(capsys):
    """X-Y: S 0, C 0, m ln 9; A-B all 0; X-A no overlap."""
    assert main([str(EXPERIMENTS / "transformer_small.py"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = {
        pair: [found[name][i] for name in ("semantic", "conditional", "bias", "overlap")]
        for i, pair in enumerate(found["pair"])
    }
    assert rows["X-Y"] == pytest.approx([0, 0, LN9, 0.36], abs=1e-12)
    assert rows["A-B"] == pytest.approx([0, 0, 0, 1], abs=1e-12)
    assert rows["X-A"] == [pytest.approx(1), None, None, 0]
    assert main([str(EXPERIMENTS / "transformer_small.py")]) == 0
    shown = capsys.readouterr().out
    assert "hypothesis fails: X-Y are semantically equivalent" in shown
    assert all(words in shown for words in ("output bias can encode", "2.197", "no overlap"))


def test_sentence_where_the_hypothesis_holds():
    assert "holds: X-Y, A-B" in report.exact_sentence(exact_of(zeros=(0.5, 0.5)))


def test_sentence_where_no_bias_helps():
    """Log odds of either sign have variance (ln 9)²; m is 0 but for unequal numbers of strings."""
    control = exact_of(zeros_by_label=True)
    own = control.sel(pair="X-Y")
    assert float(own["semantic"]) == pytest.approx(0, abs=1e-12)
    assert float(own["conditional"]) + float(own["bias"]) ** 2 == pytest.approx(LN9**2)
    assert "no output bias can encode it" in report.exact_sentence(control)


def test_symbols_that_never_occur_are_left_out():
    assert exact_of(zeros=(1.0, 0.0))["pair"].values.tolist() == ["X-A", "X-B", "A-B"]


def test_tasks_without_a_known_distribution_are_refused(capsys):
    assert main([str(EXPERIMENTS / "text_clm.py")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "give --text PATH" in error
