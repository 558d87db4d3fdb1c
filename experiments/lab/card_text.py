"""Make the text of tying_at_scale_card.py, and bring it to a machine without a network.

    python experiments/lab/card_text.py source linux-6.12.tar.xz text/   # source code as text
    python experiments/lab/card_text.py pack text/ bundle/               # prepare it, compress
    python experiments/lab/card_text.py unpack bundle/ text/             # there

`source` reads a source archive: a document is a folder of the second level (drivers/net) with its
files in the order of a hash of their names; a file is left out where `packages.py` leaves one out.
Folders come in the order of a hash of their names, up to `--bytes` in all and `--most` each.

`pack` prepares the text as `jaxtie run` does, and keeps the prepared folders of jaxtie's cache with
the tokens compressed (LZMA, 16-bit symbols). `unpack` decodes the text from the tokens, which a
byte-level BPE allows, and fills the cache. So jaxtie there prepares nothing: it finds folders whose
names are hashes of the same text, and checks their SHA-256. `pack` checks that decoding gives every
file back.
"""

import argparse
import hashlib
import json
import lzma
import shutil
import tarfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from packages import LONGEST, different

from jaxtie.text.data.config import Corpus
from jaxtie.text.data.tokens import BYTE_OF, Text, prepare_text
from jaxtie.text.data.vocabulary import load_vocabulary
from jaxtie.training.devices import cache_folder

INDEX = "index.json"
KINDS = (".c", ".h", ".S", ".rst", ".txt", ".py", ".rs", ".sh")
PIECE = 2**23  # tokens that are compressed, and decoded, at a time
FILTERS = [  # symbols of two bytes
    {"id": lzma.FILTER_LZMA2, "preset": 9, "dict_size": 2**28, "lc": 0, "lp": 1, "pb": 1}
]


def by_hash(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


def documents(archive: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield folders of the second level and the texts of their files, in the order of hashes."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    with tarfile.open(archive) as packed:
        for member in packed:
            folders = member.name.split("/")[1:-1]
            is_text = member.name.endswith(KINDS) and 0 < member.size <= LONGEST
            if not (folders and is_text and member.isfile()):
                continue
            file = packed.extractfile(member)
            assert file is not None
            try:
                found["-".join(folders[:2])][member.name] = file.read().decode()
            except UnicodeDecodeError:
                continue
    for folder in sorted(found, key=by_hash):
        own = found[folder]
        yield folder, [own[name] for name in sorted(own, key=by_hash)]


def write_source(archive: Path, out: Path, total: int, most: int) -> None:
    """Write a text file for each folder of an archive, until there are so many bytes."""
    out.mkdir(parents=True, exist_ok=True)
    seen, size = set[int](), 0
    for name, texts in documents(archive):
        parts: list[str] = []
        room = min(most, total - size)
        for text in different(texts, seen):
            text = text.replace("\r\n", "\n").rstrip() + "\n"
            if (room := room - len(text.encode()) - 1) < 0:
                break
            parts.append(text)
        if parts:
            content = "\n".join(parts).encode()
            (out / f"{name}.txt").write_bytes(content)
            size += len(content)
        if size >= 0.999 * total:
            break
    print(f"{size:,} bytes in {len(list(out.glob('*.txt')))} documents")


def prepare(text: Path, entries: int, cache: Path) -> Text:
    corpus = Corpus(paths=(str(text),), form="documents", vocab_size=entries)
    return prepare_text(corpus, cache, lambda line: print(line, flush=True))


def bytes_of(vocabulary: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes of all entries of a vocabulary, one after another, and where each begins."""
    each = [bytes(BYTE_OF.get(c, 0) for c in token) for token in vocabulary]
    begins = np.cumsum([0, *map(len, each)])
    return np.frombuffer(b"".join(each), np.uint8), begins


def decode(tokens: np.ndarray, content: np.ndarray, begins: np.ndarray) -> bytes:
    """Return the bytes of tokens, a piece at a time."""
    parts = []
    for own in (tokens[i : i + PIECE] for i in range(0, len(tokens), PIECE)):
        length = np.diff(begins)[own]
        ends = np.cumsum(length)
        place = np.arange(length.sum()) - np.repeat(ends - length, length)
        parts.append(content[np.repeat(begins[own], length) + place].tobytes())
    return b"".join(parts)


def pack(text_folder: Path, out: Path, entries: int) -> None:
    """Prepare a text; write the folders of the cache, tokens compressed, and where each file is."""
    shutil.rmtree(out, ignore_errors=True)
    text = prepare(text_folder, entries, out)
    table, wanted = bytes_of(text.vocabulary), {}
    for path in sorted(text_folder.glob("*.txt")):
        wanted[hashlib.sha256(path.read_bytes()).hexdigest()] = path.name
    files: dict[str, list] = {}
    for split in ("train", "valid", "test"):
        rows = getattr(text, split)
        for row in range(rows.count):
            found = decode(np.asarray(rows.row(row)), *table)
            name = wanted.pop(hashlib.sha256(found).hexdigest(), None)
            if name is None:
                raise SystemExit(f"row {row} of {split} is no file of {text_folder} to the byte")
            files[name] = [split, row]
    if wanted:
        raise SystemExit(f"{text_folder}: no row has {', '.join(wanted.values())}")
    with ProcessPoolExecutor() as pool:
        for path in out.glob("tokens/*/*.tokens"):
            list(pool.map(partial(compress, path), range(-(-path.stat().st_size // (2 * PIECE)))))
            path.unlink()
    (out / INDEX).write_text(json.dumps({"entries": entries, "files": files}, indent=1))
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    print(f"{text.report}\n{size / 2**20:.1f} MiB in {out}")


def compress(path: Path, piece: int) -> None:
    own = np.fromfile(path, np.uint16, PIECE, offset=2 * PIECE * piece)
    packed = lzma.compress(own.tobytes(), format=lzma.FORMAT_XZ, filters=FILTERS)
    path.with_name(f"{path.name}.{piece:03d}.xz").write_bytes(packed)


def expand(path: Path) -> bytes:
    return lzma.decompress(path.read_bytes())


def unpack(bundle: Path, text_folder: Path, cache: Path) -> None:
    """Fill jaxtie's cache and write the text; prepare it, which finds everything made."""
    index = json.loads((bundle / INDEX).read_text())
    for name in ("sources", "vocabularies", "tokens"):
        shutil.copytree(bundle / name, cache / name, dirs_exist_ok=True)
    with ProcessPoolExecutor() as pool:
        (folder,) = (path for path in (bundle / "tokens").iterdir() if path.is_dir())
        own = cache / "tokens" / folder.name
        for split in ("train", "valid", "test"):
            pieces = sorted(own.glob(f"{split}.tokens.*.xz"))
            (own / f"{split}.tokens").write_bytes(b"".join(pool.map(expand, pieces)))
            for path in pieces:
                path.unlink()
    (vocabulary,) = (bundle / "vocabularies").glob("*/tokenizer.json")
    table = bytes_of(load_vocabulary(vocabulary).tokens)
    text_folder.mkdir(parents=True, exist_ok=True)
    arrays = {
        split: [
            np.fromfile(own / f"{split}.{what}", dtype)
            for what, dtype in (("tokens", np.uint16), ("offsets", np.int64))
        ]
        for split in ("train", "valid", "test")
    }
    for name, (split, row) in index["files"].items():
        tokens, offsets = arrays[split]
        content = decode(tokens[offsets[row] : offsets[row + 1]], *table)
        (text_folder / name).write_bytes(content)
    print(prepare(text_folder, index["entries"], cache).report)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    made = {name: commands.add_parser(name) for name in ("source", "pack", "unpack")}
    for each in made.values():
        each.add_argument("source", type=Path)
        each.add_argument("out", type=Path)
    made["source"].add_argument("--bytes", type=int, default=420_000_000, help="(%(default)s)")
    made["source"].add_argument("--most", type=int, default=8_000_000, help="(%(default)s)")
    made["pack"].add_argument("--entries", type=int, default=8_192, help="(%(default)s)")
    own = parser.parse_args()
    if own.command == "source":
        write_source(own.source, own.out, own.bytes, own.most)
    elif own.command == "pack":
        pack(own.source, own.out, own.entries)
    else:
        unpack(own.source, own.out, cache_folder() / "text")


if __name__ == "__main__":
    main()
