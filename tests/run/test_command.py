"""The command line: what can be got wrong is refused in one line that says what, and what is right
is read as it is meant.
"""

import json
import os
import pty
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import jaxtie
from jaxtie.options import parse_seeds
from jaxtie.run import command as cli
from jaxtie.run.lifecycle import load_experiment

TOGETHER = "--distributed --coordinator {} --process-count {} --process-index {}"
NO_ARM = "expected tied, untied or untied@STEP"
NO_SEEDS = "expected a number of seeds (64), a range (42-46) or a list (1,5,9)"
NO_SWEEP = "expected NAME=VALUE,VALUE with a name of learning_rate"
# What is wrong -> the command line, and words of the line that tell it from all else that can be
# wrong.
BAD = {
    "no seeds": ("--seeds 0", f"--seeds: '0': {NO_SEEDS}"),
    "negative seeds": ("--seeds -3", f"--seeds: '-3': {NO_SEEDS}"),
    "negative seeds, joined": ("--seeds=-3", f"--seeds: '-3': {NO_SEEDS}"),
    "range backwards": ("--seeds 5-2", f"'5-2': {NO_SEEDS}"),
    "seeds in letters": ("--seeds a", f"'a': {NO_SEEDS}"),
    "seed twice": ("--seeds 1,1", "'1,1': expected each seed once"),
    "seeds empty": ("--seeds ''", f"--seeds: '': {NO_SEEDS}"),
    "seed list with a gap": ("--seeds 1,,2", f"'1,,2': {NO_SEEDS}"),
    "seed too large": (
        "--seeds 4294967296-4294967296",
        "seed 4294967296: expected an integer in 0...4294967295",
    ),
    "seeds with a space": ("--seeds '1, 2'", f"'1, 2': {NO_SEEDS}"),
    "a seed where a number of seeds is meant": ("--seeds 1234567890", f"'1234567890': {NO_SEEDS}"),
    "evaluations that are too far apart": (
        "--eval-every 9999999900",
        "eval_every = 9999999900: expected fewer than",
    ),
    "seeds in another script": ("--seeds ٣", f"'٣': {NO_SEEDS}"),
    "seed range without end": ("--seeds 5-", f"'5-': {NO_SEEDS}"),
    "seed range of three": ("--seeds 1-2-3", f"'1-2-3': {NO_SEEDS}"),
    "fractional seeds": ("--seeds 2.5", f"'2.5': {NO_SEEDS}"),
    "no steps": ("--steps 0", "--steps: '0': expected a positive integer"),
    "fractional steps": ("--steps 1.5", "--steps: '1.5': expected a positive integer"),
    "negative steps": ("--steps=-100", "--steps: '-100': expected a positive integer"),
    "steps between records": (
        "--steps 150",
        "steps = 150: expected a multiple of record_every = 100",
    ),
    "more steps than can be counted": (
        "--steps 3000000000",
        "steps = 3000000000: expected fewer than 2147483648",
    ),
    "steps beyond ten digits": (
        "--steps 99999999999",
        "--steps: '99999999999': expected a positive integer",
    ),
    "evaluations between records": (
        "--eval-every 150",
        "eval_every = 150: expected a multiple of record_every = 100",
    ),
    "record every 0": ("--record-every 0", "--record-every: '0': expected a positive integer"),
    "evaluate every 0": ("--eval-every 0", "--eval-every: '0': expected a positive integer"),
    "unknown arm": ("--arms tied,knotted", f"--arms: arm 'knotted': {NO_ARM}"),
    "untied from the start": ("--arms untied@0", f"arm 'untied@0': {NO_ARM}"),
    "untied from nowhere": ("--arms untied@", f"arm 'untied@': {NO_ARM}"),
    "untied from a word": ("--arms untied@midway", f"arm 'untied@midway': {NO_ARM}"),
    "untied before the start": ("--arms untied@-100", f"arm 'untied@-100': {NO_ARM}"),
    "untied at the end": (
        "--arms untied@150000",
        "arm untied@150000: expected a multiple of record_every = 100 below steps",
    ),
    "untied between records": (
        "--arms untied@150",
        "arm untied@150: expected a multiple of record_every = 100",
    ),
    "tied from a step": ("--arms tied@100", f"arm 'tied@100': {NO_ARM}"),
    "arm twice": ("--arms tied,tied", "arms = tied,tied: each may be named once"),
    "arm twice, spelled otherwise": (
        "--arms tied+shuffle,tied+shuffle=2",
        "each may be named once",
    ),
    "no arm": ("--arms ''", f"arm '': {NO_ARM}"),
    "head that a width does not fit": (
        "--arms tied+shuffle=3",
        "tied+shuffle=3: width = 4: expected a multiple of 3",
    ),
    "head of a width that is odd": (
        "narrow.py --arms tied+half-swap",
        "width = 5: expected a multiple of 2",
    ),
    "unknown stream": ("--data random", "--data: 'random': expected one of per-seed, shared"),
    "negative data seed": (
        "--data-seed=-1",
        "--data-seed: '-1': expected an integer of at least 0",
    ),
    "data seed too large": (
        "--data-seed 4294967296",
        "data_seed = 4294967296: expected an integer in 0...4294967295",
    ),
    "probabilities do not sum to 1": (
        "--zeros 0.1,0.8",
        "--zeros: '0.1,0.8': expected two probabilities that sum to 1",
    ),
    "three probabilities": (
        "--ones 0.1,0.8,0.1",
        "--ones: '0.1,0.8,0.1': expected two probabilities",
    ),
    "probability is not a number": (
        "--ones nan,nan",
        "--ones: 'nan,nan': expected two probabilities",
    ),
    "probability below 0": ("--zeros=-0.1,1.1", "--zeros: '-0.1,1.1': expected two probabilities"),
    "one probability": ("--zeros 1", "--zeros: '1': expected two probabilities"),
    "probabilities in words": (
        "--zeros half,half",
        "--zeros: 'half,half': expected two probabilities",
    ),
    "missing experiment": ("nowhere.py", "nowhere.py: no such experiment file"),
    "experiment is no Python": ("README.txt", "README.txt: expected a Python file"),
    "experiment raises": ("raises.py", "raises.py:3: ZeroDivisionError: division by zero"),
    "experiment cannot be parsed": ("broken.py", "broken.py: SyntaxError"),
    "experiment declares nothing": ("empty.py", "empty.py: expected it to define experiment"),
    "experiment with bad probabilities": (
        "unlikely.py",
        "unlikely.py:2: zeros = (0.5, 0.6): expected two probabilities",
    ),
    "experiment on long strings": ("long.py", "long.py:2: length = 11: expected 4 to 10 bits"),
    "experiment on long strings in order": (
        "in_order.py",
        "in_order.py:2: length = 9: expected at most 8 bits with Mixer",
    ),
    "experiment leaves": ("leaves.py", "leaves.py:1: SystemExit: 0"),
    "two experiments": ("good.py good.py", "Unrecognized options: good.py"),
    "experiment is a folder": ("other", "other: no such experiment file"),
    "experiment with an unknown field": (
        "misspelt.py",
        "misspelt.py:2: TypeError: Experiment.__init__() got",
    ),
    "experiment with heads that do not divide": (
        "heads.py",
        "heads.py:2: heads = 3: expected a divisor of width = 4",
    ),
    "experiment with a name that is a path": (
        "named.py",
        "named.py:2: name = '../elsewhere': expected a name that can be",
    ),
    "experiment of another kind": ("of_text.py", "of_text.py: expected it to define experiment"),
    "checkpoints never": (
        "--checkpoint-every 0",
        "--checkpoint-every: '0': expected a number of seconds above 0",
    ),
    "checkpoints backwards": (
        "--checkpoint-every=-5",
        "--checkpoint-every: '-5': expected a number of seconds",
    ),
    "checkpoints at infinity": (
        "--checkpoint-every inf",
        "--checkpoint-every: 'inf': expected a number of seconds",
    ),
    "checkpoints in words": (
        "--checkpoint-every often",
        "--checkpoint-every: 'often': expected a number of seconds",
    ),
    "coordinator without port": (
        TOGETHER.format("here", 2, 0),
        "--coordinator: 'here': expected HOST:PORT",
    ),
    "coordinator with a port too large": (
        TOGETHER.format("here:70000", 2, 0),
        "'here:70000': expected HOST:PORT",
    ),
    "coordinator alone": (
        "--distributed --coordinator here:4000",
        "--process-count, --process-index together, or none",
    ),
    "coordinator, not distributed": (
        "--coordinator here:4000",
        "--coordinator: expected with --distributed only",
    ),
    "process index, not distributed": (
        "--process-index 0",
        "--process-index: expected with --distributed only",
    ),
    "process index past the count": (
        TOGETHER.format("here:4000", 2, 2),
        "--process-index 2: expected less than",
    ),
    "process count of none": (
        TOGETHER.format("here:4000", 0, 0),
        "--process-count: '0': expected a positive integer",
    ),
    "negative process index": (
        TOGETHER.format("here:4000", 2, -1),
        "--process-index: '-1': expected an integer of at least",
    ),
    "out holds a finished run with more steps": (
        "--out finished",
        "--out finished: holds a run that differs in steps;",
    ),
    "out holds a finished run of other seeds": (
        "--out finished --seeds 1-64",
        "holds a run that differs in seeds, steps;",
    ),
    "out holds an unfinished run with fewer steps": (
        "--out unfinished",
        "unfinished: holds a run that differs in steps;",
    ),
    "text that is not given": (
        "causal.py",
        "causal: needs a text; give files or folders by --text PATH",
    ),
    "text that is not there": ("causal.py --text nowhere", "nowhere: no such file or folder"),
    "text in a folder without any": ("causal.py --text other", "other: holds no *.txt"),
    "too little text": (
        "causal.py --text README.txt",
        "1 different paragraphs are too little for three splits",
    ),
    "text in no words": ("causal.py --text ''", "--text: '': expected a file or a folder"),
    "text for an experiment that makes its own": (
        "--text README.txt",
        "--text: no option of transformer-small, which reads",
    ),
    "text of two sources": (
        "causal.py --text README.txt --tfds lm1b",
        "either files and folders or the name of a TFDS data",
    ),
    "text over steps between records": (
        "causal.py --text README.txt --steps 30",
        "steps = 30: expected a multiple of",
    ),
    "text of probabilities": (
        "causal.py --text README.txt --zeros 0.2,0.8",
        "--zeros: no option of causal, which",
    ),
    "field without a data set": (
        "causal.py --tfds-field story",
        "--tfds-field: expected with --tfds only",
    ),
    "vocabulary of one": (
        "causal.py --text README.txt --vocab-size 1",
        "vocab_size = 1: expected 100 to",
    ),
    "head of nonsense": (
        "causal.py --arms tied+nonsense",
        "+nonsense is no option of a head; expected bias, undecayed-bias",
    ),
    "head of a value it does not take": (
        "causal.py --arms tied+bias=1",
        "+bias=1 is no option of a head",
    ),
    "head without its value": (
        "causal.py --arms tied+init-std",
        "+init-std is no option of a head",
    ),
    "head of two biases": (
        "causal.py --arms tied+bias+bias",
        "+bias is the second word on the same; give one of them",
    ),
    "head of two transforms": (
        "causal.py --arms tied+shuffle+half-swap",
        "+half-swap is the second word on the same",
    ),
    "head with a cap below 0": (
        "causal.py --arms tied+logit-softcap=-1",
        "logit-softcap is '-1'; expected a number above 0",
    ),
    "head of a gradient that is no number": (
        "causal.py --arms tied+input-gradient=nan",
        "input-gradient is 'nan'; expected",
    ),
    "head of an unknown formula": (
        "causal.py --arms tied+init-std=D",
        "init-std is 'D'; expected a number above 0 or",
    ),
    "head behind the step": (
        "causal.py --arms untied@100+bias",
        "a head's options stand before the @",
    ),
    "head untied at the end": (
        "causal.py --text README.txt --arms untied+bias@10000",
        "arm untied+bias@10000: expected a",
    ),
    "head of three groups": (
        "causal.py --text README.txt --arms tied+shuffle=3",
        "width = 128: expected a multiple of 3",
    ),
    "heads of a width that rotary positions do not fit": (
        "odd.py",
        "odd.py:2: heads = 4: expected width / heads to be even",
    ),
    "sweep of nothing": ("--sweep ''", f"--sweep: '': {NO_SWEEP}"),
    "sweep of an unknown setting": ("--sweep momentum=0.9", f"'momentum=0.9': {NO_SWEEP}"),
    "sweep of what needs another program": (
        "--sweep half_period=100,200",
        f"'half_period=100,200': {NO_SWEEP}",
    ),
    "sweep without values": ("--sweep weight_decay", f"'weight_decay': {NO_SWEEP}"),
    "sweep of no value": ("--sweep weight_decay=", f"'weight_decay=': {NO_SWEEP}"),
    "sweep in words": ("--sweep weight_decay=none,some", f"'weight_decay=none,some': {NO_SWEEP}"),
    "sweep of a value that is no number": (
        "--sweep weight_decay=0,nan",
        "sweep of weight_decay = (0.0, nan): expected",
    ),
    "sweep below 0": (
        "--sweep learning_rate=-1e-4,1e-4",
        "learning_rate = -0.0001: expected a number above 0",
    ),
    "sweep of a probability above 1": (
        "--sweep p_X=0.5,1.5",
        "sweep of p_X = (0.5, 1.5): expected probabilities in [0, 1]",
    ),
    "sweep of a value twice": (
        "--sweep eps=1e-8,1e-08",
        "sweep of eps: each value may be named once",
    ),
    "sweep of a setting twice": (
        "--sweep eps=1e-8 --sweep eps=1e-12",
        "sweep of eps, eps: each may be named once",
    ),
    "sweep of what is given": (
        "--zeros 0.2,0.8 --sweep p_X=0.1,0.5",
        "--zeros: p_X is swept; give one of the two",
    ),
    "scale 0": ("--scale 0", "--scale: '0': expected a number above 0"),
    "scale backwards": ("--scale=-1", "--scale: '-1': expected a number above 0"),
    "scale at infinity": ("--scale inf", "--scale: 'inf': expected a number above 0"),
    "scale is not a number": ("--scale nan", "--scale: 'nan': expected a number above 0"),
    "scale in words": ("--scale half", "--scale: 'half': expected a number above 0"),
    "scale beyond what can be counted": (
        "--scale 1e300",
        "at scale 1e+300: steps = 214748364800: expected fewer than",
    ),
    "scale that leaves two arms one": (
        "--scale 1e-9 --arms untied@25000,untied@75000",
        "untied@100,untied@100: each may be",
    ),
    "scale that unties at the end": (
        "--scale 1e-9 --arms tied,untied@75000",
        "at scale 1e-09: arm untied@100: expected",
    ),
    "scale and steps": ("--scale 0.1 --steps 1000", "--scale: expected without --steps"),
    "all, and one": ("--all good.py", "EXPERIMENT.py: no option of --all"),
    "all, with steps": ("--all --steps 1000", "--steps: no option of --all"),
    "all, with arms": ("--all --arms tied", "--arms: no option of --all"),
    "all, with another process": ("--all --zeros 0.2,0.8", "--zeros: no option of --all"),
    "all, over several processes": ("--all --distributed", "--distributed: no option of --all"),
    "all, where none are": ("--all", "--all: no experiment file, NAME.py, in ./experiments"),
    "unknown option": ("--sedes 3", "Unrecognized options: --sedes, 3"),
    "option without value": ("--steps", "Missing value for argument '--steps'"),
    "out below a file": (
        "--out README.txt/run",
        "README.txt/run: not a folder; choose another --out",
    ),
    "out is a file": ("--out README.txt", "README.txt: not a folder; choose another --out"),
    "out holds other files": ("--out other", "--out other: holds other files than a run's"),
    "out holds other files, overwrite": (
        "--out other --overwrite",
        "--out other: holds other files than a run's",
    ),
    "out holds a damaged run": (
        "--out damaged",
        "damaged/config.json: cannot be read as a run's configuration",
    ),
    "out holds another run": ("--out earlier", "--out earlier: holds a run that differs in data;"),
}


def config(finished: bool, **fields) -> str:
    return json.dumps({"experiment": jaxtie.Experiment(**fields).as_dict(), "finished": finished})


def declared(experiment: str) -> str:
    return f"import jaxtie\nexperiment = jaxtie.{experiment}"


FILES = {
    "README.txt": "no Python",
    "raises.py": "def fail():\n    pass\n1 / 0\n",
    "broken.py": "def :",
    "empty.py": "",
    "leaves.py": "raise SystemExit(0)",
    "long.py": declared("Experiment(process=jaxtie.Process(length=11))"),
    "in_order.py": declared("Experiment(process=jaxtie.Process(length=9), model=jaxtie.Mixer())"),
    "unlikely.py": declared("Experiment(process=jaxtie.Process(zeros=(0.5, 0.6)))"),
    "other/thesis.tex": "years of work",
    "causal.py": declared("TextExperiment(name='causal', objective='causal')"),
    "odd.py": declared(
        "TextExperiment(objective='causal', model=jaxtie.Transformer(width=36, heads=4))"
    ),
    "good.py": declared("Experiment()"),
    "narrow.py": declared("Experiment(model=jaxtie.Transformer(width=5))"),
    "misspelt.py": declared("Experiment(step=100)"),
    "heads.py": declared("Experiment(model=jaxtie.Transformer(heads=3))"),
    "named.py": declared("Experiment(name='../elsewhere')"),
    "of_text.py": "experiment = 'transformer-small'",
    "finished/config.json": config(True, steps=200_000),
    "unfinished/config.json": config(False, steps=100),
    "damaged/config.json": "{",
    "earlier/config.json": config(True, data="shared"),
}


@pytest.fixture
def workplace(tmp_path, tmp_path_factory, monkeypatch) -> Path:
    """A folder with everything that can be got wrong."""
    monkeypatch.chdir(tmp_path)
    # for what is prepared of a text
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    for name, text in FILES.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(("line", "words"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_one_line_status_2_and_nothing_written(workplace, capsys, line, words):
    before = {path: path.stat().st_mtime_ns for path in workplace.rglob("*")}
    assert cli.main(shlex.split(line)) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.count("\n") == 1
    assert error.startswith("jaxtie: ")
    assert words in error
    assert "Traceback" not in error and "---" not in error
    after = {
        path: path.stat().st_mtime_ns
        for path in workplace.rglob("*")
        if "__pycache__" not in path.parts
    }
    assert after == before


def command(*arguments: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", *arguments], text=True, timeout=300, **options
    )


def test_bad_input_leaves_through_the_real_door(workplace):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    done = command("jaxtie.figures", "nowhere", **pipes)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "nowhere: holds no results.nc" in done.stderr


def test_on_a_terminal_too_it_is_one_line_without_colours(workplace):
    """What parses the options draws boxes there, in colours, and breaks lines."""
    ours, terminal = pty.openpty()
    pipes = {"stdout": terminal, "stderr": subprocess.PIPE, "env": os.environ | {"TERM": "xterm"}}
    done = command("jaxtie.run", "--seeds", "5-2", **pipes)
    os.close(terminal)
    os.close(ours)
    line = f"jaxtie: --seeds: '5-2': {NO_SEEDS} (see python -m jaxtie.run --help)\n"
    assert (done.returncode, done.stderr) == (2, line)


def test_a_start_is_light_and_warns_of_nothing():
    """`jaxtie.run` is a module, which nobody imports, and a function; what parses options imports
    no jax either.
    """
    done = command("jaxtie.run", "--version", capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"jaxtie {jaxtie.__version__}\n", "")
    code = (
        "import sys, jaxtie, jaxtie.run.command, jaxtie.run.all; jaxtie.load;"
        " print('jax' in sys.modules,"
        " callable(jaxtie.run))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("False True\n", "")


def test_seeds_are_a_number_a_range_or_a_list():
    assert parse_seeds("3") == (0, 1, 2)
    assert parse_seeds("42-46") == (42, 43, 44, 45, 46)
    assert parse_seeds("17-17") == (17,)
    assert parse_seeds("5,1,9") == (5, 1, 9)
    assert parse_seeds("0-3,8-9") == (0, 1, 2, 3, 8, 9)
    assert parse_seeds("0-1,5") == (0, 1, 5)
    for text in ("0-3,3", "0-1-2", "3-1,5", "0-3,", "-1"):
        with pytest.raises(ValueError, match="expected"):
            parse_seeds(text)


def test_options_change_what_they_name_alone():
    line = (
        "--seeds 3 --arms tied+bias,untied+bias@300 --scale 0.01 --zeros 0.2,0.8 --data-seed 7"
        " --sweep eps=0,1e-8"
    )
    experiment = cli.changed(jaxtie.Experiment(), cli.parse_run(line.split()))
    expected = jaxtie.Experiment(
        seeds=range(3),
        arms=("tied+bias", "untied+bias@100"),  # the nearest record, and at least one
        steps=1500,
        process=jaxtie.Process(zeros=(0.2, 0.8), data_seed=7),
        sweep={"eps": (0, 1e-8)},
    )
    assert experiment == expected


def test_scaled_steps_are_records_and_the_schedule_stays():
    main, midway = (
        jaxtie.Experiment(),
        jaxtie.Experiment(arms=("tied", "untied@25000", "untied@75000")),
    )
    assert main.scaled(1) == main
    assert main.scaled(1e-9) == jaxtie.Experiment(steps=100)
    assert main.scaled(2.0000001).steps == 300_000
    small = midway.scaled(0.01)
    assert small.steps == 1500
    # 250 and 750: to the even record
    assert [arm.name for arm in small.arms] == [
        "tied",
        "untied@200",
        "untied@800",
    ]
    assert small.optimizer == midway.optimizer and small.eval_every == midway.eval_every
    assert small.eval_steps == (0, 1000, 1500)


def test_every_experiment_file_can_be_loaded_and_listed(monkeypatch, capsys):
    monkeypatch.chdir(Path(__file__).parents[2])
    assert cli.main(["--list"]) == 0
    listed = capsys.readouterr().out
    for path in Path("experiments").glob("*.py"):
        experiment = load_experiment(path)
        assert experiment.claim in listed
        assert experiment.name == path.stem.replace("_", "-")


def test_a_list_says_what_is_wrong_with_a_file_and_goes_on(workplace, capsys):
    Path("experiments").mkdir()
    for name in ("broken.py", "good.py"):
        Path("experiments", name).write_text(FILES[name])
    assert cli.main(["--list"]) == 0
    default, broken, good = capsys.readouterr().out.splitlines()
    assert "experiments/broken.py" in broken and "SyntaxError" in broken
    assert good == default.replace("(default)", "experiments/good.py")


def test_help(capsys):
    for main, words in (
        (cli.main, "150000 in the main one"),
        (cli.main_figures, "Folder of a run."),
    ):
        with pytest.raises(SystemExit) as stop:
            main(["--help"])
        assert stop.value.code == 0
        assert words in " ".join(capsys.readouterr().out.split())
