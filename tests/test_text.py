"""Text from files and TFDS data sets: what comes through, what is kept, and what a user is told."""

import contextlib
import functools
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds

from jaxtie.config import Corpus, UserError
from jaxtie.data import prepared as preparing
from jaxtie.data import reading, text
from jaxtie.data.batches import CausalBatches, MaskedBatches, Rows, Special

GUTENBERG = Path(__file__).parents[1] / "../shared/corpora/gutenberg"
WORDS = "the cat saw a dog and this dog ran off with some very old bread under one tall tree near my house".split()
SPECIAL = Special(0, 1, 2, 3, 4)
SIZE = 120


def write_corpus(folder: Path, files: int = 3, paragraphs: int = 40) -> Path:
    """Files of sentences of random words."""
    rng = np.random.default_rng(7)
    folder.mkdir()
    sentence = lambda: " ".join(rng.choice(WORDS, rng.integers(3, 12))).capitalize() + "."
    for i in range(files):
        paragraph = lambda: "\n".join(sentence() for _ in range(3))
        (folder / f"{i}.txt").write_text("\n\n".join(paragraph() for _ in range(paragraphs)))
    return folder


def write_vocabulary(path: Path, *, without: str = "") -> Path:
    entries = [*text.SPECIAL, ".", *WORDS, *"abcdefghijklmnopqrstuvwxyz", *(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz")]
    path.write_text("\n".join(dict.fromkeys(entry for entry in entries if entry != without)))
    return path


@pytest.fixture
def corpus(tmp_path) -> Corpus:
    return Corpus((str(write_corpus(tmp_path / "corpus")),), vocab_size=SIZE)


@pytest.fixture
def cache(tmp_path) -> Path:
    return tmp_path / "cache"


def words(prepared: text.Text, rows: Rows) -> list[str]:
    return [" ".join(prepared.vocabulary[i] for i in rows.row(r)) for r in range(rows.count)]


def error_of(corpus: Corpus, cache: Path) -> str:
    """The one line that preparing ends with; nothing that is whole or half is left of the step that failed."""
    with pytest.raises(UserError) as caught:
        text.prepare(corpus, cache)
    assert "\n" not in str(caught.value)
    assert not list(cache.glob("tokens/*/*"))
    assert not list(cache.glob("*/.*"))
    return str(caught.value)


def read(path: Path) -> tuple[list[str], reading.Reading]:
    found = reading.Reading()
    return list(reading.read_paragraphs(path, found)), found


# Reading


def test_lines_end_as_on_any_system(tmp_path):
    for i, end in enumerate(("\n", "\r\n", "\r")):
        (tmp_path / f"{i}").write_bytes(f"\ufeffOne{end}two.{end}{end}{end} {end}Three.{end}".encode())
        assert read(tmp_path / f"{i}")[0] == ["One\ntwo.", "Three."]


def test_latin1_is_the_fallback_of_a_line_and_counted(tmp_path):
    (tmp_path / "a.txt").write_bytes("café\n".encode() + "naïve\n".encode("latin-1") + "Çà\n".encode())
    paragraphs, found = read(tmp_path / "a.txt")
    assert paragraphs == ["café\nnaïve\nÇà"]
    assert found.latin1_lines == 1


def test_a_giant_line_is_cut_at_spaces_and_never_in_memory_as_a_whole(tmp_path):
    path, line = tmp_path / "a.txt", "Überall größe " * 2**18
    path.write_text(line)
    tracemalloc.start()
    found = reading.Reading()
    digest, count = hashlib.sha256(), 0
    for paragraph in reading.read_paragraphs(path, found):
        for word in paragraph.split():
            digest.update(word.encode())
            count += 1
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert path.stat().st_size > 4 * 2**20 and peak < 2**20
    assert count == 2**19 and digest.digest() == hashlib.sha256(line.replace(" ", "").encode()).digest()
    assert found.cuts > 60 and found.latin1_lines == 0


def test_a_giant_line_without_a_space_is_refused_soon(tmp_path, cache):
    (tmp_path / "a.txt").write_bytes(b"a" * 2**24)
    with pytest.raises(UserError, match="without a space"):
        list(reading.read_lines(tmp_path / "a.txt", found := reading.Reading()))
    assert found.bytes < 2**21
    assert "without a space" in error_of(Corpus((str(tmp_path / "a.txt"),)), cache)


def test_a_binary_file_of_a_gibibyte_is_refused_at_once(tmp_path, cache):
    with (tmp_path / "a.txt").open("wb") as file:
        file.truncate(2**30)
    with pytest.raises(UserError, match="NUL"):
        list(reading.read_lines(tmp_path / "a.txt", found := reading.Reading()))
    assert found.bytes == reading.PIECE


def test_folders_are_searched_and_each_file_comes_once(tmp_path):
    for name in ("b/deep/x.txt", "b/a.txt", "c.txt", "b/no.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = reading.find_files([str(tmp_path / "c.txt"), str(tmp_path), str(tmp_path / "b" / "no.md")])
    assert [str(path.relative_to(tmp_path)) for path in found] == ["c.txt", "b/a.txt", "b/deep/x.txt", "b/no.md"]


@pytest.mark.parametrize(
    "paragraph, sentences",
    [
        ("One two. Three!  Four?", ["One two.", "Three!", "Four?"]),
        ("Mr. Bennet and J. Smith came. He left.", ["Mr. Bennet and J. Smith came.", "He left."]),
        ("'Oh dear!' said she. \"So? Yes.\" 3 of it", ["'Oh dear!' said she.", '"So?', 'Yes."', "3 of it"]),
        ("(Fine.) [It] went _on_. “Well!” «Non.»", ["(Fine.)", "[It] went _on_.", "“Well!”", "«Non.»"]),
        ("It was I. Then 3.5 e.g. this... and so on", ["It was I.", "Then 3.5 e.g. this... and so on"]),
        ("École. Été", ["École.", "Été"]),
    ],
)
def test_sentences(paragraph, sentences):
    assert list(reading.split_sentences(paragraph)) == sentences


# From files to rows


def test_a_row_is_a_sentence_in_the_order_of_the_text(tmp_path, cache):
    corpus = Corpus((str(write_corpus(tmp_path / "corpus")),), vocab=str(write_vocabulary(tmp_path / "vocab.txt")))
    prepared = text.prepare(corpus, cache)
    raw = " ".join(path.read_text() for path in sorted((tmp_path / "corpus").glob("*")))
    expected = [f"{sentence.strip()} .".lower() for sentence in raw.replace("\n", " ").split(".") if sentence.strip()]
    found = {row for name in text.SPLITS for row in words(prepared, getattr(prepared, name))}
    assert found == set(expected)
    place = {sentence: i for i, sentence in enumerate(expected)}
    unique = [row for row in words(prepared, prepared.train) if expected.count(row) == 1]
    assert [place[row] for row in unique] == sorted(place[row] for row in unique) and len(unique) > 100
    report = prepared.report
    assert (report.files, report.documents, report.paragraphs, report.sentences) == (3, 3, 120, 360)
    assert report.rows == {"train": 252, "valid": 36, "test": 72} and report.split_by == "paragraph"
    assert sum(report.tokens.values()) == sum(len(row.split()) for row in expected) and not any(report.unknown.values())
    assert prepared.train.tokens_N.dtype == np.uint16
    assert len(str(report).splitlines()) == 2


def test_fifty_documents_are_split_whole(tmp_path, cache):
    folder = write_corpus(tmp_path / "corpus", files=50, paragraphs=2)
    for i, path in enumerate(sorted(folder.glob("*"))):
        path.write_text(path.read_text().replace("Cat", "Dog") + f" {'abcdefghij'[i // 10]}{'abcdefghij'[i % 10]} here. " * 2)
    prepared = text.prepare(Corpus((str(folder),), vocab=str(write_vocabulary(tmp_path / "vocab.txt"))), cache)
    assert prepared.report.split_by == "document"
    assert prepared.report.rows["train"] == 35 * 6 and prepared.report.rows["valid"] == 5 * 6


def test_the_split_depends_on_seed_and_text_alone(tmp_path, cache):
    vocab = str(write_vocabulary(tmp_path / "vocab.txt"))
    one, other = write_corpus(tmp_path / "one"), tmp_path / "other"
    other.mkdir()
    (other / "z.txt").write_text("\n\n".join(path.read_text() for path in sorted(one.glob("*"), reverse=True)))
    splits = lambda folder, seed: [
        set(words(prepared, getattr(prepared, name)))
        for prepared in [text.prepare(Corpus((str(folder),), vocab=vocab, split_seed=seed), cache)]
        for name in text.SPLITS
    ]
    assert splits(one, 1) == splits(other, 1) != splits(one, 2)


def test_a_trained_vocabulary_sees_the_training_split_alone(corpus, cache):
    prepared = text.prepare(corpus, cache)
    assert prepared.vocabulary[:5] == text.SPECIAL and prepared.special == SPECIAL
    assert {"cat", "bread", "##e"} & set(prepared.vocabulary) and 40 < len(prepared.vocabulary) <= SIZE


def test_what_looks_like_a_special_token_is_text(tmp_path, cache):
    from tokenizers import AddedToken

    folder = write_corpus(tmp_path / "corpus")
    (folder / "3.txt").write_text("The [MASK] ran off.\n\nThe [SEP] ran off.\n\nThe [PAD] ran off.")
    vocab = write_vocabulary(tmp_path / "vocab.txt")
    tokenizer = text._load_vocabulary(vocab).tokenizer
    tokenizer.add_special_tokens([AddedToken(token) for token in text.SPECIAL])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    vocabularies = vocab, tmp_path / "tokenizer.json"
    kinds = [text.prepare(Corpus((str(folder),), vocab=str(path)), cache) for path in vocabularies]
    for prepared in kinds:
        for name in text.SPLITS:
            assert not np.isin(getattr(prepared, name).tokens_N, [0, 2, 3, 4]).any()
    assert kinds[0].key != kinds[1].key and np.array_equal(kinds[0].train.tokens_N, kinds[1].train.tokens_N)
    assert sum(kinds[0].report.unknown.values()) == 6  # the brackets


def test_frequent_words(tmp_path, cache):
    folder = tmp_path / "corpus"
    folder.mkdir()
    sentences = "The cat saw the dog. The cat ran. It'a cats thed."
    (folder / "a.txt").write_text("\n\n".join(f"{sentences} {'one ' * i}." for i in range(1, 60)))
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("\n".join([*text.SPECIAL, ".", "'", "the", "cat", "saw", "dog", "ran", "one", "it", "a", "##s", "##d"]))
    prepared = text.prepare(Corpus((str(folder),), vocab=str(vocab)), cache)
    ids, found = text.frequent_words(prepared, 4)
    assert set(found[:1]) == {"one"} and found[1:3] == ("the", "cat") and found[3] in ("saw", "dog", "ran", "it")
    assert [prepared.vocabulary[i] for i in ids] == list(found) and ids.dtype == np.int32
    with pytest.raises(UserError, match="only 7 of its words"):  # "a" comes behind an apostrophe alone
        text.frequent_words(prepared, 100)


def test_frequent_words_of_berts_vocabulary_are_the_published():
    assert len(set(text.PUBLISHED_WORDS)) == 100
    rest = [f"[unused{i}]" for i in range(text.BERT_ENTRIES - 105)]
    entries = ["[PAD]", *rest[:99], "[UNK]", "[CLS]", "[SEP]", "[MASK]", *text.PUBLISHED_WORDS, *rest[99:]]
    tokens = tuple(entries[: text.BERT_ENTRIES])
    nothing = Rows(np.zeros(0, np.uint16), np.zeros(1, np.int64))
    bert = text.Text(tokens, Special(0, 100, 101, 102, 103), nothing, nothing, nothing, None, "", "")
    ids, found = text.frequent_words(bert)
    assert found == text.PUBLISHED_WORDS and ids[0] == 104


@pytest.mark.skipif(not GUTENBERG.is_dir(), reason="the Gutenberg books are not beside this repository")
def test_the_gutenberg_books_come_through_right(cache):
    files = reading.find_files([str(GUTENBERG)])
    fallbacks = {path.name: read(path)[1].latin1_lines for path in files}
    assert {name: n for name, n in fallbacks.items() if n} == {"chesterton-ball.txt": 2, "shakespeare-caesar.txt": 2}
    for path in files:  # white space apart, nothing is lost
        raw = path.read_bytes()
        expected = " ".join(
            " ".join(line.decode("latin-1" if path.name in ("chesterton-ball.txt", "shakespeare-caesar.txt") else "utf-8")
            for line in raw.split(b"\n")).split()
        )  # fmt: skip
        sentences = [s for p in read(path)[0] for s in reading.split_sentences(" ".join(p.split()))]
        assert " ".join(sentences) == expected, path
    prepared = text.prepare(Corpus((str(GUTENBERG),)), cache)
    report = prepared.report
    assert (report.files, report.latin1_lines, report.cuts) == (17, 4, 0)
    assert 0.68 < report.rows["train"] / sum(report.rows.values()) < 0.72
    assert 1.7e6 < sum(report.tokens.values()) < 1.9e6 and sum(report.unknown.values()) < 20
    found = text.frequent_words(prepared)[1]
    assert found[:3] == ("the", "and", "of") and {"he", "she", "said"} <= set(found) and not {"s", "t", "d"} & set(found)
    began = time.monotonic()
    again = text.prepare(Corpus((str(GUTENBERG),)), cache)
    assert time.monotonic() - began < 1 and again.key == prepared.key


# TFDS


class TinyText(tfds.core.GeneratorBasedBuilder):
    """Sixty documents, in two splits."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = tfds.features.FeaturesDict({"body": tfds.features.Text(), "label": np.int64})
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(0, 40), "test": self._generate_examples(40, 60)}

    def _generate_examples(self, start, end):
        for i in range(start, end):
            yield i, {"body": f"The cat saw {WORDS[i % len(WORDS)]}. A {WORDS[i // 7]} ran.\r\n\r\nÜber {i}.", "label": i}


@pytest.fixture
def tfds_folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(tfds, "data_source", functools.partial(tfds.data_source, data_dir=tmp_path / "tfds"))
    return tmp_path / "tfds"


@pytest.mark.usefixtures("tfds_folder")
def test_a_tfds_data_set(tmp_path, cache, capsys):
    vocab = str(write_vocabulary(tmp_path / "vocab.txt"))
    corpus = Corpus(tfds="tiny_text:1.0.0", field="body", vocab=vocab)
    report = text.prepare(corpus, cache).report
    assert (report.files, report.documents, report.paragraphs, report.split_by) == (0, 60, 120, "document")
    assert report.rows["train"] == 42 * 3 and report.rows["valid"] == 6 * 3 and report.rows["test"] == 12 * 3
    assert text.prepare(corpus, cache).report == report
    assert capsys.readouterr() == ("", "")
    assert error_of(Corpus(tfds="tiny_text", field="text"), tmp_path / "x").endswith("expected --tfds-field body")


@pytest.mark.usefixtures("tfds_folder")
@pytest.mark.parametrize(
    "name, message",
    [
        ("wiki_40b", "knows no such data set; did you mean wiki40b"),
        ("tiny_text:9.9.9", "cannot be loaded at version 9.9.9"),
        ("wiki40b/xx", "BuilderConfig xx not found"),
    ],
)
def test_a_tfds_data_set_that_does_not_exist(cache, name, message):
    error = error_of(Corpus(tfds=name), cache)
    assert message in error and error.startswith(f"--tfds {name}: ") and len(error) < 330


@pytest.mark.usefixtures("tfds_folder")
def test_no_network(cache, monkeypatch, capsys):
    def refuse(*_, **__):
        raise OSError(-2, "Name or service not known")

    monkeypatch.setattr("socket.getaddrinfo", refuse)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setattr(preparing, "PATIENCE", 0.0)
    told = []
    with pytest.raises(UserError, match=r"--tfds lm1b: cannot be downloaded .*statmt.*network") as caught:
        text.prepare(Corpus(tfds="lm1b"), cache, told.append)
    assert "\n" not in str(caught.value)
    assert told == ["no answer from the network yet, trying again"] * len(told) and told
    assert capsys.readouterr().out == ""


# What is kept


def test_large_files_are_written_in_parts(tmp_path, cache, monkeypatch):
    """The last part may be small, and a blank stretch leaves none empty."""
    folder = write_corpus(tmp_path / "corpus", paragraphs=4000)
    (folder / "3.txt").write_text("\n" * 2**18)
    corpus = Corpus((str(folder),), vocab=str(write_vocabulary(tmp_path / "vocab.txt")))
    whole = text.prepare(corpus, cache)
    monkeypatch.setattr(text, "PART", 2**17)
    parts = text.prepare(corpus, tmp_path / "parts")
    assert len(list((tmp_path / "parts").glob("sources/*/given_text/*/*.array_record-*"))) > 5
    assert parts.report == whole.report and parts.key == whole.key
    assert all(np.array_equal(one.tokens_N, other.tokens_N) for one, other in zip(parts[2:5], whole[2:5], strict=True))


def test_a_second_start_prepares_nothing(corpus, cache, monkeypatch):
    first = text.prepare(corpus, cache)
    for name in ("_write_source", "_train_vocabulary", "_tokenise"):
        monkeypatch.delattr(text, name)
    again = text.prepare(corpus, cache)
    assert first.key == again.key and first.report == again.report and first.vocabulary == again.vocabulary
    assert np.array_equal(first.train.tokens_N, again.train.tokens_N)


def test_other_content_or_settings_are_prepared_anew(corpus, cache, tmp_path):
    keys = {text.prepare(corpus, cache).key}
    keys.add(text.prepare(Corpus(corpus.paths, vocab_size=SIZE, split_seed=1), cache).key)
    keys.add(text.prepare(Corpus(corpus.paths, vocab_size=SIZE - 1), cache).key)
    with (tmp_path / "corpus" / "0.txt").open("a") as file:
        file.write(" More.")
    keys.add(text.prepare(corpus, cache).key)
    assert len(keys) == 4


def test_a_truncated_cache_is_prepared_anew(corpus, cache):
    first = text.prepare(corpus, cache)
    expected = first.train.tokens_N.copy()
    for path in (*cache.glob("tokens/*/train.tokens"), *cache.glob("sources/**/*.array_record-*")):
        os.truncate(path, path.stat().st_size // 2)
    assert np.array_equal(text.prepare(corpus, cache).train.tokens_N, expected)


PREPARE = """
import os, sys
from pathlib import Path
from jaxtie.config import Corpus, UserError
from jaxtie.data import prepared, text
stage, cache, *paths = sys.argv[1:]
sync = prepared._sync
def die_before(path):
    if stage in path.parts: os.kill(os.getpid(), 9)
    sync(path)
prepared._sync = die_before
try: print(text.prepare(Corpus(tuple(paths), vocab_size=120), Path(cache)).key)
except UserError as error: sys.exit(f"jaxtie: {error}")
"""


def start(corpus: Corpus, cache: Path, stage: str = "none", prefix: tuple[str, ...] = ()) -> subprocess.Popen:
    command = [*prefix, sys.executable, "-c", PREPARE, stage, str(cache), *corpus.paths]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_killed_at_any_step_it_is_prepared_as_if_it_had_not_been(corpus, cache, tmp_path):
    for stage in ("sources", "vocabularies", "tokens"):
        process = start(corpus, cache, stage)
        process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL
        assert list(cache.glob(f"{stage}/.*")) and not list(cache.glob(f"{stage}/[!.]*/{preparing.MANIFEST}"))
    found = text.prepare(corpus, cache)
    assert not list(cache.glob("*/.*"))
    whole = text.prepare(Corpus(corpus.paths, vocab=str(*cache.glob("vocabularies/*/vocab.txt"))), tmp_path / "other")
    assert found.key == whole.key and np.array_equal(found.train.tokens_N, whole.train.tokens_N)


def test_two_processes_may_prepare_at_once(corpus, cache):
    processes = [start(corpus, cache) for _ in range(2)]
    (one, error), (other, _) = [process.communicate(timeout=60) for process in processes]
    assert one == other != "", error
    assert len(list(cache.glob("vocabularies/*/vocab.txt"))) == 1


@pytest.mark.parametrize("prepared", [False, True])
def test_a_disk_that_fills_ends_in_one_line(tmp_path, cache, prepared):
    """A limit on the size of files, one KiB, stands for it; `prepared`: all but the tokens is there before."""
    corpus = Corpus((str(write_corpus(tmp_path / "corpus", paragraphs=400)),), vocab_size=SIZE)
    if prepared:
        text.prepare(corpus, cache)
        for folder in cache.glob("tokens/*/"):
            folder.rename(tmp_path / "aside")
    process = start(corpus, cache, prefix=("bash", "-c", 'ulimit -f 1; exec "$@"', "-"))
    error = process.communicate(timeout=60)[1]
    assert process.returncode == 1 and error.count("\n") == 1, error
    assert "could not be prepared" in error and "make room" in error
    assert f"{'tokens' if prepared else 'sources'}: " in error
    assert not list(cache.glob("*/.*")) and not list(cache.glob("tokens/*/"))
    text.prepare(corpus, cache)


# What a user can get wrong


def test_what_is_not_there(tmp_path, cache):
    assert "no such file or folder" in error_of(Corpus((str(tmp_path / "no"),)), cache)
    (tmp_path / "empty").mkdir()
    assert "holds no *.txt" in error_of(Corpus((str(tmp_path / "empty"),)), cache)


def test_a_binary_file(corpus, cache, tmp_path):
    (tmp_path / "corpus" / "9.txt").write_bytes(b"The cat\n\x00\x01")
    assert "9.txt: holds NUL bytes" in error_of(corpus, cache)


@pytest.mark.parametrize("how", ["vanishes", "changes"])
def test_a_file_that_does_not_stay(corpus, cache, tmp_path, monkeypatch, how):
    path, paragraphs = tmp_path / "corpus" / "2.txt", reading.read_paragraphs

    def read_paragraphs(*arguments):
        path.unlink(missing_ok=True) if how == "vanishes" else path.write_text("Other.")
        return paragraphs(*arguments)

    monkeypatch.setattr(reading, "read_paragraphs", read_paragraphs)
    error = error_of(corpus, cache)
    assert "2.txt: " in error and ("No such file" if how == "vanishes" else "changed while") in error


def test_too_little_text(tmp_path, cache):
    (tmp_path / "a.txt").write_text("One.\n\nTwo.\n\nTwo.")
    assert "2 different paragraphs are too little for three splits" in error_of(Corpus((str(tmp_path / "a.txt"),)), cache)
    (tmp_path / "b.txt").write_text("")
    assert "b.txt: no text at all" in error_of(Corpus((str(tmp_path / "b.txt"),)), cache)


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("tokenizer.json", "{}", "expected a tokenizer.json of the tokenizers library"),
        ("tokenizer.json", "no", "expected a tokenizer.json of the tokenizers library"),
        ("vocab.txt", "\xff\xfe", "has no [PAD], [UNK], [CLS], [SEP], [MASK]"),
        ("vocab.txt", "\n".join([*text.SPECIAL, "a", "a", "b"]), "does an entry come twice?"),
        ("vocab.txt", None, "cannot be read"),
    ],
)
def test_a_vocabulary_that_is_none(corpus, cache, tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_text(content)
    assert message in error_of(Corpus(corpus.paths, vocab=str(tmp_path / name)), cache)


def test_a_vocabulary_without_mask(corpus, cache, tmp_path):
    vocab = write_vocabulary(tmp_path / "vocab.txt", without="[MASK]")
    assert "has no [MASK]; expected a vocabulary like BERT's" in error_of(Corpus(corpus.paths, vocab=str(vocab)), cache)
    tokenizer = json.loads(text._bert(text.models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]")).to_str())
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert "has no [PAD], [CLS]" in error_of(Corpus(corpus.paths, vocab=str(tmp_path / "tokenizer.json")), cache)


def test_a_vocabulary_whose_unknown_token_is_missing(corpus, cache, tmp_path):
    vocabulary = {token: i for i, token in enumerate(text.SPECIAL)}
    tokenizer = text._bert(text.models.WordPiece(vocabulary, unk_token="<unk>"))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    message = error_of(Corpus(corpus.paths, vocab=str(tmp_path / "tokenizer.json")), cache)
    assert "cannot tokenise an unknown word" in message


def test_a_cache_that_cannot_be_written(corpus, tmp_path):
    (tmp_path / "file").touch()
    assert "could not be prepared (Not a directory)" in error_of(corpus, tmp_path / "file" / "cache")


def test_corpora_that_cannot_be_meant():
    wrong_vocabularies = {"tfds": "b", "vocab_size": 7}, {"tfds": "b", "split_seed": -1}
    for wrong in (*wrong_vocabularies, {}, {"paths": ("a",), "tfds": "b"}, {"tfds": "a b"}):
        with pytest.raises(UserError):
            Corpus(**wrong)


# Batches


def rows_of(lengths) -> Rows:
    """Rows whose tokens tell the row: 10, 10, 10, 11, 11, ..."""
    return Rows(np.repeat(np.arange(len(lengths)) + 10, lengths).astype(np.uint32), np.append(0, np.cumsum(lengths)))


@pytest.fixture
def rows() -> Rows:
    return rows_of(np.random.default_rng(3).integers(1, 60, 1000))


def test_an_epoch_of_masked_batches_has_every_row_once(rows):
    batches = MaskedBatches(rows, SPECIAL, 32, max_length=40, seed=5, buckets=(8, 16, 128))
    assert batches.buckets == (8, 16, 40) and batches.count == 1000 // 32 and batches.truncated == (rows.lengths > 38).sum()
    for epoch in range(2):
        seen = []
        for step in range(epoch * batches.count, (epoch + 1) * batches.count):
            tokens_BxL, lengths_B = batches[step]
            assert tokens_BxL.shape in [(32, 8), (32, 16), (32, 40)] and tokens_BxL.dtype == lengths_B.dtype == np.int32
            for row, length in zip(tokens_BxL, lengths_B, strict=True):
                r = row[1] - 10
                expected = [2, *rows.row(r)[:38], 3]
                assert list(row[:length]) == expected and not row[length:].any()
                seen.append(r)
        assert len(seen) == len(set(seen)) == batches.count * 32


def test_batches_are_a_function_of_seed_and_step(rows):
    make = {
        "masked": lambda seed: MaskedBatches(rows, SPECIAL, 32, seed=seed),
        "causal": lambda seed: CausalBatches(rows, SPECIAL, 8, 32, seed=seed),
    }
    for each in make.values():
        one, again, other = each(1), each(1), each(2)
        steps = range(0, 3 * one.count, 7)
        ahead = {step: one[step] for step in steps}
        for step in reversed(steps):
            np.testing.assert_array_equal(again[step].tokens_BxL, ahead[step].tokens_BxL)
        assert not np.array_equal(one[0].tokens_BxL, other[0].tokens_BxL)
        assert not np.array_equal(one[0].tokens_BxL, one[one.count].tokens_BxL)


def test_causal_blocks_are_the_stream(rows):
    stream = np.concatenate([np.append(rows.row(r), 3) for r in range(rows.count)])
    batches = CausalBatches(rows, SPECIAL, 8, 32, seed=None, keep_last=True)
    found = np.concatenate([batches[k].tokens_BxL[batches[k].lengths_B > 0] for k in range(batches.count)])
    blocks = (len(stream) - 1) // 32
    assert found.shape == (blocks, 33)
    np.testing.assert_array_equal(found[:, :-1].ravel(), stream[: blocks * 32])
    np.testing.assert_array_equal(found[:, 1:].ravel(), stream[1 : blocks * 32 + 1])
    shuffled = CausalBatches(rows, SPECIAL, 8, 32, seed=1)
    first = {tuple(row) for k in range(shuffled.count) for row in shuffled[k].tokens_BxL}
    assert first <= {tuple(row) for row in found} and len(first) == shuffled.count * 8


def test_evaluation_has_every_row_in_batches_of_one_size(rows):
    batches = MaskedBatches(rows, SPECIAL, 64, seed=None, keep_last=True)
    kept = [batches[k] for k in range(batches.count)]
    assert {len(each.lengths_B) for each in kept} == {64}
    assert sum((each.lengths_B > 0).sum() for each in kept) == 1000
    empty = kept[-1].tokens_BxL[kept[-1].lengths_B == 0]
    assert len(empty) == -1000 % 64 and (empty == SPECIAL.pad).all()


def test_too_few_rows_for_a_batch():
    with pytest.raises(UserError, match="do not fill one batch"):
        MaskedBatches(rows_of([3, 4]), SPECIAL, 3)
    with pytest.raises(UserError, match="do not fill one batch"), contextlib.suppress(IndexError):
        CausalBatches(rows_of([3, 4]), SPECIAL, 3, 8)
