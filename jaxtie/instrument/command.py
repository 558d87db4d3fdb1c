"""The command line of `python -m jaxtie.hypothesis`: exact for a process, by two trained models for a text."""

import dataclasses
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from jaxtie import cli, kinds, runs
from jaxtie.experiment import UserError, names_of
from jaxtie.hypothesis import report
from jaxtie.leave import INTERRUPTED
from jaxtie.options import Flag, option, parse_command, parse_from_0, parse_path, parse_positive, parse_seeds
from jaxtie.results.folder import RunFolder
from jaxtie.results.page_section import leave_for_page
from jaxtie.results.terminal import finite, show
from jaxtie.runs import Outcome, Session
from jaxtie.text.declaration import Corpus, TextExperiment
from jaxtie.text.options import TextOptions
from jaxtie.text.tuned import Tuning
from jaxtie.text.two_models import ENTRIES, PLANTED, RECORD, STEPS, corpus_of
from jaxtie.text.width_grid import WidthGrid

if TYPE_CHECKING:
    from jaxtie.hypothesis.benchmark import Benchmark
    from jaxtie.hypothesis.blind import BlindTest
    from jaxtie.instrument.known import Truth
    from jaxtie.results.tables import Table

OUT = Path("runs/hypothesis")
ANY = {"source", "json", "quiet"}  # options that every way to ask has
TEXT = {"text", "tfds", "tfds_field"}
OF_PARTS = {"seeds", "rates"}  # of a benchmark on text
MODELS = {"size", "steps", "planted"}  # of the two that are trained
QUESTIONS = {"tokens", "contexts", "no_price"}


@dataclass(frozen=True)
class HypothesisOptions(TextOptions):
    """Does the distributional hypothesis hold, and what does one table for two cost?

    For a process (EXPERIMENT.py, on EXor) exactly. For a text (--text FOLDER) by two small models, which are trained on
    disjoint halves of it, with a vocabulary of 4,096 where nothing is said of one; or by two runs of untied models that
    exist (RUN_A --second RUN_B), causal or masked. --known proves it on a source of which all is known. The answer goes to
    standard output, progress and errors to standard error. Exit status: 0 done, 2 a user's error, 130 interrupted.
    """

    source: Annotated[tyro.conf.Positional[Path | None], option("EXPERIMENT.py|RUN_A", parse_path, "none")] = None
    """Experiment on EXor, a benchmark (one over widths, or of arms at their own learning rates, takes a --text), or the
    folder of a finished run of a model of text."""
    vocab_size: Annotated[int | None, option("N", parse_positive, f"{ENTRIES} of new models, else as in the experiment")] = (
        None
    )
    """Entries of the vocabulary that is trained, at most."""
    known: Flag = False
    """Prove the instrument: ask a text that is sampled from a source of known truth, and show what it makes of what is
    planted there."""
    second: Annotated[Path | None, option("RUN_B", parse_path, "none")] = None
    """Folder of the second model's run."""
    size: Literal["small", "medium", "large"] = "small"
    """Of the two models that are trained: 2 layers of width 64, 3 of 128, 4 of 256."""
    masked: Flag = False
    """Train masked models instead of causal ones."""
    seeds: Annotated[tuple[int, ...] | None, option("N|A-B|A,B,C", parse_seeds, "all that are declared")] = None
    """Of a benchmark on text: which seeds; to add to a folder, name those it has, too."""
    rates: Annotated[Path | None, option("CSV", parse_path, "they are tried here")] = None
    """Of a benchmark of arms at their own learning rates: tuned-rates.csv of another part of it, to try nothing again."""
    steps: Annotated[int, option("STEPS", parse_positive)] = STEPS
    """Updates of each of the two models, to the nearest 100."""
    planted: Annotated[int, option("N", parse_from_0)] = PLANTED
    """Words that get a duplicate in the text: what is known to be equivalent."""
    tokens: Annotated[int, option("K", parse_positive)] = 200
    """How many of the most frequent words are asked about."""
    contexts: Annotated[int, option("N", parse_positive)] = 32
    """Contexts of each token of a pair."""
    no_price: Flag = False
    """Leave out the price of one table: S, C and m alone, of tied models too."""
    out: Annotated[Path, option("DIR", parse_path)] = OUT
    """Folder for the two models, results, figure and summary."""
    json: Flag = False
    """Print the answer as JSON instead."""
    overwrite: Flag = False
    """Train the two models anew."""
    quiet: Flag = False
    """No progress."""


def main_hypothesis(arguments: Sequence[str] | None = None) -> int:
    """The command line of `python -m jaxtie.hypothesis`; returns the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        options = parse_command(HypothesisOptions, "jaxtie.hypothesis", arguments)
        command = cli.command_line("jaxtie.hypothesis", arguments)
        return _answer(options, Session(command, options.quiet, options.overwrite))
    except (UserError, OSError) as error:
        print(f"jaxtie.hypothesis: {cli.one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED


def _answer(options: HypothesisOptions, session: Session) -> int:
    given = bool(options.text or options.tfds)
    if (declared := _declared_on_text(options.source)) is not None:
        return _of_declared_on_text(declared, options, session)
    for name in OF_PARTS:
        if getattr(options, name) is not None:
            raise UserError(f"--{name}: expected with a benchmark on text, such as experiments/tuned_heads.py")
    if options.known and (given or options.source or options.vocab or options.vocab_size):
        raise UserError("--known: expected without a text, a vocabulary or runs; it makes a text of its own")
    if options.masked and not given:
        raise UserError("--masked: expected with --text FOLDER; runs are what they are, and --known is of causal models")
    if options.known:
        useful = ANY | MODELS | QUESTIONS | {"known", "out", "overwrite"}
        cli.refuse_other_than(useful, options, "no option of --known, which makes a text of its own")
        return _of_known_source(options, session)
    if options.source is None and not given:
        raise UserError("expected a text (--text FOLDER), an experiment on EXor, or two runs (RUN_A --second RUN_B)")
    if options.source is not None and given:
        raise UserError(f"{options.source}: expected without --text, which trains two models of its own")
    if options.second is not None and options.source is None:
        raise UserError(f"--second {options.second}: expected with the folder of a first run, RUN_A --second RUN_B")
    if options.source is not None and options.source.suffix == ".py":
        if (benchmark := runs.load_benchmark(options.source)) is None:
            cli.refuse_other_than(
                ANY, options, f"no option of {options.source}, whose answer is exact and is written nowhere"
            )
            return _exact(options)
        _refuse_beside(options, ANY | {"out", "overwrite"})
        return _of_benchmark(benchmark, options, session)
    if options.source is not None and options.second is None:
        raise UserError(f"{options.source}: is one model where two are needed; give another run by --second RUN_B")
    if given:
        return _of_new_models(options, session)
    cli.refuse_other_than(ANY | QUESTIONS | {"second", "out"}, options, "no option of two runs, which are what they are")
    return _of_runs((options.source, options.second), options, session)


def _exact(options: HypothesisOptions) -> int:
    experiment = runs.load_experiment(options.source)
    exact = kinds.of(experiment).exact_divergences(experiment)
    if options.json:
        columns: dict[str, Any] = {name: exact[name].values.tolist() for name in ("pair", *exact)}
        print(json.dumps(finite({"answer": report.exact_sentence(exact), **columns})))
        return 0
    print(report.exact_sentence(exact))
    show(report.exact_table(exact))
    return 0


def _of_benchmark(benchmark: "Benchmark | BlindTest", options: HypothesisOptions, session: Session) -> int:
    """Many sources of known truth: predicted prices beside measured costs, or a blind test."""
    from jaxtie.hypothesis.blind import BLIND_TABLES, BlindTest
    from jaxtie.hypothesis.costs import COST_TABLES
    from jaxtie.instrument import of_benchmark, of_blind

    _check_holds_no_run(options.out)
    experiment = runs.load_experiment(options.source)
    is_blind = isinstance(benchmark, BlindTest)
    if is_blind:
        outcome = of_blind.carry_out_blind(benchmark, options.out, session)
    else:
        outcome = of_benchmark.carry_out_benchmark(benchmark, experiment, options.out, session)
    if outcome is Outcome.INTERRUPTED:
        return _interrupted(session)
    if is_blind:
        title, found, made = "A blind test", of_blind.count(benchmark, options.out), BLIND_TABLES
    else:
        title = "Predicted prices and measured costs"
        found, made = of_benchmark.gather(benchmark, experiment, options.out), COST_TABLES
    return _show_tables(title, experiment.claim, {name: make(found) for name, make in made.items()}, options, session)


def _declared_on_text(source: Path | None) -> WidthGrid | Tuning | None:
    """What an experiment file declares, if that is a grid over widths or arms at their own rates: they take a text beside."""
    is_file = source is not None and source.suffix == ".py" and source.is_file()
    found = runs.load_benchmark(source) if is_file else None
    return found if isinstance(found, WidthGrid | Tuning) else None


def _of_declared_on_text(declared: WidthGrid | Tuning, options: HypothesisOptions, session: Session) -> int:
    """What an experiment file says is to be measured on a text."""
    experiment = runs.load_experiment(options.source)
    _refuse_beside(options, ANY | TEXT | OF_PARTS | {"out", "overwrite"})
    if not (options.text or options.tfds):
        raise UserError(
            f"{experiment.name}: needs a text; give files or folders by --text PATH, or a data set by --tfds NAME"
        )
    if options.seeds is not None:
        experiment = dataclasses.replace(experiment, seeds=options.seeds)
    corpus = corpus_of(options, experiment.corpus.vocab_size)
    _check_holds_no_run(options.out)
    if isinstance(declared, Tuning):
        return _of_tuned(declared, experiment, corpus, options, session)
    if options.rates:
        raise UserError(f"--rates {options.rates}: expected with a benchmark of arms at their own rates, not of a grid")
    return _of_grid(declared, experiment, corpus, options, session)


def _of_grid(
    grid: WidthGrid, experiment: TextExperiment, corpus: Corpus, options: HypothesisOptions, session: Session
) -> int:
    """What one table costs, measured over widths and vocabularies."""
    from jaxtie.instrument.of_widths import carry_out_widths, gather_widths
    from jaxtie.text.width_prices import GRID_TABLES, PRICES_CAPTION

    if carry_out_widths(grid, experiment, corpus, options.out, session) is Outcome.INTERRUPTED:
        return _interrupted(session)
    found = gather_widths(grid, options.out)
    tables = {name: make(found) for name, make in GRID_TABLES.items()}
    return _show_tables("What one table costs", experiment.claim, tables, options, session, prices=PRICES_CAPTION)


def _of_tuned(
    tuning: Tuning, experiment: TextExperiment, corpus: Corpus, options: HypothesisOptions, session: Session
) -> int:
    """Every arm at its own learning rate."""
    from jaxtie.instrument.of_tuned import carry_out_tuned
    from jaxtie.text.tuned_results import read_tried, read_tuned, tuned_pictures, tuned_tables

    tried = options.rates and read_tried(options.rates, tuning, names_of(experiment.arms))
    if carry_out_tuned(tuning, experiment, corpus, options.out, session, tried) is Outcome.INTERRUPTED:
        return _interrupted(session)
    results, tried = read_tuned(options.out)
    captions = {name: picture.caption for name, picture in tuned_pictures(results).items()}
    tables = tuned_tables(results, tried)
    return _show_tables("Every arm at its own learning rate", experiment.claim, tables, options, session, **captions)


def _refuse_beside(options: HypothesisOptions, useful: set[str]) -> None:
    cli.refuse_other_than(useful, options, f"no option of {options.source}, which declares what is trained")


def _check_holds_no_run(out: Path) -> None:
    if RunFolder(out).config():
        raise UserError(f"--out {out}: holds a run; choose another folder")


def _interrupted(session: Session) -> int:
    print(f"jaxtie: {runs.goes_on(session)}", file=sys.stderr)
    return INTERRUPTED


def _show_tables(
    title: str, claim: str, tables: dict[str, "Table"], options: HypothesisOptions, session: Session, **captions: str
) -> int:
    """Tables of what was measured: in `summary.md`, with figures for the page, and on standard output."""
    shown = [f"![{name}](figures/{name}.png)\n\n{caption}\n" for name, caption in captions.items()]
    summary = "\n".join([f"# {title}", "", *(table.markdown() for table in tables.values()), *shown])
    (options.out / "summary.md").write_text(summary, encoding="utf-8")
    leave_for_page(options.out, session.command, [claim], [*tables.values()], **captions)
    if options.json:
        print(json.dumps({name: dataclasses.asdict(table) for name, table in tables.items()}))
        return 0
    show(*tables.values())
    print(f"what was measured, and a summary: {options.out}")
    return 0


def _of_known_source(options: HypothesisOptions, session: Session) -> int:
    """The same of a text whose law is known, which is written beside the two models."""
    from jaxtie.hypothesis.sources import Plan, planted
    from jaxtie.instrument import known

    source = planted(Plan())
    text = known.write_known_text(options.out / "text", source, known.SAMPLED, known.LENGTH)
    own = dataclasses.replace(options, text=(text.text,), vocab=text.vocabulary)
    return _of_new_models(own, session, known.Truth(source, text.pairs))


def _of_new_models(options: HypothesisOptions, session: Session, truth: "Truth | None" = None) -> int:
    """Train the two models, or find them trained, and ask them."""
    from jaxtie.instrument.of_text import check_tokens
    from jaxtie.text.corpus.tokens import prepare_text
    from jaxtie.text.two_models import NAMES, two_models

    _check_holds_no_run(options.out)
    corpus = corpus_of(options, ENTRIES)
    steps = max(1, round(options.steps / RECORD)) * RECORD
    task = "masked" if options.masked else "causal"
    declared = two_models(corpus, options.size, steps, options.planted, task)
    folders = [RunFolder(options.out / name) for name in NAMES]
    for experiment, folder in zip(declared, folders):
        runs.found_in(experiment, folder, options.overwrite)  # raises before anything is prepared
    vocabulary = len(prepare_text(corpus, say=session.say).vocabulary) + options.planted
    check_tokens(options.tokens, vocabulary)
    for experiment, folder in zip(declared, folders):
        if runs.carry_out(experiment, folder, session) is Outcome.INTERRUPTED:
            print(f"jaxtie: {runs.goes_on(session)} with {folder.path}", file=sys.stderr)
            return INTERRUPTED
    return _of_runs(tuple(folder.path for folder in folders), options, session, truth)


def _of_runs(paths: tuple[Path, Path], options: HypothesisOptions, session: Session, truth: "Truth | None" = None) -> int:
    """Ask two trained models; what is found is written at the end, all or nothing."""
    from jaxtie.training.devices import start_jax

    start_jax()
    from jaxtie.instrument.asking import ask, write

    answer = ask(paths, options, session, truth)
    write(answer, options.out, session.command)
    if options.json:
        print(json.dumps(finite(answer.as_dict())))
        return 0
    print(*answer.sentences, sep="\n")
    show(*(table for table in answer.tables if not table.long))
    print(f"figure, results and summary: {options.out}")
    return 0
