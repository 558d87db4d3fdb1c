"""Whether equivalence in one sense is equivalence in the other: exact, or by two models of a text.

Imports jax only to train or evaluate models.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from equivalence import models, report
from jaxtie.config import UserError
from jaxtie.exor.config import Experiment
from jaxtie.results.folder import RunFolder
from jaxtie.results.tables import json_numbers, print_tables
from jaxtie.run import lifecycle
from jaxtie.run.experiment_files import load_experiment
from jaxtie.run.lifecycle import Session

OUT = Path("runs/hypothesis")


def answer_exactly(source: Path, as_json: bool) -> int:
    """Print the exact divergences of a process on EXor."""
    experiment = load_experiment(source)
    if not isinstance(experiment, Experiment):
        raise UserError(
            f"{experiment.name}: the exact distribution of a text is unknown; give --text PATH, or"
            " the folders of two runs"
        )
    from exact import pair_divergences  # imports jax

    exact = pair_divergences(experiment.process)
    if as_json:
        columns: dict[str, Any] = {name: exact[name].values.tolist() for name in ("pair", *exact)}
        print(json.dumps(json_numbers({"answer": report.exact_sentence(exact), **columns})))
        return 0
    print(report.exact_sentence(exact))
    print_tables(report.exact_table(exact))
    return 0


def train_and_evaluate(options: Any, session: Session) -> int:
    """Train three models unless they are trained; evaluate two on pairs that the third chose."""
    from jaxtie.text.data.tokens import prepare_text

    corpus = models.corpus_of(options)
    out = options.out or Path(f"{OUT}-{corpus.label}")
    objective = "masked" if options.masked else "causal"
    if RunFolder(out).config():
        raise UserError(f"--out {out}: holds a run; choose another folder")
    models.declare_models(corpus)[0].check_inputs()
    text = prepare_text(corpus, say=session.say)
    if options.steps:
        steps = max(1, round(options.steps / models.RECORD)) * models.RECORD
    else:
        found = text.report
        steps = models.default_steps(found.rows["train"], found.tokens["train"], objective)
    duplicates = options.synthetic_duplicates
    models.check_tokens(options.words, len(text.vocabulary) + duplicates)
    experiments = models.declare_models(corpus, options.size, steps, duplicates, objective)
    folders = [RunFolder(out / name) for name in models.NAMES]
    for experiment, folder in zip(experiments, folders):  # raises before anything is trained
        lifecycle.inspect_folder(experiment, folder, options.overwrite)
    for experiment, folder in zip(experiments, folders):
        if lifecycle.run_in_folder(experiment, folder, session) is None:
            raise KeyboardInterrupt(f"{lifecycle.resume_hint(session)} with {folder.path}")
    return evaluate_runs([folder.path for folder in folders], out, options, session)


def evaluate_runs(paths: Sequence[Path], out: Path, options: Any, session: Session) -> int:
    """Evaluate the first two models, see `equivalence.measure.evaluate`; write all or nothing."""
    from jaxtie.training.devices import check_devices, start_jax

    start_jax()
    check_devices()
    from equivalence.measure import evaluate

    answer = evaluate(paths, options.words, options.contexts, session.say)
    report.write(answer, out, session.command)
    if options.json:
        print(json.dumps(json_numbers(answer.as_dict())))
        return 0
    print(*answer.sentences, sep="\n")
    print_tables(*answer.tables)
    print(f"figure, results and summary: {out}")
    return 0
