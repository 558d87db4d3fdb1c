"""Read which embeddings an adapter trains, as PEFT saves it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxtie.audit.checkpoint import PICKLES, check_link, refuse_pickle
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
    is_same: bool  # whether it stores both tables, and they are the same
    is_tokens: bool  # whether it trains chosen tokens only (`trainable_token_indices` of PEFT)
    rows: tuple[int, ...]  # vocabulary of each table, and of each LoRA of one


def read_adapter(folder: Path) -> Adapter:
    """Read the adapter in a folder; UserError if there is none that can be read."""
    text = f"--adapter {folder}: no such folder; give the one with adapter_model.safetensors"
    check(folder.is_dir(), text)
    weights = folder / "adapter_model.safetensors"
    for path in () if weights.is_file() else sorted(folder.iterdir()):
        if path.suffix in PICKLES:
            refuse_pickle(path)
    text = f"--adapter {folder}: holds no adapter_model.safetensors; expected what PEFT saves"
    check(weights.is_file(), text)
    check_link(folder, weights)
    refuse_pointer(weights)
    tensors, _ = from_mapped(weights)
    sides = [[one for one in tensors if _trains(one.name, group)] for group in (INPUTS, OUTPUTS)]
    inputs, outputs = ([one for one in side if _leaf(one) != "base_layer"] for side in sides)
    every = [one for side in sides for one in side]
    is_whole = all(_leaf(one) in ("table", "modules_to_save") for one in every)
    is_same = is_whole and bool(inputs and outputs) and all(one.is_values for one in every)
    return Adapter(
        tuple(one.name for one in inputs),
        tuple(one.name for one in outputs),
        is_whole,
        is_same and len({(one.shape, one.read(...).tobytes()) for one in every}) == 1,
        all("trainable_tokens" in one.name for one in sides[0]),
        tuple(dict.fromkeys(rows for one in every for rows in _rows(one))),
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
