"""The process of the gap against brute force and simulation."""

import numpy as np
import pandas as pd
import pytest
from scipy.special import gamma, kv
from scipy.stats import multivariate_normal

from jaxtie.run.experiment_files import installed_data
from jaxtie.text import gap_model, gap_process
from jaxtie.text.gap_model import Size
from jaxtie.text.gap_process import MEAN_STD, GapProcess, Scales, covariance

SCALES = Scales(*np.array([[0.08], [1.2], [0.03], [0.01]]))  # a single sample


def sizes(source: str, *own: Size, gap=0.0, error: float = 0.01) -> pd.DataFrame:
    return pd.DataFrame(own).assign(source=source, gap=gap, error=error)


SIZES = [
    Size(width, layers, vocabulary, vocabulary * each)
    for width, layers in ((32, 2), (64, 4), (128, 2))
    for vocabulary, each in ((2048, 60), (2048, 900), (8192, 200))
]
WANTED = sizes("a", Size(200, 3, 2048, 2048 * 400)).drop(columns="gap")


def sampled(rng) -> pd.DataFrame:
    """Gaps of two sources, and that which is wanted as the last row."""
    every = pd.concat([sizes("a", *SIZES[:6]), sizes("b", *SIZES[3:]), WANTED])
    noise = np.diag(np.append(np.full(12, 0.01**2), 0))
    gap = rng.multivariate_normal(np.zeros(13), covariance(every, every, SCALES)[0] + noise)
    return every.assign(gap=gap)


def test_the_covariance_is_that_of_matern_and_larger_within_a_source():
    one, other = Size(64, 2, 2048, 10**6), Size(128, 4, 2048, 4 * 10**6)
    distance = np.linalg.norm(np.log([4, 2, 1, 2])) / SCALES.length * np.sqrt(3)
    smooth = SCALES.smooth**2 * 2**-0.5 / gamma(1.5) * distance**1.5 * kv(1.5, distance)
    for source, times in (("a", 1 + (SCALES.text / SCALES.smooth) ** 2), ("b", 1)):
        found = covariance(sizes("a", one), sizes(source, other), SCALES)
        assert found.item() == pytest.approx(MEAN_STD**2 + times * smooth, rel=1e-9)


def test_a_prediction_is_the_conditional_normal():
    every = sampled(np.random.default_rng(0))
    mean, std = GapProcess(every[:-1], SCALES).predict(WANTED)
    own = np.diag(every["error"] ** 2)
    precision = np.linalg.inv(
        covariance(every, every, SCALES)[0] + own
    )  # its last row: conditional
    variance = 1 / precision[-1, -1]
    assert std.item() ** 2 == pytest.approx(variance, rel=1e-8)
    assert mean.item() == pytest.approx(-variance * precision[-1, :-1] @ every["gap"][:-1])


@pytest.mark.slow
def test_scales_are_averaged_over_their_posterior():
    """Against random samples, each weighted by its likelihood."""
    rng, measured = np.random.default_rng(1), sampled(np.random.default_rng(1))[:-1]
    normal = gap_process.SPREADS * rng.standard_normal((800, 4))
    scales = Scales(*np.exp(np.log(gap_process.MEDIANS) + normal).T)
    likelihood, means, variances = [], [], []
    for i, covariance_NxN in enumerate(covariance(measured, measured, scales)):
        noise = np.diag(measured["error"] ** 2)
        likelihood.append(multivariate_normal(cov=covariance_NxN + noise).pdf(measured["gap"]))
        one = Scales(*(scale[i : i + 1] for scale in scales))
        mean, std = GapProcess(measured, one).predict(WANTED)
        means.append(mean.item())
        variances.append(std.item() ** 2)
    mean = np.average(means, weights=likelihood)
    variance = np.average(variances + (means - mean) ** 2, weights=likelihood)
    found_mean, found_std = GapProcess(measured).predict(WANTED)
    assert found_mean.item() == pytest.approx(mean, abs=0.1 * np.sqrt(variance))
    assert found_std.item() == pytest.approx(np.sqrt(variance), rel=0.1)


def test_gaps_that_are_left_out_are_predicted_from_all_others():
    measured = sampled(np.random.default_rng(2))[:-1].reset_index(drop=True)
    groups = pd.Series(["x", "y", "x"], index=[0, 3, 7])
    found = gap_process.predict_left_out(measured, groups)
    assert sorted(found.index) == [0, 3, 7]
    mean, std = GapProcess(measured.drop([0, 7])).predict(measured.loc[[7]])
    np.testing.assert_allclose(found.loc[7], [mean.item(), std.item()])


@pytest.mark.slow
def test_nine_of_ten_intervals_cover():
    rng, covered = np.random.default_rng(3), []
    for _ in range(200):
        every = sampled(rng)
        mean, std = GapProcess(every[:-1]).predict(WANTED.drop(columns="error"))
        covered.append(abs(every["gap"].iloc[-1] - mean.item()) < 1.645 * std.item())
    assert 0.84 < np.mean(covered) < 0.96


def test_at_a_measured_size_only_its_noise_is_left():
    """A cell is not new where it was measured."""
    measured = sizes("a", *SIZES, gap=0.1, error=1e-6)
    wanted = sizes("a", SIZES[0]).drop(columns=["gap", "error"])
    mean, std = GapProcess(measured, SCALES).predict(wanted)
    assert mean.item() == pytest.approx(0.1, abs=1e-4) and std.item() < 1e-4
    assert (
        GapProcess(measured, SCALES).predict(wanted.assign(source="b"))[1].item()
        > SCALES.cell.item()
    )


def test_far_away_the_deviation_is_that_before_any_measurement():
    process = GapProcess(sampled(np.random.default_rng(4))[:-1], SCALES)
    far = sizes("c", Size(10**9, 10**4, 10**9, 10**20)).drop(columns=["gap", "error"])
    (std,) = process.predict(far)[1]
    own = np.sqrt(SCALES.smooth**2 + SCALES.text**2 + SCALES.cell**2)
    assert own < std < np.sqrt(own**2 + MEAN_STD**2)


def test_known_gaps_are_ours_targets_and_the_published_ones_that_have_all_sizes():
    published = pd.read_csv(installed_data("published-comparisons.csv"))
    members = pd.read_csv(installed_data("tying-gap-on-text.csv"))
    targets = pd.DataFrame(
        {
            "gap": [0.1, 0.2, 0.3],
            "text": ["books", "b", "b"],
            "deviation": [0.03, 0.01, 0.02],
            "seeds": [4, 5, 2],
        }
    ).assign(width=64, layers=2, vocabulary=2048, tokens=10**6)
    known = gap_process.measured_gaps(members, published, targets)
    is_ours = known["source"] == gap_process.OURS
    assert is_ours.sum() == len(gap_model.usual_cells(members)) + 1
    assert (~is_ours).sum() == 7 + 2
    pooled = np.sqrt((4 * 0.01**2 + 0.02**2) / 5)
    expected = [0.03 / 2, pooled / np.sqrt(5), pooled / np.sqrt(2)]
    assert known["error"].to_numpy()[-3:] == pytest.approx(expected)
