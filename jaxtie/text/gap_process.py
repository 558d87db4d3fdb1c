"""Predict the tying gap at a size from gaps measured at others: a Gaussian process. No jax.

    gap = mean + f(x) + g(x) + cell + noise        x = ln(tokens / vocabulary, width, vocabulary,
                                                          layers)

f is common to all sources, that is, texts and codes; each source has its own g. Both are smooth (a
Matérn 3/2 covariance of the distance in x) and 0 on average, so that far from all sizes the
prediction is the mean, with the deviation of f and g. `cell` is independent for each source and
size; `noise` is the standard error of what was measured. The mean has the prior N(0, `MEAN_STD`²).
Predictions are averaged over the posterior of the four `Scales`: `SAMPLES` quasi-random points of
their prior, weighted by the likelihood. See Rasmussen and Williams (2006), chapter 2, and sections
4.2 and 5.4.

The covariance was chosen among three (exponential, Matérn 3/2, Gaussian) by leaving out each of
the first eleven cells of `experiments/tying_gap_on_text.py`; g, instead of a constant of each
source, and the median of its deviation, by leaving out each text of the first test of
`experiments/scripts/advice_on_text.py`.

Shapes: N measured gaps, M predicted ones, K coordinates of x, S samples of scales.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
import pandas as pd

from jaxtie.text.gap_model import Size, features, usual_cells

MARGIN = 0.01  # nat; a convention: a loss higher by less is worth the saved parameters
NEAR = 4.0  # times the largest pilot; beyond, untying is never recommended outright
MEAN_STD = 0.05  # nat
# nat: noise of a published gap, of one or three seeds and often at one rate; more where something
# else differed between the two models, such as their initial deviation
PUBLISHED_STD, DIFFERED_STD = 0.03, 0.06
COLUMNS = [*Size._fields, "gap", "error", "source"]
SAMPLES = 1024
OURS = "ours"  # the source of the committed cells


class Scales(NamedTuple):
    """Deviations in nats of f, g and cells; distance in x at which f and g change; each S."""

    smooth: np.ndarray
    length: np.ndarray
    text: np.ndarray
    cell: np.ndarray


# Their prior: ln is normal, with these medians and deviations.
MEDIANS, SPREADS = (0.1, 1.5, 0.06, 0.01), (0.7, 0.5, 0.7, 0.7)


def measured_gaps(
    members: pd.DataFrame, published: pd.DataFrame, targets: pd.DataFrame
) -> pd.DataFrame:
    """Return the gaps that are known before any pilot: `COLUMNS`, a row each.

    Args:
      members: of `experiments/tying_gap_on_text.py`; its cells of the usual branch scale count.
      published: `experiments/data/published-comparisons.csv`; causal models count for which the
        gap in nats and all sizes are known.
      targets: of `experiments/scripts/advice_on_text.py`, measured; their errors are `own_errors`.
    """
    published = published[published["objective"] == "causal"].rename(columns={"gap_nats": "gap"})
    published = published.assign(source=code_of(published))
    error = np.where(published["differed"].isna(), PUBLISHED_STD, DIFFERED_STD)
    published = published.assign(error=error)[COLUMNS].dropna()
    source = targets["text"].replace("books", OURS)
    targets = targets.assign(source=source, error=own_errors(targets))
    ours = usual_cells(members).assign(source=OURS)
    return pd.concat([own[COLUMNS] for own in (ours, published, targets)], ignore_index=True)


def own_errors(targets: pd.DataFrame) -> pd.Series:
    """Return standard errors by the deviation over seeds, pooled over the targets of a text."""
    seeds, text = targets["seeds"], targets["text"]
    squares = ((seeds - 1) * targets["deviation"] ** 2).groupby(text).transform("sum")
    degrees = (seeds - 1).where(targets["deviation"].notna()).groupby(text).transform("sum")
    return (squares / degrees / seeds) ** 0.5


def code_of(published: pd.DataFrame) -> pd.Series:
    """Return the codes of published comparisons: gaps of the same one are not independent."""
    return published["source"].str.split(",").str[0]


class GapProcess:
    """The process after some gaps were measured."""

    def __init__(self, measured: pd.DataFrame, scales: Scales | None = None):
        """Weigh samples of the scales; `measured` has the columns `COLUMNS`."""
        self.measured = measured
        self.scales = sampled_scales() if scales is None else scales
        error_N, self._gap_N = (measured[name].to_numpy(np.float64) for name in ("error", "gap"))
        own_SxNxN = covariance(measured, measured, self.scales) + np.diag(error_N**2)
        self._inverse_SxNxN = np.linalg.inv(own_SxNxN)
        squares_S = self._gap_N @ self._inverse_SxNxN @ self._gap_N
        log_S = -0.5 * (squares_S + np.linalg.slogdet(own_SxNxN)[1])
        weight_S = np.exp(log_S - log_S.max())
        self.weight_S = weight_S / weight_S.sum()

    def predict(self, wanted: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and deviation of the gaps at some sizes, each M, nat.

        `wanted` has the columns of `Size` and source; where it has an error, it is that with which
        the gap will be measured.
        """
        across_SxMxN = covariance(wanted, self.measured, self.scales)
        weight_SxMxN = across_SxMxN @ self._inverse_SxNxN
        before_SxM = np.diagonal(covariance(wanted, wanted, self.scales), axis1=1, axis2=2)
        variance_SxM = before_SxM - (weight_SxMxN * across_SxMxN).sum(axis=2)
        mean_SxM = weight_SxMxN @ self._gap_N
        mean_M = self.weight_S @ mean_SxM
        variance_M = self.weight_S @ (variance_SxM + (mean_SxM - mean_M) ** 2)
        error_M = wanted["error"].to_numpy(np.float64) if "error" in wanted else 0.0
        return mean_M, np.sqrt(variance_M + error_M**2)


def predict_left_out(measured: pd.DataFrame, groups: pd.Series) -> pd.DataFrame:
    """Predict the gaps of each group from all that are not of it; return columns mean and std.

    `groups`: names of groups, whose index is that of some of the measured gaps.
    """
    found = []
    for _, own in groups.groupby(groups):
        process = GapProcess(measured.drop(own.index))
        predicted = process.predict(measured.loc[own.index])
        found.append(pd.DataFrame(dict(zip(("mean", "std"), predicted)), own.index))
    return pd.concat(found)


@cache
def sampled_scales() -> Scales:
    """Return quasi-random points of the prior of the scales."""
    from scipy.stats import norm, qmc  # heavy

    uniform_Sx4 = qmc.Sobol(4, rng=0).random(SAMPLES)
    return Scales(*np.exp(np.log(MEDIANS) + SPREADS * norm.ppf(uniform_Sx4)).T)


def covariance(first: pd.DataFrame, second: pd.DataFrame, scales: Scales) -> np.ndarray:
    """Return the covariance of mean + f + g + cell at two lists of sizes, SxMxN, nat²."""
    smooth, length, text, cell = (np.reshape(scale, (-1, 1, 1)) for scale in scales)
    x_MxK, x_NxK = (features(own)[:, 1:] for own in (first, second))
    apart_MxN = np.linalg.norm(x_MxK[:, None] - x_NxK, axis=2)
    distance = np.sqrt(3) * apart_MxN / length
    sources = [own["source"].to_numpy(object) for own in (first, second)]
    is_same_MxN = sources[0][:, None] == sources[1]
    alike = (1 + distance) * np.exp(-distance)
    same = (text**2 * alike + cell**2 * (apart_MxN < 1e-6)) * is_same_MxN
    return MEAN_STD**2 + smooth**2 * alike + same
