"""Published comparisons and published families: read them, find the nearest. Imports no jax."""

import math
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import pandas as pd

OFTEN, HARDLY = 0.08, 0.02  # shares of one table in the tied model, see `habit`
SINCE = 2024  # habits are those of models of this year and later
OBJECTIVES = ("causal", "masked", "span corruption")
CLOSE = 4.0  # sizes that differ by a larger factor are far
UNKNOWN = math.log(10)  # distance of a size that is not stated, and of models of `OTHER` kinds
OTHER_MODELS = "LSTM|recurrent|gated unit|highway|n-grams|encoder-decoder"
SHOWN, OTHERS = 4, 2  # comparisons with a gap in nats, and without
LATE = "tied for the first"  # of untied models that were tied at first
BARELY_TRAINED = 2.0  # tokens per parameter; models that saw fewer hardly trained
MATCHED = {"same width": "equal width", "same parameters": "equal parameters"}


def _read(name: str) -> pd.DataFrame:
    return pd.read_csv(str(files("jaxtie.advise") / name))


@cache
def comparisons() -> pd.DataFrame:
    """Read the comparisons of language models whose untied parameters are stated, or their sizes.

    `parameters` are those of the untied model, `gap_nats` is tied − untied, NaN if not stated.
    """
    found = _read("published-comparisons.csv")
    of_layers = 12 * found["layers"] * found["width"] ** 2
    parameters = found["parameters_untied"].fillna(
        of_layers + 2 * found["vocabulary"] * found["width"]
    )
    found = found.assign(parameters=parameters)[found["objective"].isin(OBJECTIVES)]
    return found.dropna(subset=["parameters"])


@cache
def models() -> pd.DataFrame:
    """Read the families; `own`: parameters of the tied form, `share`: of one table in these."""
    found = _read("families.csv")
    table = found["width"] * found["vocabulary"]
    own = found["parameters"] - table * ~found["tied"]
    return found.assign(own=own, share=table / own)


def nearest(parameters: float, vocabulary: float, tokens: float | None) -> pd.DataFrame:
    """Return the nearest comparisons, one of each code, at equal width or at equal parameters.

    `SHOWN` that give a gap in nats, then `OTHERS`. Distances are ln of ratios of sizes; that of the
    parameters counts twice, and a size that is not stated counts as a factor of 10.
    """
    found, far = comparisons(), 0.0
    for name, size, weight in (
        ("parameters", parameters, 2),
        ("vocabulary", vocabulary, 1),
        ("tokens", tokens, 1),
    ):
        if size:
            far = far + weight * np.abs(np.log(found[name] / size)).fillna(UNKNOWN)
    far = far + UNKNOWN * found["what"].str.contains(OTHER_MODELS)
    code = found["source"].str.replace(r"(,| PR).*", "", regex=True)
    order = found.assign(far=far, code=code).sort_values("far", kind="stable")
    order = order.drop_duplicates(["code", "matched"])
    is_gap = order["gap_nats"].notna()
    return pd.concat([order[is_gap].head(SHOWN), order[~is_gap].head(OTHERS)])


def line(own: Any) -> str:
    """Return a comparison in a line."""
    known, parts = own.gap_nats == own.gap_nats, [f"{short(own.parameters)} untied"]
    parts += [f"vocabulary {own.vocabulary:,.0f}"] if own.vocabulary > 0 else []
    parts += [f"{short(own.tokens)} tokens"] if own.tokens > 0 else []
    parts[-1] += " (hardly trained)" * (own.tokens < BARELY_TRAINED * own.parameters)
    parts += [f"{own.seeds} seed{'s' * (own.seeds > 1)}", MATCHED[own.matched]]
    parts += [f"rates {own.rates if isinstance(own.rates, str) else 'not stated'}"]
    result = f"{own.metric}: {own.tied:g} tied, {own.untied:g} untied"
    if own.tied != own.tied:
        result = f"no number ({own.note.rpartition('; ')[2]})"
    differed = f"; differs: {own.differed}" if isinstance(own.differed, str) else ""
    differed += f"; beware: {own.caution}" if isinstance(own.caution, str) else ""
    found = f"{own.gap_nats:+.3f}" if known else result
    return f"{found}: {', '.join(parts)}. {own.what}{differed}. {own.url}"


def alike(parameters: float) -> pd.DataFrame:
    """Return the models within twice this size, the nearest first."""
    far = np.abs(np.log(models()["own"] / parameters))
    return models().assign(far=far)[far <= math.log(2)].sort_values("far", kind="stable")


def habit(share: float) -> tuple[int, int, int, int, str]:
    """Return what models since `SINCE` do at a share of one table in the tied model.

    The rule is to tie from `OFTEN` on. Of 73 models 57 to 61 follow it from any share between 3 %
    and 9 % on.

    Returns:
      The number that follow the rule, and of all; in the band of the share, the number that tie,
      and of all; the band's name.
    """
    since = models()[models()["year"] >= SINCE]
    right = int(((since["share"] >= OFTEN) == since["tied"]).sum())
    bands = {
        f"{percent(OFTEN)} or more": (OFTEN, math.inf),
        f"{percent(HARDLY)} to {percent(OFTEN)}": (HARDLY, OFTEN),
        f"less than {percent(HARDLY)}": (0.0, HARDLY),
    }
    name, (low, high) = next(own for own in bands.items() if own[1][0] <= share)
    inside = since["tied"][(since["share"] >= low) & (since["share"] < high)]
    return right, len(since), int(inside.sum()), len(inside), name


def percent(share: float) -> str:
    """Return a share in percent."""
    return f"{float(f'{100 * share:.2g}'):g} %"


def short(number: float) -> str:
    """Return a number with K, M, B or T."""
    sizes = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"), (0, ""))
    size, letter = next(own for own in sizes if number >= own[0])
    return f"{number / (size or 1):.3g}{letter}"
