"""What two untied tables have in common is found again where it was planted; memory and progress of the row by row part."""

import numpy as np
import pytest
from audited import audited, folder, run, table

from jaxtie.audit import compare
from jaxtie.audit import geometry as module
from jaxtie.audit.command import lines_of
from jaxtie.audit.geometry import geometry
from jaxtie.audit.ids import part_of, runs_of, shown_ids
from jaxtie.audit.judge import Request, audit

WIDTH, ROWS = 32, 1500


def planted(shared: int, width: int = WIDTH, rows: int = ROWS, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Two tables with so many directions in common, each under a linear map of its own."""
    rng = np.random.default_rng(seed)
    common = rng.standard_normal((rows, shared))
    tables = []
    for _ in range(2):
        own = rng.standard_normal((rows, width - shared))
        tables.append((np.concatenate([common, own], axis=1) @ rng.standard_normal((width, width))).astype(np.float32))
    return tables[0], tables[1]


def of_rank(rank: int, width: int = WIDTH, rows: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    """Two tables of width `width` that one table of so many columns makes, all of the same energy."""
    rng = np.random.default_rng(0)
    base, maps = (np.linalg.qr(rng.standard_normal((size, rank)))[0] for size in (rows, 2 * width))
    both = (base @ maps.T).astype(np.float32)
    return both[:, :width], both[:, width:]


def quiet(_: str) -> None:
    pass


@pytest.mark.parametrize("shared", [0, 8, 20, 32])
def test_planted_shared_directions_are_counted(shared):
    found = geometry(*planted(shared), quiet)
    assert abs(found.shared - shared) <= 0.05 * shared
    assert found.squared.low <= found.squared.value <= found.squared.high
    chance = (1 - shared / WIDTH) ** 2 * WIDTH / ROWS  # what independent parts correlate by chance, nearly
    assert abs(found.squared.value - shared / WIDTH) < chance + 0.02
    assert found.squared.null == pytest.approx(WIDTH / ROWS, rel=0.3)


@pytest.mark.parametrize("rank", [20, 32, 50])
def test_planted_ranks_are_found(rank):
    found = geometry(*of_rank(rank), quiet)
    assert found.rank.value == np.ceil(0.95 * rank)
    assert found.residual.value == pytest.approx(max(0, 1 - WIDTH / rank), abs=0.05)
    assert found.residual.low <= found.residual.value + 1e-6
    if rank <= WIDTH:
        assert found.shared == pytest.approx(rank, rel=0.05) and found.residual.value < 1e-6


def test_geometry_of_wide_tables_agrees(monkeypatch):
    """Float32 and quadrature, which tables above a width take, against float64 and eigenvalues."""
    tables = planted(40, 128, 2000)
    exact = geometry(*tables, quiet)
    monkeypatch.setattr(module, "EXACT_WIDTH", 16)
    wide = geometry(*tables, quiet)
    assert wide.shared == pytest.approx(exact.shared, rel=0.05) == pytest.approx(40, rel=0.05)
    assert wide.squared.value == pytest.approx(exact.squared.value, rel=0.05)
    assert wide.rank.value == pytest.approx(exact.rank.value, rel=0.05)
    assert wide.residual.value == pytest.approx(exact.residual.value, rel=0.15)
    assert np.isnan(wide.squared.low)


def test_a_linear_map_of_either_table_changes_no_correlation():
    first, second = planted(8)
    mapped = first @ np.random.default_rng(5).standard_normal((WIDTH, WIDTH)).astype(np.float32)
    assert geometry(mapped, second, quiet).squared.value == pytest.approx(
        geometry(first, second, quiet).squared.value, rel=1e-3
    )


@pytest.mark.parametrize("alike", [0.02, 7.0], ids=str)
def test_a_table_whose_rows_are_all_alike_has_no_geometry(tmp_path, alike):
    """Such heads are what audits are for: it goes on without."""
    same = np.full((512, 16), alike, np.float32) * np.random.default_rng(1).standard_normal(16).astype(np.float32)
    tensors = {"embed_tokens.weight": table(), "lm_head.weight": same}
    said: list[str] = []
    found = audit(folder(tmp_path, tensors), Request(), lambda *_: None, said.append)
    assert found.verdicts[0].geometry is None and found.verdicts[0].main.code == "different"
    assert any("all alike" in line for line in said)


def test_numbers_beyond_float32_leave_geometry_out(tmp_path):
    tensors = {"embed_tokens.weight": table().astype(np.float64), "lm_head.weight": table(1).astype(np.float64) * 1e300}
    assert audited(folder(tmp_path, tensors), geometry=True).verdicts[0].geometry is None


def test_what_all_rows_share_hides_nothing(monkeypatch):
    """In float32, too, where it is a hundred times what tells them apart."""
    monkeypatch.setattr(module, "EXACT_WIDTH", 8)
    first, second = planted(20)
    shared = 100 * np.random.default_rng(3).standard_normal(WIDTH).astype(np.float32)
    plain, moved = geometry(first, second, quiet), geometry(first + shared, second + shared, quiet)
    assert moved.squared.value == pytest.approx(plain.squared.value, abs=1e-3)


def test_an_audit_shows_it_and_says_what_it_is_not(tmp_path):
    config = {"tie_word_embeddings": False}
    path = folder(tmp_path, dict(zip(("embed_tokens.weight", "lm_head.weight"), planted(8), strict=True)), config)
    found = audited(path, geometry=True)
    lines = "\n".join(lines_of(found))
    assert found.verdicts[0].geometry.rows == ROWS
    assert "not what tying would cost" in lines and "shared directions, above all permutations: 8 of 32" in lines


def test_rows_are_compared_by_blocks_and_progress_is_told(tmp_path, monkeypatch, capsys):
    """Small blocks find what one block finds."""
    a, b = table(0), table(0)
    b[100:103] = 1
    path = folder(tmp_path, {"embed_tokens.weight": a, "lm_head.weight": b}, {"tie_word_embeddings": True})
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
    assert shown_ids(np.arange(151_643, 151_663), 151_936) == "only 151,643 to 151,662: perhaps added tokens"
    assert shown_ids(np.arange(43_981, 50_257), 50_257) == "the last eighth, 43,981 to 50,256: a shard"
    assert shown_ids(np.arange(12_566, 18_849), 50_257) == "part 3 of 8, 12,566 to 18,848: a shard"
    assert shown_ids(np.array([5, 9, 10, 20, 40]), 50_257) == "ids 5, 9 to 10, 20 and 1 more runs"
    assert part_of(np.arange(100), 100) is None and part_of(np.arange(95, 100), 100) is None
