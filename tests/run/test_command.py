"""The command line: invalid input is refused in one line, valid input is read as meant."""

import dataclasses
import os
import pty
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from commands import PATIENCE
from drawing import save_small

import jaxtie
from jaxtie.__main__ import main as jaxtie_main
from jaxtie.advise.command import AdviseOptions
from jaxtie.audit.command import AuditOptions
from jaxtie.compare.command import CompareOptions
from jaxtie.config import UserError, names_of
from jaxtie.options import parse_seeds
from jaxtie.results import plots
from jaxtie.results.folder import RunFolder
from jaxtie.run import command as cli
from jaxtie.run.experiment_files import find_experiment, load_experiment
from jaxtie.training.trainer import Trainer

TOGETHER = "--distributed --coordinator {} --process-count {} --process-index {}"
NO_ARM = "expected tied, untied, untied@STEP or untied@2/3"
NO_SEEDS = "expected a number of seeds (64), a range (42-46) or a list (1,5,9)"
NO_SWEEP = "expected NAME=VALUE,VALUE, such as"
# Command lines, and words of the error that no other one has.
BAD = [
    ("--seeds 0", f"--seeds: '0': {NO_SEEDS}"),
    ("--seeds -3", f"--seeds: '-3': {NO_SEEDS}"),
    ("--seeds 5-2", f"'5-2': {NO_SEEDS}"),
    ("--seeds 1,1", "seeds: each may be named once"),
    ("--seeds ''", f"--seeds: '': {NO_SEEDS}"),
    ("--seeds 4294967296-4294967296", "seed 4294967296: expected an integer in 0...4294967295"),
    ("--seeds '1, 2'", f"'1, 2': {NO_SEEDS}"),
    ("--seeds 1234567890", f"'1234567890': {NO_SEEDS}"),
    ("--seeds ٣", f"'٣': {NO_SEEDS}"),
    ("--seeds 1-2-3", f"'1-2-3': {NO_SEEDS}"),
    ("--steps 0", "--steps: '0': expected a positive integer"),
    ("--steps 150", "steps = 150: expected a multiple of record_every = 100"),
    ("--steps 3000000000", "steps = 3000000000: expected fewer than 2147483648"),
    ("--steps 99999999999", "--steps: '99999999999': expected a positive integer"),
    ("--eval-every 150", "eval_every = 150: expected a multiple of record_every = 100"),
    ("--eval-every 9999999900", "eval_every = 9999999900: expected fewer than"),
    ("--arms tied,knotted", f"--arms: arm 'knotted': {NO_ARM}"),
    ("--arms untied@0", f"arm 'untied@0': {NO_ARM}"),
    ("--arms untied@3/2", f"arm 'untied@3/2': {NO_ARM}"),
    ("--arms untied@1/0", f"arm 'untied@1/0': {NO_ARM}"),
    ("--arms untied@2/3,untied@100000", "untied@100000: each may be named once"),
    ("--arms untied@midway", f"arm 'untied@midway': {NO_ARM}"),
    ("--arms untied@150000", "arm untied@150000: expected a multiple of record_every = 100 below"),
    ("--arms untied@150", "arm untied@150: expected a multiple of record_every = 100"),
    ("--arms tied@100", f"arm 'tied@100': {NO_ARM}"),
    ("--arms tied,tied", "arms = tied,tied: each may be named once"),
    ("--arms tied+shuffle,tied+shuffle=2", "each may be named once"),
    ("--arms ''", f"arm '': {NO_ARM}"),
    ("--arms tied+shuffle=3", "tied+shuffle=3: width = 4: expected a multiple of 3"),
    ("narrow.py --arms tied+half-swap", "width = 5: expected a multiple of 2"),
    ("--arms tied+nonsense", "+nonsense is no option of a head; expected bias, undecayed-bias"),
    ("--arms tied+bias=1", "+bias=1 is no option of a head"),
    ("--arms tied+init-std", "+init-std is no option of a head"),
    ("--arms tied+shuffle+half-swap", "+half-swap repeats or contradicts an earlier option; leave"),
    ("--arms tied+logit-softcap=-1", "logit-softcap is '-1'; expected a number above 0"),
    ("--arms tied+input-gradient=nan", "input-gradient is 'nan'; expected a number of at least 0"),
    ("--arms tied+init-std=D", "init-std is 'D'; expected a number above 0 or one of root-D"),
    ("--arms untied@100+bias", "a head's options stand before the @"),
    ("--arms tied+input-rate=2", "a tied table has one learning rate; give +table-rate"),
    ("--arms untied+output-rate=2@100", "a tied table has one learning rate"),
    ("--arms untied+output-start", "starts with both tables; +output-start is for a tied one"),
    ("--arms tied+untie-rows=masks", "'masks'; expected mask, labels, never-targets"),
    ("--arms tied+untie-rows", "+untie-rows is no option of a head"),
    ("--arms tied+tie-rows=mask", "all rows are tied; +tie-rows is for an untied table"),
    ("--arms untied+untie-rows=mask", "all rows are untied; +untie-rows is for a tied table"),
    ("--arms untied+tie-rows=mask@300", "rows are tied from start to end; leave out @STEP"),
    ("--arms tied+untie-rows=mask+output-start", "leave out +output-start"),
    ("causal.py --text README.txt --arms tied+untie-rows=labels", "no rows 'labels' on text;"),
    ("--data-seed=-1", "--data-seed: '-1': expected an integer of at least 0"),
    ("--data-seed 4294967296", "data_seed = 4294967296: expected an integer in 0...4294967295"),
    ("--zeros 0.1,0.8", "zeros = (0.1, 0.8): expected two probabilities"),
    ("--ones 0.1,0.8,0.1", "ones = (0.1, 0.8, 0.1): expected two probabilities"),
    ("--ones nan,nan", "--ones: 'nan': expected a number"),
    ("--zeros=-0.1,1.1", "zeros = (-0.1, 1.1): expected two probabilities"),
    ("nowhere.py", "nowhere.py: no such file"),
    ("README.txt", "README.txt: expected a Python file"),
    ("raises.py", "raises.py:3: ZeroDivisionError: division by zero"),
    ("broken.py", "broken.py: SyntaxError"),
    ("empty.py", "empty.py: expected it to define experiment"),
    ("long.py", "long.py:2: length = 11: expected 4 to 10 bits"),
    ("in_order.py", "in_order.py:2: length = 9: expected at most 8 bits with Mixer"),
    ("leaves.py", "leaves.py:1: SystemExit: 0"),
    ("gives_up.py", "gives_up.py:1: BaseException: enough"),
    ("collects.py", "collects.py:1: GeneratorExit"),
    ("three.py", "three.py:2: optimizer = 3: expected an Optimizer"),
    ("process.py", "process.py:2: process = 'main': expected a Process"),
    ("many.py", "many.py:2: seeds: expected 1 to 16777216"),
    ("endless.py", "endless.py:2: seeds = count(0): expected a sequence"),
    ("good.py good.py", "unexpected: good.py"),
    ("other", "other: no such experiment"),
    ("misspelt.py", "misspelt.py:2: TypeError: Experiment.__init__() got"),
    ("heads.py", "heads.py:2: heads = 3: expected a divisor of width = 4"),
    ("named.py", "named.py:2: name = '../elsewhere': expected a name that can be"),
    ("of_text.py", "of_text.py: expected it to define experiment"),
    ("--checkpoint-every 0", "--checkpoint-every: '0': expected a number of seconds above 0"),
    ("--checkpoint-every inf", "--checkpoint-every: 'inf': expected a number of seconds"),
    (TOGETHER.format("here", 2, 0), "--coordinator: 'here': expected HOST:PORT"),
    (TOGETHER.format("here:70000", 2, 0), "'here:70000': expected HOST:PORT"),
    ("--distributed --coordinator here:4000", "--process-count, --process-index together, or none"),
    ("--process-index 0", "--process-index: expected with --distributed only"),
    (TOGETHER.format("here:4000", 2, 2), "--process-index 2: expected less than"),
    (
        "--out finished --zeros 0.2,0.8",
        "finished: holds a run that differs in process.zeros, steps",
    ),
    ("--out unfinished", "unfinished: holds a run that differs in steps;"),
    ("causal.py", "causal: needs a text; give files or folders by --text PATH"),
    ("causal.py --text nowhere", "nowhere: no such file or folder"),
    ("causal.py --text other", "other: holds no text by its name; expected .txt"),
    ("causal.py --text README.txt", "1 different paragraphs are too little for three splits"),
    ("causal.py --text ''", "--text: '': expected a file or a folder"),
    ("--text README.txt", "--text: not an option of transformer-small, which reads"),
    ("causal.py --text README.txt --tfds lm1b", "either files and folders or the name of a TFDS"),
    ("causal.py --text README.txt --steps 30", "steps = 30: expected a multiple of"),
    ("causal.py --text README.txt --zeros 0.2,0.8", "--zeros: not an option of causal, which"),
    ("causal.py --text-field story", "causal: needs a text"),
    ("causal.py --text README.txt --text-field story", "--text-field story: README.txt: text"),
    ("causal.py --text of_text.py", "of_text.py: is no text by its name; expected .txt"),
    ("causal.py --text /dev/zero", "--text: /dev/zero: is a pipe, a device or a socket; expected"),
    ("causal.py --text README.txt --vocab /dev/zero", "--vocab: /dev/zero: is a pipe, a device"),
    ("causal.py --text nowhere --out finished", "nowhere: no such file or folder"),
    ("causal.py --text nowhere --out unfinished", "nowhere: no such file or folder"),
    ("causal.py --text README.txt --document page", "'page': expected one of file, line, blank"),
    ("--document line", "--document: not an option of transformer-small, which reads"),
    ("causal.py --text README.txt --vocab-size 1", "vocab_size = 1: expected 100 to"),
    ("causal.py --text README.txt --arms tied+shuffle=3", "width = 128: expected a multiple of 3"),
    ("odd.py", "odd.py:2: heads = 4: expected width / heads to be even"),
    ("--sweep ''", f"--sweep: '': {NO_SWEEP}"),
    ("--sweep claim=1,2", "claim: no number of the experiment; expected one of learning_rate"),
    ("--sweep layer=1,2", "feedforward; did you mean layers?"),
    ("--sweep steps=100,200", "steps: no number of the experiment"),
    ("--sweep layers=1.5", "sweep of layers: 1.5: expected integers"),
    ("--sweep width=0", "width = 0: expected a positive integer"),
    ("--sweep weight_decay=", f"'weight_decay=': {NO_SWEEP}"),
    ("--sweep weight_decay=none,some", f"'weight_decay=none,some': {NO_SWEEP}"),
    ("--sweep weight_decay=0,nan", f"'weight_decay=0,nan': {NO_SWEEP}"),
    ("--sweep learning_rate=٣", f"'learning_rate=٣': {NO_SWEEP}"),
    ("--sweep learning_rate=1_0", f"'learning_rate=1_0': {NO_SWEEP}"),
    ("--sweep 'eps=1e-8, 1e-9'", f"'eps=1e-8, 1e-9': {NO_SWEEP}"),
    ("--zeros 0.１,0.9", "--zeros: '0.１': expected a number"),
    ("--arms tied+init-std=٣", "init-std is '٣'; expected a number above 0 or one of root-D"),
    ("--arms tied+shuffle=²", "+shuffle=² is no option of a head"),
    ("--checkpoint-every ６０", "--checkpoint-every: '６０': expected a number of seconds"),
    ("--sweep learning_rate=-1e-4,1e-4", "learning_rate = -0.0001: expected a number above 0"),
    ("--sweep p_X=0.5,1.5", "zeros = (1.5, -0.5): expected two probabilities in [0, 1]"),
    ("--sweep eps=1e-8,1e-08", "sweep of eps: each value may be named once"),
    ("--sweep eps=1e-8 --sweep eps=1e-12", "sweep of eps, eps: each field may be named once"),
    ("--sweep eps=0 --sweep optimizer.eps=1", "sweep of eps, optimizer.eps: each field may be"),
    ("--sweep p_X=0 --sweep process.p_X=1", "sweep of p_X, process.p_X: each field may be"),
    ("--sweep width=6,8 --sweep heads=2,4", "heads = 4: expected a divisor of width = 6"),
    ("--sweep independent_layers=0,1", "independent_layers: no number of the exp"),
    ("--sweep zeros=0.1,0.9", "zeros: no number of the experiment"),
    ("--zeros 0.2,0.8 --sweep p_X=0.1,0.5", "sweep of p_X: another option sets it; give one of"),
    ("--data-seed 3 --sweep process.data_seed=1,3", "sweep of data_seed: another option sets it"),
    (
        "causal.py --text README.txt --data-seed 3 --sweep split_seed=1,3",
        "sweep of split_seed: another option sets it",
    ),
    ("--steps 300 --arms untied@1/2", "untied@1/2: 1/2 of 300 steps: the nearest record, 200"),
    ("--dry-run=1", "--dry-run: expected without a value, got '1'"),
    ("--steps 1.5", "--steps: '1.5': expected a positive integer"),
    ("--arms tied+bais", "; did you mean bias?"),
    ("nowere/good.py", "nowere/good.py: no such file"),
    ("./god.py", "god.py: no such file; did you mean good.py"),
    ("--sedes 3", "--sedes: no such option; did you mean --seeds?"),
    ("--list output_bias", "EXPERIMENT: expected without --list"),
    ("--list --seeds 3", "--seeds: expected without --list"),
    ("--steps", "--steps: expected one argument"),
    ("--json --dry-run", "--json: expected without --dry-run"),
    ("--width 2.5", "--width: '2.5': expected a positive integer"),
    ("--learning-rate -1", "--learning-rate: '-1': expected a number above 0"),
    ("--weight-decay -1", "weight_decay = -1.0: expected a number at least 0"),
    ("--width 6 --sweep width=4,8", "sweep of width: another option sets it"),
    ("--learning-rate 1 --sweep learning_rate=1,2", "sweep of learning_rate: another option"),
    ("output_bia", "output_bia: no such experiment; did you mean output_bias or"),
    ("--out README.txt/run", "README.txt/run: not a folder; choose another --out"),
    ("--out other", "--out other: holds other files than a run's"),
    ("--out other --overwrite", "--out other: holds other files than a run's"),
    ("--out damaged", "damaged/config.json: cannot be read as a run's configuration"),
    ("--out older", "older/config.json: format = None: expected 2; another version of jaxtie"),
    ("--out newer", "newer/config.json: format = 3: expected 2; another version of jaxtie"),
]


def declared(experiment: str) -> str:
    return f"import jaxtie\nexperiment = jaxtie.{experiment}"


FILES = {
    "README.txt": "no Python",
    "raises.py": "def fail():\n    pass\n1 / 0\n",
    "broken.py": "def :",
    "empty.py": "",
    "leaves.py": "raise SystemExit(0)",
    "gives_up.py": "raise BaseException('enough')",
    "collects.py": "raise GeneratorExit",
    "three.py": declared("Experiment(optimizer=3)"),
    "process.py": declared("Experiment(process='main')"),
    "many.py": declared("Experiment(seeds=range(10**9))"),
    "endless.py": declared("Experiment(seeds=__import__('itertools').count())"),
    "long.py": declared("Experiment(process=jaxtie.Process(length=11))"),
    "in_order.py": declared("Experiment(process=jaxtie.Process(length=9), model=jaxtie.Mixer())"),
    "other/thesis.tex": "years of work",
    "causal.py": declared("TextExperiment(name='causal', objective='causal')"),
    "odd.py": declared("TextExperiment(objective='causal', model=jaxtie.Transformer(4, 4, 36))"),
    "good.py": declared("Experiment()"),
    "narrow.py": declared("Experiment(model=jaxtie.Transformer(width=5))"),
    "misspelt.py": declared("Experiment(step=100)"),
    "heads.py": declared("Experiment(model=jaxtie.Transformer(heads=3))"),
    "named.py": declared("Experiment(name='../elsewhere')"),
    "of_text.py": "experiment = 'transformer-small'",
    "finished/config.json": "",  # see `workplace`
    "unfinished/config.json": "",
    "damaged/config.json": "{",
    "older/config.json": '{"experiment": {}, "finished": true}',
    "newer/config.json": '{"format": 3, "experiment": {}, "finished": true}',
}


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with invalid files and runs."""
    place = tmp_path_factory.mktemp("place")
    for name, text in FILES.items():
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(text)
    for finished, name, steps in ((True, "finished", 200_000), (False, "unfinished", 100)):
        config = {"experiment": jaxtie.Experiment(steps=steps).as_dict(), "finished": finished}
        RunFolder(place / name).write_config(config)
    return place


@pytest.fixture
def workplace(place, tmp_path, monkeypatch) -> Path:
    """The same as the current folder; nothing is written there."""
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return place


@pytest.mark.parametrize(("line", "words"), BAD, ids=[line for line, _ in BAD])
def test_bad_input_is_one_line_status_2_and_nothing_written(
    workplace, monkeypatch, capsys, line, words
):
    # a line that is not refused would train for an hour
    monkeypatch.setattr(Trainer, "train", lambda *_: pytest.fail("it trains"))
    before = {path: path.stat().st_mtime_ns for path in workplace.rglob("*")}
    assert cli.main(shlex.split(line)) == 2
    out, error = capsys.readouterr()
    assert (out, error.count("\n")) == ("", 1)
    assert error.startswith("jaxtie: ") and words in error
    assert "Traceback" not in error and "---" not in error
    assert before == {path: path.stat().st_mtime_ns for path in workplace.rglob("*")}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--version run", "'run': expected nothing after --version"),
        ("--help run", "'run': expected nothing after --help"),
        ("run --steps 0", "--steps: '0': expected a positive integer"),
        ("run --list x", "EXPERIMENT: expected without --list"),
        ("frobnicate a b", "'frobnicate': expected one of run, compare, advise, audit, report"),
        ("advise nowhere", "nowhere: no such file or folder"),
        ("advise --width 8", "expected --layers and --vocabulary, or CONFIG"),
        ("audit nowhere", "nowhere: no such file or folder"),
        ("audit a b", "expected PATH, one checkpoint, not 2: a, b"),
        ("audit a --verbose --json", "--verbose: expected without --json"),
        ("report", "expected the folder of a run"),
        ("report nowhere", "nowhere: "),
    ],
)
def test_every_command_refuses_in_one_form(line, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        jaxtie_main(line.split())
    out, error = capsys.readouterr()
    assert (end.value.code, out, error.count("\n")) == (2, "", 1)
    assert error.startswith(f"jaxtie: {words}")


def command(*arguments: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-W", "error", *arguments], text=True, timeout=PATIENCE, **options
    )


def test_an_error_on_a_terminal_is_one_line_without_colours_jax_or_warnings():
    """And `jaxtie.run` stays the function after the package of that name was imported."""
    code = """
import runpy, sys
sys.argv = ["jaxtie.run", "--seeds", "5-2"]
try:
    runpy.run_module("jaxtie.run", run_name="__main__")
except SystemExit as end:
    print(end.code, file=sys.stderr)
import jaxtie, jaxtie.run.command
jaxtie.load
print("jax" in sys.modules, callable(jaxtie.run), file=sys.stderr)
"""
    ours, terminal = pty.openpty()
    pipes = {"stdout": terminal, "stderr": subprocess.PIPE, "env": os.environ | {"TERM": "xterm"}}
    done = command("-c", code, **pipes)
    os.close(terminal)
    os.close(ours)
    line = f"jaxtie: --seeds: '5-2': {NO_SEEDS} (see jaxtie run --help)\n"
    assert (done.returncode, done.stderr) == (0, f"{line}2\nFalse True\n")


LONG_OUTPUTS = ("run --list", "report {run}", "run {again}")


@pytest.mark.parametrize(
    "arguments", ["--help", *(pytest.param(each, marks=pytest.mark.slow) for each in LONG_OUTPUTS)]
)
@pytest.mark.parametrize("closed", ["nobody reads", "closed"])
def test_output_that_nobody_reads_ends_quietly(tmp_path, monkeypatch, arguments, closed):
    """As in `jaxtie run --list | head -1` and in `jaxtie run >&-`."""
    options = "--seeds 1 --steps 20 --record-every 10 --eval-every 10 --quiet --out run"
    if "{" in arguments:  # trained here, where programs compile quickly
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(plots, "save", save_small)
        assert cli.main(options.split()) == 0
    words = arguments.format(run="run", again=options)
    if closed == "closed":
        line = f"{shlex.join([sys.executable, '-m', 'jaxtie'])} {words} >&-"
        done = subprocess.run(
            line, shell=True, cwd=tmp_path, stderr=subprocess.PIPE, timeout=PATIENCE
        )
        expected = 0
    else:
        reader, writer = os.pipe()
        os.close(reader)
        done = command(
            "-m", "jaxtie", *words.split(), cwd=tmp_path, stdout=writer, stderr=subprocess.PIPE
        )
        os.close(writer)
        expected = 141
    assert (done.returncode, done.stderr or "") == (expected, "")


@pytest.mark.parametrize(
    ("text", "seeds"),
    [("3", (0, 1, 2)), ("42-44", (42, 43, 44)), ("17-17", (17,)), ("5,1,7-9", (5, 1, 7, 8, 9))],
)
def test_seeds_are_a_number_a_range_or_a_list(text, seeds):
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize(
    ("share", "steps", "step"),
    [("2/3", 150_000, 100_000), ("1/2", 1100, 600), ("1/1000", 2000, 100), ("9/10", 1000, 900)],
)
def test_a_share_of_the_run_is_its_nearest_record(share, steps, step):
    arms = ("tied", f"untied+bias@{share}")
    experiment = jaxtie.Experiment(arms=arms, steps=steps, record_every=100, eval_every=100)
    assert names_of(experiment.arms) == ["tied", f"untied+bias@{step}"]
    longer = dataclasses.replace(experiment, steps=100 * steps)
    assert longer.arms == dataclasses.replace(longer, arms=arms).arms != experiment.arms


@pytest.mark.parametrize("name", ["tied+foo", "tied@3", "untied@²", "both", ""])
def test_an_arm_is_its_name(name):
    assert jaxtie.Arm("untied+bias@300") == jaxtie.Arm.parse("untied+bias@300")
    messages = []
    for make in (jaxtie.Arm, jaxtie.Arm.parse, lambda name: jaxtie.Experiment(arms=[name])):
        with pytest.raises(UserError, match=r"^arm ") as caught:
            make(name)
        messages.append(str(caught.value))
    assert len(set(messages)) == 1


def test_options_change_only_what_they_name():
    line = (
        "--seeds 3 --arms tied+bias,untied+bias@100 --steps 1500 --zeros 0.2,0.8 --data-seed 7"
        " --sweep eps=0,1e-8 --learning-rate 1e-3 --weight-decay 0 --width 8"
    )
    experiment = cli.apply_options(jaxtie.Experiment(), cli.parse_run(line.split()))
    expected = jaxtie.Experiment(
        seeds=range(3),
        arms=("tied+bias", "untied+bias@100"),
        steps=1500,
        process=jaxtie.Process(zeros=(0.2, 0.8), data_seed=7),
        sweep={"eps": (0, 1e-8)},
        optimizer=jaxtie.Optimizer(learning_rate=1e-3, weight_decay=0.0),
        model=jaxtie.Transformer(width=8),
    )
    assert experiment == expected


@pytest.mark.parametrize(
    "options", [cli.RunOptions, AdviseOptions, AuditOptions, CompareOptions, cli.ReportOptions]
)
def test_the_help_of_a_command_names_its_options_and_no_others(options):
    named = re.findall(r"^  --([\w-]+)", options.HELP, re.MULTILINE)
    fields = [each.name for each in dataclasses.fields(options) if "named" in each.metadata]
    assert sorted(named) == sorted(name.replace("_", "-") for name in fields)


def test_the_help_of_a_run_shows_the_main_experiment():
    main = jaxtie.Experiment()
    own = {each.name: getattr(main, each.name) for each in dataclasses.fields(main)}
    own |= vars(main.optimizer) | vars(main.model) | {"data_seed": main.process.data_seed}
    own |= {"seeds": len(main.seeds), "arms": ",".join(names_of(main.arms))}
    for name in "seeds steps arms learning_rate weight_decay width record_every eval_every".split():
        value = own[name] if isinstance(own[name], str | float) else f"{own[name]:,}"
        text = cli.RunOptions.HELP.partition(f"  --{name.replace('_', '-')} ")[2]
        assert f"({value})" in text.partition("\n  --")[0], name


def test_every_experiment_file_can_be_loaded_and_listed(monkeypatch, capsys):
    monkeypatch.chdir(Path(__file__).parents[2])
    assert cli.main(["--list"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 110 for line in listed)
    of = {line.split()[0].strip(":"): i for i, line in enumerate(listed) if line[:3].strip()}
    for path in Path("experiments").glob("*.py"):
        assert load_experiment(path).name == path.stem.replace("_", "-")
        question = listed[of[path.stem] + 1]
        written = re.sub(r"`(\w+)\.py`", r"\1", path.read_text())
        assert f'"""{question.strip()[:30]}' in written and "?" in question
    found = "  lstm_small: 5 hold, 1 inconclusive (results/lstm-small.md)"
    assert listed[of["lstm_small"]] == found
    starts = [line.partition(":")[0] for line in listed if line[:1].strip()]
    assert starts == ["reproduce", "explain", "text"]
    places = [of[name] for name in ("mixer_small", "width_2", "text_clm")]
    assert places == sorted(places)


def test_a_list_reports_a_file_that_fails_and_goes_on(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("experiments").mkdir()
    for name in ("broken.py", "good.py"):
        Path("experiments", name).write_text(FILES[name])
    assert cli.main(["--list"]) == 0
    _, good, question, _, broken = capsys.readouterr().out.splitlines()
    assert "experiments/broken.py" in broken and "SyntaxError" in broken
    assert good == "  good" and question == f"      Is it so? {jaxtie.Experiment().claim}"


def test_experiments_are_found_by_name_anywhere(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert load_experiment(find_experiment("output_bias")).name == "output-bias"
    assert load_experiment(find_experiment("output-bias")).name == "output-bias"
    assert cli.main(["--list"]) == 0
    assert "Does an output bias repair what tying costs" in capsys.readouterr().out
    assert cli.main(["nothing"]) == 2
    assert "nothing: no such experiment; --list shows" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command_name", "words"),
    [
        ("run", "150,000"),
        ("run", "jaxtie run output_bias --seeds 128"),
        ("report", "folders of finished runs"),
        ("advise", "trains nothing"),
        ("audit", "checkpoint"),
        ("compare", "last common step"),
    ],
)
def test_help_of_a_command(command_name, words, capsys):
    with pytest.raises(SystemExit) as stop:
        jaxtie_main([command_name, "--help"])
    assert stop.value.code == 0
    assert words.lower() in " ".join(capsys.readouterr().out.split()).lower()


def test_help_is_one_screen_and_imports_nothing_heavy():
    done = command("-X", "importtime", "-m", "jaxtie", "--help", capture_output=True)
    assert done.returncode == 0 and len(done.stdout.splitlines()) <= 24
    assert not re.search(r"\| +(numpy|xarray|jax)$", done.stderr, re.MULTILINE)


def test_a_dry_run_in_the_folder_of_another_run_plans_and_says_so(tmp_path, monkeypatch, capsys):
    (tmp_path / "there").mkdir()
    other = jaxtie.Experiment(seeds=range(3)).as_dict()
    RunFolder(tmp_path / "there").write_config({"experiment": other, "finished": False})
    monkeypatch.setattr(cli, "plan_lines", lambda *_: ["a plan"])
    line = ["--dry-run", "--seeds", "2", "--out", str(tmp_path / "there")]
    assert cli.main(line) == 0
    out, error = capsys.readouterr()
    assert out == "a plan\n" and error.count("\n") == 1
    assert "without --dry-run this is refused" in error and "differs in seeds" in error


@pytest.mark.parametrize(("text", "steps"), [("1e3", 1000), ("1.5E3", 1500), ("2e+4", 20_000)])
def test_steps_may_have_an_exponent(text, steps):
    assert cli.parse_run(["--steps", text]).steps == steps
