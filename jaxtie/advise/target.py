"""The sizes of the model to advise on: given, or read from a config.json. Imports no jax."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxtie.config import UserError, check, check_path, is_number
from jaxtie.tying.budget import Budget, budget

# Names in configurations on the hub.
NAMES = {
    "width": ("hidden_size", "n_embd", "d_model", "dim"),
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "vocabulary": ("vocab_size",),
    "feedforward": ("intermediate_size", "n_inner", "ffn_dim", "d_ff"),
    "heads": ("num_attention_heads", "n_head", "num_heads"),
    "kv_heads": ("num_key_value_heads",),
    "head_width": ("head_dim",),
}
NEEDED = ("width", "layers", "vocabulary")
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
GATED = {"silu", "swiglu"}  # activations between three matrices; in Gemma others, too
MOST_BYTES = 2**20


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

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer."""
        own = [self.budget(tied=True, more=count).parameters for count in (0, 1)]
        return own[1] - own[0]

    @property
    def name(self) -> str:
        """The sizes in words."""
        width, layers, vocabulary = (self.sizes[name] for name in NEEDED)
        feedforward = self.sizes.get("feedforward", "4 × width")
        return (
            f"width {width:,}, {layers} layers, vocabulary {vocabulary:,}, feed-forward"
            f" {feedforward}"
        )

    def budget(self, *, tied: bool, more: int = 0, **types: Any) -> Budget:
        """Return parameters, bytes and FLOPs, with some more layers."""
        try:
            sizes = self.sizes | {"layers": self.sizes["layers"] + more}
            return budget(**sizes, tied=tied, **types)
        except ValueError as error:
            raise UserError(str(error)) from None


def read_target(
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
    own = _read(config) if config else {}
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


def _read(path: Path) -> dict[str, Any]:
    """Return the sizes and the flag of a configuration."""
    check_path(path)
    file = path / "config.json" if path.is_dir() else path
    check(file.is_file(), f"{path}: has no config.json; give --width, --layers and --vocabulary")
    try:
        text = file.read_text(encoding="utf-8-sig") if file.stat().st_size < MOST_BYTES else ""
        config = json.loads(text)
        config = config | (config.get("text_config") or {})
        experts = [name for name in EXPERTS if (config.get(name) or 0) > 1]
    except (ValueError, RecursionError, TypeError, AttributeError):
        raise UserError(f"{file}: expected a model's config.json") from None
    check(
        not experts,
        f"{file}: {', '.join(experts)}: a mixture of experts is not counted; give --width, --layers"
        " and --vocabulary of a dense model",
    )
    found = {
        name: next((config[key] for key in keys if config.get(key) is not None), None)
        for name, keys in NAMES.items()
    }
    found = {name: size for name, size in found.items() if size is not None}
    if "heads" not in found:
        found = {name: found[name] for name in found if name not in ("kv_heads", "head_width")}
    activation = config.get("hidden_act") or config.get("hidden_activation")
    is_gated = str(activation) in GATED or str(config.get("model_type")).startswith("gemma")
    found["gated"] = "feedforward" in found and is_gated
    flag = config.get("tie_word_embeddings")
    return found | ({"flag": flag} if type(flag) is bool else {})
