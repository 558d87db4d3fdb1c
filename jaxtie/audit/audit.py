"""Run an audit, from a path to a verdict."""

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxtie.audit.adapter import Adapter, read_adapter
from jaxtie.audit.checkpoint import Checkpoint, open_checkpoint
from jaxtie.audit.compare import Comparison, Progress, same_bytes, same_rows, scan
from jaxtie.audit.find import Embeddings, EmbeddingTable, find_embeddings, several_tables
from jaxtie.audit.findings import Facts, Finding, findings_of, index_texts, runs_of
from jaxtie.config import UserError, check
from jaxtie.results.tables import json_numbers


@dataclass(frozen=True)
class Audit:
    """A checkpoint and the verdict on its model."""

    checkpoint: Checkpoint
    embeddings: Embeddings
    findings: tuple[Finding, ...]  # the one about tying first
    comparison: Comparison | None  # of both embeddings, if there are two that can be compared

    @property
    def status(self) -> int:
        """The exit status: 0 consistent, 1 inconsistent."""
        return int(any(finding.level == "wrong" for finding in self.findings))

    @property
    def main(self) -> Finding:
        """The finding that sets the status: the first wrong one, else the one about tying."""
        return next(
            (finding for finding in self.findings if finding.level == "wrong"), self.findings[0]
        )

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; numbers that are not finite become None."""
        embeddings, comparison, is_consistent = self.embeddings, None, self.status == 0
        if self.comparison:
            comparison = dataclasses.asdict(self.comparison)
            ids = comparison.pop("differing")
            comparison |= {"differing rows": len(ids), "differing runs": runs_of(ids)}
        model = {
            "consistent": is_consistent,
            "cause": None if is_consistent else self.main.code,
            "verdict": self.main.text,
            "fix": self.main.fix,
            "input": _table_dict(embeddings.input),
            "output": _table_dict(embeddings.output) if embeddings.output else None,
            "bias": embeddings.biases[0].name if embeddings.biases else None,
            "findings": [dataclasses.asdict(finding) for finding in self.findings],
            "comparison": comparison,
        }
        checkpoint = self.checkpoint
        return json_numbers(
            {
                "path": str(checkpoint.path),
                "format": checkpoint.format,
                "status": self.status,
                "flags": [flag.text for flag in checkpoint.configuration.flags],
                "models": [model],
            }
        )


def _table_dict(table: EmbeddingTable) -> dict[str, Any]:
    return {
        "name": table.tensor.name,
        "file": str(table.tensor.file),
        "type": table.tensor.stored,
        "vocabulary": table.vocabulary,
        "width": table.width,
        "transposed": table.transposed,
    }


def audit(
    path: Path,
    *,
    against: Path | None = None,
    adapter: Path | None = None,
    names: tuple[str | None, str | None] = (None, None),
    allowed: Collection[str] = (),
    progress: Progress = lambda *_: None,
) -> Audit:
    """Audit the checkpoint at a path.

    Args:
      path: a file or a folder.
      against: an older checkpoint of the same model.
      adapter: folder of an adapter for it.
      names: tensors that are the input and the output embedding; None to find them.
      allowed: causes that leave the checkpoint consistent.
      progress: called now and then, with the rows that are done.

    Raises:
      UserError: if a checkpoint cannot be read or its embeddings are not found.
      OSError: if a file cannot be opened.
    """
    checkpoint = open_checkpoint(path)
    old = open_checkpoint(against) if against else None
    trained = read_adapter(adapter) if adapter else None
    embeddings = _find(checkpoint, names)
    before = _old_table(old, embeddings.input, names) if old else None
    facts = _gather(checkpoint, embeddings, before, trained, progress)
    findings = findings_of(facts, allowed)
    return Audit(checkpoint, embeddings, findings, facts.comparison)


def _find(checkpoint: Checkpoint, names: tuple[str | None, str | None]) -> Embeddings:
    try:
        return find_embeddings(checkpoint, names)
    except UserError as error:
        texts = [str(error), *(text for _, text in index_texts(checkpoint))]
        raise UserError(f"{checkpoint.path}: {'; '.join(texts)}") from None


def _unequal(embeddings: Embeddings, where: Path, progress: Progress) -> tuple[str, ...]:
    """Return the names of tables of an encoder that differ from the input embedding.

    Raises:
      UserError: if a further table of the input or of the output embedding differs.
    """
    main = {"input": embeddings.input, "output": embeddings.output or embeddings.input}
    for role, copy in embeddings.copies:
        alike = [table for other, table in embeddings.copies if other == role]
        tables = [table.tensor.name for table in (main[role], *alike)]
        check(_is_same(copy, main[role], progress), f"{where}: {several_tables(tables, role)}")
    return tuple(
        table.tensor.name
        for table in embeddings.encoders
        if not _is_same(table, embeddings.input, progress)
    )


def _is_same(table: EmbeddingTable, like: EmbeddingTable, progress: Progress) -> bool:
    """Return whether two tables have the same values; True if packed values hide it."""
    if (table.vocabulary, table.width) != (like.vocabulary, like.width):
        return False
    is_packed = not (table.tensor.is_values and like.tensor.is_values)
    return is_packed or bool(same_rows(like, table, progress).all())


def _old_table(
    old: Checkpoint, table: EmbeddingTable, names: tuple[str | None, str | None]
) -> EmbeddingTable:
    """Return the input embedding of an older checkpoint."""
    found = _find(old, names).input
    shapes = [(one.vocabulary, one.width) for one in (found, table)]
    check(
        shapes[0] == shapes[1],
        f"--against {old.path}: its table has shape {shapes[0]}, this one {shapes[1]}; give one of"
        " the same shape",
    )
    check(
        found.tensor.is_values and table.tensor.is_values,
        f"--against {old.path}: packed embeddings are not comparable",
    )
    return found


def _gather(
    checkpoint: Checkpoint,
    embeddings: Embeddings,
    old: EmbeddingTable | None,
    adapter: Adapter | None,
    progress: Progress,
) -> Facts:
    """Read the embeddings of a model and compare them."""
    table, comparison, rows = embeddings.input, None, {}
    output = None if "output" in embeddings.packed else embeddings.output
    is_other_width = output and output.width != table.width and not embeddings.packed
    if output and (embeddings.is_draft or is_other_width):
        rows["output"], output = scan(output, None, progress)[0], None
    if "input" not in embeddings.packed:
        rows["input"], second, comparison = scan(table, output, progress)
        if second and comparison and not (comparison.is_equal and comparison.extra == 0):
            rows["output"] = second
    return Facts(
        checkpoint,
        embeddings=embeddings,
        comparison=comparison,
        rows=rows,
        unequal=_unequal(embeddings, checkpoint.path, progress),
        unchanged_V=same_rows(table, old, progress) if old else None,
        adapter=adapter,
        packed_alike=_packed_alike(checkpoint, embeddings, progress),
    )


def _packed_alike(
    checkpoint: Checkpoint, embeddings: Embeddings, progress: Progress
) -> bool | None:
    """Return whether two embeddings packed in one way are equal; None if that cannot be said."""
    if len(embeddings.packed) < 2 or embeddings.output is None:
        return None
    modules = [
        {
            name.removeprefix(stem): tensors
            for name, tensors in checkpoint.tensors.items()
            if name.startswith(stem)
        }
        for table in (embeddings.input, embeddings.output)
        for stem in (table.tensor.name.rpartition(".")[0] + ".",)
    ]
    if not modules[0] or set(modules[0]) != set(modules[1]):
        return None
    same = [same_bytes(one, modules[1][leaf], progress) for leaf, one in modules[0].items()]
    return None if None in same else all(same)
