"""The rules of the audit: each yields findings with a fix and the behaviour of loaders.

To add a rule, write a function of `Facts` that yields findings and add it to `AUDIT_RULES`.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from jaxtie.audit.checkpoint import Checkpoint
from jaxtie.audit.compare import RowFacts, TableComparison
from jaxtie.audit.find import Adapter, Embeddings
from jaxtie.audit.flags import Configuration
from jaxtie.audit.knowledge import DEFAULTS, NAMES, is_encoder, loader_lines, missing_sides

KINDS: dict[str, Any] = NAMES["kinds"]
MOST_LISTED = 5
SHOWN_RUNS = 3
DEVICES = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # that may share a table
SHARD_COVERAGE = 0.8  # of a shard must be in a set of ids
SHARD_SLACK = 0.02  # of a shard may lack at either end
MOST_PADDING = 1 / 8  # of the vocabulary is taken for padding where only its values say so
ADDED_TOKENS = 0.95  # from this share of the vocabulary on ids may be added tokens


Level = Literal["wrong", "allowed", "note", "fine"]


@dataclass(frozen=True)
class Finding:
    """One thing that was found."""

    code: str  # identifies the kind of finding, for programs
    # "wrong" makes the checkpoint inconsistent; "allowed" would, but for --allow.
    level: Level
    text: str  # a sentence
    fix: str = ""
    loaders: tuple[str, ...] = ()  # what loaders do in this case, a line each


@dataclass(frozen=True)
class Facts:
    """Facts about one model of a checkpoint."""

    checkpoint: Checkpoint
    embeddings: Embeddings
    comparison: TableComparison | None  # of both embeddings, if there are two that can be compared
    # Of "input" and, if it differs, "output", but none that is packed.
    rows: Mapping[str, RowFacts]
    unequal: tuple[str, ...]  # names of tables of an encoder that differ from the input
    adapter: Adapter | None
    packed_alike: bool | None  # whether two packed embeddings are equal; None if unknown

    @property
    def configuration(self) -> Configuration:
        """The checkpoint's configuration."""
        return self.checkpoint.configuration

    @property
    def claim(self) -> bool | None:
        """Whether the model is said to be tied; None if nothing says so."""
        return self.configuration.claim

    @property
    def says(self) -> str:
        """Return the end of a sentence on tying: `, and config.json says tied`."""
        return "; no flag says anything" if self.claim is None else f", and {self.said}"

    @property
    def said(self) -> str:
        """Return the flags as a sentence: `config.json says tied`."""
        return self.configuration.said

    @property
    def headless(self) -> bool:
        """Whether the table has no output embedding, as in an encoder or in a part like one."""
        if self.embeddings.output or self.embeddings.only_head:
            return False
        names = self.checkpoint.tensors
        parts = self.embeddings.input.tensor.name.split(".")
        is_part = any(part.endswith("_encoder") for part in parts)
        # EAGLE joins embedding and hidden state; its head is that of the model it drafts for.
        joint, width = names.get("fc.weight"), self.embeddings.input.width
        is_part |= joint is not None and joint.shape in ((width, 2 * width), (width, 3 * width))
        kind = self.configuration.model_type
        return is_part or self.configuration.headless or is_encoder(kind, names)

    @property
    def used(self) -> int:
        """How many rows of the input embedding are used; the others are padding.

        They are beyond `vocab_size`, or all alike at the end of every table.
        """
        rows, declared = self.embeddings.input.vocabulary, self.configuration.vocabulary
        if declared and declared < rows <= 2 * declared:
            return declared
        starts = [constant_end(own.digest_V[:rows]) for own in self.rows.values()]
        start = max(starts, default=rows)
        return start if rows - start < rows * MOST_PADDING else rows


def findings_of(facts: Facts, allowed: Collection[str] = ()) -> tuple[Finding, ...]:
    """Apply all rules; the finding about tying comes first."""
    found = (finding for rule in AUDIT_RULES for finding in rule(facts))
    reader = {"safetensors": "", "GGUF": "llama.cpp"}.get(facts.checkpoint.format, "no loader")
    return tuple(
        replace(
            one,
            level="allowed" if one.level == "wrong" and one.code in allowed else one.level,
            loaders=tuple(line for line in one.loaders if line.startswith(reader)),
        )
        for one in found
    )


def _tying(facts: Facts) -> Iterator[Finding]:
    """Report how the embeddings relate, and whether the flags say so."""
    output, comparison = facts.embeddings.output, facts.comparison
    if facts.embeddings.is_draft:
        yield _draft(facts)
    elif facts.embeddings.only_head:
        yield _only_head(facts)
    elif output is None:
        yield _stored_once(facts)
    elif comparison is None and not facts.embeddings.packed:
        widths = [table.width for table in (facts.embeddings.input, output)]
        text = f"Untied: the widths differ, {widths[0]:,} and {widths[1]:,}{facts.says}."
        yield Finding("different", "fine", text)
    elif comparison is None and facts.packed_alike is None:
        packed = [f"the {role} embedding ({w})" for role, w in facts.embeddings.packed.items()]
        text = f"Packed: {' and '.join(packed)}; whether both are equal is not known{facts.says}."
        yield Finding("packed", "note", text, loaders=loader_lines("packed"))
    elif not facts.packed_alike and (comparison is None or _differing(facts).size):
        yield _different(facts, output.tensor.name)
    elif comparison and comparison.relation == "scale":
        yield _scaled(facts, comparison)
    else:
        yield _equal(facts, output.tensor.name)


def _differing(facts: Facts) -> np.ndarray:
    """Return the ids of rows that differ, without padding unless the model is said to be untied."""
    ids = np.zeros(0, int) if facts.comparison is None else facts.comparison.differing
    return ids if facts.claim is False else ids[ids < facts.used]


def _draft(facts: Facts) -> Finding:
    """Report the head of a draft model, which cannot be tied."""
    output = facts.embeddings.output or facts.embeddings.input
    text = f"The head, {output.tensor.name}, is for {output.vocabulary:,} tokens"
    if facts.embeddings.only_head:
        text += "; the input embedding is that of the model it drafts for"
    else:
        text += f" of {facts.embeddings.input.vocabulary:,}"
    if facts.claim is not True:
        return Finding("draft", "fine", f"{text}.")
    fix = facts.configuration.fix(False)
    text += f", so it cannot be tied, but {facts.said}."
    return Finding("draft-tied", "wrong", text, fix, loader_lines("draft_tied"))


def _only_head(facts: Facts) -> Finding:
    """Report the only table if it is stored under the name of a head."""
    name, loaders = facts.embeddings.input.tensor.name, loader_lines("head_only")
    only = f"only one embedding table is stored, under the head's name {name}"
    if facts.claim:
        fix = "store it as the input embedding, too"
        return Finding("head-only", "note", f"Tied: {only}{facts.says}.", fix, loaders)
    if facts.claim is None:
        return Finding("no-input", "note", f"O{only[1:]}; no flag says anything.")
    text = f"{facts.said}, but {only}; the input embedding is missing."
    return Finding("no-input", "wrong", text, "restore the input embedding", loaders)


def _stored_once(facts: Facts) -> Finding:
    configuration = facts.configuration
    stored = f"one embedding table, {facts.embeddings.input.tensor.name}, is stored"
    if facts.embeddings.packed:
        stored += f", packed ({facts.embeddings.packed['input']})"
    if facts.headless:
        text = f"No output embedding: {stored}, and the architecture has no head."
        return Finding("no-head", "fine", text)
    if facts.checkpoint.format == "GGUF":
        text = f"Tied: {stored} and no output.weight, which in a GGUF means tied."
        loaders = loader_lines("gguf_once", facts.checkpoint.architecture)
        return Finding("once", "fine", text, loaders=loaders)
    if facts.claim is False:
        text = f"{facts.said}, but only {stored}; the output embedding is missing."
        fix = f"{configuration.fix(True)} if it was trained tied; else restore the output embedding"
        is_t5 = configuration.model_type in NAMES["kinds"]["tied_in_5"]
        loaders = loader_lines("untied_but_once_t5" if is_t5 else "untied_but_once")
        return Finding("untied-but-once", "wrong", text, fix, loaders)
    if configuration.top is None and configuration.nested and not configuration.decoder_type:
        text = f"Only {stored}, and the flag that says tied is nested, not at the top level."
        fix = configuration.fix(True) + " at the top level"
        level: Level = "note" if configuration.is_tied_in_5 else "wrong"
        return Finding("top-missing", level, text, fix, loader_lines("top_missing"))
    if facts.claim is None:
        is_keras = facts.embeddings.input.tensor.name.endswith("token_embedding/vars/0")
        if is_keras and facts.checkpoint.format == "Keras":
            text = f"Tied: {stored}, and no reverse table, as KerasHub writes for an untied head."
            return Finding("once", "fine", text)
        text = f"O{stored[1:]}; no flag says whether an output uses it, too."
        return Finding("lone", "fine", text)
    loaders = loader_lines("once", configuration.model_type)
    return Finding("once", "fine", f"Tied: {stored}{facts.says}.", "", loaders)


def _how_equal(comparison: TableComparison) -> str:
    """Return ` after a cast, a transpose`, or ` in every bit` if they are equal as stored."""
    extra = comparison.extra
    ways = {
        "a cast": comparison.relation == "cast",
        f"a scale of {comparison.scale:.6g}": comparison.relation == "scale",
        "a transpose": comparison.transposed,
        f"padding: {extra:,} more rows in the output": extra > 0,
        f"a slice: the output has the first {comparison.common:,} rows only": extra < 0,
        f"a change of the sign of zeros in {comparison.signs:,} rows": comparison.signs > 0,
    }
    shown = ", ".join(way for way, holds in ways.items() if holds)
    return f" after {shown}" if shown else " in every bit"


def _scaled(facts: Facts, comparison: TableComparison) -> Finding:
    scale, width = comparison.scale, facts.embeddings.input.width
    root = " (√D)" if abs(scale**2 / width - 1) < 0.01 else ""
    how = f"up to a scale: output = {scale:.6g}{root} × input."
    if not facts.claim:
        return Finding("scaled", "note", f"Equal {how}")
    text = f"{facts.said}, but the two embeddings are equal only {how}"
    fix = f"{facts.configuration.fix(False)}, or remove the scale if the model itself applies it"
    return Finding("tied-but-scaled", "wrong", text, fix, loader_lines("tied_but_different"))


def _equal(facts: Facts, output: str) -> Finding:
    comparison = facts.comparison
    if comparison is None:
        same = "the two packed embeddings are equal in every byte"
    else:
        same = f"the two embeddings are equal{_how_equal(comparison)}"
        if len(comparison.differing):
            same += f", but for {len(comparison.differing):,} rows of padding"
    is_exact = comparison is not None and comparison.is_exact
    if facts.claim is False:
        if facts.checkpoint.untied:
            text = f"Untied by --untie and not trained since: {same}{facts.says}."
            return Finding("untied-copy", "fine", text)
        drop = f" and drop {output}" if is_exact else ""
        fix = f"{facts.configuration.fix(True)}{drop}, if it was trained tied"
        return Finding("untied-but-equal", "wrong", f"{facts.said}, but {same}.", fix)
    # Without a flag at the top level some loaders would miss the output.
    once = facts.configuration.top is True and is_exact
    fix = f"drop {output}: loaders need a tied embedding only once" if once else ""
    loaders = () if comparison else loader_lines("packed")
    return Finding("equal", "fine", f"Tied, stored twice: {same}{facts.says}.", fix, loaders)


def _layout(facts: Facts) -> Iterator[Finding]:
    """Report tables that are stored D × V where transformers expects V × D."""
    if facts.checkpoint.format != "safetensors" or not facts.configuration.model_type:
        return
    for table in (facts.embeddings.input, facts.embeddings.output):
        if table and table.transposed and table.tensor.name.endswith(".weight"):
            name, shape = table.tensor.name, f"{table.width:,} × {table.vocabulary:,}"
            text = f"{name} is stored D × V ({shape}); transformers loads V × D only."
            yield Finding("layout", "wrong", text, f"store {name} transposed")


def _how_different(facts: Facts, ids: np.ndarray) -> str:
    """Return `the two embeddings differ in 3 of 512 rows (ids 1 to 3), by at most 0.1`."""
    comparison = facts.comparison
    if comparison is None:
        return "the two embeddings are packed alike and differ"
    common = comparison.common
    rows = f"{len(ids):,} of {common:,} rows ({describe_ids(ids, common, facts.used)})"
    rows = rows if len(ids) < common else f"all {common:,} rows"
    if comparison.relation == "scale":
        rows += f" (in the others output = {comparison.scale:.6g} × input)"
    most = f"by at most {comparison.largest:.3g}"
    most = most if comparison.largest else "by values that are not finite"
    return f"the two embeddings differ in {rows}, {most}"


def _different(facts: Facts, output: str) -> Finding:
    ids, configuration = _differing(facts), facts.configuration
    differ = _how_different(facts, ids)
    if facts.claim is False:
        return Finding("different", "fine", f"Untied: {differ}{facts.says}.")
    if configuration.fixed and not configuration.top:
        text = f"Untied: {differ}, as transformers 5 writes this kind; transformers 4 ties it."
        return Finding("different", "fine", text)
    untie, of_faulty = configuration.fix(False), _fix_of_faulty(facts, output)
    if facts.claim is None:
        fix = (of_faulty or untie) if configuration.path else ""
        text = f"Apparently untied: {differ}{facts.says}."
        return Finding("different", "note" if fix else "fine", text, fix)
    fix = of_faulty or f"to keep both, {untie}; drop {output} only if it was never trained"
    loaders = loader_lines("tied_but_different")
    if find_shard(ids, facts.embeddings.input.vocabulary, facts.used):
        fix = "look for a shard that was not trained or gathered, and keep the other embedding"
        loaders += loader_lines("shard")
    return Finding("tied-but-different", "wrong", f"{facts.said}, but {differ}.", fix, loaders)


def _is_faulty(own: RowFacts, used: int) -> bool:
    """Return whether a table holds NaN or infinities, or zeros in all rows or in a shard."""
    is_bad = (own.nan_V + own.infinite_V).any() or own.zero_V.all()
    zeros = np.flatnonzero(own.zero_V[:used])
    return bool(is_bad) or find_shard(zeros, len(own.zero_V), used) is not None


def _fix_of_faulty(facts: Facts, output: str) -> str:
    """Return what to do if the values of an embedding are lost; empty if they are not."""
    names = {"input": facts.embeddings.input.tensor.name, "output": output}
    faulty = [names[role] for role, own in facts.rows.items() if _is_faulty(own, facts.used)]
    if faulty == [output]:
        return f"restore {output}, or drop it if the model was trained tied"
    fix = f"restore {' and '.join(faulty)}" if faulty else ""
    also = f", or store {output} under its name, too, if the model was trained tied"
    return fix + (also if len(faulty) == 1 else "")


def _index_and_files(facts: Facts) -> Iterator[Finding]:
    """Report names in the index that no file has, and the reverse."""
    for code, names, where in (
        ("index-without-tensor", facts.checkpoint.missing, "in the index, but in no file"),
        ("tensor-without-index", facts.checkpoint.unlisted, "in a file, but not in the index"),
    ):
        if names:
            shown = ", ".join(map(repr, names[:MOST_LISTED]))
            more = ", ..." if len(names) > MOST_LISTED else ""
            subject = "1 name is" if len(names) == 1 else f"{len(names):,} names are"
            text = f"{subject} {where}: {shown}{more}."
            fix = "restore what is missing, or rebuild the index from the files if nothing is"
            yield Finding(code, "wrong", text, fix, loader_lines("index_and_files"))


def _levels(facts: Facts) -> Iterator[Finding]:
    """Report levels of the configuration that contradict each other."""
    configuration, is_once = facts.configuration, facts.embeddings.output is None
    if len({flag.tied for flag in configuration.declared}) > 1 and not facts.headless:
        flags = "; ".join(flag.text for flag in configuration.declared)
        text = f"The levels of config.json disagree: {flags}."
        is_equal = facts.comparison is not None and facts.comparison.is_equal
        is_lost = is_once and facts.claim is False
        is_lost |= any(_is_faulty(own, facts.used) for own in facts.rows.values())
        fix = configuration.fix(is_once or is_equal)
        fix = "find out whether it was trained tied" if is_lost else fix
        level: Level = "note" if configuration.model_type in DEFAULTS["top_counts"] else "wrong"
        yield Finding("levels-disagree", level, text, fix, loader_lines("levels_disagree"))


def _vocabulary(facts: Facts) -> Iterator[Finding]:
    """Report vocabulary sizes that contradict each other, and padding."""
    embeddings, sizes = facts.embeddings, facts.configuration.vocabularies
    tables = [table for table in (embeddings.input, embeddings.output) if table]
    rows = {table.vocabulary for table in tables}
    if embeddings.packed or embeddings.is_draft:
        return
    if len(rows) > 1:
        yield _unequal_sizes(facts, *(table.vocabulary for table in tables))
    size, most = facts.configuration.vocabulary or min(sizes, default=0), max(rows)
    extra = KINDS["rows"].get(facts.configuration.model_type)
    if len(rows) == 1 and extra is None and most < size and most not in sizes:
        text = f"config.json says vocab_size {size:,}, but the embedding has {most:,} rows."
        fix = f"set vocab_size: {most}, or restore the rows"
        yield Finding("vocabulary", "wrong", text, fix)
    if extra and facts.claim and embeddings.output is None:
        text = f"The input embedding has {extra} more rows than the head in transformers 5, so it"
        fix = f"restore the head, and {facts.configuration.fix(False)}"
        yield Finding("vocabulary", "wrong", f"{text} cannot be the head.", fix)
    if size and extra is not None and tables[0].vocabulary != size + extra:
        text = f"config.json says a vocabulary of {size:,}, for which transformers makes an input"
        text += f" embedding of {size + extra:,} rows, but {tables[0].vocabulary:,} are stored: it"
        fix = "resize the model again, and set every vocabulary size in config.json"
        yield Finding("vocabulary", "wrong", f"{text} cannot be loaded.", fix)
    used, count = facts.used, embeddings.input.vocabulary
    if used < count:
        text = f"Padding: the last {count - used:,} of {count:,} rows."
        yield Finding("padding", "note", text)


def _unequal_sizes(facts: Facts, first: int, second: int) -> Finding:
    """Report that the input embedding has `first` rows and the output embedding `second`."""
    size = facts.configuration.vocabulary
    longer = facts.rows.get("input" if first > second else "output")
    text = f"The input embedding has {first:,} rows, the output embedding {second:,}"
    text += f", and config.json says vocab_size {size:,}." if size else "."
    is_padded = longer is not None and constant_end(longer.digest_V) <= min(first, second)
    # Some models have more input symbols than outputs. Only transformers is known to check both.
    kind = facts.configuration.model_type
    is_short = first == second + 1 and kind in NAMES["kinds"]["shorter_head"]
    is_checked = bool(kind) and size in (first, second) and not is_short
    is_declared = {first, second} <= set(facts.configuration.vocabularies)
    if is_padded or is_declared or not is_checked or (first > second and size == second):
        return Finding("sizes", "note", text)
    fix = "resize both embeddings, and the output bias, to the size of the tokenizer"
    return Finding("half-resized", "wrong", f"{text} Loaders stop at the shape.", fix)


def _copies(facts: Facts) -> Iterator[Finding]:
    """Report further tables, of an encoder."""
    embeddings, configuration = facts.embeddings, facts.configuration
    name, kind = embeddings.input.tensor.name, configuration.model_type
    for table in embeddings.encoders:
        own = table.tensor.name
        is_shared = kind in (*KINDS["shared"], *KINDS["shared_if_tied"], *KINDS["tied_in_5"])
        is_shared |= kind is None and ".shared." in f".{name}"
        # Whether they may be trained apart.
        is_apart = configuration.needs_copies and facts.claim is False
        is_apart &= kind not in KINDS["shared_in_4"]
        if own not in facts.unequal:
            yield Finding("copies", "fine", f"{own} is equal to {name}.")
        elif configuration.separate or not is_shared or is_apart:
            yield Finding("separate", "fine", f"{own} is a table of its own, as the encoder's.")
        else:
            text = f"{own} differs from {name}, but in a model of this kind encoder and decoder"
            text += " share one embedding, in transformers 5 unless it is untied."
            fix = "find out which table was trained, and keep that one"
            yield Finding("copies-differ", "wrong", text, fix, loader_lines("copies_differ"))
    lacks_encoder = embeddings.has_encoder and embeddings.output and not embeddings.encoders
    if name.endswith("decoder.embed_tokens.weight") and lacks_encoder:
        text = "There is an encoder, but no embedding for it: neither shared nor"
        text += f" encoder.embed_tokens, only {name}."
        fix = f"write {name} as shared.weight too"
        yield Finding("no-shared-table", "wrong", text, fix, loader_lines("no_shared_table"))


def _shared_alone(facts: Facts) -> Iterator[Finding]:
    """Report that a shared embedding does not reach encoder and decoder."""
    name = facts.embeddings.input.tensor.name
    missing = missing_sides(name, facts.checkpoint.tensors)
    is_lost = facts.embeddings.output is None and not facts.headless  # see `_stored_once`
    if facts.configuration.needs_copies and facts.claim is False and missing and not is_lost:
        text = f"{facts.said}, so {name} does not reach encoder and decoder."
        fix = f"store it as {' and as '.join(missing)}, too"
        yield Finding("shared-alone", "wrong", text, fix, loader_lines("shared_alone"))


def _rows(facts: Facts) -> Iterator[Finding]:
    """Report NaN, infinities and zeros."""
    for role, own in facts.rows.items():
        count = len(own.zero_V)
        nan, infinite = int(own.nan_V.sum()), int(own.infinite_V.sum())
        if nan or infinite:
            ids = np.flatnonzero(own.nan_V + own.infinite_V)
            text = f"The {role} embedding holds {nan:,} NaN and {infinite:,} infinite values:"
            fix = "go back to a checkpoint before they appeared"
            yield Finding("not-finite", "wrong", f"{text} {describe_ids(ids, count)}.", fix)
        zeros = np.flatnonzero(own.zero_V)
        if len(zeros) == count:
            text = f"The {role} embedding is dead: all {count:,} rows are zero."
            fix = "restore it, or store the other one in its place if the model was trained tied"
            yield Finding("dead-table", "wrong", text, fix)
            continue
        zeros = zeros[zeros < facts.used]
        if len(zeros):
            where = f"{len(zeros):,} ({describe_ids(zeros, count, facts.used)})"
            text = f"Rows of zeros in the {role} embedding: {where}."
            is_shard = find_shard(zeros, count, facts.used) is not None
            fix = "restore the shard" if is_shard else ""
            yield Finding("zero-rows", "wrong" if is_shard else "note", text, fix)


def _adapter(facts: Facts) -> Iterator[Finding]:
    """Report whether an adapter fits the model and keeps it tied."""
    adapter, comparison, table = facts.adapter, facts.comparison, facts.embeddings.input
    if adapter is None:
        return
    head = facts.embeddings.output or table
    wrong_rows = [rows for rows in adapter.rows if rows not in (table.vocabulary, head.vocabulary)]
    if wrong_rows and not facts.embeddings.packed:
        text = f"The adapter is for {wrong_rows[0]:,} rows, but {table.tensor.name} has"
        text += f" {table.vocabulary:,}: it cannot be loaded."
        fix = "resize the base as it was when the adapter was trained"
        yield Finding("adapter-size", "wrong", text, fix)
    is_tied = (facts.embeddings.output is None and not facts.headless) or bool(facts.claim)
    if comparison:
        is_tied = comparison.is_equal and facts.claim is not False
    sides = [side for side in ("input", "output") if getattr(adapter, side)]
    if not sides:
        yield Finding("adapter", "fine", "The adapter trains neither embedding.")
    elif not is_tied:
        why = "the model has no head" if facts.headless else "the model is untied"
        text = f"The adapter trains the {' and the '.join(sides)} embedding and {why}."
        yield Finding("adapter", "fine", text)
    else:
        yield _adapter_of_tied(adapter, sides, facts.configuration.fix(False))


def _adapter_of_tied(adapter: Adapter, sides: list[str], untie: str) -> Finding:
    """Report what merging an adapter of one side, or of both, does to a tied model."""
    trained = f"{' and the '.join(sides)} embedding"
    fix = "keep it apart from the model, or untie the model before it is trained: store both"
    fix += f" embeddings and {untie}"
    if adapter.is_tokens and sides == ["input"]:
        text = "The adapter trains rows of the input embedding, and PEFT those of the tied head"
        return Finding("adapter", "note", f"{text} too.", loaders=loader_lines("adapter_tokens"))
    if adapter.is_same:
        text = "The adapter has both embeddings of a tied pair, and they are equal."
        return Finding("adapter", "fine", text)
    if adapter.is_whole:
        text = f"The adapter has the {trained} of a tied model: once merged, that is untied."
        return Finding("adapter", "note", text, fix, loader_lines("adapter_unties"))
    text = f"The adapter trains the {trained} of a tied pair apart:"
    text += f" {', '.join(adapter.input + adapter.output)}."
    if len(sides) == 1:
        return Finding("adapter-one-side", "wrong", text, fix, loader_lines("adapter_one_side"))
    return Finding("adapter-both-sides", "wrong", text, fix, loader_lines("adapter_both_sides"))


def _bias(facts: Facts) -> Iterator[Finding]:
    """Report output biases that have another length, or that a loader drops or misses."""
    embeddings, size = facts.embeddings, facts.configuration.vocabulary
    rows, biases = (embeddings.output or embeddings.input).vocabulary, embeddings.biases
    lengths = {max(bias.shape, default=0) for bias in biases}
    for bias in biases:
        if rows not in bias.shape and (size not in bias.shape or len(lengths) > 1):
            length = max(bias.shape, default=0)
            text = f"The output bias {bias.name} has {length:,} entries, the output embedding"
            fix = "resize both to the size of the tokenizer"
            is_wrong = facts.configuration.model_type and size == rows
            yield Finding("bias-size", "wrong" if is_wrong else "note", f"{text} {rows:,}.", fix)
        elif facts.claim and bias.name.split(".")[-2:] == ["lm_head", "bias"]:
            loaders = loader_lines("tied_with_bias")
            yield Finding("bias", "note", f"Output bias: {bias.name}.", loaders=loaders)
    kind = facts.configuration.model_type
    is_apart = facts.claim is False and kind in KINDS["own_bias"]
    is_one = is_apart and kind in KINDS["stem_bias"] and len(lengths) == 1
    if is_one and len({bias.read(...).tobytes() for bias in biases}) > 1:
        both = " and ".join(bias.name for bias in biases)
        text = f"{both} differ: transformers 5 uses the one of the decoder, 4 has one for both."
        fix = "store the one of the decoder under both names"
        yield Finding("bias-differs", "wrong", text, fix, loader_lines("bias_differs"))
    # A tied `decoder` shares the bias beside it; an untied one has its own.
    head = embeddings.output.tensor.name.removesuffix(".weight") if embeddings.output else ""
    stem, found, _ = head.rpartition(".decoder")
    names, lost = {bias.name for bias in biases}, f"{head}.bias"
    if is_apart and found and f"{stem}.bias" in names and lost not in names:
        text = f"{facts.said}, so transformers 5 looks for the output bias under the name"
        text += f" {lost}, which is not stored."
        fix = f"store {stem}.bias as {lost}, too"
        yield Finding("bias-missing", "wrong", text, fix, loader_lines("bias_missing"))


def _factor(facts: Facts) -> Iterator[Finding]:
    """Report logits that one version of transformers divides by √D and another does not."""
    in_4, in_5 = facts.configuration.scaled
    if in_4 is not None and in_4 is not in_5 and not facts.headless:
        does, does_not = (4, 5) if in_4 else (5, 4)
        text = f"transformers {does} divides the decoder's output by √D before the head, and"
        text += f" transformers {does_not} does not."
        fix = "load it with the version that it was trained with"
        yield Finding("factor", "wrong", text, fix)


def _token_list(facts: Facts) -> Iterator[Finding]:
    """Report a GGUF whose list of tokens has another length than its embedding."""
    tokens, rows = facts.checkpoint.tokens, facts.embeddings.input.vocabulary
    if tokens is not None and tokens != rows:
        text = f"The list of tokens has {tokens:,} entries, the embedding {rows:,} rows."
        fix = "convert the model again with the tokenizer that belongs to it"
        yield Finding("token-list", "wrong", text, fix, loader_lines("token_list"))


AUDIT_RULES: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    _tying,
    _layout,
    _index_and_files,
    _levels,
    _vocabulary,
    _copies,
    _shared_alone,
    _rows,
    _adapter,
    _bias,
    _factor,
    _token_list,
)
# Codes of findings that make a checkpoint inconsistent.
CAUSES = tuple(
    "adapter-both-sides adapter-one-side adapter-size bias-differs bias-missing bias-size"
    " copies-differ dead-table draft-tied factor half-resized index-without-tensor layout"
    " levels-disagree no-input no-shared-table not-finite shared-alone tensor-without-index"
    " tied-but-different tied-but-scaled token-list top-missing untied-but-equal untied-but-once"
    " vocabulary zero-rows".split()
)


def runs_of(ids: np.ndarray) -> list[tuple[int, int]]:
    """Return first and last id of each run of ascending ids."""
    if not len(ids):
        return []
    runs = np.split(ids, np.flatnonzero(np.diff(ids) > 1) + 1)
    return [(int(run[0]), int(run[-1])) for run in runs]


def constant_end(digest_V: np.ndarray) -> int:
    """Return where the rows begin that are all like the last one; V if the last is alone."""
    count = len(digest_V)
    others = np.flatnonzero(digest_V != digest_V[-1:])
    start = int(others[-1]) + 1 if len(others) else 0
    return start if start < count - 1 else count


def find_shard(ids: np.ndarray, vocabulary: int, used: int | None = None) -> str | None:
    """Return `part 3 of 8`: the shard of one device that ascending ids fill; None without one.

    PyTorch and JAX give each of n devices ceil(V / n) rows, and the last one the rest; rows from
    `used` on are padding. A few rows of the shard may be missing from the ids, but not where it
    begins and ends. If several shards fit, the fullest one counts.
    """
    if len(ids) < 2 or len(ids) == vocabulary:
        return None
    first, last = int(ids[0]), int(ids[-1])
    best, coverage = None, 0.0
    for count in DEVICES:
        size = -(-vocabulary // count)
        if size < 2 * count:  # of many shards of few rows, some would fit by chance
            break
        index = first // size
        begin, end = index * size, min((index + 1) * size, vocabulary, used or vocabulary)
        slack = size * SHARD_SLACK
        is_whole = begin <= first <= begin + slack and end - 1 - slack <= last < end
        share = len(ids) / max(end - begin, 1)
        if is_whole and share >= SHARD_COVERAGE and share > coverage:
            best, coverage = f"part {index + 1} of {-(-vocabulary // size)}", share
    return best


def describe_ids(ids: np.ndarray, vocabulary: int, used: int | None = None) -> str:
    """Return `only 151,643 to 151,662: perhaps added tokens`, `ids 3, 7 to 9`, or the like."""
    runs = [f"{a:,} to {b:,}" if b > a else f"{a:,}" for a, b in runs_of(ids)]
    span = f"{ids[0]:,} to {ids[-1]:,}"
    if shard := find_shard(ids, vocabulary, used):
        return f"{shard}, {span}: a shard"
    if ids[0] >= ADDED_TOKENS * vocabulary:
        return f"only {span if len(runs) > 1 else runs[0]}: perhaps added tokens"
    more = f" and {len(runs) - SHOWN_RUNS:,} more" if len(runs) > SHOWN_RUNS else ""
    return f"ids {', '.join(runs[:SHOWN_RUNS])}{more}"
