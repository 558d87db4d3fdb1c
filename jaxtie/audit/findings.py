"""The rules of the audit: each yields findings with a fix and the behaviour of loaders.

To add a rule, write a function of `Facts` that yields findings and add it to `RULES`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from jaxtie.audit.adapter import Adapter
from jaxtie.audit.checkpoint import Checkpoint
from jaxtie.audit.compare import Comparison, RowFacts, count_repeated
from jaxtie.audit.find import Embeddings
from jaxtie.audit.flags import Configuration
from jaxtie.audit.knowledge import loader_lines

OLD_LLAMA_CPP = ("gpt2", "bloom", "codeshell")  # these once needed output.weight
SHOWN_NAMES = 5
SHOWN_RUNS = 3
MAX_SHARDS = 64
SHARD_COVERAGE = 0.8  # of a shard must be in a set of ids
ADDED_TOKENS = 0.95  # from this share of the vocabulary on ids may be added tokens
FRACTIONS = {2: "half", 3: "third", 4: "quarter", 8: "eighth", 16: "sixteenth"}


@dataclass(frozen=True)
class Finding:
    """One thing that was found."""

    code: str  # identifies the kind of finding, for programs
    level: Literal["wrong", "note", "fine"]  # "wrong" makes the checkpoint inconsistent
    text: str  # a sentence
    fix: str = ""
    loaders: tuple[str, ...] = ()  # what loaders do in this case, a line each


@dataclass(frozen=True)
class Facts:
    """Facts about one model of a checkpoint."""

    checkpoint: Checkpoint
    arm: str  # of a run of jaxtie; else empty
    claim: bool | None  # whether the model is said to be tied; None if nothing says so
    claimant: str  # the beginning of a sentence: "config.json says"
    embeddings: Embeddings
    comparison: Comparison | None  # of both embeddings, if there are two that can be compared
    rows: Mapping[str, RowFacts]  # "input" and, if it differs, "output"; none that is packed
    unequal_copies: tuple[str, ...]  # names of further input embeddings that differ
    unchanged_V: np.ndarray | None  # whether a row is the same as in OLD
    adapter: Adapter | None
    adapter_differs: bool | None  # whether its two whole embeddings differ; None without both

    @property
    def configuration(self) -> Configuration:
        """The checkpoint's configuration."""
        return self.checkpoint.configuration

    @property
    def said(self) -> str:
        """The claimant as it begins a sentence."""
        text = self.claimant
        return text if text.startswith("config") else text[0].upper() + text[1:]


def findings_of(facts: Facts) -> tuple[Finding, ...]:
    """Apply all rules; the finding about tying comes first."""
    return tuple(finding for rule in RULES for finding in rule(facts))


def _tying(facts: Facts) -> Iterator[Finding]:
    """Report how the embeddings relate, and whether the flags say so."""
    output, comparison = facts.embeddings.output, facts.comparison
    if output is None:
        yield _stored_once(facts)
    elif comparison is None:
        packed = " and ".join(
            f"the {role} embedding is packed: {word}"
            for role, word in facts.embeddings.packed.items()
        )
        text = f"Not comparable: {packed}; its values are not guessed."
        yield Finding("packed", "note", text, loaders=loader_lines("packed"))
    elif not comparison.is_equal:
        yield _different(facts, output.tensor.name, comparison)
    elif comparison.relation == "scale":
        yield _scaled(facts, comparison)
    else:
        yield _equal(facts, output.tensor.name, comparison)


def _stored_once(facts: Facts) -> Finding:
    configuration = facts.configuration
    stored = f"one embedding table, {facts.embeddings.input.tensor.name}, is stored"
    if facts.checkpoint.format == "GGUF":
        text = f"Tied: {stored} and no output.weight, which in a GGUF means tied."
        is_old = facts.checkpoint.architecture in OLD_LLAMA_CPP
        return Finding("once", "fine", text, loaders=loader_lines("gguf_once") if is_old else ())
    if facts.claim is False:
        if configuration.headless:
            text = f"No output embedding: {stored}, and the architecture has no head."
            return Finding("once", "fine", text)
        text = f"{facts.said} untied, but only {stored}; the output embedding is missing."
        fix = f"{configuration.fix(True)} if it was trained tied; else restore the output embedding"
        return Finding("untied-but-once", "wrong", text, fix, loader_lines("untied_but_once"))
    if configuration.top is None and configuration.nested is True:
        text = (
            f"Only {stored}, and the flag that says tied is in a nested configuration, not at the"
            " top level."
        )
        fix = configuration.fix(True) + " at the top level"
        return Finding("top-missing", "wrong", text, fix, loader_lines("top_missing"))
    if facts.claim is None:
        return Finding("once", "fine", f"Apparently tied: {stored}, and no flag says anything.")
    return Finding("once", "fine", f"Tied: {stored}, and {facts.claimant} tied.")


def _how_equal(comparison: Comparison) -> str:
    """Return ` after a cast, a transpose`; empty if the bits are equal as stored."""
    extra = comparison.extra
    ways = {
        "a cast": comparison.relation == "cast",
        f"a scale of {comparison.scale:.6g}": comparison.relation == "scale",
        "a transpose": comparison.transposed,
        f"padding: {extra:,} more rows in the output": extra > 0,
        f"a slice: the output has the first {comparison.common:,} rows only": extra < 0,
    }
    shown = ", ".join(way for way, holds in ways.items() if holds)
    return f" after {shown}" if shown else ""


def _scaled(facts: Facts, comparison: Comparison) -> Finding:
    scale, width, root = comparison.scale, facts.embeddings.input.width, ""
    if abs(scale**2 / width - 1) < 0.01:
        root = " (√D)"
    elif abs(scale**2 * width - 1) < 0.01:
        root = " (1/√D)"
    how = f"up to a scale: output = {scale:.6g}{root} × input."
    if not facts.claim:
        return Finding("scaled", "note", f"Equal {how}")
    text = f"{facts.said} tied, but the two embeddings are equal only {how}"
    fix = f"remove the scale from one embedding, or {facts.configuration.fix(False)}"
    return Finding("tied-but-scaled", "wrong", text, fix, loader_lines("tied_but_different"))


def _equal(facts: Facts, output: str, comparison: Comparison) -> Finding:
    same = f"the two embeddings are equal{_how_equal(comparison) or ' in every bit'}"
    if facts.claim is False:
        fix = f"{facts.configuration.fix(True)} and drop {output}, if it was trained tied"
        return Finding("untied-but-equal", "wrong", f"{facts.said} untied, but {same}.", fix)
    claim = f", and {facts.claimant} tied" if facts.claim else "; no flag says anything"
    fix = f"drop {output}: loaders need a tied embedding only once"
    return Finding("equal", "fine", f"Tied, stored twice: {same}{claim}.", fix)


def _different(facts: Facts, output: str, comparison: Comparison) -> Finding:
    ids, common = comparison.differing, comparison.common
    rows, elsewhere = f"all {common:,} rows", ""
    if len(ids) < common:
        rows = f"{len(ids):,} of {common:,} rows ({describe_ids(ids, common)})"
        how = _how_equal(comparison)
        elsewhere = f", and are equal elsewhere{how}" if how else ""
    differ = f"the two embeddings differ in {rows}, by at most {comparison.largest:.3g}{elsewhere}"
    if facts.claim is False:
        return Finding("different", "fine", f"Untied: {differ}, and {facts.claimant} untied.")
    untie = facts.configuration.fix(False)
    if facts.claim is None:
        text, fix = f"Apparently untied: {differ}; no flag says anything.", ""
        if facts.configuration.path:
            fix = untie
        return Finding("different", "note" if fix else "fine", text, fix)
    fix = f"{untie}, if both were trained; else drop {output}"
    loaders = loader_lines("tied_but_different")
    if find_shard(ids, common):
        fix = f"look for a shard that was not trained or gathered; {fix}"
        loaders += loader_lines("shard")
    text = f"{facts.said} tied, but {differ}."
    return Finding("tied-but-different", "wrong", text, fix, loaders)


def _index_and_files(facts: Facts) -> Iterator[Finding]:
    """Report names in the index that no file has, and the reverse."""
    for code, names, where in (
        ("index-without-tensor", facts.checkpoint.missing, "in the index, but in no file"),
        ("tensor-without-index", facts.checkpoint.unlisted, "in a file, but not in the index"),
    ):
        if names:
            shown = ", ".join(map(repr, names[:SHOWN_NAMES]))
            more = ", ..." if len(names) > SHOWN_NAMES else ""
            subject = "1 name is" if len(names) == 1 else f"{len(names):,} names are"
            text = f"{subject} {where}: {shown}{more}."
            fix = "rebuild the index from the files"
            yield Finding(code, "wrong", text, fix, loader_lines("index_and_files"))


def _levels(facts: Facts) -> Iterator[Finding]:
    """Report levels of the configuration that contradict each other."""
    configuration, comparison = facts.configuration, facts.comparison
    if len({flag.tied for flag in configuration.declared}) > 1:
        flags = "; ".join(flag.text for flag in configuration.declared)
        text = f"The levels of config.json disagree: {flags}."
        is_equal = comparison is not None and comparison.is_equal
        fix = configuration.fix(facts.embeddings.output is None or is_equal)
        yield Finding("levels-disagree", "wrong", text, fix, loader_lines("levels_disagree"))


def _vocabulary(facts: Facts) -> Iterator[Finding]:
    """Report a vocabulary size that no embedding has."""
    embeddings, sizes = facts.embeddings, facts.configuration.vocabularies
    rows = {table.vocabulary for table in (embeddings.input, embeddings.output) if table}
    if sizes and not rows & set(sizes) and not embeddings.packed:
        size, most = max(sizes), max(rows)
        text = f"config.json says vocab_size {size:,}, but the embedding has {most:,} rows."
        fix = "" if most > size else f"set vocab_size: {most}, or restore the rows"
        yield Finding("vocabulary", "wrong" if fix else "note", text, fix)


def _copies(facts: Facts) -> Iterator[Finding]:
    """Report an encoder whose embedding is missing or differs from the decoder's."""
    embeddings, unequal = facts.embeddings, facts.unequal_copies
    name, loaders = embeddings.input.tensor.name, loader_lines("no_shared_table")
    is_decoder = name.endswith("decoder.embed_tokens.weight")
    if unequal:
        verb = "differs" if len(unequal) == 1 else "differ"
        text = (
            f"{', '.join(unequal)} {verb} from {name}, but in a model of this kind encoder and"
            " decoder share one embedding."
        )
        yield Finding("copies-differ", "wrong", text, "keep one of them", loaders)
    elif is_decoder and embeddings.has_encoder and embeddings.output and not embeddings.copies:
        text = (
            "There is an encoder, but no embedding for it: neither shared nor encoder.embed_tokens,"
            f" only {name}."
        )
        fix = f"write {name} as shared.weight too"
        yield Finding("no-shared-table", "wrong", text, fix, loaders)


def _rows(facts: Facts) -> Iterator[Finding]:
    """Report NaN, infinities, zeros and repeats."""
    for role, own in facts.rows.items():
        count = len(own.zero_V)
        nan, infinite = int(own.nan_V.sum()), int(own.infinite_V.sum())
        if nan or infinite:
            ids = np.flatnonzero(own.nan_V + own.infinite_V)
            rows = "1 row" if len(ids) == 1 else f"{len(ids):,} rows"
            text = (
                f"The {role} embedding holds {nan:,} NaN and {infinite:,} infinite values, in"
                f" {rows} ({describe_ids(ids, count)})."
            )
            fix = "go back to a checkpoint before they appeared"
            yield Finding("not-finite", "wrong", text, fix)
        zeros = np.flatnonzero(own.zero_V)
        if len(zeros) == count:
            text = f"The {role} embedding is dead: all {count:,} rows are zero."
            yield Finding("dead-table", "wrong", text, "tie it, or restore it")
        elif len(zeros):
            where = f"{len(zeros):,} ({describe_ids(zeros, count)})"
            text = f"Rows of zeros in the {role} embedding: {where}."
            is_shard = find_shard(zeros, count) is not None
            fix = "restore the shard" if is_shard else ""
            yield Finding("zero-rows", "wrong" if is_shard else "note", text, fix)
        repeated, most = count_repeated(own)
        if repeated:
            text = (
                f"{repeated:,} rows of the {role} embedding occur more than once, one of them"
                f" {most:,} times: they were not trained separately."
            )
            yield Finding("repeated-rows", "note", text)


def _unchanged(facts: Facts) -> Iterator[Finding]:
    """Report which rows of the input embedding are the same as in an older checkpoint."""
    if facts.unchanged_V is None:
        return
    ids, count = np.flatnonzero(facts.unchanged_V), len(facts.unchanged_V)
    if not len(ids):
        yield Finding("against", "fine", f"All {count:,} rows have changed since OLD.")
    elif len(ids) == count:
        text = f"No row has changed since OLD: all {count:,} are the same."
        yield Finding("against", "note", text)
    else:
        first, last = max(runs_of(ids), key=lambda run: run[1] - run[0])
        longest = np.arange(first, last + 1)
        others = len(ids) - len(longest)
        where = describe_ids(longest, count) + (f"; {others:,} others elsewhere" if others else "")
        text = f"{len(ids):,} of {count:,} rows are unchanged since OLD ({where})."
        if not find_shard(longest, count):
            yield Finding("against", "note", text)
            return
        fix = "train again with input and output embedding in one shard group"
        yield Finding("untrained-shard", "wrong", text, fix, loader_lines("shard"))


def _adapter(facts: Facts) -> Iterator[Finding]:
    """Report whether an adapter keeps the model tied."""
    adapter, comparison = facts.adapter, facts.comparison
    if adapter is None:
        return
    is_tied = facts.embeddings.output is None or bool(facts.claim)
    if comparison:
        is_tied = comparison.is_equal and facts.claim is not False
    sides = [side for side in ("input", "output") if getattr(adapter, side)]
    fix = (
        "train it again with ensure_weight_tying=True, or untie the model first: "
        + facts.configuration.fix(False)
    )
    if not sides:
        yield Finding("adapter", "fine", "The adapter trains neither embedding.")
    elif not is_tied or adapter.keeps_tied:
        why = (
            "keeps both tied (ensure_weight_tying)" if adapter.keeps_tied else "the model is untied"
        )
        text = f"The adapter trains the {' and the '.join(sides)} embedding and {why}."
        yield Finding("adapter", "fine", text)
    elif len(sides) == 1:
        text = (
            f"The adapter trains one side of a tied pair, the {sides[0]} embedding:"
            f" {', '.join(adapter.input + adapter.output)}."
        )
        yield Finding("adapter-one-side", "wrong", text, fix, loader_lines("adapter_one_side"))
    elif facts.adapter_differs is False:
        text = "The adapter has both embeddings of a tied pair, and they are equal."
        yield Finding("adapter", "fine", text)
    else:
        text = "The adapter trains the two embeddings of a tied pair separately."
        yield Finding("adapter-both-sides", "wrong", text, fix, loader_lines("adapter_both_sides"))


def _bias(facts: Facts) -> Iterator[Finding]:
    """Report whether there is an output bias, and what that means."""
    bias = facts.embeddings.bias
    if facts.arm:  # the table of a run holds the rows of all members, so no bias is found
        return
    if bias is None:
        text = (
            "No output bias: constant odds between tokens of equal meaning must be encoded in the"
            " rows of the output embedding, which keeps those rows apart; if tied, also in the"
            " input embedding."
        )
        yield Finding("no-bias", "fine", text)
        return
    text = (
        f"Output bias: {bias.name}. It can encode constant odds between tokens, so rows need not."
    )
    if facts.claim and bias.name.split(".")[-2:] == ["lm_head", "bias"]:
        yield Finding("bias", "note", text, loaders=loader_lines("tied_with_bias"))
    else:
        yield Finding("bias", "fine", text)


RULES: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    _tying,
    _index_and_files,
    _levels,
    _vocabulary,
    _copies,
    _rows,
    _unchanged,
    _adapter,
    _bias,
)


def runs_of(ids: np.ndarray) -> list[tuple[int, int]]:
    """Return first and last id of each run of ascending ids."""
    if not len(ids):
        return []
    runs = np.split(ids, np.flatnonzero(np.diff(ids) > 1) + 1)
    return [(int(run[0]), int(run[-1])) for run in runs]


def find_shard(ids: np.ndarray, vocabulary: int) -> str | None:
    """Return `the last eighth` or `part 3 of 8`: the shard of one device that ascending ids fill.

    PyTorch and JAX give each of n devices ceil(V / n) rows, and the last one the rest. A few rows
    of the shard may be missing from the ids. If several shards fit, the fullest one counts.
    """
    if len(ids) < 2 or len(ids) == vocabulary:
        return None
    first, last = int(ids[0]), int(ids[-1])
    best, coverage = None, 0.0
    for count in range(2, MAX_SHARDS + 1):
        size = -(-vocabulary // count)
        if size < 2 * count:  # so many shards of so few rows that some would fit by chance
            break
        index = first // size
        end = min((index + 1) * size, vocabulary)
        share = len(ids) / (end - index * size)
        if last < end and share >= SHARD_COVERAGE and share > coverage:
            parts = -(-vocabulary // size)
            is_last = index == parts - 1 and parts in FRACTIONS
            best = f"the last {FRACTIONS[parts]}" if is_last else f"part {index + 1} of {parts}"
            coverage = share
    return best


def describe_ids(ids: np.ndarray, vocabulary: int) -> str:
    """Return `only 151,643 to 151,662: perhaps added tokens`, `ids 3, 7 to 9`, or the like."""
    if not len(ids):
        return "none"
    if len(ids) == vocabulary:
        return "all"
    runs = [f"{a:,} to {b:,}" if b > a else f"{a:,}" for a, b in runs_of(ids)]
    span = f"{ids[0]:,} to {ids[-1]:,}"
    shard = find_shard(ids, vocabulary)
    if shard:
        return f"{shard}, {span}: a shard"
    if ids[0] >= ADDED_TOKENS * vocabulary:
        one = f"only {runs[0]}: perhaps an added token"
        return one if len(ids) == 1 else f"only {span}: perhaps added tokens"
    more = f" and {len(runs) - SHOWN_RUNS:,} more" if len(runs) > SHOWN_RUNS else ""
    return f"ids {', '.join(runs[:SHOWN_RUNS])}{more}"
