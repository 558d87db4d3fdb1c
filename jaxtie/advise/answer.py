"""Advise on tying at a given size: savings, published comparisons, habits, a test. No jax."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from jaxtie.advise import known
from jaxtie.advise.known import percent, short
from jaxtie.advise.target import NEEDED, Target, read_target
from jaxtie.compare import decide
from jaxtie.config import check, is_number

MARGIN = 0.01  # nat
NAMED = 8  # models
SHARE, FIRST = 0.1, 2  # of the tokens, for the test that is planned; seeds to begin with
# Types of weights and gradients, and of Adam's moments: in training, and in use without moments.
TRAINING = {
    "float32": ("float32", "float32"),
    "bf16 with float32 moments": ("bfloat16", "float32"),
    "bf16 with int8 moments": ("bfloat16", "int8"),
}
IN_USE = {"float32": ("float32",), "bf16": ("bfloat16",), "int8": ("int8",)}
# What the experiments found: `tests/advise/test_answer.py` finds every number in their documents.
BETWEEN = (
    "untie late: train tied for 2/3 of the steps, then copy the table (jaxtie.untie), train both,"
    " and ship an untied model; tying saves memory only until then. A ternary 26-layer model gained"
    " 0.0096 nat (one seed); a 124M speedrun does it, not ablated; our decoder of 10M tokens gained"
    " nothing (one seed). On our toy task, where earlier is better, the loss ends 0.041 nat below"
    " tied and 0.122 above untied",
    "a learned scale: one number that multiplies the logits, with tables that start as N(0, 0.02²)."
    " On books it lowered the loss of tied models by 0.033 ± 0.032 at width 64 and 0.041 ± 0.018 at"
    " 128, at the rates 0.008 and 0.002 (untied: 0.0028 and 0.004); without it the best rate of the"
    " tied model of width 128 was 0.0028, so tune anew. It helps untied models, too (two layers,"
    " half an epoch, three seeds)",
    "of a masked model: an output row of its own for the mask, {width:,} parameters, lowers the"
    " share of stuck seeds from 0.362 to 0.054 on our toy task, a learned gain of that row, one"
    " parameter, from 0.370 to 0.139; on text no effect is seen (small models, three seeds)",
    "a larger tied model of about untied's parameters: {more} more layers, {flops} more FLOPs. On"
    " books our wider tied models beat untied at vocabulary 8,192, by 0.016 to 0.047 nat, not at"
    " 2,048 and width 32 (0.035 worse; one layer, five seeds); in SmolLM3's ablation 16 tied layers"
    " beat 12 untied at 1.2B (a figure, one run each)",
)


@dataclass(frozen=True)
class Advice:
    """The answer of `jaxtie advise`; a notebook shows its lines.

    Attributes:
      default: "tie" or "do not tie".
      lines: the answer, a sentence or a row each.
      numbers: of the answer.
    """

    default: str
    lines: list[str]
    numbers: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for `--json`."""
        answer = [line.strip() for line in self.lines if line]
        return {"default": self.default, "answer": answer, **self.numbers}

    def _repr_markdown_(self) -> str:
        """Show the answer in a notebook."""
        return "\n".join(f"- {line[2:]}" if line[:2] == "  " else line for line in self.lines)


def advise(
    config: str | Path | None = None,
    *,
    width: int | None = None,
    layers: int | None = None,
    vocabulary: int | None = None,
    tokens: float | None = None,
    margin: float = MARGIN,
) -> Advice:
    """Advise on tying at a size, as `jaxtie advise` does; trains nothing.

    Args:
      config: a model's config.json, or the folder of a checkpoint that has one.
      width: of the model, which overrides the configuration, as the next two.
      layers: of the model.
      vocabulary: its entries.
      tokens: of its training.
      margin: gap that matters, nat.

    Raises:
      UserError: in one line, if a size is missing or invalid.
    """
    check(is_number(margin) and 0 < margin < math.inf, f"margin {margin!r}: expected above 0")
    path = None if config is None else Path(config)
    target = read_target(path, width, layers, vocabulary, tokens)
    parameters = target.budget(tied=True).parameters, target.budget(tied=False).parameters
    share = (parameters[1] - parameters[0]) / parameters[0]
    near = known.nearest(parameters[1], target.sizes["vocabulary"], tokens)
    default = "tie" if share >= known.OFTEN else "do not tie"
    numbers: dict[str, Any] = dict(zip(("parameters_tied", "parameters_untied"), parameters))
    numbers |= {"share": share, "comparisons": json.loads(near.to_json(orient="records"))}
    sections = (
        _default(default, target, parameters, near.dropna(subset=["gap_nats"]), margin),
        _savings(target, parameters, numbers),
        ["Others measured, nearest first (tied − untied, nat per token, then other measures):"]
        + [f"  {known.line(own)}" for own in near.itertuples()],
        _test(target, margin, numbers),
        _between(target),
    )
    lines = [line for section in sections for line in (*section, "")][:-1]
    return Advice(default, lines, numbers)


def _default(
    default: str, target: Target, parameters: tuple[int, int], near: pd.DataFrame, margin: float
) -> list[str]:
    table, said = parameters[1] - parameters[0], ""
    if target.flag is not None:
        said = f" (config.json says {'tied' if target.flag else 'untied'})"
    wrong = f"Tie instead if memory is short, or if a test shows no gap above {margin:g} nat"
    if default == "tie":
        wrong = (
            f"Untie instead if {short(table)} more parameters are affordable and a test shows that"
            f" tying costs more than {margin:g} nat"
        )
    close = near[np.abs(np.log(near["parameters"] / parameters[1])) <= math.log(known.CLOSE)]
    close = close[~(close["tokens"] < known.SHORT * close["parameters"])]
    close = close[~close["differed"].str.contains(known.LATE, na=False)]
    gaps = [f"{own.gap_nats:+.3f} at {short(own.parameters)}" for own in close.itertuples()]
    shown = f"are {', '.join(gaps)}; each has its own recipe, and none is of your model"
    if not gaps:
        shown = "are of models far from this size or hardly trained; nothing follows for yours"
    right, count, ties, models, band = known.habit(table / parameters[0])
    alike = known.alike(parameters[0])
    named = [
        f"{own.model} {'tied' if own.tied else 'untied'}"
        for own in alike.drop_duplicates("family").head(NAMED).itertuples()
    ]
    ties_near = (
        f"{alike['tied'].sum()} of {len(alike)} published models within twice this size tie. The"
        f" nearest: {', '.join(named)}."
    )
    return [
        f"Default: {default}{said}. Rule: tie where one table is {percent(known.OFTEN)} or more of"
        f" the tied model; here it is {percent(table / parameters[0])}. A habit, not a measurement:"
        f" {right} of {count} models since {known.SINCE} follow it; with {band}, {ties} of {models}"
        " tie.",
        f"{wrong}. The nearest measured gaps (tied − untied, nat; above 0: tying costs) {shown}.",
        *([ties_near] * bool(named)),
    ]


def _savings(target: Target, parameters: tuple[int, int], numbers: dict[str, Any]) -> list[str]:
    saved, cost = parameters[1] - parameters[0], target.budget(tied=True)
    layers = saved / target.layer_parameters

    def size(weights: str, moments: str | None = None) -> int:
        types: dict[str, Any] = {"weight_dtype": weights, "moment_dtype": moments or "float32"}
        untied, tied = (target.budget(tied=tied, **types) for tied in (False, True))
        last = 5 if moments else 3  # weights; gradients and moments
        return sum(untied[2:last]) - sum(tied[2:last])

    training, use = (
        {name: size(*types) for name, types in own.items()} for own in (TRAINING, IN_USE)
    )
    numbers["saved"] = {"parameters": saved, "layers": layers}
    numbers["saved"] |= {"training_bytes": training, "bytes_in_use": use}
    shown = [
        ", ".join(f"{count / 1e9:.3g} GB {name}" for name, count in own.items())
        for own in (training, use)
    ]
    return [
        f"Tying saves ({target.name}):",
        f"  {short(saved)} parameters: {short(parameters[0])} instead of {short(parameters[1])},"
        f" {percent(saved / parameters[1])} fewer, or {layers:.1f} layers",
        f"  in training (weights, gradients, Adam): {shown[0]}",
        f"  in use (weights): {shown[1]}",
        f"  no FLOPs: either output embedding takes {short(cost.head_flops)} a token,"
        f" {percent(cost.head_flops / cost.forward_flops)} of the forward pass",
    ]


def _test(target: Target, margin: float, numbers: dict[str, Any]) -> list[str]:
    none = np.empty(0)
    seeds, _ = decide.plan(decide.Ends(none, none, 0), margin, decide.DEVIATION)
    changes = known.comparisons()[known.comparisons()["source"] == known.CHANGES]
    first, last = changes.sort_values("tokens").itertuples()
    flops = target.budget(tied=True).training_flops * (target.tokens or math.nan) * SHARE * 2
    many = f"{seeds} seeds" if seeds else f"over {decide.MOST_SEEDS:,} seeds"
    tokens, cost = "a tenth of your tokens", ""
    if target.tokens:
        tokens += f" ({short(SHARE * target.tokens)})"
        parts = [
            f"{count} seeds {flops * count:.1e} FLOPs ({2 * SHARE * count:.2g} × your final run)"
            for count in (FIRST, *([seeds] if seeds else []))
        ]
        cost = f" Cost, tuning aside: {'; '.join(parts)}."
    cheap = None if not target.tokens or not seeds else flops * seeds
    numbers["test"] = {"margin": margin, "seeds": seeds, "flops": cheap}
    return [
        "Test it:",
        f"  train {FIRST} seeds of each arm for {tokens}, then about {many} in all, each arm at its"
        f" own best learning rate at that budget, and run: jaxtie compare tied/ untied/.{cost}",
        f"  so many exclude a gap of {margin:g} nat with 80 % power if the true gap is 0 and losses"
        f" deviate by {decide.DEVIATION:g} nat over seeds, the mean of four published runs; jaxtie"
        " compare plans with your own",
        f"  the gap is of that budget and can change: in parameter-golf tying cost"
        f" {first.gap_nats:.3f} nat at {first.tokens / 1e9:.1f} billion tokens,"
        f" {last.gap_nats:.4f} at {last.tokens / 1e9:.1f}; a shorter test cannot settle a margin"
        " below such a change",
        "  a rate found on shorter runs can mislead: with one, our untied decoder ended 0.500 nat"
        " behind the tied one (10M tokens, one seed)",
        "  a smaller model is no cheaper test, as far as we know: our forecast by small models held"
        " 24 of 33 gaps in its 90 % intervals, and predicting 0 has the smaller error",
    ]


def _between(target: Target) -> list[str]:
    width, _, vocabulary = (target.sizes[name] for name in NEEDED)
    more = max(1, round(vocabulary * width / target.layer_parameters))
    flops = [target.budget(tied=True, more=count).forward_flops for count in (0, more)]
    values = {"width": width, "more": more, "flops": percent(flops[1] / flops[0] - 1)}
    return ["In between:", *(f"  {text.format(**values)}" for text in BETWEEN)]
