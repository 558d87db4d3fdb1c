"""Decide which files a path means and open the tensors in them, in any format."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jaxtie.audit.flags import (
    CONFIGS,
    Configuration,
    configuration_of,
    find_configuration,
    read_configuration,
    read_json,
)
from jaxtie.audit.headers import is_count
from jaxtie.audit.knowledge import is_gguf_encoder
from jaxtie.audit.stored import (
    StoredTensor,
    from_keras,
    from_keras_archive,
    from_mapped,
    from_npz,
    from_orbax,
    is_orbax,
    refuse_pointer,
)
from jaxtie.config import UserError, check, check_path, natural

DISTRIBUTED = ".distcp"  # files of torch.distributed.checkpoint, next to a pickle of their names
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", DISTRIBUTED)
PICKLE_STARTS = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
ZIP = b"PK"  # the first bytes of what PyTorch writes, pickles in a zip
UNTIED = "jaxtie.untied"  # the mark of a copy that --untie has written
FORMATS = {".safetensors": "safetensors", ".npz": "npz", ".h5": "Keras", ".hdf5": "Keras"}
FORMATS |= {".gguf": "GGUF", ".keras": "Keras"}
READERS = {".safetensors": from_mapped, ".npz": from_npz, ".gguf": from_mapped}
READERS |= {".h5": from_keras, ".hdf5": from_keras, ".keras": from_keras_archive}
EXPECTED_FORMATS = "expected .safetensors, .npz, .keras, .weights.h5, .gguf, or an Orbax folder"
INDEX = ".safetensors.index.json"
MAIN_FILES = ("model.safetensors", f"model{INDEX}")  # read first in a folder of several files
ADAPTER = "adapter_"  # how names of files of an adapter begin
SHARD_NAME = re.compile(r"-(\d{5})-of-(\d{5})\.(safetensors|gguf)$")
SENTENCE_EMBEDDER = ("modules.json", "config_sentence_transformers.json")
ITEMS = ("params", "state", "default", "items", "model", "members")  # of an Orbax step, in order


@dataclass(frozen=True)
class Checkpoint:
    """The contents of a path."""

    path: Path
    format: str
    tensors: Mapping[str, StoredTensor]  # by name
    configuration: Configuration  # from the config.json next to it
    missing: tuple[str, ...] = ()  # names in its index that no file has
    unlisted: tuple[str, ...] = ()  # tensors in its files that the index does not name
    architecture: str = ""  # `general.architecture` of a GGUF
    tokens: int | None = None  # of its list of tokens
    untied: bool = False  # whether --untie has copied one embedding


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a file, a folder of files, or an Orbax folder.

    Raises:
      UserError: if there is no checkpoint, it is a pickle or a run of jaxtie, or it cannot be read.
    """
    path = whole(path)
    check_path(path)
    if path.is_dir():
        return _open_folder(path)
    refuse_pointer(path)
    refuse_pickle(path)
    if path.name.endswith(INDEX):
        return _open_sharded(path)
    if stem := _shard_stem(path):
        shards = [one for one in sorted(path.parent.iterdir()) if _shard_stem(one) == stem]
        return _open_files(_files_of_one_checkpoint(shards), path.parent)
    check(not path.name.startswith(ADAPTER), _only_adapter(path.parent))
    return _open_files([path], path)


def whole(path: Path) -> Path:
    """Return the index of a shard that has one, the folder of a `config.json`, or the path."""
    if path.name in CONFIGS:
        return path.parent
    index = path.with_name(f"{_shard_stem(path)}{INDEX}") if _shard_stem(path) else path
    return index if index.is_file() else path


def _shard_stem(path: Path) -> str:
    match = SHARD_NAME.search(path.name)
    return path.name[: match.start()] if match else ""


def check_link(folder: Path, path: Path) -> None:
    """Raise UserError if a file is a link that leaves the folder and its Hugging Face cache."""
    real, home = path.resolve(), folder.resolve()
    caches = [place.parent / "blobs" for place in home.parents if place.name == "snapshots"]
    is_inside = real.is_relative_to(home) or real.parent in caches
    text = f"{path}: is a link that leaves the folder, to {real}; give that file or its folder"
    check(is_inside, text)


def _only_adapter(folder: Path) -> str:
    return f"{folder}: holds an adapter only; give its base: jaxtie audit BASE --adapter {folder}"


def refuse_pickle(path: Path) -> None:
    """Raise UserError if a file is a pickle by its suffix or its first bytes."""
    is_pickle, how = path.suffix in PICKLES, "save it as safetensors"
    if path.suffix == DISTRIBUTED:
        module = "torch.distributed.checkpoint.format_utils"
        how = f"run python -m {module} dcp_to_torch {path.parent} model.pt and save its tensors"
        how += " as safetensors"
    if path.suffix not in (*FORMATS, ".json"):  # a safetensors file may begin like a pickle
        with path.open("rb") as file:
            start = file.read(4)
        if path.suffix == ".bin" and start:  # other programs write .bin, too
            is_pickle = start.startswith(ZIP)
        is_pickle |= start.startswith(PICKLE_STARTS)
    what = "is a pickle, which may run code when it is read, so it is not read"
    check(not is_pickle, f"{path}: {what}; {how}")


def _open_folder(folder: Path) -> Checkpoint:
    names = sorted(path.name for path in folder.iterdir())
    check(bool(names), f"{folder}: is an empty folder; {EXPECTED_FORMATS}")
    if is_orbax(folder):
        return _open_orbax(folder, folder)
    indices = [name for name in names if name.endswith(INDEX)]
    if indices and MAIN_FILES[0] not in names:
        return _open_sharded(folder / min(indices, key=lambda name: name != f"model{INDEX}"))
    own = [name for name in names if not name.startswith(ADAPTER)]
    for ending in (".safetensors", ".gguf", ".npz", ".keras", ".weights.h5", ".h5", ".hdf5"):
        found = [folder / name for name in own if name.endswith(ending)]
        if found:
            return _open_files(_files_of_one_checkpoint(found), folder)
    item = _find_orbax_item(folder)
    if item:
        return _open_orbax(item, folder)
    check(len(own) == len(names), _only_adapter(folder))
    for path in sorted((*folder.glob("*"), *folder.glob("*/*"))):
        if path.suffix in PICKLES:
            refuse_pickle(path)
    raise UserError(f"{folder}: holds no checkpoint; {EXPECTED_FORMATS}")


def _files_of_one_checkpoint(paths: list[Path]) -> list[Path]:
    """Return the only file, `model.safetensors`, or all shards of the only sharded checkpoint."""
    folder, names = paths[0].parent, [path.name for path in paths]
    if "model.safetensors" in names:
        return [folder / "model.safetensors"]
    shards = [match for name in names if (match := SHARD_NAME.search(name))]
    stems = {match.string[: match.start()] for match in shards}
    is_one = len(paths) == 1 or (len(shards) == len(paths) and len(stems) == 1)
    check(is_one, f"{folder}: holds several checkpoints; give one: {', '.join(names[:12])}")
    if shards:
        count = int(shards[0][2])
        lost = sorted(set(range(1, count + 1)) - {int(match[1]) for match in shards})[:5]
        shown = f"{', '.join(map(str, lost))} of {count}"
        check(not lost, f"{folder}: a shard is missing: {shown}; download it")
    return paths


def _open_files(paths: list[Path], given: Path) -> Checkpoint:
    """Open files of one format."""
    tensors: dict[str, StoredTensor] = {}
    metadata: dict[str, Any] = {}
    for path in paths:
        check_path(path)
        check(path.suffix in FORMATS, f"{path}: is in no supported format; {EXPECTED_FORMATS}")
        if path != given:
            check_link(path.parent, path)
        refuse_pointer(path)
        found, own = READERS[path.suffix](path)
        metadata = own | metadata
        for tensor in found:
            text = f"{path}: tensor {tensor.name!r} is in another file too; remove one of them"
            check(tensor.name not in tensors, text)
            tensors[tensor.name] = tensor
    folder = given if given.is_dir() else given.parent
    config = find_configuration(folder)
    if given.is_dir() and config:
        check_link(folder, config)
    if paths[0].suffix == ".keras":
        configuration = _configuration_of_keras(metadata, paths[0])
    else:
        configuration = read_configuration(config)
    architecture = str(metadata.get("general.architecture", ""))
    is_embedder = any((folder / name).is_file() for name in SENTENCE_EMBEDDER)
    if is_embedder or is_gguf_encoder(architecture, metadata):
        configuration = replace(configuration, headless=True)
    return Checkpoint(
        given,
        FORMATS[paths[0].suffix],
        tensors,
        configuration,
        architecture=architecture,
        tokens=tokens if is_count(tokens := metadata.get("tokenizer.ggml.tokens")) else None,
        untied=UNTIED in metadata,
    )


def _configuration_of_keras(content: dict[str, Any], path: Path) -> Configuration:
    """Read the flag and size of the ReversibleEmbedding from a `.keras` file."""
    nodes: list[Any] = [content]
    for node in nodes:
        parts = node.values() if isinstance(node, dict) else node
        nodes += [part for part in parts if isinstance(part, dict | list)]
    layers = [
        node.get("config")
        for node in nodes
        if isinstance(node, dict) and str(node.get("class_name")).endswith("ReversibleEmbedding")
    ]
    if len(layers) != 1 or not isinstance(layers[0], dict):
        return Configuration()
    flags = {"tie_weights": layers[0].get("tie_weights"), "vocab_size": layers[0].get("input_dim")}
    return configuration_of(flags, path)


def _open_sharded(index: Path) -> Checkpoint:
    check_path(index)
    check_link(index.parent, index)
    listed: Any = read_json(index).get("weight_map")
    is_map = isinstance(listed, dict) and bool(listed)
    is_map = is_map and all(isinstance(name, str) for name in listed.values())
    check(is_map, f"{index}: has no weight_map from names to files; download it again")
    names = sorted(set(listed.values()))
    paths = [index.parent / name for name in names]
    for name, path in zip(names, paths):
        is_here = Path(name).name == name
        check(is_here, f"{index}: names the file {name!r}; expected files in the same folder")
        check(path.is_file(), f"{path}: a shard is missing; {index.name} names it; download it")
        refuse_pickle(path)
    found = _open_files(paths, index.parent)
    missing = tuple(name for name in listed if name not in found.tensors)
    unlisted = tuple(name for name in found.tensors if name not in listed)
    return replace(found, missing=missing, unlisted=unlisted)


def _find_orbax_item(folder: Path) -> Path | None:
    """Return the item of the newest step below the folder of a manager, a run or a step."""
    for place in (folder, folder / "checkpoints"):
        steps = [path for path in place.glob("*") if _step_number(path) >= 0 and path.is_dir()]
        newest = max(steps, key=_step_number, default=None)
        for step in (newest, place):
            for item in (step, *(step / name for name in ITEMS)) if step else ():
                if is_orbax(item):
                    return item
    return None


def _step_number(path: Path) -> int:
    """Return N for a folder N or step-N; -1 for another."""
    return natural(path.name.removeprefix("step-"))


def _open_orbax(item: Path, given: Path) -> Checkpoint:
    for path in item.rglob("*"):
        if path.is_symlink():
            check_link(item, path)
    configs = filter(None, map(find_configuration, (item, *item.parents[:2])))
    configuration = read_configuration(next(configs, None))
    tensors = {tensor.name: tensor for tensor in from_orbax(item)}
    check(
        not any(".states..params[" in name for name in tensors),
        f"{given}: is a run of jaxtie, with a model for each seed; audit reads one checkpoint."
        " jaxtie.load(RUN) has the input_table and output_table of every seed",
    )
    return Checkpoint(given, "Orbax", tensors, configuration)
