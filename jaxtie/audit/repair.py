"""Write a repaired copy of a checkpoint: tie it, untie it, or set its flags to what is stored."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

from jaxtie.audit.audit import Audit, ModelVerdict, audit
from jaxtie.audit.checkpoint import ADAPTER, INDEX, UNTIED, link_target
from jaxtie.audit.compare import Progress
from jaxtie.audit.findings import find_shard
from jaxtie.audit.flags import Configuration, levels_of, read_json
from jaxtie.audit.headers import Entry, read_safetensors
from jaxtie.audit.knowledge import FLAGS, NAMES, OUTPUTS, match_name
from jaxtie.config import UserError, check, check_path

How = Literal["tie", "untie", "flags"]
HEADS: dict[str, str] = NAMES["untied_heads"]
PARTIAL = ".partial"  # ends the name of the folder until all of it is on the disk
LEFT_OUT = (".git", ".cache")  # folders that belong to the place, not to the checkpoint
BLOCK = 2**24  # bytes that are copied together
MARGIN = 2**20  # bytes of headers and of JSON that may be added
ONCE = ("once", "lone", "untied-but-once", "top-missing")
EQUAL = ("equal", "untied-but-equal", "untied-copy")
DIFFERENT = ("different", "tied-but-different")
DRAFT = ("draft", "draft-tied")
# Without one of these as its first finding, a model has no head, or it is not known how its
# embeddings relate.
KNOWN = (*ONCE, *EQUAL, *DIFFERENT, *DRAFT, "head-only")
REPAIRABLE = (*KNOWN, "levels-disagree", "index-without-tensor", "tensor-without-index")
# Findings of which the advice is one thing, if there is one, and the option that does it.
ADVISED: dict[str, How] = dict.fromkeys(REPAIRABLE[-3:], "flags")
ADVISED |= {"equal": "tie", "head-only": "tie"}
ADVISED |= {"different": "flags", "draft-tied": "flags", "top-missing": "flags"}


class NewTensors(NamedTuple):
    """The tensors of a file of the copy."""

    names: list[tuple[str, Entry]]  # in the order of their bytes in the old file
    metadata: dict[str, Any]
    is_changed: bool  # whether the old file had others


@dataclass(frozen=True)
class Plan:
    """The changes to a checkpoint."""

    tied: bool  # the value of every flag
    drop: str = ""  # tensor to leave out
    add: str = ""  # name of a copy of `source`
    source: str = ""
    mark: str = ""  # for the metadata: which embedding is a copy of which

    @property
    def text(self) -> str:
        """What is done, in words."""
        done = [f"stored {self.source} as {self.add}"] if self.add else []
        done += [f"dropped {self.drop}"] if self.drop else []
        return "; ".join([*done, f"every flag says {'tied' if self.tied else 'untied'}"])


def write_repaired(
    path: Path, new: Path, how: How | None = None, progress: Progress = lambda *_: None
) -> tuple[Audit, str]:
    """Write a repaired copy of a folder of safetensors and audit it.

    Args:
      path: the checkpoint, which is not changed.
      new: the folder to write; appears only when all of it is on the disk.
      how: what to do; None for what the audit advises, if that is one thing.
      progress: as for `audit`.

    Returns:
      The audit of the copy, and what was done.

    Raises:
      UserError: if it is not certain what to do, the disk is too small, or the copy would be
        inconsistent.
      OSError: if a file cannot be read or written.
    """
    found = audit(path, progress=progress)
    folder = found.checkpoint.path
    _check_paths(found, new)
    plan = plan_repair(found, how)
    files = list(_files_of(folder))
    planned = _new_tensors(found, plan)
    size = MARGIN + sum((folder / one).stat().st_size for one in files)
    size += found.verdicts[0].embeddings.input.tensor.size if plan.add else 0
    free = shutil.disk_usage(new.parent).free
    check(free > size, f"--write {new}: takes up to {size:,} bytes; the disk has {free:,} left")
    partial = new.with_name(new.name + PARTIAL)
    check(not os.path.lexists(partial), f"{partial}: is left from a repair that ended; remove it")
    partial.mkdir()
    try:
        for name in files:
            _write_file(found, plan, planned, name, partial)
        result = audit(partial, progress=progress)
        main = result.verdicts[0].main
        check(not result.status, f"{folder}: the copy would still be inconsistent: {main.text}")
        for place in (partial, *filter(Path.is_dir, partial.rglob("*"))):
            _flush(place)
        check(not os.path.lexists(new), f"--write {new}: exists by now; give another name")
        partial.rename(new)
        _flush(new.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return result, plan.text


def _check_paths(found: Audit, new: Path) -> None:
    checkpoint, folder = found.checkpoint, found.checkpoint.path
    is_folder = checkpoint.format == "safetensors" and folder.is_dir()
    check(
        is_folder and checkpoint.configuration.path is not None,
        f"{folder}: only a folder of safetensors with a config.json can be written anew",
    )
    check(not os.path.lexists(new), f"--write {new}: exists; give a name that does not")
    check(new.parent.is_dir(), f"--write {new}: there is no folder {new.parent}; create it")
    is_inside = new.resolve().is_relative_to(folder.resolve())
    check(not is_inside, f"--write {new}: is inside {folder}; give a folder elsewhere")
    own = {tensor.file.name for tensor in checkpoint.models[0].tensors.values()}
    others = [
        one.name
        for one in sorted(folder.glob("*.safetensors"))
        if one.name not in own and not one.name.startswith(ADAPTER)
    ]
    several = len(list(folder.glob(f"*{INDEX}"))) > 1
    check(
        not others and not several,
        f"{folder}: holds several checkpoints: {', '.join(others) or 'several indices'} would stay"
        " as it is; copy the one that is meant to a folder of its own",
    )


def plan_repair(found: Audit, how: How | None) -> Plan:
    """Decide what to change; UserError if that is not certain."""
    folder, verdict = found.checkpoint.path, found.verdicts[0]
    first, main, embeddings = verdict.findings[0], verdict.main, verdict.embeddings
    for finding in (first, *verdict.findings):
        is_known = finding.code in (KNOWN if finding is first else REPAIRABLE)
        if not is_known and (finding is first or finding.level == "wrong"):
            to_do = f" To do: {finding.fix}." if finding.fix else ""
            raise UserError(f"{folder}: --write cannot repair this: {finding.text}{to_do}")
    lost = [name for name in found.checkpoint.missing if not match_name(name, OUTPUTS)]
    check(
        not lost, f"{folder}: the index names {', '.join(lost[:5])}, which no file has; restore it"
    )
    if how is None:
        is_advised = main.level == "wrong" or bool(main.fix)
        check(
            is_advised, f"{folder}: nothing to repair: {main.text} Give --tie, --untie or --flags"
        )
        how = ADVISED.get(main.code)
        advice = f"{folder}: {main.text} Either {main.fix}. Give --tie, --untie or --flags"
        check(how is not None, advice)
    if how == "flags" or first.code in (*DRAFT, *DIFFERENT):
        check(how == "flags" or first.code not in DRAFT, f"{folder}: {first.text} Give --flags")
        plan = _plan_flags(verdict, folder, how == "tie")
    elif first.code in EQUAL:
        plan = _plan_equal(verdict, folder, how == "tie")
    elif first.code == "head-only":
        only, alias = embeddings.input.tensor.name, embeddings.alias
        check(bool(alias), f"{folder}: {first.text} The name of the input embedding is not known")
        mark = "" if how == "tie" else f"{only} = {alias}"
        plan = Plan(how == "tie", only if how == "tie" else "", alias, only, mark)
    else:
        plan = Plan(True) if how == "tie" else _plan_copy(verdict, folder)
    _check_scale(found, plan)
    return plan


def _plan_flags(verdict: ModelVerdict, folder: Path, drop: bool) -> Plan:
    """Keep all tensors, or drop an output embedding that differs if the flags say tied."""
    first, comparison = verdict.findings[0], verdict.comparison
    if first.code == "tied-but-different" and comparison:
        is_shard = find_shard(comparison.differing, comparison.common)
        check(not is_shard, f"{folder}: {first.text} To do: {first.fix}")
    if not drop:
        return Plan(first.code not in (*DIFFERENT, *DRAFT, "untied-copy"))
    is_same_size = comparison is not None and not comparison.extra
    check(
        first.code == "tied-but-different" and is_same_size,
        f"{folder}: {first.text} Tying would change the model; --flags keeps both",
    )
    return Plan(True, _output(verdict))


def _plan_equal(verdict: ModelVerdict, folder: Path, tie: bool) -> Plan:
    first, comparison, output = verdict.findings[0], verdict.comparison, _output(verdict)
    is_exact = comparison is not None and comparison.relation == "bits" and not comparison.extra
    check(
        is_exact and comparison is not None and comparison.is_equal,
        f"{folder}: {first.text} Only embeddings that are equal in every bit are tied or untied",
    )
    mark = f"{output} = {verdict.embeddings.input.tensor.name}"
    return Plan(True, output) if tie else Plan(False, mark=mark)


def _plan_copy(verdict: ModelVerdict, folder: Path) -> Plan:
    """Add an output embedding to a model that has none."""
    source = verdict.embeddings.input.tensor.name
    name = verdict.embeddings.alias or HEADS.get(source, "")
    check(
        bool(name),
        f"{folder}: --untie: the name that loaders expect for a head next to {source} is not known;"
        f" known: {', '.join(HEADS)}",
    )
    return Plan(False, "", name, source, f"{name} = {source}")


def _output(verdict: ModelVerdict) -> str:
    output = verdict.embeddings.output
    return output.tensor.name if output else ""


def _check_scale(found: Audit, plan: Plan) -> None:
    """Refuse to change the flag of a model that computes something else when it is tied."""
    configuration, first = found.checkpoint.configuration, found.verdicts[0].findings[0]
    is_new = configuration.claim is not plan.tied and first.code not in (*DIFFERENT, *DRAFT)
    is_lost = first.code == "untied-but-once" and plan.tied  # it cannot run as it is
    check(
        configuration.model_type not in NAMES["kinds"]["scaled"] or not is_new or is_lost,
        f"{found.checkpoint.path}: {configuration.model_type} models divide the decoder's output by"
        " √D if they are tied, so another flag would change the logits",
    )


def _new_tensors(found: Audit, plan: Plan) -> dict[Path, NewTensors]:
    """Plan the tensors and the metadata of each file of safetensors."""
    embeddings, planned = found.verdicts[0].embeddings, {}
    holder = (embeddings.output or embeddings.input).tensor.file
    for path in {tensor.file: 0 for tensor in found.checkpoint.models[0].tensors.values()}:
        entries, old = read_safetensors(path)
        entries.sort(key=lambda entry: (entry.begin, entry.end))
        names = []
        for entry in entries:
            names += [(entry.name, entry)] if entry.name != plan.drop else []
            names += [(plan.add, entry)] if entry.name == plan.source else []
        gone = (plan.add, UNTIED)
        metadata = {
            name: value
            for name, value in old.items()
            if name not in gone and value != (plan.drop or None)
        }
        metadata |= {UNTIED: plan.mark} if plan.mark and path == holder else {}
        is_changed = metadata != old or names != [(entry.name, entry) for entry in entries]
        planned[path] = NewTensors(names, metadata, is_changed)
    return planned


def _files_of(folder: Path) -> Iterator[Path]:
    """Yield all files below a folder, relative to it."""
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if relative.parts[0] in LEFT_OUT or (path.is_dir() and not path.is_symlink()):
            continue
        check_path(path)
        check(path.is_file(), f"{path}: is a link to a folder, which is not followed; remove it")
        link_target(folder, path)
        yield relative


def _write_file(
    found: Audit, plan: Plan, planned: Mapping[Path, NewTensors], name: Path, folder: Path
) -> None:
    """Write one file of the copy: changed, or bit for bit."""
    source, target = found.checkpoint.path / name, folder / name
    tensors, content = planned.get(source), None
    if tensors and not tensors.names:  # a shard that held the dropped tensor alone
        return
    if source == found.checkpoint.configuration.path:
        content = _new_config(source, found.checkpoint.configuration, plan)
    elif len(name.parts) == 1 and name.name.endswith(INDEX):
        content = _new_index(source, planned)
    target.parent.mkdir(parents=True, exist_ok=True)
    if tensors and tensors.is_changed:
        with source.open("rb") as old, target.open("wb") as new:
            _write_tensors(old, new, tensors)
    elif content is not None and content != read_json(source):
        target.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    else:
        shutil.copyfile(source, target)
    _flush(target)


def _new_config(path: Path, configuration: Configuration, plan: Plan) -> dict[str, Any]:
    """Return config.json with every flag that counts, also those that are missing."""
    content = read_json(path)
    for level, table in list(levels_of(content)):
        for flag in configuration.flags:
            if flag.level == level and flag.counts:
                table[flag.name] = plan.tied is FLAGS[flag.name]
    return content


def _new_index(path: Path, planned: Mapping[Path, NewTensors]) -> dict[str, Any]:
    """Return an index with the names and sizes of the new files, in the old order."""
    index = read_json(path)
    files = {name: one.name for one, tensors in planned.items() for name, _ in tensors.names}
    order = dict.fromkeys((*index["weight_map"], *files))
    index["weight_map"] = {name: files[name] for name in order if name in files}
    if "total_size" in (metadata := index.get("metadata") or {}):
        entries = [entry for tensors in planned.values() for _, entry in tensors.names]
        metadata["total_size"] = sum(entry.end - entry.begin for entry in entries)
    return index


def _write_tensors(old: BinaryIO, new: BinaryIO, tensors: NewTensors) -> None:
    """Write a file of safetensors with tensors of an old one."""
    header: dict[str, Any] = {"__metadata__": tensors.metadata} if tensors.metadata else {}
    at = 0
    for name, entry in tensors.names:
        end = at + entry.end - entry.begin
        header[name] = {"dtype": entry.stored, "shape": entry.shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the format aligns the data to 8 bytes
    new.write(len(text).to_bytes(8, "little") + text)
    for _, entry in tensors.names:
        old.seek(entry.begin)
        for start in range(entry.begin, entry.end, BLOCK):
            new.write(old.read(min(BLOCK, entry.end - start)))


def _flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
