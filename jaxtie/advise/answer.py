"""Advise on tying at a given size: savings, published comparisons, habits, a test. No jax.

Sizes are given, or read from a config.json.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from jaxtie.advise import known
from jaxtie.advise.known import percent, short
from jaxtie.compare import decide
from jaxtie.config import UserError, check, check_path, is_number
from jaxtie.tying.budget import Budget, budget

NAMED = 8  # models
SHARE, FIRST = 0.1, 2  # of the tokens, for the test that is planned; seeds to begin with
# Bytes of a parameter: in training of weight, gradient and Adam's two moments; in use of a weight.
TRAINING = {"float32": 16, "bf16 with float32 moments": 12, "bf16 with int8 moments": 6}
IN_USE = {"float32": 4, "bf16": 2, "int8": 1}
# Names in configurations on the hub.
SIZE_NAMES = {
    "width": ("hidden_size", "n_embd", "d_model", "dim"),
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "vocabulary": ("vocab_size",),
    "feedforward": ("intermediate_size", "n_inner", "ffn_dim", "d_ff"),
    "heads": ("num_attention_heads", "n_head", "num_heads"),
    "kv_heads": ("num_key_value_heads",),
    "head_width": ("head_dim",),
}
NEEDED = ("width", "layers", "vocabulary")
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
OTHER_MODELS = ("is_encoder_decoder", "state_size")  # the latter of Mamba
TABLE_WIDTHS = ("embedding_size", "word_embed_proj_dim")
GATED = {"silu", "swiglu"}  # activations between three matrices; in Gemma others, too
MOST_BYTES = 2**20
# What the experiments found: `tests/advise/test_answer.py` finds every number in their documents.
BETWEEN = (
    "untie late: train tied for 2/3 of the steps, then copy the table (jaxtie.untie), train both,"
    " and ship an untied model; tying saves memory only until then. A ternary 26-layer model gained"
    " 0.0096 nat (one seed); a 124M speedrun does it, not ablated; our decoder of 10M tokens gained"
    " nothing (one seed). On our toy task, where earlier is better, the loss ends 0.041 nat below"
    " tied and 0.122 above untied",
    "a learned scale: a parameter of your model that multiplies the logits, with tables that start"
    " as N(0, 0.02²). On books it lowered the loss of tied models by 0.033 ± 0.032 at width 64 and"
    " 0.041 ± 0.018 at 128, of untied ones by 0.084 ± 0.022 and 0.022 ± 0.036. The best rates"
    " change, so tune anew (two layers, half an epoch, three seeds)",
    "of a masked model: an output row of its own for the mask, {width:,} parameters, lowers the"
    " share of stuck seeds from 0.362 to 0.054 on our toy task, a learned gain of that row, one"
    " parameter, from 0.370 to 0.139; on text no effect is seen (small models, three seeds)",
    "a larger tied model of about untied's parameters: {more} more layers, {flops} more FLOPs. On"
    " books our wider tied models beat untied at vocabulary 8,192, by 0.016 to 0.047 nat, not at"
    " 2,048 and width 32 (0.035 worse); with as many operations, too, so on fewer tokens, they lost"
    " 0.094 to 0.255 everywhere (one layer, five seeds). In SmolLM3's ablation 16 tied layers"
    " beat 12 untied at 1.2B (a figure, one run each)",
)


@dataclass(frozen=True)
class Target:
    """A decoder.

    Attributes:
      sizes: arguments of `jaxtie.budget`.
      tokens: of its training; None if not given.
      flag: whether its configuration says tied; None if it says nothing.
    """

    sizes: dict[str, Any]
    tokens: float | None
    flag: bool | None

    def budget(self, more: int = 0) -> Budget:
        """Return parameters and FLOPs if tied, with some more layers."""
        try:
            return budget(**self.sizes | {"layers": self.sizes["layers"] + more}, tied=True)
        except ValueError as error:
            raise UserError(str(error)) from None

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer."""
        return self.budget(more=1).parameters - self.budget().parameters

    @property
    def table(self) -> int:
        """Parameters of one table."""
        return self.sizes["width"] * self.sizes["vocabulary"]


@dataclass(frozen=True)
class Advice:
    """The answer of `jaxtie advise`.

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


def advise(
    config: str | Path | None = None,
    *,
    width: int | None = None,
    layers: int | None = None,
    vocabulary: int | None = None,
    tokens: float | None = None,
    margin: float = decide.MARGIN,
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
    target = _read_target(path, width, layers, vocabulary, tokens)
    tied = target.budget().parameters
    untied, share = tied + target.table, target.table / tied
    near = known.nearest(untied, target.sizes["vocabulary"], tokens)
    default = "tie" if share >= known.OFTEN else "do not tie"
    numbers: dict[str, Any] = {"parameters_tied": tied, "parameters_untied": untied, "share": share}
    numbers["comparisons"] = json.loads(near.to_json(orient="records"))
    sections = (
        _default(default, target, tied, near.dropna(subset=["gap_nats"]), margin),
        _savings(target, tied, numbers),
        ["Others measured, nearest first (tied − untied, nat per token, then other measures):"]
        + [f"  {known.line(own)}" for own in near.itertuples()],
        _test(target, margin, numbers),
        _between(target),
    )
    lines = [line for section in sections for line in (*section, "")][:-1]
    return Advice(default, lines, numbers)


def _read_target(
    config: Path | None,
    width: int | None,
    layers: int | None,
    vocabulary: int | None,
    tokens: float | None,
) -> Target:
    """Return the sizes given, and the others of a config.json or of the folder that has one.

    Raises:
      UserError: if a size is missing or impossible, or the file is no model's configuration.
    """
    given = {"width": width, "layers": layers, "vocabulary": vocabulary}
    given = {name: size for name, size in given.items() if size is not None}
    own = _read_config(config) if config else {}
    if given.get("width", own.get("width")) != own.get("width"):  # its other sizes are of its width
        own = {name: own[name] for name in own if name in ("layers", "vocabulary", "flag")}
    flag = own.pop("flag", None)
    sizes = own | given
    missing = [f"--{name}" for name in NEEDED if name not in sizes]
    hint = ", or CONFIG, a model's config.json" if config is None else f": {config} has none"
    check(not missing, f"expected {' and '.join(missing)}{hint}")
    for name, size in sizes.items():
        is_size = name == "gated" or (type(size) is int and 0 < size < 2**31)
        check(is_size, f"{name} = {size!r}: expected a positive integer")
    is_count = tokens is None or (is_number(tokens) and 1 <= tokens <= 1e18)
    check(is_count, f"tokens = {tokens!r}: expected a number of tokens, such as 2e9")
    return Target(sizes, tokens, flag)


def _read_config(path: Path) -> dict[str, Any]:
    """Return the sizes and the flag of a configuration."""
    check_path(path)
    file = path / "config.json" if path.is_dir() else path
    check(file.is_file(), f"{path}: has no config.json; give --width, --layers and --vocabulary")
    try:
        text = file.read_text(encoding="utf-8-sig") if file.stat().st_size < MOST_BYTES else ""
        config = json.loads(text)
        config = (config.get("ffn_config") or {}) | config | (config.get("text_config") or {})
        odd = [name for name in EXPERTS if (config.get(name) or 0) > 1]
        odd += [name for name in OTHER_MODELS if config.get(name)]
        width = config.get("hidden_size")
        odd += [name for name in TABLE_WIDTHS if (config.get(name) or width) != width]
    except (ValueError, RecursionError, TypeError, AttributeError):
        raise UserError(f"{file}: expected a model's config.json") from None
    check(
        not odd,
        f"{file}: {', '.join(odd)}: counted are dense transformers of one stack, with tables as"
        " wide as the model; give --width, --layers and --vocabulary of one",
    )
    found = {
        name: next((config[key] for key in keys if config.get(key) is not None), None)
        for name, keys in SIZE_NAMES.items()
    }
    found = {name: size for name, size in found.items() if size is not None}
    if "heads" not in found:
        found = {name: found[name] for name in found if name not in ("kv_heads", "head_width")}
    activation = config.get("hidden_act") or config.get("hidden_activation")
    is_gated = str(activation) in GATED or str(config.get("model_type")).startswith("gemma")
    found["gated"] = "feedforward" in found and is_gated
    flag = config.get("tie_word_embeddings")
    return found | ({"flag": flag} if type(flag) is bool else {})


def _default(
    default: str, target: Target, tied: int, near: pd.DataFrame, margin: float
) -> list[str]:
    untied, share, said = tied + target.table, target.table / tied, ""
    if target.flag is not None:
        said = f" (config.json says {'tied' if target.flag else 'untied'})"
    wrong = f"Tie instead if memory is short, or if a test shows no gap above {margin:g} nat"
    if default == "tie":
        wrong = (
            f"Untie instead if {short(target.table)} more parameters are affordable and a test"
            f" shows that tying costs more than {margin:g} nat"
        )
    close = near[np.abs(np.log(near["parameters"] / untied)) <= math.log(known.CLOSE)]
    close = close[~(close["tokens"] < known.BARELY_TRAINED * close["parameters"])]
    close = close[~close["differed"].str.contains(known.LATE, na=False)]
    gaps = [f"{own.gap_nats:+.3f} at {short(own.parameters)}" for own in close.itertuples()]
    shown = f"are {', '.join(gaps)}; each has its own recipe, and none is of your model"
    if not gaps:
        shown = "are of models far from this size or hardly trained; nothing follows for yours"
    right, count, ties, models, band = known.habit(share)
    alike = known.alike(tied)
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
        f" the tied model; here it is {percent(share)}. A habit, not a measurement:"
        f" {right} of {count} models since {known.SINCE} follow it; with {band}, {ties} of {models}"
        " tie.",
        f"{wrong}. The nearest measured gaps (tied − untied, nat; above 0: tying costs) {shown}.",
        *([ties_near] * bool(named)),
    ]


def _savings(target: Target, tied: int, numbers: dict[str, Any]) -> list[str]:
    saved, cost, untied = target.table, target.budget(), tied + target.table
    layers = saved / target.layer_parameters
    training = {name: size * saved for name, size in TRAINING.items()}
    use = {name: size * saved for name, size in IN_USE.items()}
    numbers["saved"] = {"parameters": saved, "layers": layers}
    numbers["saved"] |= {"training_bytes": training, "bytes_in_use": use}
    shown = [
        ", ".join(f"{count / 1e9:.3g} GB {name}" for name, count in own.items())
        for own in (training, use)
    ]
    width, depth, vocabulary = (target.sizes[name] for name in NEEDED)
    return [
        f"Tying saves (width {width:,}, {depth} layers, vocabulary {vocabulary:,}, feed-forward"
        f" {target.sizes.get('feedforward', '4 × width')}):",
        f"  {short(saved)} parameters: {short(tied)} instead of {short(untied)},"
        f" {percent(saved / untied)} fewer, or {layers:.1f} layers",
        f"  in training (weights, gradients, Adam): {shown[0]}",
        f"  in use (weights): {shown[1]}",
        f"  no FLOPs: either output embedding takes {short(cost.head_flops)} a token,"
        f" {percent(cost.head_flops / cost.forward_flops)} of the forward pass",
    ]


def _test(target: Target, margin: float, numbers: dict[str, Any]) -> list[str]:
    none = np.empty(0)
    seeds, _ = decide.plan(decide.Ends(none, none, 0), margin, decide.DEVIATION)
    flops = target.budget().training_flops * (target.tokens or math.nan) * SHARE * 2
    many = f"about {seeds} seeds" if seeds else f"over {decide.MOST_SEEDS:,} seeds"
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
        f"  train {FIRST} seeds of each arm for {tokens}, {many} in all, each arm at its best"
        f" learning rate at that budget, and run: jaxtie compare tied/ untied/.{cost}"
        " If that costs more than a wrong choice would, keep the default.",
        f"  {many} of each exclude a gap of {margin:g} nat with 80 % power if the true gap is 0 and"
        f" losses deviate by {decide.DEVIATION:g} nat over seeds, the geometric mean of four"
        " published comparisons; jaxtie compare plans with your own",
        "  the gap is of that budget and can change: in parameter-golf tying cost 0.033 nat at 0.6"
        " billion tokens, 0.0135 at 2.6; a shorter test cannot settle a margin below such a change",
        "  a rate found on shorter runs, or one seed, can mislead: with such a rate our untied"
        " decoder ended 0.500 nat behind the tied one, with the best of four 0.389, 0.051 and 0.423"
        " in three seeds (10M tokens)",
        "  a smaller model is no cheaper test, as far as we know: our forecast by small models held"
        " 24 of 33 gaps in its 90 % intervals; without the text whose seeds differ most, predicting"
        " 0 has the smaller error",
    ]


def _between(target: Target) -> list[str]:
    more = max(1, round(target.table / target.layer_parameters))
    flops = percent(target.budget(more).forward_flops / target.budget().forward_flops - 1)
    values = {"width": target.sizes["width"], "more": more, "flops": flops}
    return ["In between:", *(f"  {text.format(**values)}" for text in BETWEEN)]
