"""What a checkpoint's tables and flags come to, in sentences; each with what to do about it and
what loaders will do.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from jaxtie.audit.adapter import Adapter
from jaxtie.audit.checkpoint import Checkpoint
from jaxtie.audit.compare import Relationship, RowFacts, repeated
from jaxtie.audit.find import Ends
from jaxtie.audit.flags import Configuration
from jaxtie.audit.ids import part_of, runs_of, shown_ids
from jaxtie.audit.loaders import LOADERS, Condition

# architectures that needed output.weight, see the loaders
OLD_LLAMA_CPP = (
    "gpt2",
    "bloom",
    "codeshell",
)
SHOWN_NAMES = 5
Level = Literal["wrong", "note", "fine"]


@dataclass(frozen=True)
class Finding:
    """One thing that was found.

    Attributes:
      code: names the sort of it, for programs.
      level: "wrong" makes the checkpoint inconsistent; "note" is worth knowing; "fine" is as it
        should be.
      text: a sentence.
      fix: what to do; may be empty.
      loaders: what loaders do then, a line each.
    """

    code: str
    level: Level
    text: str
    fix: str = ""
    loaders: tuple[str, ...] = ()


class Known(NamedTuple):
    """What the sentences are made of: one model of a checkpoint."""

    checkpoint: Checkpoint
    arm: str  # of a run of jaxtie
    claim: bool | None  # whether it is said to be tied
    says: str  # who says so: "config.json says"
    ends: Ends
    comparison: Relationship | None

    @property
    def configuration(self) -> Configuration:
        return self.checkpoint.configuration


def loaders_for(condition: Condition) -> tuple[str, ...]:
    """Lines on what loaders do."""
    return tuple(loader.text for loader in LOADERS[condition])


def tying(known: Known) -> Finding:
    """The main finding: once, equal, different or not comparable; and whether the flags say so."""
    output, comparison = known.ends.output, known.comparison
    if output is None:
        return _once(known)
    if comparison is None:
        return _packed(known)
    judge = _equal if comparison.is_equal else _different
    return judge(known, output.tensor.name, comparison)


def _packed(known: Known) -> Finding:
    which = " and ".join(
        f"the {role} embedding is packed: {word}" for role, word in known.ends.packed.items()
    )
    text = f"Not comparable: {which}; nothing is guessed about its values."
    return Finding("packed", "note", text, loaders=loaders_for("packed"))


def _once(known: Known) -> Finding:
    name, configuration = known.ends.input.tensor.name, known.configuration
    stored = f"one table, {name}, is stored"
    if known.checkpoint.form == "GGUF":
        text = f"Tied: {stored} and no output.weight, which in a GGUF means tied."
        old = known.checkpoint.architecture in OLD_LLAMA_CPP
        return Finding("once", "fine", text, loaders=loaders_for("gguf once") if old else ())
    if known.claim is False and configuration.headless:
        return Finding(
            "once", "fine", f"No output embedding: {stored}, and the architecture has no head."
        )
    if known.claim is False:
        text = f"{_capital(known.says)} untied, but only {stored}; the output embedding is missing."
        fix = f"{configuration.fix(True)} if it was trained tied; else restore the output embedding"
        return Finding("untied-but-once", "wrong", text, fix, loaders_for("untied, once"))
    if configuration.top is None and configuration.nested is True:
        text = (
            f"Only {stored}, and the flag that says tied stands in a nested configuration, not at"
            " the top level."
        )
        return Finding(
            "top-missing",
            "wrong",
            text,
            configuration.fix(True) + " at the top level",
            loaders_for("top missing, once"),
        )
    if known.claim is None:
        return Finding("once", "fine", f"Tied, it seems: {stored}, and no flag says anything.")
    return Finding("once", "fine", f"Tied: {stored}, and {known.says} tied.")


def how(comparison: Relationship) -> str:
    """`after a cast and a transpose`; empty where the bits are the same as they lie."""
    ways = ["a cast"] if comparison.relation == "cast" else []
    ways += [f"a scale of {comparison.scale:.6g}"] if comparison.relation == "scale" else []
    ways += ["a transpose"] if comparison.transposed else []
    ways += (
        [f"padding: {comparison.extra:,} more rows in the output"] if comparison.extra > 0 else []
    )
    ways += (
        [f"a slice: the output has the first {comparison.common:,} rows only"]
        if comparison.extra < 0
        else []
    )
    return f" after {', '.join(ways)}" if ways else ""


def _equal(known: Known, output: str, comparison: Relationship) -> Finding:
    configuration = known.configuration
    same = f"the two tables are equal{how(comparison) or ' in every bit'}"
    scale = comparison.scale
    if comparison.relation == "scale":
        width = known.ends.input.width
        root = (
            " (√D)"
            if abs(scale**2 / width - 1) < 0.01
            else " (1/√D)"
            if abs(scale**2 * width - 1) < 0.01
            else ""
        )
        text = f"Equal but for a scale: output = {scale:.6g}{root} × input."
        if known.claim:
            fix = "take the scale out of one table, or " + configuration.fix(False)
            text = f"{_capital(known.says)} tied, but {text[0].lower()}{text[1:]}"
            return Finding("tied-but-scaled", "wrong", text, fix, loaders_for("tied, different"))
        return Finding("scaled", "note", text)
    if known.claim is False:
        text = f"{_capital(known.says)} untied, but {same}."
        fix = f"{configuration.fix(True)} and drop {output}, if it was trained tied"
        return Finding("untied-but-equal", "wrong", text, fix)
    said = f", and {known.says} tied" if known.claim else "; no flag says anything"
    text = f"Tied, stored twice: {same}{said}."
    return Finding("equal", "fine", text, f"drop {output}: tied loaders need it once")


def _different(known: Known, output: str, comparison: Relationship) -> Finding:
    configuration = known.configuration
    count, ids = len(comparison.differing), comparison.differing
    where = shown_ids(ids, comparison.common)
    rows = (
        f"all {count:,} rows"
        if count == comparison.common
        else f"{count:,} of {comparison.common:,} rows ({where})"
    )
    but = how(comparison) if count < comparison.common else ""
    differ = (
        f"the two tables differ in {rows}{', equal elsewhere' + but if but else ''}, by"
        f" {comparison.largest:.3g} at most"
    )
    if known.claim is False:
        return Finding("different", "fine", f"Untied: {differ}, and {known.says} untied.")
    if known.claim is None:
        advice = configuration.fix(False) if configuration.path else ""
        level: Level = "note" if configuration.path else "fine"
        return Finding(
            "different", level, f"Untied, it seems: {differ}; no flag says anything.", advice
        )
    fix = f"{configuration.fix(False)}, if both tables were trained; else drop {output}"
    code, loaders = "tied-but-different", loaders_for("tied, different")
    if part_of(ids, comparison.common):
        fix = f"look for a shard that was not trained or gathered; {fix}"
        loaders += loaders_for("shard")
    return Finding(code, "wrong", f"{_capital(known.says)} tied, but {differ}.", fix, loaders)


def _capital(text: str) -> str:
    return text if text.startswith("config") else text[0].upper() + text[1:]


def of_files(checkpoint: Checkpoint) -> list[Finding]:
    """Names in the index that no file has, and the reverse."""
    found = []
    for code, names, text in (
        ("index-without-tensor", checkpoint.missing, "in the index, but in no file"),
        ("tensor-without-index", checkpoint.unlisted, "in a file, but not in the index"),
    ):
        if names:
            shown = ", ".join(map(repr, names[:SHOWN_NAMES])) + (
                ", ..." if len(names) > SHOWN_NAMES else ""
            )
            fix = "write the index again from the files"
            text = (
                f"{len(names):,} {'name is' if len(names) == 1 else 'names are'} {text}: {shown}."
            )
            found.append(Finding(code, "wrong", text, fix, loaders_for("index and files")))
    return found


def of_flags(known: Known) -> list[Finding]:
    """Levels of a configuration that say different things; a vocabulary that no table has."""
    configuration, found = known.configuration, []
    if configuration.disagrees:
        said = "; ".join(flag.text for flag in configuration.said)
        once = known.ends.output is None or (
            known.comparison is not None and known.comparison.is_equal
        )
        fix = configuration.fix(once)
        text = f"The levels of {configuration.file} disagree: {said}."
        found.append(Finding("levels-disagree", "wrong", text, fix, loaders_for("levels disagree")))
    rows = {table.vocabulary for table in (known.ends.input, known.ends.output) if table}
    sizes = configuration.vocabularies
    if sizes and not rows & set(sizes) and not known.ends.packed:
        size, most = max(sizes), max(rows)
        level: Level = "note" if most > size else "wrong"
        text = f"{configuration.file} says vocab_size {size:,}, the table has {most:,} rows."
        fix = "" if level == "note" else f"set vocab_size: {most}, or restore the rows"
        found.append(Finding("vocabulary", level, text, fix))
    return found


def of_copies(known: Known, unequal: list[str]) -> list[Finding]:
    """Encoder's and decoder's tables; `unequal`: names of those that differ from the input."""
    name = known.ends.input.tensor.name
    if unequal:
        text = (
            f"{', '.join(unequal)} differ from {name}, but a model of this kind has one table for"
            " encoder and decoder."
        )
        return [
            Finding(
                "copies-differ", "wrong", text, "keep one of them", loaders_for("no shared table")
            )
        ]
    if (
        known.ends.has_encoder
        and not known.ends.copies
        and name.endswith("decoder.embed_tokens.weight")
        and known.ends.output
    ):
        text = (
            "There is an encoder, but no table for it: neither shared nor encoder.embed_tokens,"
            f" only {name}."
        )
        fix = f"write {name} as shared.weight too"
        return [Finding("no-shared-table", "wrong", text, fix, loaders_for("no shared table"))]
    return []


def of_rows(role: str, facts: RowFacts) -> list[Finding]:
    """NaN and infinities, zeros, repeats."""
    found, count = [], len(facts.zero_V)
    nan, infinite = int(facts.nan_V.sum()), int(facts.infinite_V.sum())
    if nan or infinite:
        ids = np.flatnonzero(facts.nan_V + facts.infinite_V)
        text = (
            f"The {role} table holds {nan:,} NaN and {infinite:,} infinities, in {len(ids):,} rows"
            f" ({shown_ids(ids, count)})."
        )
        found.append(
            Finding("not-finite", "wrong", text, "go back to a checkpoint before they appeared")
        )
    zeros = np.flatnonzero(facts.zero_V)
    if len(zeros) == count:
        text = f"The {role} table is dead: all {count:,} rows are zero."
        found.append(Finding("dead-table", "wrong", text, "tie it, or restore it"))
    elif len(zeros):
        part = part_of(zeros, count)
        text = f"{len(zeros):,} rows of the {role} table are zero ({shown_ids(zeros, count)})."
        found.append(
            Finding(
                "zero-rows", "wrong" if part else "note", text, "restore the shard" if part else ""
            )
        )
    rows, most = repeated(facts)
    if rows:
        text = (
            f"{rows:,} rows of the {role} table stand more than once, one of them {most:,} times:"
            " never trained apart."
        )
        found.append(Finding("repeated-rows", "note", text))
    return found


def of_bias(known: Known) -> Finding:
    """Whether there is an output bias, and what that means."""
    if known.ends.bias is None:
        text = (
            "No output bias: odds of two tokens that mean the same must stand in the rows of the"
            " output embedding, which holds those rows apart; tied, in the input embedding too."
        )
        return Finding("no-bias", "fine", text)
    text = (
        f"Output bias: {known.ends.bias.name}. It can carry constant odds of tokens, so that rows"
        " need not."
    )
    tied = known.claim and known.ends.bias.name.split(".")[-2:] == ["lm_head", "bias"]
    return Finding(
        "bias", "note" if tied else "fine", text, loaders=loaders_for("tied, bias") if tied else ()
    )


def of_unchanged(same_V: np.ndarray) -> Finding:
    """Rows of the input table that are what they were in an older checkpoint."""
    ids, count = np.flatnonzero(same_V), len(same_V)
    if not len(ids):
        return Finding("against", "fine", f"All {count:,} rows have changed since OLD.")
    if len(ids) == count:
        return Finding(
            "against", "note", f"No row has changed since OLD: all {count:,} are the same."
        )
    longest = max(runs_of(ids), key=lambda run: run[1] - run[0])
    run = np.arange(longest[0], longest[1] + 1)
    part = part_of(run, count)
    others = f"; {len(ids) - len(run):,} others elsewhere" if len(ids) > len(run) else ""
    text = (
        f"{len(ids):,} of {count:,} rows are unchanged since OLD ({shown_ids(run, count)}{others})."
    )
    if part:
        fix = "train again with input and output embedding in one shard group"
        return Finding("untrained-shard", "wrong", text, fix, loaders_for("shard"))
    return Finding("against", "note", text)


def of_adapter(known: Known, adapter: Adapter, differ: bool | None) -> Finding:
    """An adapter over this model; `differ`: whether its two whole tables do, None where it has not
    both.
    """
    compared = known.comparison
    base_tied = known.ends.output is None or (
        compared.is_equal and known.claim is not False if compared else bool(known.claim)
    )
    sides = [
        side for side, names in (("input", adapter.input), ("output", adapter.output)) if names
    ]
    if not sides:
        return Finding("adapter", "fine", "The adapter trains neither embedding.")
    if not base_tied or adapter.keeps_tied:
        why = (
            "keeps the two tied (ensure_weight_tying)"
            if adapter.keeps_tied
            else "is over untied tables"
        )
        return Finding(
            "adapter",
            "fine",
            f"The adapter trains the {' and the '.join(sides)} embedding and {why}.",
        )
    fix = "train it again with ensure_weight_tying=True, or untie the model first: "
    fix += known.configuration.fix(False)
    if len(sides) == 1:
        names = ", ".join(adapter.input + adapter.output)
        text = f"The adapter trains one side of a tied pair, the {sides[0]} embedding: {names}."
        return Finding("adapter-one-side", "wrong", text, fix, loaders_for("one side adapted"))
    if differ is False:
        return Finding(
            "adapter", "fine", "The adapter has both embeddings of a tied pair, and they are equal."
        )
    text = "The adapter trains both embeddings of a tied pair apart from each other."
    return Finding("adapter-both-sides", "wrong", text, fix, loaders_for("both sides adapted"))
