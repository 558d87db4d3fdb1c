"""Run an audit, from a path to a verdict."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxtie.audit.adapter import Adapter, read_adapter
from jaxtie.audit.checkpoint import Checkpoint, StoredModel, open_checkpoint
from jaxtie.audit.compare import Comparison, Progress, same_rows, scan
from jaxtie.audit.find import Embeddings, EmbeddingTable, find_embeddings
from jaxtie.audit.findings import Facts, Finding, findings_of, runs_of
from jaxtie.config import check
from jaxtie.results.tables import json_numbers


@dataclass(frozen=True)
class ModelVerdict:
    """The verdict on one model."""

    arm: str  # of a run of jaxtie; else empty
    embeddings: Embeddings
    findings: tuple[Finding, ...]  # the one about tying first
    comparison: Comparison | None  # of both embeddings, if there are two that can be compared

    @property
    def is_consistent(self) -> bool:
        """Whether nothing is wrong."""
        return all(finding.level != "wrong" for finding in self.findings)

    @property
    def main(self) -> Finding:
        """The finding about tying, unless only another one is wrong."""
        return next(
            (finding for finding in self.findings if finding.level == "wrong"), self.findings[0]
        )

    @property
    def saved(self) -> int:
        """Bytes that tying saves, or has saved."""
        return (self.embeddings.output or self.embeddings.input).tensor.size

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        embeddings, comparison = self.embeddings, None
        if self.comparison:
            comparison = dataclasses.asdict(self.comparison)
            ids = comparison.pop("differing")
            comparison |= {"differing rows": len(ids), "differing runs": runs_of(ids)}
        return {
            "name": self.arm,
            "consistent": self.is_consistent,
            "verdict": self.main.text,
            "fix": self.main.fix,
            "input": _table_dict(embeddings.input),
            "output": _table_dict(embeddings.output) if embeddings.output else None,
            "bias": embeddings.bias.name if embeddings.bias else None,
            "findings": [dataclasses.asdict(finding) for finding in self.findings],
            "bytes saved by tying": self.saved,
            "comparison": comparison,
        }


def _table_dict(table: EmbeddingTable) -> dict[str, Any]:
    return {
        "name": table.tensor.name,
        "file": str(table.tensor.file),
        "type": table.tensor.stored,
        "vocabulary": table.vocabulary,
        "width": table.width,
        "transposed": table.transposed,
    }


@dataclass(frozen=True)
class Audit:
    """A checkpoint and a verdict on each model in it."""

    checkpoint: Checkpoint
    verdicts: tuple[ModelVerdict, ...]

    @property
    def status(self) -> int:
        """The exit status: 0 consistent, 1 inconsistent."""
        return int(not all(verdict.is_consistent for verdict in self.verdicts))

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; numbers that are not finite become None."""
        return json_numbers(
            {
                "path": str(self.checkpoint.path),
                "format": self.checkpoint.format,
                "status": self.status,
                "flags": [flag.text for flag in self.checkpoint.configuration.flags],
                "models": [verdict.as_dict() for verdict in self.verdicts],
            }
        )


def audit(
    path: Path,
    *,
    against: Path | None = None,
    adapter: Path | None = None,
    names: tuple[str | None, str | None] = (None, None),
    progress: Progress = lambda *_: None,
) -> Audit:
    """Audit the checkpoint at a path.

    Args:
      path: a file or a folder.
      against: an older checkpoint of the same model.
      adapter: folder of an adapter for it.
      names: tensors that are the input and the output embedding; None to find them.
      progress: called now and then, with the rows that are done.

    Raises:
      UserError: if a checkpoint cannot be read or its embeddings are not found.
      OSError: if a file cannot be opened.
    """
    checkpoint = open_checkpoint(path)
    old = open_checkpoint(against) if against else None
    trained = read_adapter(adapter) if adapter else None
    verdicts = []
    for model in checkpoint.models:
        embeddings = _find(checkpoint, model, names)
        before = _old_table(old, model, embeddings.input, names) if old else None
        facts = _gather(checkpoint, model, embeddings, before, trained, progress)
        verdict = ModelVerdict(model.arm, embeddings, findings_of(facts), facts.comparison)
        verdicts.append(verdict)
    return Audit(checkpoint, tuple(verdicts))


def _find(
    checkpoint: Checkpoint, model: StoredModel, names: tuple[str | None, str | None]
) -> Embeddings:
    where = f"{checkpoint.path}{', arm ' + model.arm if model.arm else ''}"
    return find_embeddings(model.tensors, checkpoint.configuration.vocabularies, where, names)


def _old_table(
    old: Checkpoint, model: StoredModel, table: EmbeddingTable, names: tuple[str | None, str | None]
) -> EmbeddingTable:
    """Return the input embedding of an older checkpoint."""
    others = {other.arm: other for other in old.models}
    check(
        model.arm in others,
        f"--against {old.path}: has no arm {model.arm!r}; give a checkpoint of the same model",
    )
    found = _find(old, others[model.arm], names).input
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
    model: StoredModel,
    embeddings: Embeddings,
    old: EmbeddingTable | None,
    adapter: Adapter | None,
    progress: Progress,
) -> Facts:
    """Read the embeddings of a model and compare them."""
    table, comparison, rows, unequal = embeddings.input, None, {}, []
    if "input" not in embeddings.packed:
        output = None if "output" in embeddings.packed else embeddings.output
        rows["input"], output_rows, comparison = scan(table, output, progress)
        if output_rows and comparison and not comparison.is_equal:
            rows["output"] = output_rows
        copies = [copy for copy in embeddings.copies if copy.tensor.is_values]
        unequal = [copy for copy in copies if not same_rows(table, copy, progress).all()]
    whole = adapter.tables if adapter else None
    configuration = checkpoint.configuration
    return Facts(
        checkpoint,
        model.arm,
        claim=configuration.claim if model.tied is None else model.tied,
        claimant="the arm is declared" if model.arm else configuration.claimant,
        embeddings=embeddings,
        comparison=comparison,
        rows=rows,
        unequal_copies=tuple(copy.tensor.name for copy in unequal),
        unchanged_V=same_rows(table, old, progress) if old else None,
        adapter=adapter,
        adapter_differs=not same_rows(*whole, progress).all() if whole else None,
    )
