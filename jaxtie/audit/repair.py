"""Write a repaired copy of a checkpoint: tie it, untie it, or set its flags to what is stored."""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from jaxtie.audit.audit import Audit, audit
from jaxtie.audit.checkpoint import ADAPTER, FORMATS, INDEX, PICKLES, UNTIED, check_link
from jaxtie.audit.compare import ShowProgress
from jaxtie.audit.findings import describe_ids, find_shard
from jaxtie.audit.flags import levels_of, read_json
from jaxtie.audit.headers import read_safetensors
from jaxtie.audit.knowledge import (
    FLAGS,
    LEAVES,
    NAMES,
    OUTPUTS,
    head_of,
    is_copy,
    is_transform,
    match_name,
    missing_sides,
    split_name,
)
from jaxtie.config import UserError, check, check_path

RepairKind = Literal["tie", "untie", "flags"]
MARK = "one embedding is a copy of the other"
PARTIAL = ".partial"  # ends the name of the folder until all of it is on the disk
LEFT_OUT = (".git", ".cache")  # folders that belong to the place, not to the checkpoint
BLOCK = 2**24  # bytes that are copied together
ADDED_BYTES = 2**20  # bytes of headers and of JSON that may be added
EQUAL = ("equal", "untied-but-equal", "untied-copy")
DIFFERENT = ("different", "tied-but-different")
DRAFT = ("draft", "draft-tied")
LOST = "untied-but-once"
IF_LOST = "Give --tie if it was trained tied; else restore the output embedding"
STORED_ONCE = ("once", "lone", LOST, "top-missing")
# Without one of these as its first finding, a model has no head, or it is not known how its
# embeddings relate.
KNOWN = (*STORED_ONCE, *EQUAL, *DIFFERENT, *DRAFT, "head-only")
BY_FLAGS = ("levels-disagree", "shared-alone", "index-without-tensor", "tensor-without-index")
REPAIRABLE = (*KNOWN, *BY_FLAGS)
# Other files in the folder that may also hold embeddings.
WEIGHTS = (*PICKLES, *FORMATS, ".msgpack", ".onnx", ".tflite", ".ot")
MOST_NAMES = 5


@dataclass(frozen=True)
class Plan:
    """The changes to a checkpoint."""

    tied: bool  # the value of every flag
    drop: str = ""  # tensor to leave out
    add: tuple[str, ...] = ()  # names of copies of `source`
    source: str = ""
    is_copy: bool = False  # whether both embeddings are stored, equal, and untied


def write_repaired(
    path: Path,
    new: Path,
    how: RepairKind,
    *,
    names: tuple[str | None, str | None] = (None, None),
    progress: ShowProgress = lambda *_: None,
) -> tuple[Audit, str]:
    """Write a repaired copy of a folder of safetensors, and audit it.

    The folder `new` appears when all of it is on the disk. `names` and `progress`: see `audit`.

    Returns:
      The audit of the copy, and what was done.

    Raises:
      UserError: if it is not certain what to do, the disk is too small, or the copy would be
        inconsistent.
      OSError: if a file cannot be read or written.
    """
    found = audit(path, names=names, progress=progress)
    folder = found.checkpoint.path
    _check_paths(found, new)
    plan = plan_repair(found, how)
    # The index comes last: it is made from the new files.
    files = sorted(_files_of(folder), key=lambda name: name.name.endswith(INDEX))
    done = "; ".join(_report(found, plan, files))
    size = sum((folder / name).stat().st_size for name in files)
    size += found.embeddings.input.tensor.size * len(plan.add)
    free, needed = shutil.disk_usage(new.parent).free, size + ADDED_BYTES
    check(free > needed, f"--write {new}: takes up to {needed:,} bytes; the disk has {free:,} left")
    partial = new.with_name(new.name + PARTIAL)
    left = f"{partial}: an interrupted repair left this folder; remove it"
    check(not os.path.lexists(partial), left)
    partial.mkdir()
    target = partial / new.name  # with its own name in the report
    try:
        target.mkdir()
        for count, name in enumerate(files, 1):
            _write_file(found, plan, name, target)
            progress("files copied", count, len(files))
        kept = [None if name == plan.drop else name for name in names]
        result = audit(target, names=(kept[0], kept[1]), progress=progress)
        (first, *_), main = result.findings, result.main
        is_sound = result.status == 0 and first.code in KNOWN
        check(is_sound, f"{folder}: the copy would not be consistent: {main.text}")
        for place in (target, *target.rglob("*")):
            _flush(place)
        check(not os.path.lexists(new), f"--write {new}: exists by now; give another name")
        target.rename(new)
        _flush(new.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return replace(result, checkpoint=replace(result.checkpoint, path=new)), done


def _check_paths(found: Audit, new: Path) -> None:
    folder = found.checkpoint.path
    check(not os.path.lexists(new), f"--write {new}: exists; give a name that does not")
    check(new.parent.is_dir(), f"--write {new}: there is no folder {new.parent}; create it")
    is_inside = new.resolve().is_relative_to(folder.resolve())
    check(not is_inside, f"--write {new}: is inside {folder}; give a folder elsewhere")


def repairs_of(found: Audit) -> Iterator[RepairKind]:
    """Yield the repairs of a faulty checkpoint that are certain."""
    for how in ("flags", "tie"):
        with contextlib.suppress(UserError):
            plan_repair(found, how)
            yield how


def plan_repair(found: Audit, how: RepairKind) -> Plan:
    """Decide what to change; UserError if that is not certain."""
    try:
        _check_folder(found)
        _check_certain(found)
        plan = _reach_sides(found, _plan(found, how))
        _check_flag(found, plan)
        _check_alone(found, plan)
        _check_head(found, plan)
    except UserError as error:
        raise UserError(f"{found.checkpoint.path}: {error}") from None
    return plan


def _check_folder(found: Audit) -> None:
    """Refuse a path unless it is a folder with one checkpoint in safetensors and a config.json."""
    checkpoint, folder = found.checkpoint, found.checkpoint.path
    is_folder = checkpoint.format == "safetensors" and folder.is_dir()
    is_folder &= checkpoint.configuration.path is not None
    check(is_folder, "only a folder of safetensors with a config.json can be written anew")
    own = {tensor.file.name for tensor in checkpoint.tensors.values()}
    further = [one.name for one in sorted(folder.glob("*.safetensors")) if one.name not in own]
    further = [name for name in further if not name.startswith(ADAPTER)]
    further += sorted(one.name for one in folder.glob(f"*{INDEX}"))[1:]
    text = f"holds several checkpoints: {', '.join(further)} would stay as it is; copy the one that"
    check(not further, f"{text} is meant to a folder of its own")


def _plan(found: Audit, how: RepairKind) -> Plan:
    first, embeddings = found.findings[0], found.embeddings
    tied, only, is_lost = how == "tie", embeddings.input.tensor.name, first.code == LOST
    check(not is_lost or tied, f"--{how} would change the model: {first.text} {IF_LOST}")
    is_lone = first.code == "lone" and how != "untie"
    check(not is_lone, f"nothing to repair: {first.text}")
    if how == "flags" or (first.code in DIFFERENT and not tied):
        return Plan(first.code not in (*DIFFERENT, *DRAFT, "untied-copy"))
    is_whole = not embeddings.only_head
    check(is_whole, f"only the head, {only}, is stored; store it as the input embedding, too")
    if first.code in STORED_ONCE and tied:
        return Plan(True)
    # A copy of packed values would lack their scales.
    if first.code in STORED_ONCE and not embeddings.packed:
        head = head_of(only)
        check(bool(head), f"--untie does not know the name of the head that belongs to {only}")
        return Plan(False, "", (head,), only, is_copy=True)
    if not (embeddings.output and _may_drop(found)):
        what = f"--{how} would change the model; --flags keeps what is stored"
        raise UserError(f"{what}: {first.text}")
    return Plan(tied, embeddings.output.tensor.name if tied else "", is_copy=not tied)


def _reach_sides(found: Audit, plan: Plan) -> Plan:
    """Store a shared embedding also as those of encoder and decoder, if an untied flag needs it."""
    configuration = found.checkpoint.configuration
    if not configuration.needs_copies:
        return plan
    if plan.tied:
        apart = [one.text for one in found.findings if one.code == "separate"]
        is_fit = configuration.separate or not apart
        check(is_fit, f"a tied flag would change the model: {' '.join(apart)}")
        return plan
    table = found.embeddings.input.tensor.name
    names = [*found.checkpoint.tensors, *plan.add]
    sides = [side for name in (table, *plan.add) for side in missing_sides(name, names)]
    add = (*plan.add, *sides)
    return replace(plan, add=add, source=table if add else "")


def _may_drop(found: Audit) -> bool:
    """Return whether the output embedding is the input's, or differs although flags say tied."""
    code, comparison = found.findings[0].code, found.comparison
    if comparison is None or comparison.extra or comparison.relation == "scale":
        return False
    return code == "tied-but-different" or (code in EQUAL and comparison.is_exact)


def _check_alone(found: Audit, plan: Plan) -> None:
    """Refuse to change an embedding that has optimizer state, or that is in one model of several.

    Their tensors have the same last parts of their names, and mostly the same shape. Layers that
    predict several tokens keep their copies.
    """
    changed, tensors = plan.drop or plan.source, found.checkpoint.tensors
    if not changed:
        return
    further = [table.tensor.name for _, table in found.embeddings.copies]
    for name, tensor in tensors.items():
        is_state = not set(split_name(name)).isdisjoint(NAMES["optimizer"])
        is_like = is_state or tensor.shape == tensors[changed].shape
        is_like &= _module(name) == _module(changed) and not is_copy(name)
        further += [name] if is_like else []
    names = ", ".join(list(dict.fromkeys(name for name in further if name != changed))[:MOST_NAMES])
    text = f"holds {names}, too, the state of an optimizer or another set of parameters, which has"
    check(not names, f"{text} to change with {changed}; change both in the program that trains")


def _module(name: str) -> list[str]:
    """Return the name of a tensor's module, and its leaf if it has one."""
    parts = split_name(name)
    return parts[-2:] if parts[-1] in LEAVES else parts[-1:]


def _report(found: Audit, plan: Plan, files: Sequence[Path]) -> Iterator[str]:
    """Yield a line per change, flag, lost table and unchanged file."""
    if plan.add:
        yield f"stored {plan.source} as {', '.join(plan.add)}, too"
    if plan.drop:
        yield f"dropped {plan.drop}"
    configuration = found.checkpoint.configuration
    comparison = found.comparison
    yield f"every flag says {'tied' if plan.tied else 'untied'}"
    if plan.drop and comparison and len(comparison.differing):
        ids, common = comparison.differing, comparison.common
        rows = f"{len(ids):,} of {common:,} rows ({describe_ids(ids, common)})"
        yield f"{plan.drop} differed in {rows}, which are lost"
    if configuration.claim is not plan.tied and configuration.factor(plan.tied):
        yield f"the flag {configuration.factor(plan.tied)}"
    own = {tensor.file for tensor in found.checkpoint.tensors.values()}
    paths = [found.checkpoint.path / name for name in files if name.suffix in WEIGHTS]
    left = [one for one in paths if one not in own]
    if left:
        names = [str(one.relative_to(found.checkpoint.path)) for one in left[:MOST_NAMES]]
        more = f" and {len(left) - MOST_NAMES:,} more" if len(left) > MOST_NAMES else ""
        yield f"not repaired, and copied as they are: {', '.join(names)}{more}"


def _check_certain(found: Audit) -> None:
    """Refuse faults that another file, or more training, has to repair."""
    first, comparison = found.findings[0], found.comparison
    wrong = [one for one in found.findings if one.level == "wrong"]
    faults = [one for one in wrong if one.code not in REPAIRABLE]
    is_shard = (
        first.code == "tied-but-different"
        and comparison is not None
        and find_shard(comparison.differing, comparison.common) is not None
    )
    if is_shard or (first.code not in KNOWN and not faults):
        faults = [found.main]
    for fault in faults:
        to_do = f" To do: {fault.fix}." if fault.fix else ""
        raise UserError(f"--write cannot repair this: {fault.text}{to_do}")
    is_tied = found.checkpoint.configuration.claim is True  # then a head may be dropped
    missing = found.checkpoint.missing
    lost = [name for name in missing if not (is_tied and match_name(name, OUTPUTS))]
    check(not lost, f"no file has {', '.join(lost[:5])}, which the index names; restore it")


def _check_flag(found: Audit, plan: Plan) -> None:
    """Refuse a flag that the model's class ignores, or that would change its logits."""
    configuration, first = found.checkpoint.configuration, found.findings[0]
    text = f"{configuration.said}, so no flag {'' if plan.tied else 'un'}ties them"
    is_free = configuration.fixed in (None, plan.tied)
    check(is_free, f"{text}{f'; to do: {first.fix}' if first.fix else ''}")
    is_new = configuration.claim is not plan.tied
    is_lost = first.code == LOST and plan.tied  # it cannot run as it is
    kind = configuration.model_type
    text = f"{kind} models divide the decoder's output by √D if they are tied, so another flag"
    is_same = kind not in NAMES["kinds"]["scaled"] or not is_new or is_lost
    check(is_same, f"{text} would change the logits")


def _check_head(found: Audit, plan: Plan) -> None:
    """Refuse to change a head with a transform or a bias, unless reloads have shown what happens.

    A loader may look for its bias under another name, or in another class.
    """
    configuration, embeddings = found.checkpoint.configuration, found.embeddings
    if configuration.claim is plan.tied and not plan.drop and not plan.add:
        return
    more = [bias.name for bias in embeddings.biases]
    more += [name for name in found.checkpoint.tensors if is_transform(name)]
    kind, kinds = configuration.model_type, NAMES["kinds"]
    check(kind not in kinds["changed"], f"copies of {kind} models did not keep their logits")
    for name in more if kind not in kinds["reloaded"] else ():
        text = f"its head has {name}, too, and what loaders do with it in {kind or 'such'} models"
        raise UserError(f"{text} after a change of tying was not tried")


def _files_of(folder: Path) -> Iterator[Path]:
    """Yield all files below a folder, relative to it."""
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if relative.parts[0] in LEFT_OUT or (path.is_dir() and not path.is_symlink()):
            continue
        check_path(path)
        check(path.is_file(), f"{path}: is a link to a folder, which is not followed; remove it")
        check_link(folder, path)
        yield relative


def _write_file(found: Audit, plan: Plan, name: Path, folder: Path) -> None:
    """Write one file of the copy: changed, or bit for bit."""
    checkpoint, embeddings = found.checkpoint, found.embeddings
    source, target = checkpoint.path / name, folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    if source in {tensor.file for tensor in checkpoint.tensors.values()}:
        is_marked = plan.is_copy and source == (embeddings.output or embeddings.input).tensor.file
        _write_tensors(source, target, plan, is_marked)
    elif source == checkpoint.configuration.path:
        _write_json(source, target, _new_config(found, source, plan))
    elif len(name.parts) == 1 and name.name.endswith(INDEX):
        _write_json(source, target, _new_index(source, folder))
    else:
        shutil.copyfile(source, target)


def _write_tensors(source: Path, target: Path, plan: Plan, is_marked: bool) -> None:
    """Write a file of safetensors; none if the dropped tensor was alone in it."""
    entries, old = read_safetensors(source)
    entries.sort(key=lambda entry: (entry.begin, entry.end))
    names = []
    for entry in entries:
        names += [(entry.name, entry)] if entry.name != plan.drop else []
        names += [(name, entry) for name in plan.add if entry.name == plan.source]
    metadata = {name: value for name, value in old.items() if name != UNTIED}
    if is_marked:  # transformers refuses a file whose metadata have no format
        metadata = {"format": "pt", UNTIED: MARK, **metadata}
    if metadata == old and names == [(entry.name, entry) for entry in entries]:
        shutil.copyfile(source, target)
        return
    if not names:
        return
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    at = 0
    for name, entry in names:
        end = at + entry.end - entry.begin
        header[name] = {"dtype": entry.stored, "shape": entry.shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the format aligns the data to 8 bytes
    with source.open("rb") as reader, target.open("wb") as writer:
        writer.write(len(text).to_bytes(8, "little") + text)
        for _, entry in names:
            reader.seek(entry.begin)
            for start in range(entry.begin, entry.end, BLOCK):
                writer.write(reader.read(min(BLOCK, entry.end - start)))


def _new_config(found: Audit, path: Path, plan: Plan) -> dict[str, Any]:
    """Return config.json with every flag that counts, also those that are missing."""
    content = read_json(path)
    for level, table in list(levels_of(content)):
        for flag in found.checkpoint.configuration.flags:
            if flag.level == level and flag.counts:
                table[flag.name] = plan.tied is FLAGS[flag.name]
    return content


def _new_index(path: Path, folder: Path) -> dict[str, Any]:
    """Return an index with the names and sizes of the new files, in the old order."""
    index, files, total = read_json(path), {}, 0
    for file in sorted(folder.glob("*.safetensors")):
        if not file.name.startswith(ADAPTER):
            for entry in read_safetensors(file)[0]:
                files[entry.name] = file.name
                total += entry.end - entry.begin
    order = dict.fromkeys((*index["weight_map"], *files))
    index["weight_map"] = {name: files[name] for name in order if name in files}
    metadata = index.get("metadata")
    if isinstance(metadata, dict) and "total_size" in metadata:
        metadata["total_size"] = total
    return index


def _write_json(source: Path, target: Path, content: dict[str, Any]) -> None:
    if content == read_json(source):
        shutil.copyfile(source, target)
    else:
        target.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
