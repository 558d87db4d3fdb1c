"""Make the text of tying_at_scale.py: source code and documentation of Python packages.

python experiments/lab/packages.py OUT

experiments/data/packages.csv names the source archives, by SHA-256; they come from PyPI. Of each
package OUT gets one file, NAME.txt: its `.py`, `.rst`, `.md` and `.txt` files in the order of a
hash of their names, up to `MOST` bytes, so that no package dominates. A file is left out if it is
no UTF-8, too long, or if half of its lines have been in a file before (vendored and generated code,
licences, translations).
"""

import argparse
import concurrent.futures
import csv
import hashlib
import io
import json
import tarfile
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path

NAMES = Path(__file__).parents[1] / "data" / "packages.csv"
INDEX = "https://pypi.org/simple/{}/"
KINDS = (".py", ".rst", ".md", ".txt")
MOST = 480_000  # bytes of a package
LONGEST = 200_000  # bytes of a file
LONGEST_LINE = 400  # bytes, mean over lines
SHORT_LINE = 20  # characters; shorter lines say nothing of where a file comes from
AT_ONCE = 4  # downloads


def archive(name: str, file: str, sha256: str) -> bytes:
    """Download a source archive and check its hash."""
    accept = {"Accept": "application/vnd.pypi.simple.v1+json"}
    request = urllib.request.Request(INDEX.format(name), headers=accept)
    with urllib.request.urlopen(request, timeout=60) as answer:
        files = {each["filename"]: each["url"] for each in json.load(answer)["files"]}
    with urllib.request.urlopen(files[file], timeout=300) as answer:
        content = answer.read()
    if hashlib.sha256(content).hexdigest() != sha256:
        raise SystemExit(f"{file}: has another SHA-256 than {NAMES}")
    return content


def files_of(content: bytes) -> Iterator[str]:
    """Yield the texts of an archive in the order of a hash of their names."""
    with tarfile.open(fileobj=io.BytesIO(content)) as packed:
        members = [each for each in packed if each.isfile() and each.name.endswith(KINDS)]
        for member in sorted(members, key=lambda each: hashlib.sha256(each.name.encode()).digest()):
            if 0 < member.size <= LONGEST and (file := packed.extractfile(member)):
                try:
                    yield file.read().decode()
                except UnicodeDecodeError:
                    continue


def different(texts: Iterable[str], seen: set[int]) -> Iterator[str]:
    """Yield the texts with mostly new lines, and add these lines to those seen."""
    for text in texts:
        lines = [line for each in text.splitlines() if len(line := each.strip()) >= SHORT_LINE]
        hashes = {hash_of(line) for line in lines}
        is_data = len(text) > LONGEST_LINE * max(1, text.count("\n"))
        if not is_data and 2 * len(hashes & seen) < len(hashes):
            seen |= hashes
            yield text


def hash_of(line: str) -> int:
    return int.from_bytes(hashlib.blake2b(line.encode(), digest_size=8).digest(), "big")


def text_of(content: bytes, seen: set[int]) -> str:
    """Join the texts of an archive, up to `MOST` bytes."""
    parts: list[str] = []
    size = 0
    for text in different(files_of(content), seen):
        size += len(text.encode()) + 2
        if size > MOST:
            break
        parts.append(text.rstrip() + "\n")
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    rows, seen = [*csv.DictReader(NAMES.open())], set[int]()
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        contents = pool.map(lambda row: archive(**row), rows)
        for i, (row, content) in enumerate(zip(rows, contents)):
            text = text_of(content, seen)
            (out / f"{row['name']}.txt").write_text(text)
            print(f"{i + 1}/{len(rows)} {row['name']}: {len(text.encode()):,} bytes", flush=True)


if __name__ == "__main__":
    main()
