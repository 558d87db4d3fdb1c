"""The command lines: options, their texts, and one line where they are wrong. Imports no jax."""

import contextlib
import dataclasses
import io
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from jaxtie.config import DATA_STREAMS, SWEPT, Corpus, Experiment, UserError, untied_from

MAIN, MAIN_CORPUS = Experiment(), Corpus(("text",))
TEXT_OPTIONS = ("text", "tfds", "tfds_field", "vocab", "vocab_size")


def parse_seeds(text: str) -> tuple[int, ...]:
    """`64`: seeds 0...63; `42-46`: a range; `17-17`: one seed; `1,5,9`: a list."""
    expected = ValueError(f"{text!r}: expected a number of seeds (64), a range (42-46) or a list (1,5,9)")
    try:
        if "," in text:
            seeds = tuple(_natural(part) for part in text.split(","))
        elif "-" in text:
            first, last = map(_natural, text.split("-"))
            seeds = tuple(range(first, last + 1))
        else:
            seeds = tuple(range(_natural(text)))
    except ValueError:
        raise expected from None
    if not seeds:
        raise expected
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"{text!r}: expected each seed once")
    return seeds


def _natural(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 10:
        raise ValueError
    return int(text)


def _positive(text: str) -> int:
    try:
        if (number := _natural(text)) > 0:
            return number
    except ValueError:
        pass
    raise ValueError(f"{text!r}: expected a positive integer")


def _seconds(text: str) -> float:
    try:
        if math.isfinite(seconds := float(text)) and seconds > 0:
            return seconds
    except ValueError:
        pass
    raise ValueError(f"{text!r}: expected a number of seconds above 0")


def _factor(text: str) -> float:
    try:
        if math.isfinite(factor := float(text)) and factor > 0:
            return factor
    except ValueError:
        pass
    raise ValueError(f"{text!r}: expected a number above 0, such as 0.1")


def _address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if host and port.isascii() and port.isdigit() and 0 < int(port) < 2**16:
        return text
    raise ValueError(f"{text!r}: expected HOST:PORT, such as 10.0.0.1:4000")


def _from_0(text: str) -> int:
    try:
        return _natural(text)
    except ValueError:
        raise ValueError(f"{text!r}: expected an integer of at least 0") from None


def _arms(text: str) -> tuple[str, ...]:
    for arm in text.split(","):
        untied_from(arm)
    return tuple(text.split(","))


def _probabilities(text: str) -> tuple[float, ...]:
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        values = ()
    if len(values) != 2 or not all(0 <= p <= 1 for p in values) or not math.isclose(sum(values), 1):
        raise ValueError(f"{text!r}: expected two probabilities that sum to 1, such as 0.1,0.9")
    return values


def _swept(text: str) -> tuple[str, tuple[float, ...]]:
    name, _, values = text.partition("=")
    try:
        if name in SWEPT:
            return name, tuple(float(value) for value in values.split(","))
    except ValueError:
        pass
    raise ValueError(f"{text!r}: expected NAME=VALUE,VALUE with a name of {', '.join(SWEPT)}, such as weight_decay=0,0.1")


def _path(text: str) -> Path:
    if not text:
        raise ValueError("'': expected a file or a folder")
    return Path(text)


def _stream(text: str) -> str:
    if text not in DATA_STREAMS:
        raise ValueError(f"{text!r}: expected one of {', '.join(DATA_STREAMS)}")
    return text


def _value(metavar: str, parse: Callable[[str], Any], default: str = "as in the experiment") -> Any:
    """How tyro reads one option: `default` is what the help shows for an option that was not given."""
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=lambda texts: parse(texts[0]),
        is_instance=lambda value: True,
        str_from_instance=lambda value: default.split() if value is None else [str(value)],
    )


def _main(value: Any) -> str:
    return f"as in the experiment, {value} in the main one"


@dataclass(frozen=True)
class RunOptions:
    """Train an experiment's arms, many seeds at once, and show what came out.

    The experiment file is Python and is executed. Without one, the paper's main experiment runs. The summary goes to
    standard output, progress and errors to standard error. Exit status: 0 done, 2 an error of the user, 130
    interrupted.
    """

    experiment: Annotated[
        tyro.conf.Positional[Path | None], _value("EXPERIMENT.py", Path, "the main experiment of the paper")
    ] = None
    """File that defines `experiment`."""
    seeds: Annotated[tuple[int, ...] | None, _value("N|A-B|A,B,C", parse_seeds, _main(len(MAIN.seeds)))] = None
    """Model seeds: how many (from 0), a range, or a list."""
    steps: Annotated[int | None, _value("STEPS", _positive, _main(MAIN.steps))] = None
    """Updates of each member, one full batch each."""
    scale: Annotated[float | None, _value("F", _factor, "1")] = None
    """Times all steps, of untying too, to the nearest record; the schedule of the learning rate stays."""
    arms: Annotated[tuple[str, ...] | None, _value("ARM,ARM", _arms, _main(",".join(MAIN.arms)))] = None
    """What is compared, on the same seeds and data: tied, untied, untied@STEP (tied up to there)."""
    record_every: Annotated[int | None, _value("STEPS", _positive, _main(MAIN.record_every))] = None
    """Steps between two records of loss, accuracy and distances."""
    eval_every: Annotated[int | None, _value("STEPS", _positive, _main(MAIN.eval_every))] = None
    """Steps between two exact evaluations; a multiple of --record-every."""
    data: Annotated[str | None, _value("per-seed|shared", _stream, _main(MAIN.data))] = None
    """A stream of samples for each seed, shared by its arms, or one for all seeds."""
    data_seed: Annotated[int | None, _value("SEED", _from_0, _main(MAIN.process.data_seed))] = None
    """Seed of the split and of the streams of samples."""
    zeros: Annotated[tuple[float, float] | None, _value("P,P", _probabilities, _main("0.1,0.9"))] = None
    """Probabilities of X and of Y for a zero."""
    ones: Annotated[tuple[float, float] | None, _value("P,P", _probabilities, _main("0.5,0.5"))] = None
    """Probabilities of A and of B for a one."""
    text: tyro.conf.UseAppendAction[tuple[Annotated[Path, _value("PATH", _path, "as in the experiment")], ...]] = ()
    """A text file, or a folder that is searched for *.txt; may be repeated. For experiments of text."""
    tfds: Annotated[str | None, _value("NAME[/CONFIG][:VERSION]", str, "none")] = None
    """A TFDS data set of text, such as lm1b or wiki40b/en, instead of files; TFDS fetches it."""
    tfds_field: Annotated[str | None, _value("NAME", str, MAIN_CORPUS.field)] = None
    """The field of that data set that has the text."""
    vocab: Annotated[Path | None, _value("FILE", Path, "trained on the text")] = None
    """A BERT vocab.txt or a tokenizer.json."""
    vocab_size: Annotated[int | None, _value("N", _positive, str(MAIN_CORPUS.vocab_size))] = None
    """Entries of the vocabulary that is trained, at most."""
    sweep: tyro.conf.UseAppendAction[
        tuple[Annotated[tuple[str, tuple[float, ...]], _value("NAME=VALUE,VALUE", _swept, "as in the experiment")], ...]
    ] = ()
    """Train every seed at each of these values, all in one program; repeated, at every combination. NAME: learning_rate,
    eta_min, weight_decay, eps, p_X, p_A (the probability of X for a zero, of A for a one)."""
    all_strings: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Include the string of ones, which the published code leaves out."""
    independent_layers: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Draw every layer's initial values anew, instead of cloning the first as PyTorch does."""
    all: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Run every experiment of ./experiments, one after the other, and show them on one page, DIR/index.html. What is
    finished is not run again. Initial losses have no --scale; they, heads and text take no more --seeds than they declare.
    What is about text is left out unless --text or --tfds names one."""
    out: Annotated[Path | None, _value("DIR", Path, "runs/NAME or, with --all, runs")] = None
    """Folder for configuration, results, figures and summary; with --all for the page and a folder NAME of each."""
    checkpoint_every: Annotated[float, _value("SECONDS", _seconds)] = 60.0
    """Seconds of training between two checkpoints; a run that was killed goes on from the last one."""
    distributed: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Be one of several processes, each started by the same command; only the first writes. SLURM, Kubernetes and TPU
    pods are found by JAX; elsewhere give the next three."""
    coordinator: Annotated[str | None, _value("HOST:PORT", _address, "found by JAX")] = None
    """Where the first process is, and a free port there."""
    process_count: Annotated[int | None, _value("N", _positive, "found by JAX")] = None
    """How many processes there are."""
    process_index: Annotated[int | None, _value("I", _from_0, "found by JAX")] = None
    """Which one this is, from 0."""
    overwrite: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Remove what a run left in DIR and start anew."""
    dry_run: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print members, estimated time, memory and disk; write nothing."""
    quiet: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """No progress."""
    list: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """List the experiments of ./experiments with their claims."""
    version: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print the version."""


@dataclass(frozen=True)
class FiguresOptions:
    """Draw the figures of a run again, from its results alone."""

    folder: Annotated[tyro.conf.Positional[Path], _value("DIR", Path)]
    """Folder of a run."""
    csv: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Write the results as tidy CSV too, below DIR/csv."""
    animate: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Draw the tables over training as an animation too, portrait.gif."""


def _parse(options: type, prog: str, arguments: Sequence[str]) -> Any:
    """tyro's parse, its boxed errors condensed to one line."""
    message = io.StringIO()
    try:
        with contextlib.redirect_stderr(message):
            return tyro.cli(options, prog=prog, args=list(arguments))
    except SystemExit as stop:
        if not stop.code:
            raise
    lines = [line.strip("│ ").strip() for line in message.getvalue().splitlines() if not line.startswith(("╭", "╰"))]
    end = next((i for i, line in enumerate(lines) if line.startswith("───")), len(lines))
    raise UserError(" ".join(lines[:end]).removeprefix("Error parsing ") + f" (see python -m {prog} --help)")


def refuse_other_than(useful: Collection[str], options: RunOptions, reason: str) -> None:
    """Let options pass only if those that are not `useful` were not given.

    Raises:
      UserError: with the option and the reason.
    """
    for field in dataclasses.fields(RunOptions):
        if field.name not in useful and getattr(options, field.name) != field.default:
            name = "EXPERIMENT.py" if field.name == "experiment" else f"--{field.name.replace('_', '-')}"
            raise UserError(f"{name}: {reason}")


def parse_run(arguments: Sequence[str]) -> RunOptions:
    """Options of `python -m jaxtie.run`.

    Raises:
      UserError: with one line that names the option, what was given and what was expected.
      SystemExit: after `--help`.
    """
    options = _parse(RunOptions, "jaxtie.run", arguments)
    place = {"--coordinator": options.coordinator, "--process-count": options.process_count}
    place["--process-index"] = options.process_index
    given = [name for name, value in place.items() if value is not None]
    if given and not options.distributed:
        raise UserError(f"{given[0]}: expected with --distributed only")
    if given and len(given) < len(place):
        raise UserError(f"{given[0]}: expected {', '.join(place)} together, or none of them")
    if given and options.process_index >= options.process_count:
        raise UserError(
            f"--process-index {options.process_index}: expected less than --process-count {options.process_count}"
        )
    if options.steps and options.scale:
        raise UserError("--scale: expected without --steps, which says how many steps there are")
    if options.all:
        useful = {"all", "seeds", "scale", "out", "checkpoint_every", "overwrite", "dry_run", "quiet", "list", "version"}
        useful |= set(TEXT_OPTIONS)
        refuse_other_than(useful, options, "no option of --all, which runs what the files of ./experiments declare")
    return options


def parse_figures(arguments: Sequence[str]) -> FiguresOptions:
    """Options of `python -m jaxtie.figures`; raises as `parse_run`."""
    return _parse(FiguresOptions, "jaxtie.figures", arguments)
