"""The model of the gap against least squares, brute force and simulation."""

import numpy as np
import pandas as pd
import pytest
from scipy.linalg import null_space
from scipy.stats import multivariate_normal
from tying_gap import Size, chosen_rates, features, fit_gaps, gaps

RNG = np.random.default_rng(0)
SIZES = [
    Size(width, layers, vocabulary, vocabulary * each)
    for width in (32, 64, 128)
    for vocabulary in (2048, 8192)
    for each in (50, 200, 800)
    for layers in (2, 4)
]
X = features(pd.DataFrame(SIZES))
TRUE = np.array([0.5, -0.05, -0.06, 0.01, 0.004])


def simulated(tau: float, error_N: np.ndarray, rng=RNG) -> np.ndarray:
    return X @ TRUE + tau * rng.standard_normal(len(X)) + error_N * rng.standard_normal(len(X))


def test_equal_errors_give_least_squares():
    error_N = np.full(len(X), 0.01)
    gap_N = simulated(0.03, error_N)
    mean, (squares,), *_ = np.linalg.lstsq(X, gap_N)
    fit = fit_gaps(X, gap_N, error_N)
    np.testing.assert_allclose(fit.mean_K, mean, rtol=1e-8)
    variance = squares / (len(X) - X.shape[1])
    np.testing.assert_allclose(
        fit.covariance_KxK, variance * np.linalg.inv(X.T @ X), rtol=1e-3, atol=1e-12
    )
    assert fit.tau**2 + 0.01**2 == pytest.approx(variance, rel=1e-3)


def test_tau_has_the_largest_restricted_likelihood():
    """That of contrasts, which do not depend on the coefficients."""
    error_N = RNG.uniform(0.005, 0.03, len(X))
    gap_N = simulated(0.02, error_N)
    contrasts = null_space(X.T).T

    def likelihood(tau: float) -> float:
        covariance = contrasts @ np.diag(tau**2 + error_N**2) @ contrasts.T
        return multivariate_normal(cov=covariance).logpdf(contrasts @ gap_N)

    grid = np.linspace(0, 0.08, 801)
    best = grid[np.argmax([likelihood(tau) for tau in grid])]
    assert fit_gaps(X, gap_N, error_N).tau == pytest.approx(best, abs=2e-4)


def test_no_spread_beyond_the_noise_gives_no_tau():
    error_N = np.full(len(X), 0.05)
    fit = fit_gaps(X, simulated(0.0, error_N * 0.2), error_N)
    assert fit.tau < 1e-3
    np.testing.assert_allclose(
        fit.covariance_KxK, 0.05**2 * np.linalg.inv(X.T @ X), rtol=1e-2, atol=1e-12
    )


@pytest.mark.parametrize("cells", [X[:5], X[X[:, 4] == np.log(2)]], ids=["too few", "one depth"])
def test_cells_that_do_not_tell_the_coefficients_are_refused(cells):
    with pytest.raises(ValueError, match=f"{len(cells)} cells for 5 coefficients"):
        fit_gaps(cells, np.zeros(len(cells)), np.ones(len(cells)))


def test_intervals_of_a_coefficient_cover_it_nine_times_in_ten():
    rng, error_N, covered = np.random.default_rng(1), np.full(len(X), 0.01), []
    for _ in range(400):
        low, _, high = fit_gaps(X, simulated(0.02, error_N, rng), error_N).interval(
            np.eye(5)[1], 0.1
        )
        covered.append(low < TRUE[1] < high)
    assert 0.86 < np.mean(covered) < 0.95


def members() -> pd.DataFrame:
    """Two arms, two rates, three seeds; the rate that is better on even batches is not on odd."""
    rows = []
    for arm, rate, even, odd in (
        ("tied", 0.1, 3.0, 2.0),
        ("tied", 0.2, 2.9, 2.5),
        ("untied", 0.1, 2.8, 2.2),
        ("untied", 0.2, 3.5, 1.0),
    ):
        for seed in range(3 if even < 3 else 2):
            rows.append(
                {
                    "width": 32,
                    "vocabulary": 2048,
                    "epochs": 1.0,
                    "layers": 2,
                    "branch_scale": np.nan,
                    "tokens": 1000,
                    "steps": 10,
                    "arm": arm,
                    "learning_rate": rate,
                    "seed": seed,
                    "loss_even": even + (9 if seed == 2 else 0),  # not a choosing seed
                    "loss_odd": odd + 0.01 * seed * (arm == "tied"),
                }
            )
    return pd.DataFrame(rows)


def test_rates_are_chosen_on_even_batches_and_gaps_judged_on_odd_ones():
    best = chosen_rates(members())
    assert best.groupby("arm")["learning_rate"].unique().map(list).to_dict() == {
        "tied": [0.2],
        "untied": [0.1],
    }
    (cell,) = gaps(members()).to_dict("records")
    assert cell["seeds"] == 3 and cell["gap"] == pytest.approx(0.3 + 0.01)
    assert cell["error"] == pytest.approx(0.01 / np.sqrt(3))


def test_a_member_that_diverged_is_left_out_with_its_pair():
    found = members()
    found.loc[(found["seed"] == 2) & (found["arm"] == "tied"), "loss_odd"] = np.nan
    (cell,) = gaps(found).to_dict("records")
    assert cell["seeds"] == 2 and np.isfinite(cell["gap"])
