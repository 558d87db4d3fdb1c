"""Advice on tying at a size: what it saves, what others measured and do, how to test it. No jax."""

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
SHOWN, NAMED = 5, 8  # comparisons; models
SHARE, FIRST = 0.1, 2  # of the tokens, for the test that is planned; seeds to begin with
PRECISIONS = {  # of weights and gradients, of Adam's moments
    "float32": ("float32", "float32"),
    "bf16 with float32 moments": ("bfloat16", "float32"),
    "bf16 with int8 moments": ("bfloat16", "int8"),
}
IN_USE = {"float32": "float32", "bf16": "bfloat16", "int8": "int8"}
# What the experiments found: `tests/advise/test_answer.py` finds every number in their documents.
BETWEEN = (
    "untie late (jaxtie.untie, at 2/3 of the steps): tied memory until then, an untied model after."
    " A ternary 26-layer model gained 0.0096 nat (one seed); a 124M speedrun does it, not ablated."
    " On our toy task, untied at 2/3, the loss ends 0.041 nat below tied and 0.122 above untied",
    "own output rows for tokens that are never a target (mask, padding), {width:,} parameters each:"
    " on our toy task one for the mask lowers the share of stuck seeds from 0.362 to 0.054; on text"
    " no effect is seen (small models, three seeds)",
    "a learned gain of such rows, one parameter each: on our toy task the share falls from 0.370 to"
    " 0.139; on text the loss changes by less than 0.03 nat (small models, three seeds)",
    "a larger tied model of untied's parameters: {more} more layers, {flops} more FLOPs. On books"
    " our wider tied models beat untied at vocabulary 8,192, by 0.016 to 0.047 nat, not at 2,048"
    " and width 32 (0.035 worse; one layer, five seeds); in SmolLM3's ablation 16 tied layers beat"
    " 12 untied at 1.2B (a figure, one run each)",
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
    near = known.nearest(parameters[1], target.sizes["vocabulary"], tokens, SHOWN)
    default = "tie" if share >= known.OFTEN else "do not tie"
    numbers: dict[str, Any] = dict(zip(("parameters_tied", "parameters_untied"), parameters))
    numbers |= {"share": share, "comparisons": json.loads(near.to_json(orient="records"))}
    sections = (
        _default(default, target, parameters, near["gap_nats"].dropna(), margin),
        _savings(target, parameters, numbers),
        ["Others measured, nearest first (nat per token; nothing is extrapolated):"]
        + [f"  {known.line(own)}" for own in near.itertuples()],
        _test(target, margin, numbers),
        _between(target),
    )
    lines = [line for section in sections for line in (*section, "")][:-1]
    return Advice(default, lines, numbers)


def _default(
    default: str, target: Target, parameters: tuple[int, int], gaps: pd.Series, margin: float
) -> list[str]:
    table, said = short(parameters[1] - parameters[0]), ""
    share = (parameters[1] - parameters[0]) / parameters[0]
    if target.flag is not None:
        said = f" (config.json says {'tied' if target.flag else 'untied'})"
    wrong = f"memory for {table} parameters counts more than loss, or a test shows no gap"
    if default == "tie":
        wrong = f"loss counts more than {table} parameters, and a test shows a gap"
    shown = ", ".join(f"{gap:+.3f}" for gap in sorted(gaps)) or "not in nats"
    right, count, ties, models, band = known.habit(share)
    near = known.alike(parameters[0])
    named = [
        f"{own.model} {'tied' if own.tied else 'untied'}"
        for own in near.drop_duplicates("family").head(NAMED).itertuples()
    ]
    return [
        f"Default: {default}{said}. Rule: tie where one table is {percent(known.OFTEN)} or more of"
        f" the tied model; here it is {percent(share)}. A habit, not a measurement: {right} of"
        f" {count} models since {known.SINCE} follow it; with {band}, {ties} of {models} tie.",
        f"It is wrong if {wrong} above {margin:g} nat. The nearest measured gaps (tied − untied;"
        f" above 0: tying costs) are {shown}; none is of your model.",
        f"Of {len(near)} published models within twice this size {near['tied'].sum()} tie:"
        f" {', '.join(named) or 'none'}.",
    ]


def _savings(target: Target, parameters: tuple[int, int], numbers: dict[str, Any]) -> list[str]:
    saved = parameters[1] - parameters[0]

    def size(first: int, last: int, weights: str, moments: str = "float32") -> int:
        types: dict[str, Any] = {"weight_dtype": weights, "moment_dtype": moments}
        untied, tied = (target.budget(tied=tied, **types) for tied in (False, True))
        return sum(untied[first:last]) - sum(tied[first:last])

    training = {name: size(2, 5, *types) for name, types in PRECISIONS.items()}
    use = {name: size(2, 3, weights) for name, weights in IN_USE.items()}
    cost = target.budget(tied=True)
    numbers["saved"] = {"parameters": saved, "layers": saved / target.layer_parameters}
    numbers["saved"] |= {"training_bytes": training, "bytes_in_use": use}
    shown = (
        ", ".join(f"{count / 1e9:.3g} GB {name}" for name, count in own.items())
        for own in (training, use)
    )
    return [
        f"Tying saves ({target.name}):",
        f"  {short(saved)} parameters: {short(parameters[0])} instead of {short(parameters[1])},"
        f" {percent(saved / parameters[1])} fewer, or {saved / target.layer_parameters:.1f} layers",
        f"  in training (weights, gradients, Adam): {next(shown)}",
        f"  in use (weights): {next(shown)}",
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
            f"{count}: {flops * count:.1e} FLOPs, {2 * SHARE * count:.2g} times your final run"
            for count in (FIRST, *([seeds] if seeds else []))
        ]
        cost = f" Cost, tuning aside: {'; '.join(parts)}."
    cheap = None if not target.tokens or not seeds else flops * seeds
    numbers["test"] = {"margin": margin, "seeds": seeds, "flops": cheap}
    return [
        "Test it:",
        f"  train {FIRST} seeds of each arm for {tokens}, then about {many} in all, each arm at its"
        f" own best learning rate, and run: jaxtie compare tied/ untied/.{cost}",
        f"  so many decide at a margin of {margin:g} nat with 80 % if the true gap is 0 and losses"
        f" deviate by {decide.DEVIATION:g} nat over seeds, as published ones do; jaxtie compare"
        " plans with your own",
        f"  the gap is of that budget and can change: parameter-golf has {first.gap_nats:.3f} at"
        f" {first.tokens / 1e9:.1f}, {last.gap_nats:.4f} at {last.tokens / 1e9:.1f} billion tokens",
    ]


def _between(target: Target) -> list[str]:
    width, _, vocabulary = (target.sizes[name] for name in NEEDED)
    more = max(1, round(vocabulary * width / target.layer_parameters))
    flops = [target.budget(tied=True, more=count).forward_flops for count in (0, more)]
    values = {"width": width, "more": more, "flops": percent(flops[1] / flops[0] - 1)}
    return ["In between:", *(f"  {text.format(**values)}" for text in BETWEEN)]
