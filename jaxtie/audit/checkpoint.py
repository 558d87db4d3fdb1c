"""Which files a path means, and the tensors in them, under one roof whatever the format."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxtie.audit.flags import Configuration, read_configuration, read_json
from jaxtie.audit.stored import (
    Stored,
    from_gguf,
    from_keras,
    from_npz,
    from_orbax,
    from_safetensors,
    is_orbax,
    refuse_pointer,
)
from jaxtie.config import Arm, UserError, check

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
READ = (".safetensors", ".npz", ".h5", ".gguf", ".json")
EXPECTED_FORMATS = "expected .safetensors, .npz, Keras .weights.h5, .gguf, or an Orbax folder"
INDEX = ".safetensors.index.json"
SHARD_NAME = re.compile(r"-(\d{5})-of-(\d{5})\.(safetensors|gguf)$")
# of an Orbax step, the first that is there
ITEMS = (
    "params",
    "state",
    "default",
    "items",
    "model",
    "members",
)


@dataclass(frozen=True)
class Subject:
    """One model in a checkpoint; a run of jaxtie has one for each arm.

    Attributes:
      name: of the arm; empty elsewhere.
      tensors: by name.
      tied: what the arm is to be; None where a configuration tells.
    """

    name: str
    tensors: Mapping[str, Stored]
    tied: bool | None = None


@dataclass(frozen=True)
class Checkpoint:
    """What was found at a path.

    Attributes:
      path, form: the path as given, and the format.
      subjects: the models.
      configuration: what stands beside it.
      missing: names in its index that no file has.
      unlisted: tensors in its files that the index does not name.
      architecture: of a GGUF, `general.architecture`.
    """

    path: Path
    form: str
    subjects: tuple[Subject, ...]
    configuration: Configuration
    missing: tuple[str, ...] = ()
    unlisted: tuple[str, ...] = ()
    architecture: str = ""


def open_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint at a path: a file, a folder of files, an Orbax folder, or the folder of a run
    of jaxtie.

    Raises:
      UserError: where there is none, it is a pickle, or it cannot be read.
    """
    check(path.exists(), f"{path}: no such file or folder")
    if path.is_dir():
        return _open_folder(path)
    refuse_pointer(path)
    _refuse_pickle(path)
    if path.name.endswith(INDEX):
        return _open_sharded(path)
    return _open_plain([path], path)


def _refuse_pickle(path: Path) -> None:
    with path.open("rb") as file:
        begins = file.read(2)
    begun = begins[:1] == b"\x80" and begins[1:] in (b"\x02", b"\x03", b"\x04", b"\x05")
    # so a safetensors file may begin, too
    pickled = path.suffix in PICKLES or (begun and path.suffix not in READ)
    check(
        not pickled,
        f"{path}: is a pickle, which runs code when it is read, so it is not; save it as"
        " safetensors",
    )


def _open_folder(folder: Path) -> Checkpoint:
    names = sorted(path.name for path in folder.iterdir())
    check(bool(names), f"{folder}: is an empty folder; {EXPECTED_FORMATS}")
    if is_orbax(folder):
        return _open_orbax(folder, folder)
    indices = [name for name in names if name.endswith(INDEX)]
    if indices:
        return _open_sharded(
            folder / min(indices, key=lambda name: (name != f"model{INDEX}", name))
        )
    for ending in (".safetensors", ".gguf", ".npz", ".weights.h5", ".h5"):
        found = [folder / name for name in names if name.endswith(ending)]
        if found:
            return _open_plain(_together(found), folder)
    item = _orbax_below(folder)
    if item:
        return _open_orbax(item, folder)
    for name in names:
        if Path(name).suffix in PICKLES:
            _refuse_pickle(folder / name)
    raise UserError(f"{folder}: holds no checkpoint; {EXPECTED_FORMATS}")


def _together(paths: list[Path]) -> list[Path]:
    """The files of one checkpoint among those of one ending: the only one, `model`, or all
    shards.
    """
    if len(paths) == 1:
        return _with_all_shards(paths)
    main = [path for path in paths if path.name == "model.safetensors"]
    shards = [path for path in paths if SHARD_NAME.search(path.name)]
    if main:
        return main
    if len({SHARD_NAME.sub("", path.name) for path in shards}) == 1 and len(shards) == len(paths):
        return _with_all_shards(paths)
    raise UserError(
        f"{paths[0].parent}: holds several checkpoints; give one:"
        f" {', '.join(path.name for path in paths[:12])}"
    )


def _with_all_shards(paths: list[Path]) -> list[Path]:
    """These, if none of the numbered ones is missing."""
    match = SHARD_NAME.search(paths[0].name)
    if match:
        count = int(match[2])
        have = {int(found[1]) for path in paths if (found := SHARD_NAME.search(path.name))}
        lost = sorted(set(range(1, count + 1)) - have)[:5] if count <= 100_000 else []
        check(
            not lost,
            f"{paths[0].parent}: a shard is missing: {', '.join(map(str, lost))} of {count};"
            " download it",
        )
    return paths


def _read_file(path: Path) -> tuple[list[Stored], str, dict[str, Any]]:
    if path.suffix == ".safetensors":
        return from_safetensors(path), "safetensors", {}
    if path.suffix == ".npz":
        return from_npz(path), "npz", {}
    if path.suffix == ".h5":
        return from_keras(path), "Keras", {}
    if path.suffix == ".gguf":
        tensors, metadata = from_gguf(path)
        return tensors, "GGUF", metadata
    raise UserError(f"{path}: is of no format that is read; {EXPECTED_FORMATS}")


def _open_plain(paths: list[Path], given: Path) -> Checkpoint:
    tensors: dict[str, Stored] = {}
    metadata: dict[str, Any] = {}
    form = ""
    for path in paths:
        found, form, more = _read_file(path)
        metadata = metadata or more
        _merge_into(tensors, found, path)
    configuration = read_configuration((given if given.is_dir() else given.parent) / "config.json")
    architecture = str(metadata.get("general.architecture", ""))
    return Checkpoint(
        given, form, (Subject("", tensors),), configuration, architecture=architecture
    )


def _merge_into(tensors: dict[str, Stored], found: Iterable[Stored], path: Path) -> None:
    for tensor in found:
        check(
            tensor.name not in tensors,
            f"{path}: tensor {tensor.name!r} stands in another file too; take one away",
        )
        tensors[tensor.name] = tensor


def _open_sharded(index: Path) -> Checkpoint:
    listed: Any = read_json(index).get("weight_map")
    good = (
        isinstance(listed, dict)
        and bool(listed)
        and all(isinstance(name, str) for name in listed.values())
    )
    check(good, f"{index}: has no weight_map of names to files; download it again")
    tensors: dict[str, Stored] = {}
    for name in sorted(set(listed.values())):
        path = index.parent / name
        check(
            Path(name).name == name, f"{index}: names the file {name!r}; expected files beside it"
        )
        check(
            path.suffix not in PICKLES,
            f"{path}: is a pickle, which runs code when it is read, so it is not",
        )
        check(path.is_file(), f"{path}: a shard is missing; {index.name} names it; download it")
        _merge_into(tensors, from_safetensors(path), path)
    return Checkpoint(
        index.parent,
        "safetensors",
        (Subject("", tensors),),
        read_configuration(index.parent / "config.json"),
        tuple(name for name in listed if name not in tensors),
        tuple(name for name in tensors if name not in listed),
    )


def _orbax_below(folder: Path) -> Path | None:
    """The item of the newest step below a folder: of a manager's, of a run's, of a step's."""
    for place in (folder, folder / "checkpoints"):
        steps = [path for path in place.glob("[0-9]*") if path.name.isdigit() and path.is_dir()]
        newest = max(steps, key=lambda path: int(path.name), default=None)
        for step in (newest, place):
            for item in (step, *(step / name for name in ITEMS)) if step else ():
                if is_orbax(item):
                    return item
    return None


def _open_orbax(item: Path, given: Path) -> Checkpoint:
    if item.name == "members":
        return _open_run(item, given)
    beside = [place / "config.json" for place in (item, *item.parents[:2])]
    configuration = read_configuration(next(filter(Path.is_file, beside), beside[0]))
    return Checkpoint(
        given,
        "Orbax",
        (Subject("", {tensor.name: tensor for tensor in from_orbax(item)}),),
        configuration,
    )


def _open_run(item: Path, given: Path) -> Checkpoint:
    """A run of jaxtie: a subject for each arm, its members' tables behind each other."""
    arms: dict[str, dict[str, Stored]] = {}
    for tensor in from_orbax(item, stacked=True):
        name, found, rest = tensor.name.partition(".states.")
        if found and rest.startswith(".params"):
            arms.setdefault(name, {})[rest] = tensor
    check(bool(arms), f"{item}: holds no members of a run")
    subjects = []
    for name, tensors in arms.items():
        arm = Arm.parse(name)
        # Before the step at which it unties, an arm has one table; the checkpoint may be of then.
        one = len([rest for rest in tensors if rest.endswith("['output']")]) == 0
        subjects.append(Subject(name, tensors, one if arm.untie_at is not None else arm.tied))
    return Checkpoint(given, "a run of jaxtie", tuple(subjects), Configuration())
