"""An audit from a path to a verdict."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxtie.audit.adapter import read_adapter
from jaxtie.audit.checkpoint import Checkpoint, Subject, open_checkpoint
from jaxtie.audit.compare import Relationship, Scan, Ticker, same_rows, scan
from jaxtie.audit.find import Ends, RowTable, find_ends
from jaxtie.audit.findings import (
    Finding,
    Known,
    of_adapter,
    of_bias,
    of_copies,
    of_files,
    of_flags,
    of_rows,
    of_unchanged,
    tying,
)
from jaxtie.audit.ids import runs_of
from jaxtie.config import UserError, check
from jaxtie.results.tables import finite


@dataclass(frozen=True)
class Request:
    """What is asked of an audit.

    Attributes:
      against: an older checkpoint of the same model.
      adapter: folder of an adapter over it.
      input_name, output_name: tensors that are the tables, whatever their names.
    """

    against: Path | None = None
    adapter: Path | None = None
    input_name: str | None = None
    output_name: str | None = None


@dataclass(frozen=True)
class ModelVerdict:
    """One model's.

    Attributes:
      name: the arm of a run; empty elsewhere.
      ends: its tables.
      findings: the one about tying first.
      relationship: how the output table relates to the input's; None where there are not two to
        compare.
      saved: bytes that tying saves, or has saved.
    """

    name: str
    ends: Ends
    findings: tuple[Finding, ...]
    relationship: Relationship | None
    saved: int

    @property
    def is_consistent(self) -> bool:
        """Whether nothing is wrong."""
        return all(finding.level != "wrong" for finding in self.findings)

    @property
    def main(self) -> Finding:
        """The finding to be told first: the one about tying, unless only another one is wrong."""
        first = self.findings[0]
        wrong = [finding for finding in self.findings if finding.level == "wrong"]
        return first if first.level == "wrong" or not wrong else wrong[0]


@dataclass(frozen=True)
class Audit:
    """What an audit found: the checkpoint and a verdict for each model in it."""

    checkpoint: Checkpoint
    verdicts: tuple[ModelVerdict, ...]

    @property
    def status(self) -> int:
        """0 consistent, 1 inconsistent."""
        return int(not all(verdict.is_consistent for verdict in self.verdicts))

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as JSON has them; what is not finite is None."""
        found = {
            "path": str(self.checkpoint.path),
            "format": self.checkpoint.form,
            "status": self.status,
            "flags": [flag.text for flag in self.checkpoint.configuration.flags],
            "models": [_verdict_dict(verdict) for verdict in self.verdicts],
        }
        return finite(found)


def _verdict_dict(verdict: ModelVerdict) -> dict[str, Any]:
    def table(found: RowTable | None) -> dict[str, Any] | None:
        if found is None:
            return None
        place = {
            "name": found.tensor.name,
            "file": str(found.tensor.file),
            "type": found.tensor.stored,
        }
        return place | {
            "vocabulary": found.vocabulary,
            "width": found.width,
            "transposed": found.across,
        }

    return {
        "name": verdict.name,
        "consistent": verdict.is_consistent,
        "verdict": verdict.main.text,
        "fix": verdict.main.fix,
        "input": table(verdict.ends.input),
        "output": table(verdict.ends.output),
        "bias": verdict.ends.bias.name if verdict.ends.bias else None,
        "findings": [dataclasses.asdict(finding) for finding in verdict.findings],
        "bytes saved by tying": verdict.saved,
        "comparison": _comparison_dict(verdict.relationship) if verdict.relationship else None,
    }


def _comparison_dict(found: Relationship) -> dict[str, Any]:
    plain = {
        name: value for name, value in dataclasses.asdict(found).items() if name != "differing"
    }
    return plain | {
        "differing rows": len(found.differing),
        "differing runs": runs_of(found.differing),
    }


def audit(path: Path, asked: Request, tick: Ticker) -> Audit:
    """Audit the checkpoint at a path.

    Args:
      tick: called with the progress, in rows.

    Raises:
      UserError: where it, or what it is compared with, cannot be read, or tables are not found.
      OSError: where a file cannot be opened.
    """
    checkpoint = open_checkpoint(path)
    old = open_checkpoint(asked.against) if asked.against else None
    verdicts = tuple(
        _judge(checkpoint, subject, old, asked, tick) for subject in checkpoint.subjects
    )
    return Audit(checkpoint, verdicts)


def _find(checkpoint: Checkpoint, subject: Subject, asked: Request) -> Ends:
    where = f"{checkpoint.path}{', arm ' + subject.name if subject.name else ''}"
    sizes = checkpoint.configuration.vocabularies
    return find_ends(subject.tensors, sizes, where, asked.input_name, asked.output_name)


def _judge(
    checkpoint: Checkpoint, subject: Subject, old: Checkpoint | None, asked: Request, tick: Ticker
) -> ModelVerdict:
    ends = _find(checkpoint, subject, asked)
    before = _same_table(old, subject, ends.input, asked) if old else None
    # what cannot be read is refused before the long part
    adapter = read_adapter(asked.adapter) if asked.adapter else None
    looked = _look(ends, tick)
    configuration = checkpoint.configuration
    claim = configuration.claim if subject.tied is None else subject.tied
    says = "the arm is declared" if subject.name else configuration.says
    known = Known(
        checkpoint, subject.name, claim, says, ends, looked.comparison if looked else None
    )
    unequal = [
        copy.tensor.name
        for copy in ends.copies
        if looked and copy.tensor.is_values and not same_rows(ends.input, copy, tick).all()
    ]
    found = [tying(known), *of_files(checkpoint), *of_flags(known), *of_copies(known, unequal)]
    if looked:
        found += of_rows("input", looked.input)
        found += (
            of_rows("output", looked.output)
            if looked.output and looked.comparison and not looked.comparison.is_equal
            else []
        )
    if before:
        found.append(of_unchanged(same_rows(ends.input, before, tick)))
    if adapter:
        differ = not same_rows(*adapter.tables, tick).all() if adapter.tables else None
        found.append(of_adapter(known, adapter, differ))
    if subject.name == "":  # else of a run, whose members' tables lie behind each other
        found.append(of_bias(known))
    return ModelVerdict(subject.name, ends, tuple(found), known.comparison, _saved(ends))


def _look(ends: Ends, tick: Ticker) -> Scan | None:
    """All rows; of packed tables none, and of a packed output the input alone."""
    if "input" in ends.packed:
        return None
    return scan(ends.input, None if "output" in ends.packed else ends.output, tick)


def _same_table(old: Checkpoint, subject: Subject, table: RowTable, asked: Request) -> RowTable:
    """The input table of an older checkpoint."""
    others = {other.name: other for other in old.subjects}
    check(
        subject.name in others,
        f"--against {old.path}: has no arm {subject.name!r}; give a checkpoint of the same model",
    )
    found = _find(old, others[subject.name], asked).input
    shapes = [(one.vocabulary, one.width) for one in (table, found)]
    if shapes[0] != shapes[1]:
        raise UserError(
            f"--against {old.path}: its table has shape {shapes[1]}, this one {shapes[0]}; give one"
            " of the same shape"
        )
    check(
        found.tensor.is_values and table.tensor.is_values,
        f"--against {old.path}: packed tables are not comparable",
    )
    return found


def _saved(ends: Ends) -> int:
    return (ends.output or ends.input).tensor.size
