"""Word what was found in a checkpoint, how to fix it, and what loaders do with it."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

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
Level = Literal["wrong", "note", "fine"]


@dataclass(frozen=True)
class Finding:
    """One thing that was found.

    Attributes:
      code: identifies the kind of finding, for programs.
      level: "wrong" makes the checkpoint inconsistent, "note" is worth knowing, "fine" is as it
        should be.
      text: a sentence.
      fix: what to do; may be empty.
      loaders: what loaders do in this case, a line each.
    """

    code: str
    level: Level
    text: str
    fix: str = ""
    loaders: tuple[str, ...] = ()


class Facts(NamedTuple):
    """Facts about one model of a checkpoint.

    Attributes:
      checkpoint: the model's.
      claim: whether the model is said to be tied; None if nothing says so.
      claimant: the beginning of a sentence, "config.json says".
      embeddings: the model's.
      comparison: of both embeddings, if there are two that can be compared.
    """

    checkpoint: Checkpoint
    claim: bool | None
    claimant: str
    embeddings: Embeddings
    comparison: Comparison | None

    @property
    def configuration(self) -> Configuration:
        """The checkpoint's configuration."""
        return self.checkpoint.configuration


def check_tying(facts: Facts) -> Finding:
    """Return the main finding: how the embeddings relate, and whether the flags say so."""
    output, comparison = facts.embeddings.output, facts.comparison
    if output is None:
        return _stored_once(facts)
    if comparison is None:
        packed = " and ".join(
            f"the {role} embedding is packed: {word}"
            for role, word in facts.embeddings.packed.items()
        )
        text = f"Not comparable: {packed}; its values are not guessed."
        return Finding("packed", "note", text, loaders=loader_lines("packed"))
    if comparison.is_equal:
        return _equal(facts, output.tensor.name, comparison)
    return _different(facts, output.tensor.name, comparison)


def _stored_once(facts: Facts) -> Finding:
    configuration = facts.configuration
    stored = f"one embedding table, {facts.embeddings.input.tensor.name}, is stored"
    if facts.checkpoint.format == "GGUF":
        text = f"Tied: {stored} and no output.weight, which in a GGUF means tied."
        is_old = facts.checkpoint.architecture in OLD_LLAMA_CPP
        return Finding("once", "fine", text, loaders=loader_lines("gguf_once") if is_old else ())
    if facts.claim is False and configuration.headless:
        text = f"No output embedding: {stored}, and the architecture has no head."
        return Finding("once", "fine", text)
    if facts.claim is False:
        text = f"{_claim(facts)} untied, but only {stored}; the output embedding is missing."
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


def _claim(facts: Facts) -> str:
    text = facts.claimant
    return text if text.startswith("config") else text[0].upper() + text[1:]


def _how_equal(comparison: Comparison) -> str:
    """Return ` after a cast, a transpose`; empty if the bits are equal as stored."""
    ways = []
    if comparison.relation == "cast":
        ways.append("a cast")
    if comparison.relation == "scale":
        ways.append(f"a scale of {comparison.scale:.6g}")
    if comparison.transposed:
        ways.append("a transpose")
    if comparison.extra > 0:
        ways.append(f"padding: {comparison.extra:,} more rows in the output")
    if comparison.extra < 0:
        ways.append(f"a slice: the output has the first {comparison.common:,} rows only")
    return f" after {', '.join(ways)}" if ways else ""


def _equal(facts: Facts, output: str, comparison: Comparison) -> Finding:
    configuration = facts.configuration
    if comparison.relation == "scale":
        scale, width = comparison.scale, facts.embeddings.input.width
        root = ""
        if abs(scale**2 / width - 1) < 0.01:
            root = " (√D)"
        elif abs(scale**2 * width - 1) < 0.01:
            root = " (1/√D)"
        how = f"up to a scale: output = {scale:.6g}{root} × input."
        if not facts.claim:
            return Finding("scaled", "note", f"Equal {how}")
        text = f"{_claim(facts)} tied, but the two embeddings are equal only {how}"
        fix = f"remove the scale from one embedding, or {configuration.fix(False)}"
        return Finding("tied-but-scaled", "wrong", text, fix, loader_lines("tied_but_different"))
    same = f"the two embeddings are equal{_how_equal(comparison) or ' in every bit'}"
    if facts.claim is False:
        fix = f"{configuration.fix(True)} and drop {output}, if it was trained tied"
        return Finding("untied-but-equal", "wrong", f"{_claim(facts)} untied, but {same}.", fix)
    claim = f", and {facts.claimant} tied" if facts.claim else "; no flag says anything"
    fix = f"drop {output}: loaders need a tied embedding only once"
    return Finding("equal", "fine", f"Tied, stored twice: {same}{claim}.", fix)


def _different(facts: Facts, output: str, comparison: Comparison) -> Finding:
    configuration = facts.configuration
    ids, common = comparison.differing, comparison.common
    rows, elsewhere = f"all {common:,} rows", ""
    if len(ids) < common:
        rows = f"{len(ids):,} of {common:,} rows ({describe_ids(ids, common)})"
        how = _how_equal(comparison)
        elsewhere = f", and are equal elsewhere{how}" if how else ""
    differ = f"the two embeddings differ in {rows}, by at most {comparison.largest:.3g}{elsewhere}"
    if facts.claim is False:
        return Finding("different", "fine", f"Untied: {differ}, and {facts.claimant} untied.")
    if facts.claim is None:
        text = f"Apparently untied: {differ}; no flag says anything."
        if configuration.path:
            return Finding("different", "note", text, configuration.fix(False))
        return Finding("different", "fine", text)
    fix = f"{configuration.fix(False)}, if both were trained; else drop {output}"
    loaders = loader_lines("tied_but_different")
    if find_shard(ids, common):
        fix = f"look for a shard that was not trained or gathered; {fix}"
        loaders += loader_lines("shard")
    return Finding(
        "tied-but-different", "wrong", f"{_claim(facts)} tied, but {differ}.", fix, loaders
    )


def check_files(checkpoint: Checkpoint) -> list[Finding]:
    """Report names in the index that no file has, and the reverse."""
    found = []
    for code, names, where in (
        ("index-without-tensor", checkpoint.missing, "in the index, but in no file"),
        ("tensor-without-index", checkpoint.unlisted, "in a file, but not in the index"),
    ):
        if names:
            shown = ", ".join(map(repr, names[:SHOWN_NAMES]))
            more = ", ..." if len(names) > SHOWN_NAMES else ""
            subject = "1 name is" if len(names) == 1 else f"{len(names):,} names are"
            text = f"{subject} {where}: {shown}{more}."
            fix = "rebuild the index from the files"
            found.append(Finding(code, "wrong", text, fix, loader_lines("index_and_files")))
    return found


def check_flags(facts: Facts) -> list[Finding]:
    """Report levels that contradict each other, and a vocabulary size that no embedding has."""
    configuration, embeddings, found = facts.configuration, facts.embeddings, []
    if configuration.disagrees:
        flags = "; ".join(flag.text for flag in configuration.declared)
        is_tied = embeddings.output is None or (
            facts.comparison is not None and facts.comparison.is_equal
        )
        text = f"The levels of {configuration.file} disagree: {flags}."
        fix, loaders = configuration.fix(is_tied), loader_lines("levels_disagree")
        found.append(Finding("levels-disagree", "wrong", text, fix, loaders))
    rows = {table.vocabulary for table in (embeddings.input, embeddings.output) if table}
    sizes = configuration.vocabularies
    if sizes and not rows & set(sizes) and not embeddings.packed:
        size, most = max(sizes), max(rows)
        text = (
            f"{configuration.file} says vocab_size {size:,}, but the embedding has {most:,} rows."
        )
        if most > size:
            found.append(Finding("vocabulary", "note", text))
        else:
            fix = f"set vocab_size: {most}, or restore the rows"
            found.append(Finding("vocabulary", "wrong", text, fix))
    return found


def check_copies(facts: Facts, unequal: list[str]) -> list[Finding]:
    """Report an encoder whose embedding is missing or differs from the decoder's.

    Args:
      facts: about the model.
      unequal: names of the copies that differ from the input embedding.
    """
    embeddings = facts.embeddings
    name = embeddings.input.tensor.name
    loaders = loader_lines("no_shared_table")
    if unequal:
        verb = "differs" if len(unequal) == 1 else "differ"
        text = (
            f"{', '.join(unequal)} {verb} from {name}, but in a model of this kind encoder and"
            " decoder share one embedding."
        )
        return [Finding("copies-differ", "wrong", text, "keep one of them", loaders)]
    is_decoder = name.endswith("decoder.embed_tokens.weight")
    if is_decoder and embeddings.has_encoder and embeddings.output and not embeddings.copies:
        text = (
            "There is an encoder, but no embedding for it: neither shared nor encoder.embed_tokens,"
            f" only {name}."
        )
        fix = f"write {name} as shared.weight too"
        return [Finding("no-shared-table", "wrong", text, fix, loaders)]
    return []


def check_rows(role: str, facts: RowFacts) -> list[Finding]:
    """Report NaN, infinities, zeros and repeats."""
    found, count = [], len(facts.zero_V)
    nan, infinite = int(facts.nan_V.sum()), int(facts.infinite_V.sum())
    if nan or infinite:
        ids = np.flatnonzero(facts.nan_V + facts.infinite_V)
        rows = "1 row" if len(ids) == 1 else f"{len(ids):,} rows"
        text = (
            f"The {role} embedding holds {nan:,} NaN and {infinite:,} infinite values, in {rows}"
            f" ({describe_ids(ids, count)})."
        )
        fix = "go back to a checkpoint before they appeared"
        found.append(Finding("not-finite", "wrong", text, fix))
    zeros = np.flatnonzero(facts.zero_V)
    if len(zeros) == count:
        text = f"The {role} embedding is dead: all {count:,} rows are zero."
        found.append(Finding("dead-table", "wrong", text, "tie it, or restore it"))
    elif len(zeros):
        text = (
            f"Rows of zeros in the {role} embedding: {len(zeros):,} ({describe_ids(zeros, count)})."
        )
        if find_shard(zeros, count):
            found.append(Finding("zero-rows", "wrong", text, "restore the shard"))
        else:
            found.append(Finding("zero-rows", "note", text))
    repeated, most = count_repeated(facts)
    if repeated:
        text = (
            f"{repeated:,} rows of the {role} embedding occur more than once, one of them {most:,}"
            " times: they were not trained separately."
        )
        found.append(Finding("repeated-rows", "note", text))
    return found


def check_bias(facts: Facts) -> Finding:
    """Report whether there is an output bias, and what that means."""
    bias = facts.embeddings.bias
    if bias is None:
        text = (
            "No output bias: constant odds between tokens of equal meaning must be encoded in the"
            " rows of the output embedding, which keeps those rows apart; if tied, also in the"
            " input embedding."
        )
        return Finding("no-bias", "fine", text)
    text = (
        f"Output bias: {bias.name}. It can encode constant odds between tokens, so rows need not."
    )
    if facts.claim and bias.name.split(".")[-2:] == ["lm_head", "bias"]:
        return Finding("bias", "note", text, loaders=loader_lines("tied_with_bias"))
    return Finding("bias", "fine", text)


def check_unchanged(same_V: np.ndarray) -> Finding:
    """Report which rows of the input embedding are the same as in an older checkpoint."""
    ids, count = np.flatnonzero(same_V), len(same_V)
    if not len(ids):
        return Finding("against", "fine", f"All {count:,} rows have changed since OLD.")
    if len(ids) == count:
        text = f"No row has changed since OLD: all {count:,} are the same."
        return Finding("against", "note", text)
    first, last = max(runs_of(ids), key=lambda run: run[1] - run[0])
    longest = np.arange(first, last + 1)
    others = len(ids) - len(longest)
    where = describe_ids(longest, count) + (f"; {others:,} others elsewhere" if others else "")
    text = f"{len(ids):,} of {count:,} rows are unchanged since OLD ({where})."
    if find_shard(longest, count):
        fix = "train again with input and output embedding in one shard group"
        return Finding("untrained-shard", "wrong", text, fix, loader_lines("shard"))
    return Finding("against", "note", text)


def check_adapter(facts: Facts, adapter: Adapter, differ: bool | None) -> Finding:
    """Report whether an adapter keeps the model tied.

    Args:
      facts: about the model below the adapter.
      adapter: which embeddings it trains.
      differ: whether its two whole embeddings differ; None if it does not have both.
    """
    comparison = facts.comparison
    if facts.embeddings.output is None:
        is_tied = True
    elif comparison:
        is_tied = comparison.is_equal and facts.claim is not False
    else:
        is_tied = bool(facts.claim)
    sides = [side for side in ("input", "output") if getattr(adapter, side)]
    if not sides:
        return Finding("adapter", "fine", "The adapter trains neither embedding.")
    if not is_tied or adapter.keeps_tied:
        why = (
            "keeps both tied (ensure_weight_tying)" if adapter.keeps_tied else "the model is untied"
        )
        text = f"The adapter trains the {' and the '.join(sides)} embedding and {why}."
        return Finding("adapter", "fine", text)
    fix = (
        "train it again with ensure_weight_tying=True, or untie the model first: "
        + facts.configuration.fix(False)
    )
    if len(sides) == 1:
        text = (
            f"The adapter trains one side of a tied pair, the {sides[0]} embedding:"
            f" {', '.join(adapter.input + adapter.output)}."
        )
        return Finding("adapter-one-side", "wrong", text, fix, loader_lines("adapter_one_side"))
    if differ is False:
        text = "The adapter has both embeddings of a tied pair, and they are equal."
        return Finding("adapter", "fine", text)
    text = "The adapter trains the two embeddings of a tied pair separately."
    return Finding("adapter-both-sides", "wrong", text, fix, loader_lines("adapter_both_sides"))


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
