"""A text is prepared once and completely, despite kills, full disks and two processes at once."""

import hashlib
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
from commands import PATIENCE
from corpora import SIZE, WORDS, error_of, write_corpus
from draws import draws

from jaxtie.results.folder import SUMS
from jaxtie.text.data import files, tokens
from jaxtie.text.data.config import Corpus
from jaxtie.text.data.tokens import prepare_text


def test_a_second_start_prepares_nothing(corpus, filled, monkeypatch):
    cache, first = filled
    monkeypatch.delattr(files, "_check")
    monkeypatch.delattr(tokens, "_write_vocabulary")
    monkeypatch.delattr(tokens, "_write_tokens")
    again = prepare_text(corpus, cache)
    assert (again.key, again.report, again.vocabulary) == (
        first.key,
        first.report,
        first.vocabulary,
    )
    assert np.array_equal(first.train.tokens_N, again.train.tokens_N)


def test_the_tokens_of_a_text_never_change(tmp_path, vocabulary, cache):
    """Pinned by hashes, so that a run can be repeated with the same cache."""
    (tmp_path / "a.txt").write_text(
        "\n\n".join(f"The cat saw {word}. A dog ran." for word in WORDS)
    )
    text = prepare_text(Corpus((str(tmp_path / "a.txt"),), vocab=vocabulary), cache)
    assert text.source == "424cecd1e59fe4591f75c3b3ef19ec21"
    assert len([*cache.glob("sources/*/")]) == 1
    assert hashlib.sha256(text.train.tokens_N.tobytes()).hexdigest()[:16] == "7daa5c3e0c318cf5"
    assert hashlib.sha256(text.valid.offsets.tobytes()).hexdigest()[:16] == "4989df9c0c509a35"


def test_other_content_or_settings_are_prepared_anew(own_corpus, own_cache):
    corpus, folder = own_corpus
    with (folder / "0.txt").open("a") as file:  # more words than the vocabulary has room for
        file.writelines("\n\n" + " ".join(2 * [a + b for b in WORDS]) for a in WORDS)
    keys = {prepare_text(corpus, own_cache).key}
    keys.add(prepare_text(Corpus(corpus.paths, vocab_size=SIZE, split_seed=1), own_cache).key)
    keys.add(prepare_text(Corpus(corpus.paths, vocab_size=SIZE - 1), own_cache).key)
    with (folder / "0.txt").open("a") as file:
        file.write(" More.")
    keys.add(prepare_text(corpus, own_cache).key)
    assert len(keys) == 4


def test_a_truncated_cache_is_prepared_anew(corpus, filled, own_cache):
    for path in (*own_cache.glob("tokens/*/*.tokens"), *own_cache.glob(f"*/*/{SUMS}")):
        os.truncate(path, path.stat().st_size // 2)
    assert np.array_equal(prepare_text(corpus, own_cache).train.tokens_N, filled[1].train.tokens_N)


def test_a_flipped_bit_of_the_cache_is_reported_and_the_text_prepared_anew(
    corpus, filled, own_cache
):
    rng, whole = random.Random(0), filled[1]
    paths = sorted(path for path in own_cache.glob("*/*/*") if path.is_file())
    assert {path.suffix for path in paths} == {".tokens", ".offsets", ".json", ".txt"}
    for i in range(draws(10)):
        path, said = paths[i % len(paths)], []
        content = bytearray(path.read_bytes())
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content)
        text = prepare_text(corpus, own_cache, said.append)
        assert f"{path.parent} cannot be used (" in said[0] and len(said) == 1, path
        assert said[0].endswith("; preparing it again") and "\n" not in said[0]
        for name in ("train", "valid", "test"):
            for found, expected in zip(getattr(text, name), getattr(whole, name), strict=True):
                assert np.array_equal(found, expected)
        assert (text.key, text.report) == (whole.key, whole.report)
        assert (text.vocabulary, text.special) == (whole.vocabulary, whole.special)


PREPARE = f"""
import os, sys
from pathlib import Path
from jaxtie.config import UserError
from jaxtie.text.data import cache as folders
from jaxtie.text.data.tokens import prepare_text
from jaxtie.text.data.config import Corpus
stage, cache, *paths = sys.argv[1:]
write_sums = folders.write_sums
def die_before(path):
    if stage in path.parts: os.kill(os.getpid(), 9)
    write_sums(path)
folders.write_sums = die_before
try: print(prepare_text(Corpus(tuple(paths), vocab_size={SIZE}), Path(cache)).key)
except UserError as error: sys.exit(f"jaxtie: {{error}}")
"""


def start(
    corpus: Corpus, cache: Path, stage: str = "none", prefix: tuple[str, ...] = ()
) -> subprocess.Popen:
    command = [*prefix, sys.executable, "-c", PREPARE, stage, str(cache), *corpus.paths]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_after_kills_at_any_step_the_result_is_the_same(corpus, cache, tmp_path):
    for stage in ("sources", "vocabularies", "tokens"):
        process = start(corpus, cache, stage)
        process.communicate(timeout=PATIENCE)
        assert process.returncode == -signal.SIGKILL
        assert list(cache.glob(f"{stage}/.*")) and not list(cache.glob(f"{stage}/[!.]*/{SUMS}"))
    found = prepare_text(corpus, cache)
    assert not list(cache.glob("*/.*"))
    whole = prepare_text(
        Corpus(corpus.paths, vocab=str(*cache.glob("vocabularies/*/vocab.txt"))), tmp_path / "other"
    )
    assert found.key == whole.key and np.array_equal(found.train.tokens_N, whole.train.tokens_N)


def test_two_processes_may_prepare_at_once(corpus, cache):
    processes = [start(corpus, cache) for _ in range(2)]
    (one, error), (other, _) = [process.communicate(timeout=PATIENCE) for process in processes]
    assert one == other != "", error
    assert len(list(cache.glob("vocabularies/*/vocab.txt"))) == 1


def test_a_full_disk_ends_in_one_line(tmp_path, cache):
    """A limit of one KiB on the size of files has the same effect."""
    corpus = Corpus((str(write_corpus(tmp_path / "corpus", paragraphs=400)),), vocab_size=SIZE)
    process = start(corpus, cache, prefix=("bash", "-c", 'ulimit -f 1; exec "$@"', "-"))
    error = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 1 and error.count("\n") == 1, error
    assert "tokens: the text could not be prepared" in error and "make room" in error
    assert not list(cache.glob("*/.*")) and not list(cache.glob("tokens/*/"))
    prepare_text(corpus, cache)


def test_a_cache_that_cannot_be_written(corpus, tmp_path):
    (tmp_path / "file").touch()
    assert "could not be prepared (Not a directory)" in error_of(
        corpus, tmp_path / "file" / "cache"
    )
