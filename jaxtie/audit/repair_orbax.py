"""Copy the item of an Orbax checkpoint without one array, or with copies of one."""

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jaxtie.audit.flags import read_json
from jaxtie.audit.headers import reason_of
from jaxtie.config import UserError

Copied = Callable[[int], None]  # called with the number of bytes that were written
DATABASE = ("d", "manifest.ocdbt")  # files of the OCDBT format, and folders ocdbt.process_N
BATCH = 2**28  # bytes that are written together


def copy_item(
    source: Path, target: Path, drop: str, copies: dict[str, str], copied: Copied
) -> None:
    """Copy an item, a chunk at a time; all other arrays and files stay as they are, bit for bit.

    Args:
      source: folder of the item.
      target: folder to write.
      drop: array to leave out, or empty.
      copies: names of arrays to add -> names of the arrays that they are copies of.
      copied: reports the progress.
    """

    def targets(key: str) -> Iterator[str]:
        """Yield where a file or a key of the database goes."""
        if not (drop and key.startswith(f"{drop}/")):
            yield key
        for new, old in copies.items():
            if key.startswith(f"{old}/"):
                yield new + key.removeprefix(old)

    is_database = (source / "manifest.ocdbt").is_file()
    for path in filter(Path.is_file, sorted(source.rglob("*"))):
        first, *_ = path.relative_to(source).parts
        if is_database and (first in DATABASE or first.startswith("ocdbt.process_")):
            continue
        for key in targets(path.relative_to(source).as_posix()):
            content = _new_metadata(path, source, drop, copies)
            (target / key).parent.mkdir(parents=True, exist_ok=True)
            (target / key).write_bytes(content)
            copied(len(content))
    if is_database:
        _copy_database(source, target, targets, copied)


def _copy_database(
    source: Path, target: Path, targets: Callable[[str], Iterator[str]], copied: Copied
) -> None:
    import tensorstore as ts  # heavy

    bases = (f"file://{quote(str(folder.absolute()))}/" for folder in (source, target))
    old, new = (ts.KvStore.open({"driver": "ocdbt", "base": base}).result() for base in bases)
    keys, waiting, size = old.list().result(), [], 0
    for key in keys:
        value = old.read(key).result().value
        for name in targets(key.decode()):
            waiting.append(new.write(name, value))
            size += len(value)
        if size > BATCH or key == keys[-1]:
            for write in waiting:
                write.result()
            copied(size)
            waiting, size = [], 0


def _new_metadata(path: Path, item: Path, drop: str, copies: dict[str, str]) -> bytes:
    """Return the bytes of a file of the item; of a list of arrays, the new ones."""
    where = path.relative_to(item)
    is_list = where.name in ("_METADATA", "_sharding") or where.parts[0] == "array_metadatas"
    if not (is_list and (drop or copies)):
        return path.read_bytes()
    content = read_json(path)
    try:
        return json.dumps(_edited(content, where.name, drop, copies)).encode()
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(f"{path}: is not what Orbax writes ({reason_of(error)})") from None


def _edited(content: Any, file: str, drop: str, copies: dict[str, str]) -> Any:
    """Return one of the lists of arrays without `drop` and with `copies`."""
    if file == "_METADATA":
        old, content["tree_metadata"] = content["tree_metadata"], {}
        for key, entry in old.items():
            keys = entry["key_metadata"]
            own = ".".join(one["key"] for one in keys)
            for name in _names(own, drop, copies):
                if name != own:
                    parts = name.split(".")
                    pairs = zip(keys, parts, strict=True)
                    key = str(tuple(parts))
                    entry = entry | {"key_metadata": [one | {"key": part} for one, part in pairs]}
                content["tree_metadata"][key] = entry
    elif file == "_sharding":  # the names are in base64
        content = {
            base64.b64encode(name.encode()).decode(): value
            for key, value in content.items()
            for name in _names(base64.b64decode(key).decode(), drop, copies)
        }
    else:
        content["array_metadatas"] = [
            entry | {"array_metadata": entry["array_metadata"] | {"param_name": name}}
            for entry in content["array_metadatas"]
            for name in _names(entry["array_metadata"]["param_name"], drop, copies)
        ]
    return content


def _names(name: str, drop: str, copies: dict[str, str]) -> list[str]:
    kept = [name] if name != drop else []
    return kept + [new for new, old in copies.items() if old == name]
