"""Published comparisons and published families: read them, find the nearest. Imports no jax."""

import csv
import math
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import NamedTuple

OFTEN, HARDLY = 0.08, 0.02  # shares of one table in the tied model; see `Habit`
SINCE = 2024  # habits are those of families of this year and later
UNKNOWN = math.log(10)  # distance of a size that a comparison does not state
CHANGES = "openai/parameter-golf, fork by Gouti629 2026"  # one run, compared at two budgets
OTHER = re.compile(
    "LSTM|recurrent|gated unit|highway|n-grams"
)  # no Transformer: farther by UNKNOWN
OBJECTIVES = {"causal", "masked", "span corruption"}
SHORT = 2.0  # tokens per parameter; models that saw fewer hardly trained


class Comparison(NamedTuple):
    """A model that was trained tied and untied.

    Attributes:
      source, what, url: who compared which models, and where it says so.
      parameters: of the untied model; where not stated, those of a decoder of its sizes.
      vocabulary, tokens: 0 if not stated.
      gap: tied − untied, nat per token; NaN if it is not stated, then `result` says what is.
      seeds: of each arm, at least.
      matched: "same width" or "same parameters".
      rates: how the learning rates were chosen; "" if not stated.
      differed: what else differs between the arms.
    """

    source: str
    what: str
    url: str
    parameters: float
    vocabulary: float
    tokens: float
    gap: float
    result: str
    seeds: int
    matched: str
    rates: str
    differed: str

    def distance(self, parameters: float, vocabulary: float, tokens: float | None) -> float:
        """Return how far its sizes are: ln of their ratios, those of the parameters count twice."""
        own = [(self.parameters, parameters, 2.0), (self.vocabulary, vocabulary, 1.0)]
        own += [(self.tokens, tokens, 1.0)] if tokens else []
        far = sum(w * (abs(math.log(a / b)) if a else UNKNOWN) for a, b, w in own)
        return far + UNKNOWN * bool(OTHER.search(self.what))

    @property
    def line(self) -> str:
        """The comparison in a line."""
        sizes = [f"{short(self.parameters)} untied"]
        sizes += [f"vocabulary {self.vocabulary:,.0f}"] if self.vocabulary else []
        sizes += [f"{short(self.tokens)} tokens"] if self.tokens else []
        if self.tokens and self.tokens < SHORT * self.parameters:
            sizes[-1] += " (hardly trained)"
        matched = {"same width": "equal width", "same parameters": "equal parameters"}
        sizes += [f"{self.seeds} seed{'s' * (self.seeds > 1)}", matched[self.matched]]
        sizes += [f"rates {self.rates or 'not stated'}"]
        differed = f"; differs: {self.differed}" * bool(self.differed)
        found = f"{self.gap:+.3f}" if not math.isnan(self.gap) else self.result
        return f"{found}: {', '.join(sizes)}. {self.what}{differed}. {self.url}"


class Model(NamedTuple):
    """A published model; `parameters` of its tied form, `share`: of one table in these."""

    family: str
    name: str
    parameters: float
    share: float
    tied: bool
    year: int


class Habit(NamedTuple):
    """What families since `SINCE` do where one table has a like share of the tied model.

    Attributes:
      ties: whether the share is at least `OFTEN`.
      tied, count: models that tie, and all, in the band of the share.
      band: in words.
      right, all: models of all bands that follow the rule, and all.
    """

    ties: bool
    tied: int
    count: int
    band: str
    right: int
    all: int


@cache
def comparisons() -> tuple[Comparison, ...]:
    """Read `published-comparisons.csv`."""
    found = []
    for row in _read("published-comparisons.csv"):
        if row["objective"] not in OBJECTIVES or not (size := _parameters(row)):
            continue
        shown = f"{row['metric']} {row['tied'].removesuffix('.0')} tied,"
        shown += f" {row['untied'].removesuffix('.0')} untied"
        found.append(
            Comparison(
                *(row[name] for name in ("source", "what", "url")),
                size,
                *(float(row[name] or 0) for name in ("vocabulary", "tokens")),
                float(row["gap_nats"] or "nan"),
                shown if row["tied"] else f"no number ({row['note'].split('; ')[-1]})",
                int(row["seeds"]),
                *(row[name] for name in ("matched", "rates", "differed")),
            )
        )
    return tuple(found)


def _parameters(row: dict[str, str]) -> float:
    """Return the parameters of the untied model, 0 if not even its sizes are stated."""
    width, layers, vocabulary = (
        float(row[name] or 0) for name in ("width", "layers", "vocabulary")
    )
    of_sizes = 12 * layers * width**2 + 2 * vocabulary * width if layers and vocabulary else 0.0
    return float(row["parameters_untied"] or of_sizes)


@cache
def models() -> tuple[Model, ...]:
    """Read `families.csv`."""
    found = []
    for row in _read("families.csv"):
        table, tied = float(row["width"]) * float(row["vocabulary"]), row["tied"] == "true"
        own = float(row["parameters"]) - (0 if tied else table)
        found.append(Model(row["family"], row["model"], own, table / own, tied, int(row["year"])))
    return tuple(found)


def _read(name: str) -> list[dict[str, str]]:
    text = (files("jaxtie.advise") / name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def nearest(
    parameters: float, vocabulary: float, tokens: float | None, count: int
) -> list[Comparison]:
    """Return the nearest comparisons, one of each code, at equal width or at equal parameters."""
    found: dict[tuple[str, str], Comparison] = {}
    for own in sorted(comparisons(), key=lambda own: own.distance(parameters, vocabulary, tokens)):
        found.setdefault((own.source.split(",")[0].split(" PR")[0], own.matched), own)
    return list(found.values())[:count]


def alike(parameters: float, factor: float = 2.0) -> list[Model]:
    """Return the models of a like size, the nearest first."""
    far = {own: abs(math.log(own.parameters / parameters)) for own in models()}
    return sorted((own for own in far if far[own] <= math.log(factor)), key=far.__getitem__)


def habit(share: float) -> Habit:
    """Return what families do at a share of one table in the tied model."""
    since = [own for own in models() if own.year >= SINCE]
    low, high = next(
        (low, high)
        for low, high in ((OFTEN, math.inf), (HARDLY, OFTEN), (0.0, HARDLY))
        if share >= low
    )
    often, hardly = percent(OFTEN), percent(HARDLY)
    band = {OFTEN: f"{often} or more", HARDLY: f"{hardly} to {often}", 0.0: f"less than {hardly}"}
    own = [model.tied for model in since if low <= model.share < high]
    right = sum((model.share >= OFTEN) == model.tied for model in since)
    return Habit(share >= OFTEN, sum(own), len(own), band[low], right, len(since))


def changes() -> Sequence[Comparison]:
    """Return the comparisons of one code at several budgets, the shortest first."""
    return sorted((own for own in comparisons() if own.source == CHANGES), key=lambda o: o.tokens)


def percent(share: float) -> str:
    """Return a share in percent."""
    return f"{100 * share:.2g} %"


def short(number: float) -> str:
    """Return a number with K, M, B or T."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if number >= size:
            return f"{number / size:.3g}{letter}"
    return f"{number:.3g}"
