"""Run an audit, from a path to a verdict."""

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxtie.audit.checkpoint import Checkpoint, open_checkpoint
from jaxtie.audit.compare import ShowProgress, TableComparison, same_bytes, same_values, scan
from jaxtie.audit.find import (
    Adapter,
    Embeddings,
    EmbeddingTable,
    find_embeddings,
    read_adapter,
    several_tables,
)
from jaxtie.audit.findings import Facts, Finding, findings_of, runs_of
from jaxtie.config import UserError, check
from jaxtie.results.tables import json_numbers


@dataclass(frozen=True)
class Audit:
    """A checkpoint and the verdict on its model."""

    checkpoint: Checkpoint
    embeddings: Embeddings
    findings: tuple[Finding, ...]  # the one about tying first
    comparison: TableComparison | None  # of both embeddings, if there are two that can be compared

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
        checkpoint, embeddings, comparison = self.checkpoint, self.embeddings, None
        if self.comparison:
            comparison = dataclasses.asdict(self.comparison)
            ids = comparison.pop("differing")
            comparison |= {"differing rows": len(ids), "differing runs": runs_of(ids)}
        values = {
            "path": str(checkpoint.path),
            "format": checkpoint.format,
            "status": self.status,
            "cause": self.main.code if self.status else None,
            "verdict": self.main.text,
            "fix": self.main.fix,
            "flags": [flag.text for flag in checkpoint.configuration.flags],
            "input": _table_dict(embeddings.input),
            "output": _table_dict(embeddings.output) if embeddings.output else None,
            "biases": [bias.name for bias in embeddings.biases],
            "findings": [dataclasses.asdict(finding) for finding in self.findings],
            "comparison": comparison,
        }
        return json_numbers(values)


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
    adapter: Path | None = None,
    names: tuple[str | None, str | None] = (None, None),
    allowed: Collection[str] = (),
    progress: ShowProgress = lambda *_: None,
) -> Audit:
    """Audit the checkpoint at a path.

    Args:
      path: a file or a folder.
      adapter: folder of an adapter for it.
      names: tensors that are the input and the output embedding; None to find them.
      allowed: causes that leave the checkpoint consistent.
      progress: called now and then, with the rows that are done.

    Raises:
      UserError: if a checkpoint cannot be read or its embeddings are not found.
      OSError: if a file cannot be opened.
    """
    checkpoint = open_checkpoint(path)
    trained = read_adapter(adapter) if adapter else None
    try:
        embeddings = find_embeddings(checkpoint, names)
    except UserError as error:
        raise UserError(f"{checkpoint.path}: {error}") from None
    facts = _gather(checkpoint, embeddings, trained, progress)
    return Audit(checkpoint, embeddings, findings_of(facts, allowed), facts.comparison)


def _unequal(embeddings: Embeddings, where: Path, progress: ShowProgress) -> tuple[str, ...]:
    """Return the names of tables of an encoder that differ from the input embedding.

    Raises:
      UserError: if a further table of the input or of the output embedding differs.
    """
    main = {"input": embeddings.input, "output": embeddings.output or embeddings.input}
    for role, copy in embeddings.copies:
        alike = [table for other, table in embeddings.copies if other == role]
        tables = [table.tensor.name for table in (main[role], *alike)]
        check(same_values(copy, main[role], progress), f"{where}: {several_tables(tables, role)}")
    return tuple(
        table.tensor.name
        for table in embeddings.encoders
        if not same_values(table, embeddings.input, progress)
    )


def _gather(
    checkpoint: Checkpoint, embeddings: Embeddings, adapter: Adapter | None, progress: ShowProgress
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
        adapter=adapter,
        packed_alike=_packed_alike(checkpoint, embeddings, progress),
    )


def _packed_alike(
    checkpoint: Checkpoint, embeddings: Embeddings, progress: ShowProgress
) -> bool | None:
    """Return whether two embeddings packed in one way are equal; None if that cannot be said."""
    if len(embeddings.packed) < 2 or embeddings.output is None:
        return None
    tables, tensors = (embeddings.input, embeddings.output), checkpoint.tensors.items()
    stems = [f"{table.tensor.name.rpartition('.')[0]}." for table in tables]
    modules = [
        {name.removeprefix(stem): one for name, one in tensors if name.startswith(stem)}
        for stem in stems
    ]
    if not modules[0] or set(modules[0]) != set(modules[1]):
        return None
    same = [same_bytes(one, modules[1][leaf], progress) for leaf, one in modules[0].items()]
    return None if None in same else all(same)
