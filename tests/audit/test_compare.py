"""The comparison of rows: blocks, progress, ids in words."""

import numpy as np
from checkpoints import audited, folder, run, table

from jaxtie.audit import compare
from jaxtie.audit.ids import part_of, runs_of, shown_ids


def test_rows_are_compared_by_blocks_and_progress_is_told(tmp_path, monkeypatch, capsys):
    """Small blocks find what one block finds."""
    a, b = table(0), table(0)
    b[100:103] = 1
    path = folder(
        tmp_path, {"embed_tokens.weight": a, "lm_head.weight": b}, {"tie_word_embeddings": True}
    )
    whole = audited(path)
    monkeypatch.setattr(compare, "BLOCK_BYTES", 32 * 16 * 2)
    monkeypatch.setattr("jaxtie.audit.command.SECONDS", -1.0)
    assert audited(path).verdicts[0].main == whole.verdicts[0].main
    assert "3 of 512 rows (ids 100 to 102)" in whole.verdicts[0].main.text
    assert run(path) == 1 and capsys.readouterr().err == ""  # --quiet
    from jaxtie.audit.command import main_audit

    assert main_audit([str(path)]) == 1
    assert "compared: 480 of 512 rows\n" in capsys.readouterr().err


def test_ids_in_words():
    assert runs_of(np.array([1, 2, 3, 7])) == [(1, 3), (7, 7)]
    assert (
        shown_ids(np.arange(151_643, 151_663), 151_936)
        == "only 151,643 to 151,662: perhaps added tokens"
    )
    assert (
        shown_ids(np.arange(43_981, 50_257), 50_257) == "the last eighth, 43,981 to 50,256: a shard"
    )
    assert shown_ids(np.arange(12_566, 18_849), 50_257) == "part 3 of 8, 12,566 to 18,848: a shard"
    assert shown_ids(np.array([5, 9, 10, 20, 40]), 50_257) == "ids 5, 9 to 10, 20 and 1 more runs"
    assert part_of(np.arange(100), 100) is None and part_of(np.arange(95, 100), 100) is None
