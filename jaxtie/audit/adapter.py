"""Read which embeddings an adapter trains, as PEFT saves it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxtie.audit.checkpoint import PICKLES, link_target, refuse_pickle
from jaxtie.audit.find import EmbeddingTable
from jaxtie.audit.flags import read_json
from jaxtie.audit.knowledge import INPUTS, OUTPUTS, Pattern, match_name, split_name
from jaxtie.audit.stored import StoredTensor, from_safetensors
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
    keeps_tied: bool  # whether its configuration says `ensure_weight_tying`
    tables: tuple[EmbeddingTable, EmbeddingTable] | None  # both, if it has saved them whole
    is_tokens: bool  # whether it trains chosen tokens only (`trainable_token_indices` of PEFT)


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
    content = read_json(config) if config.is_file() else {}
    tensors, _ = from_safetensors(weights)
    inputs, outputs = (
        [tensor for tensor in tensors if _trains(tensor.name, patterns)]
        for patterns in (INPUTS, OUTPUTS)
    )
    return Adapter(
        tuple(tensor.name for tensor in inputs),
        tuple(tensor.name for tensor in outputs),
        content.get("ensure_weight_tying") is True,
        _whole_tables(inputs, outputs),
        all("trainable_tokens" in tensor.name for tensor in inputs),
    )


def _trains(name: str, patterns: Sequence[Pattern]) -> bool:
    parts = split_name(name)
    while parts and parts[-1] in WRAPPERS:
        parts.pop()
    match = match_name(".".join(parts), patterns)
    return match is not None and not match[0].loose


def _whole_tables(
    inputs: Sequence[StoredTensor], outputs: Sequence[StoredTensor]
) -> tuple[EmbeddingTable, EmbeddingTable] | None:
    """Return both embeddings, if each side has one whole table and their shapes are equal."""
    whole = [[tensor for tensor in side if _is_whole(tensor)] for side in (inputs, outputs)]
    if all(len(side) == 1 for side in whole) and whole[0][0].shape == whole[1][0].shape:
        return EmbeddingTable(whole[0][0], False), EmbeddingTable(whole[1][0], False)
    return None


def _is_whole(tensor: StoredTensor) -> bool:
    is_table = len(tensor.shape) == 2 and tensor.is_values and tensor.size > 0
    return is_table and split_name(tensor.name)[-1] == "weight" and "lora" not in tensor.name
