"""Comparison by blocks, facts about rows, and ids in words."""

import numpy as np
import pytest
from checkpoints import TIED, A, E, H, audit_folder, codes, run_command, write_folder

from jaxtie.audit import command, compare
from jaxtie.audit.audit import audit
from jaxtie.audit.findings import describe_ids, find_shard, runs_of
from jaxtie.config import UserError


def test_small_blocks_find_what_one_block_finds_and_progress_is_shown(
    tmp_path, monkeypatch, capsys
):
    output = A.copy()
    output[100:103] = 1
    path = write_folder(tmp_path, {E: A, H: output}, TIED)
    whole = audit(path)
    monkeypatch.setattr(compare, "BLOCK_BYTES", 32 * 16 * 2)
    monkeypatch.setattr(command, "SECONDS", -1.0)
    assert audit(path).main == whole.main
    assert "3 of 512 rows (ids 100 to 102)" in whole.main.text
    assert run_command(path) == 1 and capsys.readouterr().err == ""  # --quiet
    assert command.main_audit([str(path)]) == 1
    assert "rows compared: 480 of 512\n" in capsys.readouterr().err


def test_a_model_with_codebooks_is_refused_in_one_line(tmp_path):
    names = [f"{kind}.{i}.weight" for kind in ("embed_tokens", "lm_heads") for i in range(2)]
    tables = dict.fromkeys(names, A) | {"text_encoder.shared.weight": A[:99]}
    with pytest.raises(UserError, match="has an embedding for each codebook, as MusicGen"):
        audit_folder(tmp_path / "all", tables)
    found = audit_folder(tmp_path / "one", tables, names=("embed_tokens.0.weight", names[2]))
    assert found.main.code == "equal"


def test_nan_and_infinities_are_counted(tmp_path):
    bad = A.copy()
    bad[3, :2], bad[7, 0] = np.nan, -np.inf
    found = audit_folder(tmp_path, {E: bad}, TIED)
    assert codes(found) == {"not-finite"}
    assert "2 NaN and 1 infinite values: ids 3, 7." in found.main.text


def test_zeros_are_reported(tmp_path):
    rows = A.copy()
    rows[0] = 0
    found = audit_folder(tmp_path, {E: rows}, TIED)
    texts = " ".join(finding.text for finding in found.findings)
    assert found.status == 0 and "Rows of zeros in the input embedding: 1 (ids 0)" in texts


@pytest.mark.parametrize(
    ("ids", "vocabulary", "words"),
    [
        (range(151_643, 151_663), 151_936, "only 151,643 to 151,662: perhaps added tokens"),
        ([151_643], 151_936, "only 151,643: perhaps added tokens"),
        (range(43_981, 50_257), 50_257, "part 8 of 8, 43,981 to 50,256: a shard"),
        (range(12_566, 18_849), 50_257, "part 3 of 8, 12,566 to 18,848: a shard"),
        ([5, 9, 10, 20, 40], 50_257, "ids 5, 9 to 10, 20 and 1 more"),
    ],
)
def test_ids_in_words(ids, vocabulary, words):
    assert describe_ids(np.array(ids), vocabulary) == words


def test_runs_and_shards_of_ids():
    assert runs_of(np.array([1, 2, 3, 7])) == [(1, 3), (7, 7)]
    assert find_shard(np.arange(100), 100) is None
    assert find_shard(np.arange(95, 100), 100) is None
