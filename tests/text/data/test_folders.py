"""Read twelve folders as people have them; no validation row is in training.

The numbers of documents are counted by hand.
"""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from jaxtie.text.data.config import Corpus
from jaxtie.text.data.tokens import prepare_text
from jaxtie.text.data.vocabulary import parse_vocabulary

TEXTS = [
    "\n\n".join(
        f"Chapter {i}.{part}\nThe {'xyzuv'[part]}{i} cat ran to {i * 7}." for part in (0, 1)
    )
    for i in range(30)
]


def put(folder: Path, name: str, text: str, **options: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, **options)


def records(texts: list[str | None], name: str = "text") -> str:
    return "".join(json.dumps({name: text, "id": i}) + "\n" for i, text in enumerate(texts))


def books_from_two_systems(folder: Path) -> None:
    for i, text in enumerate(TEXTS):
        put(folder, f"linux/{i}.txt", text + "\n")
        put(folder, f"windows/{i}.txt", text, newline="\r\n", encoding="utf-8-sig")


def a_git_clone(folder: Path) -> None:
    put(folder, ".git/COMMIT_EDITMSG.txt", TEXTS[0])
    put(folder, ".github/PULL_REQUEST_TEMPLATE.md", TEXTS[1])
    put(folder, "src/main.py", "print(1)")
    put(folder, "README.md", TEXTS[29])
    put(folder, "LICENSE.txt", TEXTS[28])
    for i in range(20):
        put(folder, f"docs/{i}.md", TEXTS[i])


def a_folder_of_notebooks(folder: Path) -> None:
    for i, text in enumerate(TEXTS):
        put(folder, f"{i}.txt", text)
        put(folder, f".ipynb_checkpoints/{i}-checkpoint.txt", text[:-1] + " more.")


def a_data_set_of_the_hub(folder: Path) -> None:
    put(folder, "README.md", "# Card\n\nThis data set ...")
    put(folder, ".gitattributes", "*.parquet filter=lfs")
    (folder / "data").mkdir()
    for k, part in enumerate((TEXTS[:15], TEXTS[15:])):
        table = pyarrow.table({"text": part, "url": ["x"] * 15})
        pyarrow.parquet.write_table(table, folder / f"data/train-{k:05}-of-00002.parquet")


def an_archive_of_a_mac(folder: Path) -> None:
    put(folder, ".DS_Store", "x")
    for i, text in enumerate(TEXTS):
        put(folder, f"books/{i}.txt", text)
        put(folder, f"__MACOSX/books/._{i}.txt", "Mac OS X attributes")


def shards_packed_and_not(folder: Path) -> None:
    for k in range(3):
        content = records(TEXTS[10 * k : 10 * k + 10])
        put(folder, f"shard-{k}.jsonl", content)
        (folder / f"shard-{k}.jsonl.gz").write_bytes(gzip.compress(content.encode()))


def a_linked_store(folder: Path) -> None:
    for i, text in enumerate(TEXTS):
        put(folder.parent / "store", f"{i}.txt", text)
    put(folder, "own.txt", "One of its own.\n\nAnd on.")
    (folder / "data").symlink_to(folder.parent / "store")
    (folder / "again").symlink_to(folder)


def texts_and_their_backups(folder: Path) -> None:
    for i, text in enumerate(TEXTS):
        put(folder, f"{i}.txt", text)
        put(folder, f"backup/{i}.txt", text.replace("\n", " \n") + "\n\n")
        put(folder, f"{i}.txt~", text)


def a_vault_of_notes(folder: Path) -> None:
    put(folder, ".obsidian/workspace.json", "{}")
    for i, text in enumerate(TEXTS):
        put(folder, f"notes/{i}.md", text)
        put(folder, f".trash/{i}.md", text.replace("cat", "old cat"))
        put(folder, f"attachments/{i}.pdf", "%PDF")


def records_of_which_some_have_no_text(folder: Path) -> None:
    put(folder, "a.jsonl", records([*TEXTS, None, "", "  \n"]))


def one_file_of_all(folder: Path) -> None:
    """Documents between blank lines, some twice."""
    blocks = [text.replace("\n\n", "\n") for text in TEXTS]
    put(folder, "all.txt", "\n\n".join(blocks + blocks[:10]))


def the_same_as_text_and_as_records(folder: Path) -> None:
    for i, text in enumerate(TEXTS):
        put(folder, f"txt/{i}.txt", text)
    put(folder, "json/all.jsonl", records([f"{text} " for text in TEXTS]))


class Case(NamedTuple):
    write: Callable[[Path], None]
    documents: int
    different: int  # of these
    said: str  # in the notes
    document: str | None = None


CASES = (
    Case(books_from_two_systems, 60, 30, ""),
    Case(a_git_clone, 22, 22, "skips .git, .github, src/main.py"),
    Case(a_folder_of_notebooks, 30, 30, "skips .ipynb_checkpoints"),
    Case(a_data_set_of_the_hub, 30, 30, "README.md"),
    Case(an_archive_of_a_mac, 30, 30, "skips .DS_Store, __MACOSX/books/._0.txt"),
    Case(shards_packed_and_not, 60, 30, ""),
    Case(a_linked_store, 31, 31, ""),
    Case(texts_and_their_backups, 60, 30, "skips 0.txt~"),
    Case(a_vault_of_notes, 30, 30, "skips .obsidian, .trash"),
    Case(records_of_which_some_have_no_text, 30, 30, "records without text are left out"),
    Case(one_file_of_all, 40, 30, "", "blank-line"),
    Case(the_same_as_text_and_as_records, 60, 30, "reads 1 .jsonl, 30 .txt"),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.write.__name__)
def test_what_is_read_of_a_folder(tmp_path, case):
    folder = tmp_path / "folder"
    folder.mkdir()
    case.write(folder)
    corpus = Corpus((str(folder),), form="documents", vocab_size=300, document=case.document)
    text = prepare_text(corpus, tmp_path / "cache")
    assert text.report.documents == case.documents and text.report.split_by == "document"
    assert case.said in "\n".join(text.notes)

    tokenizer = parse_vocabulary(text.content, "tokenizer.json").tokenizer
    seen = []  # as words, since copies differ in white space; the vocabulary is lossless
    for rows in (text.train, text.valid, text.test):
        found = tokenizer.decode_batch([rows.row(r).tolist() for r in range(rows.count)])
        seen.append([" ".join(each.removeprefix("\ufeff").split()) for each in found])
    assert sum(map(len, seen)) == case.documents
    train, valid, test = map(set, seen)
    assert len(train | valid | test) == case.different
    assert not (train & valid or train & test or valid & test)
    assert np.array_equal([*text.report.repeated.values()], [0, 0])
