"""Read which embeddings an adapter trains, as PEFT saves it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxtie.audit.checkpoint import PICKLES, link_target, refuse_pickle
from jaxtie.audit.flags import read_json
from jaxtie.audit.knowledge import INPUTS, OUTPUTS, Pattern, match_name, split_name
from jaxtie.audit.stored import StoredTensor, from_mapped, refuse_pointer
from jaxtie.config import check

# Parts that PEFT appends to a module's name.
WRAPPERS = frozenset(
    "lora_A lora_B lora_embedding_A lora_embedding_B lora_magnitude_vector weight default"
    " modules_to_save base_layer original_module token_adapter trainable_tokens_delta"
    " trainable_tokens_original bias".split()
)


@dataclass(frozen=True)
class Adapter:
    """The effect of an adapter on the embeddings."""

    input: tuple[str, ...]  # names of the tensors that train the input embedding
    output: tuple[str, ...]  # likewise
    is_whole: bool  # whether it stores whole tables, not LoRA factors
    is_same: bool | None  # whether it trains both sides alike; None if it does not have both
    is_tokens: bool  # whether it trains chosen tokens only (`trainable_token_indices` of PEFT)
    rows: tuple[int, ...]  # vocabulary of each table, and of each LoRA of one


def read_adapter(folder: Path) -> Adapter:
    """Read the adapter in a folder; UserError if there is none that can be read."""
    check(
        folder.is_dir(),
        f"--adapter {folder}: no such folder; give the one with adapter_model.safetensors",
    )
    weights = folder / "adapter_model.safetensors"
    if not weights.is_file():
        for path in sorted(folder.iterdir()):
            if path.suffix in PICKLES:
                refuse_pickle(path)
    check(
        weights.is_file(),
        f"--adapter {folder}: holds no adapter_model.safetensors; expected what PEFT saves",
    )
    config = folder / "adapter_config.json"
    for path in filter(Path.is_file, (weights, config)):
        link_target(folder, path)
    if config.is_file():
        read_json(config)
    refuse_pointer(weights)
    tensors, _ = from_mapped(weights)
    inputs, outputs = (
        [tensor for tensor in tensors if _trains(tensor.name, patterns)]
        for patterns in (INPUTS, OUTPUTS)
    )
    return Adapter(
        tuple(tensor.name for tensor in inputs if _leaf(tensor) != "base_layer"),
        tuple(tensor.name for tensor in outputs if _leaf(tensor) != "base_layer"),
        all(_leaf(tensor) in ("table", "modules_to_save") for tensor in (*inputs, *outputs)),
        _is_same(inputs, outputs),
        all("trainable_tokens" in tensor.name for tensor in inputs),
        tuple(dict.fromkeys(rows for one in (*inputs, *outputs) for rows in _rows(one))),
    )


def _trains(name: str, patterns: Sequence[Pattern]) -> bool:
    parts = split_name(name)
    while parts and parts[-1] in WRAPPERS:
        parts.pop()
    match = match_name(".".join(parts), patterns)
    return match is not None and not match[0].loose


def _leaf(tensor: StoredTensor) -> str:
    parts = [part for part in split_name(tensor.name) if part not in ("weight", "default")]
    return next((part for part in reversed(parts) if part in WRAPPERS), "table")


def _rows(tensor: StoredTensor) -> list[int]:
    """Return the vocabulary of a table, or of the factor of a LoRA that has it."""
    axis = {"lora_embedding_A": 1, "lora_B": 0, "table": 0, "base_layer": 0, "modules_to_save": 0}
    at = axis.get(_leaf(tensor))
    return [] if at is None or len(tensor.shape) != 2 else [tensor.shape[at]]


def _is_same(inputs: Sequence[StoredTensor], outputs: Sequence[StoredTensor]) -> bool | None:
    """Return whether both sides hold the same values; those of a LoRA are transposed.

    A base layer says nothing: PEFT stores it with any LoRA.
    """
    pairs = {"lora_B": "lora_embedding_A", "lora_A": "lora_embedding_B"}
    ours, theirs = (
        {_leaf(tensor): tensor for tensor in side if _leaf(tensor) != "base_layer"}
        for side in (inputs, outputs)
    )
    if not ours or not theirs:
        return None
    for leaf, tensor in theirs.items():
        like = ours.get(pairs.get(leaf, leaf))
        if like is None or not (tensor.is_values and like.is_values):
            return False
        first, second = like.read(...), tensor.read(...)
        first = first.T if leaf in pairs else first
        if first.shape != second.shape or first.tobytes() != second.tobytes():
            return False
    return len(ours) == len(theirs)
