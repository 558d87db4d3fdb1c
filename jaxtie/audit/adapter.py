"""Which ends of a model an adapter trains, as PEFT saves them (huggingface.co/docs/peft, checkpoint
format).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from jaxtie.audit.checkpoint import PICKLES
from jaxtie.audit.find import RowTable
from jaxtie.audit.flags import read_json
from jaxtie.audit.names import INPUTS, OUTPUTS, parts_of, stem_of
from jaxtie.audit.stored import Stored, from_safetensors
from jaxtie.config import check

WRAPPERS = frozenset(
    "lora_A lora_B lora_embedding_A lora_embedding_B lora_magnitude_vector weight default"
    " modules_to_save base_layer original_module token_adapter trainable_tokens_delta"
    " trainable_tokens_original bias".split()
)


@dataclass(frozen=True)
class Adapter:
    """What an adapter does to the two ends.

    Attributes:
      path: its folder.
      input, output: names of the tensors that train each end.
      keeps_tied: whether its configuration says `ensure_weight_tying`.
      tables: whole tables of both ends, where it has saved them.
    """

    path: Path
    input: tuple[str, ...]
    output: tuple[str, ...]
    keeps_tied: bool
    tables: tuple[RowTable, RowTable] | None


def read_adapter(folder: Path) -> Adapter:
    """The adapter in a folder.

    Raises:
      UserError: where there is none, it is a pickle, or it cannot be read.
    """
    check(
        folder.is_dir(),
        f"--adapter {folder}: no such folder; give the one with adapter_model.safetensors",
    )
    weights = folder / "adapter_model.safetensors"
    if not weights.is_file():
        pickles = [path.name for path in sorted(folder.iterdir()) if path.suffix in PICKLES]
        check(
            not pickles,
            f"{folder / ''.join(pickles[:1])}: is a pickle, which runs code when it is read, so it"
            " is not",
        )
    check(
        weights.is_file(),
        f"--adapter {folder}: holds no adapter_model.safetensors; expected what PEFT saves",
    )
    config = folder / "adapter_config.json"
    content = read_json(config) if config.is_file() else {}
    tensors = {tensor.name: tensor for tensor in from_safetensors(weights)}
    first, second = (
        tuple(name for name in tensors if _trains(name, stems)) for stems in (INPUTS, OUTPUTS)
    )
    return Adapter(
        folder,
        first,
        second,
        content.get("ensure_weight_tying") is True,
        _tables(tensors, first, second),
    )


def _trains(name: str, stems: tuple) -> bool:
    parts = parts_of(name)
    while parts and parts[-1] in WRAPPERS:
        parts.pop()
    match = stem_of(".".join(parts), stems)
    return match is not None and not match[0].loose


def _tables(
    tensors: Mapping[str, Stored], first: tuple[str, ...], second: tuple[str, ...]
) -> tuple[RowTable, RowTable] | None:
    """The whole tables, where either end has one and they are of one shape."""

    def whole(names: tuple[str, ...]) -> list[Stored]:
        found = (
            tensors[name] for name in names if parts_of(name)[-1] == "weight" and "lora" not in name
        )
        return [
            tensor
            for tensor in found
            if len(tensor.shape) == 2 and tensor.is_values and tensor.size
        ]

    ends = whole(first), whole(second)
    if all(len(tables) == 1 for tables in ends) and ends[0][0].shape == ends[1][0].shape:
        return RowTable(ends[0][0], False), RowTable(ends[1][0], False)
    return None
