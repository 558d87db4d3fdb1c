"""Runs that are killed, damaged or extended, or that fill the disk, give the numbers of one go."""

import contextlib
import itertools
import json
import os
import pty
import random
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
import xarray as xr
from commands import PATIENCE, SOON, ended, recorded, start, until, until_recorded
from draws import draws

from jaxtie.results.folder import SUMS, RunFolder, find_damage
from jaxtie.run import command, lifecycle
from jaxtie.training.block_engine import BlockRun
from jaxtie.training.checkpoints import KEEP, Checkpoints, opened
from jaxtie.training.progress import Progress

pytestmark = pytest.mark.slow  # they train, in processes that end, again and again
OFTEN = ["--record-every", "20", "--eval-every", "100"]
ALWAYS = [*OFTEN, "--checkpoint-every", "1e-6", "--quiet"]
ARMS = ["--arms", "untied"]


@pytest.fixture(autouse=True, scope="module")
def without_figures():
    """Save time: drawing takes most of a short run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lifecycle, "draw", lambda *_: [])
        yield


def results(folder: Path) -> xr.Dataset:
    """Return the results of a run without attributes, which hold the last command."""
    return lifecycle.load(folder).drop_attrs()


def same(one: Path, other: Path) -> bool:
    return results(one).identical(results(other))


def files(folder: Path) -> dict[Path, int]:
    """Return the files of a folder and when each was last written."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def finished_run(folder: Path, *options: str) -> Path:
    assert command.main([*options, "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def short(tmp_path_factory) -> Path:
    return finished_run(
        tmp_path_factory.mktemp("short") / "run", *ALWAYS, "--seeds", "3", "--steps", "200", *ARMS
    )


@pytest.fixture(scope="module")
def long(tmp_path_factory) -> Path:
    """The same run, twice as long, in one go."""
    return finished_run(tmp_path_factory.mktemp("long") / "run", *TO_400)


@pytest.fixture
def extended(short, tmp_path) -> Path:
    """A copy of the short run, to be made longer."""
    return shutil.copytree(short, tmp_path / "run")


TO_400 = [*ALWAYS, "--seeds", "3", "--steps", "400", *ARMS]


def test_more_steps_give_what_one_go_gives(extended, long, capsys):
    aloud = [word for word in TO_400 if word != "--quiet"]
    assert command.main([*aloud, "--out", str(extended)]) == 0
    assert "has 3 seeds and 200 steps, extending it" in capsys.readouterr().err
    assert same(extended, long)
    assert not (extended / "records").exists()


@pytest.mark.usefixtures("compiled_as_users_do")
def test_more_seeds_give_what_one_go_gives(tmp_path):
    """Seeds are added before, between and after the trained ones, in old blocks and new ones.

    The new members start tied while the trained ones are untied.
    """
    line = [*ALWAYS, "--steps", "200", "--arms", "untied@100", "--seeds"]
    some = finished_run(tmp_path / "some", *line, "1,37,5")
    assert command.main([*line, "40", "--out", str(some)]) == 0
    assert same(some, finished_run(tmp_path / "one", *line, "40"))


@pytest.mark.parametrize(
    "options", [("--seeds", "2"), ("--steps", "100"), ("--seeds", "1,2,3"), ("--zeros", "0.2,0.8")]
)
def test_fewer_steps_or_seeds_and_other_fields_are_refused(extended, capsys, options):
    before = files(extended)
    assert command.main([*TO_400, *options, "--out", str(extended)]) == 2
    assert "differs in" in capsys.readouterr().err
    assert before == files(extended)


def newest(folder: Path) -> Path:
    return max((folder / "checkpoints").iterdir(), key=lambda path: int(path.name))


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "flip a bit": flip_a_bit,
    "truncate": lambda path: os.truncate(path, path.stat().st_size // 2),
    "zero": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "delete": Path.unlink,
}


def checkpointed(run: Path) -> list[Path]:
    """Return the files of a run's newest checkpoint, relative to the run's folder."""
    files = sorted(path.relative_to(run) for path in newest(run).rglob("*") if path.is_file())
    assert len(files) > 8
    return files


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_to_any_file_of_a_checkpoint_is_found(short, tmp_path, damage):
    assert not find_damage(newest(short))
    for file in checkpointed(short):
        copy = shutil.copytree(newest(short), tmp_path / file / "checkpoints" / newest(short).name)
        DAMAGES[damage](tmp_path / file / file)
        assert find_damage(copy), file


NESTED = "[" * 100_000


@pytest.mark.parametrize("sums", ["null", "{}", '["a"]', NESTED])
def test_a_checkpoint_without_sums_of_its_files_is_damaged(extended, long, capsys, sums):
    (newest(extended) / SUMS).write_text(sums)
    name = newest(extended).name
    assert command.main([*TO_400, "--out", str(extended)]) == 0
    assert f"{name} cannot be used (its {SUMS} cannot be read)" in capsys.readouterr().err
    assert same(extended, long)


def test_a_file_of_a_checkpoint_that_has_no_sum_is_found(extended):
    """One that a file manager leaves, a hidden one, does not matter."""
    (newest(extended) / ".DS_Store").write_bytes(b"")
    assert not find_damage(newest(extended))
    sums = json.loads((newest(extended) / SUMS).read_text())
    removed, _ = sums.popitem()
    (newest(extended) / SUMS).write_text(json.dumps(sums))
    assert find_damage(newest(extended)) == f"damaged: {removed}"


@pytest.mark.parametrize("name", ["1\u00b2", "\u0663", "07", "notes"])
@pytest.mark.parametrize("is_folder", [False, True])
def test_foreign_files_among_the_checkpoints_are_ignored_and_stay(short, tmp_path, name, is_folder):
    folder = shutil.copytree(short / "checkpoints", tmp_path / "checkpoints")
    foreign = folder / name
    foreign.mkdir() if is_folder else foreign.write_text("years of work")
    with opened(folder) as checkpoints:
        found = checkpoints.load(pytest.fail)
        assert (found["untied"].steps == 200).all()
        checkpoints.save(found)
    assert foreign.exists() and (folder / str(int(newest(short).name) + 1) / SUMS).exists()


def test_a_damaged_checkpoint_is_reported_and_the_previous_one_used(short, long, tmp_path, capsys):
    """Some files are damaged, each in one way; that all are found is tested above."""
    chosen = checkpointed(short)
    random.Random(14).shuffle(chosen)
    some = zip(chosen[: draws(4)], itertools.cycle(DAMAGES.values()))
    for i, (file, damage) in enumerate(some):
        folder = shutil.copytree(short, tmp_path / str(i))
        damage(folder / file)
        assert command.main([*TO_400, "--out", str(folder)]) == 0
        assert f"{newest(short).name} cannot be used" in capsys.readouterr().err
        assert same(folder, long), file


def test_a_reader_leaves_the_checkpoints_that_a_run_is_writing(short, tmp_path):
    """One without its checksums, one under Orbax's temporary name; only a run removes them."""
    folder = shutil.copytree(short, tmp_path / "run") / "checkpoints"
    last = int(newest(short).name)
    shutil.copytree(newest(short), folder / f"{last + 1}", ignore=shutil.ignore_patterns(SUMS))
    (folder / f"{last + 2}.orbax-checkpoint-tmp").mkdir()
    before = sorted(folder.rglob("*"))
    with opened(folder, to_read=True) as checkpoints:
        assert (checkpoints.load(print)["untied"].steps == 200).all()
    assert sorted(folder.rglob("*")) == before


def test_a_sound_checkpoint_that_cannot_be_read_here_is_kept(extended, capsys, monkeypatch):
    """Another version of a library may read it: nothing is removed, and nothing starts anew."""
    before = files(extended / "checkpoints")

    def fail(*_: object) -> None:
        raise OSError("Input/output error")

    monkeypatch.setattr(Checkpoints, "_restore", fail)
    assert command.main([*TO_400, "--out", str(extended)]) == 2
    error = capsys.readouterr().err
    assert "is whole, but cannot be read here (OSError Input/output error)" in error
    assert "Traceback" not in error
    assert before == files(extended / "checkpoints")


def test_without_any_sound_checkpoint_a_run_starts_anew(extended, long, capsys):
    for number in (extended / "checkpoints").iterdir():
        flip_a_bit(number / SUMS)
    assert command.main([*TO_400, "--out", str(extended)]) == 0
    assert capsys.readouterr().err.count("cannot be used") == KEEP
    assert same(extended, long)


KILLED = ["--seeds", "16", *OFTEN, "--checkpoint-every", "0.2", "--quiet"]
AT_ONCE = 64  # records that may come at once


def killed_again_and_again(
    folder: Path, line: list[str], records: int, kills: int, rng: random.Random
) -> int:
    """Finish a run of so many records that is killed so often; return how often was possible.

    Each kill comes a random time after a random record that was not there before.
    """
    done = 0
    while done < kills and recorded(folder) < records - 2 * AT_ONCE:
        target = recorded(folder) + rng.randint(1, AT_ONCE)
        process = start(folder, *line)
        until_recorded(process, folder, target)
        time.sleep(rng.uniform(0, 0.1))
        process.kill()
        assert ended(process)[0] == -signal.SIGKILL, "it had finished before"
        done += 1
    assert not json.loads((folder / "config.json").read_text())["finished"]
    finished_run(folder, *line)
    return done


@pytest.mark.usefixtures("compiled_as_users_do")
def test_a_run_that_is_killed_gives_what_one_go_gives(tmp_path):
    line = [*KILLED, "--steps", "4000", "--arms", "tied,untied@2000"]
    rng, kills = random.Random(14), 0
    records, all_kills = 2 * (4000 // 20 + 1), draws(4)
    whole = finished_run(tmp_path / "whole", *line)
    while kills < all_kills:
        folder = tmp_path / f"killed-{kills}"
        kills += killed_again_and_again(folder, line, records, all_kills - kills, rng)
        assert same(folder, whole), f"after {kills} kills"
        shutil.rmtree(folder)


@pytest.mark.usefixtures("compiled_as_users_do")
def test_an_overwritten_sweep_that_is_killed_goes_on_by_the_command_without_overwrite(tmp_path):
    sweep = [*KILLED, "--arms", "tied", "--sweep", "layers=1,2"]
    folder = finished_run(tmp_path / "run", *sweep, "--steps", "400")
    line = [*sweep, "--steps", "2000"]
    process = start(folder, *line, "--overwrite")
    until_recorded(process, folder / "points" / "layers=2", 3)
    process.kill()
    assert ended(process)[0] == -signal.SIGKILL
    assert same(finished_run(folder, *line), finished_run(tmp_path / "whole", *line))


ENDLESS = ["--seeds", "2", "--arms", "tied", *OFTEN, "--steps", "3000000"]


def reached(folder: Path) -> np.ndarray:
    """Return the steps of the tied members that a run goes on from."""
    with opened(folder / "checkpoints") as checkpoints:
        return checkpoints.load(print)["tied"].steps


def ended_by_signal(process: subprocess.Popen) -> str:
    """Check that a process that got a signal ends soon, with status 130; return its errors."""
    began = time.monotonic()
    status, error = ended(process)
    assert status == 130 and "Traceback" not in error, error
    assert time.monotonic() - began < SOON
    return error


@pytest.mark.usefixtures("compiled_as_users_do")
def test_a_running_run_locks_its_folder_and_saves_on_sigterm(tmp_path, capsys, monkeypatch):
    """The same command goes on, here up to its first chunk."""
    folder = tmp_path / "run"
    process = start(folder, *ENDLESS)
    until(process, "seed-steps/s")
    assert command.main([*ENDLESS, "--out", str(folder)]) == 2
    assert "another run is writing there" in capsys.readouterr().err
    process.terminate()
    assert ended(process)[0] == 130
    assert np.isfinite(results(folder)["loss"]).any()
    before, add = reached(folder), Progress.add
    assert (before > 0).all()

    def stop(progress, *chunk):
        add(progress, *chunk)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Progress, "add", stop)
    assert command.main([*ENDLESS, "--out", str(folder)]) == 130
    assert (reached(folder) > before).all()


@pytest.mark.skipif(not shutil.which("setsid"), reason="gives a process a terminal")
@pytest.mark.usefixtures("compiled_as_users_do", "hangups_count")
@pytest.mark.parametrize("how", ["closed", "killed"])
def test_a_run_whose_terminal_closes_saves(tmp_path, how):
    """A terminal that is closed sends SIGHUP, and refuses what is written; `kill -HUP` does not."""
    (ours, its), folder, shown = pty.openpty(), tmp_path / "run", b""
    line = ["setsid", "--ctty", sys.executable, "-m", "jaxtie.run", *ENDLESS]
    process = subprocess.Popen(
        [*line, "--out", str(folder)],
        **dict.fromkeys(("stdin", "stdout", "stderr"), its),
        env=os.environ | {"JAX_NUM_CPU_DEVICES": "2", "TERM": "xterm"},
    )
    os.close(its)

    def drain(seconds: float) -> bytes:
        ready = select.select([ours], [], [], seconds)[0]
        with contextlib.suppress(OSError):  # at the end of the process
            return os.read(ours, 10_000) if ready else b""
        return b""

    while recorded(folder) < 3:
        shown += drain(0.1)
        assert process.poll() is None, shown
    if how == "killed":
        process.send_signal(signal.SIGHUP)
        until_end = time.monotonic() + PATIENCE
        while process.poll() is None and time.monotonic() < until_end:
            shown += drain(0.1)
        shown += drain(0.1)
    os.close(ours)
    try:
        assert process.wait(PATIENCE) == 130, shown
    finally:
        process.kill()
    assert (b"to resume" in shown) == (how == "killed")
    assert (reached(folder) > 0).all()


def test_a_second_interrupt_exits_at_once(tmp_path):
    process = start(tmp_path / "run", *ENDLESS)
    until(process, "seed-steps/s")
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    ended_by_signal(process)


def only_line(error: str) -> str:
    """Return the only line of an error that is not progress."""
    (line,) = [line for line in error.splitlines() if line.startswith("jaxtie: ")]
    assert "Traceback" not in error
    return line


def test_a_folder_that_vanishes_ends_in_one_line(tmp_path, capsys, monkeypatch):
    folder = tmp_path / "run"
    monkeypatch.setattr(Progress, "add", lambda *_: shutil.rmtree(folder, ignore_errors=True))
    assert command.main([*ENDLESS, "--checkpoint-every", "1e-6", "--out", str(folder)]) == 2
    assert str(folder) in only_line(capsys.readouterr().err)


def test_too_little_disk_space_is_reported_before_the_start(tmp_path, capsys, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=2**20))
    assert command.main(["--out", str(tmp_path / "run")]) == 2
    assert "the disk has 1 MiB left" in capsys.readouterr().err


@pytest.mark.usefixtures("compiled_as_users_do")
def test_a_disk_that_fills_ends_in_one_line_with_the_last_checkpoint_intact(tmp_path):
    """Simulated by a limit on the size of files, which the dataset is the first to exceed."""
    options = ["--seeds", "8", "--steps", "2000", *OFTEN, "--arms", "tied"]
    options += ["--checkpoint-every", "0.1"]
    one = finished_run(tmp_path / "one", *options)  # caches the programs, which exceed it, too
    limited = ["bash", "-c", 'ulimit -f 150; exec "$@"', "-"]
    status, error = ended(start(tmp_path / "run", *options, prefix=limited))
    assert status == 2 and only_line(error), error
    assert not find_damage(newest(tmp_path / "run"))
    assert command.main([*options, "--out", str(tmp_path / "run")]) == 0
    assert same(tmp_path / "run", one)


@pytest.mark.parametrize("seconds", [1, 3])
def test_a_signal_before_training_exits_too(tmp_path, seconds):
    """During imports, preparation or compilation."""
    process = start(tmp_path / "run", *ENDLESS)
    time.sleep(seconds)
    process.terminate()
    ended_by_signal(process)


def test_a_signal_does_not_wait_for_the_compiler(tmp_path):
    """Compilation takes minutes without a cache. The same command resumes."""
    folder, experiments = tmp_path / "run", Path(__file__).parents[2] / "experiments"
    options = [str(experiments / "lstm_small.py"), "--seeds", "1", "--arms", "tied"]
    process = start(folder, *options, JAX_ENABLE_COMPILATION_CACHE="0")
    until(process, "compiling")
    time.sleep(1)
    process.terminate()
    assert "the same command to resume" in ended_by_signal(process)
    assert lifecycle.RunFolder(folder).config()["finished"] is False


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("JAX_DISABLE_JIT", "1", "JAX_DISABLE_JIT is set, so nothing would be compiled; unset it"),
        ("JAX_NUMPY_DTYPE_PROMOTION", "strict", "JAX_NUMPY_DTYPE_PROMOTION is strict, and"),
        ("JAX_PLATFORMS", "cuda", "JAX_PLATFORMS=cuda: "),
        ("JAX_PLATFORMS", "abacus", "JAX_PLATFORMS=abacus: Unable to initialize backend"),
    ],
)
def test_an_environment_that_jax_cannot_train_in_is_refused(tmp_path, variable, value, words):
    if value == "cuda" and jax.default_backend() == "gpu":
        pytest.skip("this machine has a GPU")
    status, error = ended(start(tmp_path / "run", *ENDLESS, **{variable: value}))
    assert status == 2 and error.startswith(f"jaxtie: {words}") and error.count("\n") == 1
    assert not (tmp_path / "run").exists()


DAMAGED_FILES = {
    "records": "records/*.npz",
    "checkpoint": "checkpoints/[0-9]*/**/[!s]*",
    "sums": f"checkpoints/*/{SUMS}",
    "config": "config.json",
    "results": "results.nc",
}
UNTYING = "--record-every 10 --eval-every 50 --steps 100 --arms tied,untied@50".split()
UNTYING += ["--seeds", "3", "--quiet"]


def damage_at_random(folder: Path, seed: int) -> str:
    """Delete or truncate a file of a run, or flip one of its bits; return what was done."""
    rng = random.Random(seed)
    pattern = list(DAMAGED_FILES.values())[seed % len(DAMAGED_FILES)]
    path = rng.choice(sorted(path for path in folder.glob(pattern) if path.is_file()))
    content = bytearray(path.read_bytes())
    if (damage := rng.choice(("delete", "truncate", "flip", "flip"))) == "delete":
        path.unlink()
        return f"{damage} {path}"
    place = rng.randrange(len(content))
    if damage == "flip":
        content[place] ^= 1 << rng.randrange(8)
    path.write_bytes(content if damage == "flip" else content[:place])
    return f"{damage} {path} at {place}"


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory) -> Path:
    """A run that was killed: it has records, a file each, that its newest checkpoint lacks."""
    folder, add = tmp_path_factory.mktemp("unfinished") / "run", Progress.add

    def stop(progress: Progress, *chunk) -> None:
        add(progress, *chunk)
        if progress.arm == "untied@50" and progress.before + progress.updates >= 3 * 80:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Progress, "add", stop)
        patch.setattr(BlockRun.__init__, "__defaults__", (1e-9,))  # seconds of a chunk
        assert command.main([*UNTYING, "--checkpoint-every", "1e-6", "--out", str(folder)]) == 130
    shutil.rmtree(newest(folder))
    assert len([*folder.glob("records/*")]) > 12 and len([*folder.glob("checkpoints/*")]) == 2
    return folder


@pytest.mark.parametrize("loss", ["all records", "a torn file", "finished"])
def test_an_unfinished_run_without_its_records_trains_its_arms_again(
    short, unfinished, tmp_path, capsys, loss
):
    """A finished run that its configuration calls unfinished has none either."""
    folder = shutil.copytree(short if loss == "finished" else unfinished, tmp_path / "run")
    line = UNTYING
    if loss == "finished":
        RunFolder(folder).write_config(RunFolder(folder).config() | {"finished": False})
        line = [*ALWAYS, "--seeds", "3", "--steps", "200", *ARMS]
    for path in (folder / "records").glob("tied.*" if loss == "a torn file" else "*"):
        os.truncate(path, 100) if loss == "a torn file" else path.unlink()
    assert command.main([*line, "--out", str(folder)]) == 0
    assert "again from the start" in capsys.readouterr().err
    whole = short if loss == "finished" else finished_run(tmp_path / "whole", *line)
    assert same(folder, whole)


def test_any_damage_to_a_file_of_an_unfinished_run_is_repaired_or_refused(
    unfinished, tmp_path, capsys, monkeypatch
):
    """Three damages to each sort of file."""
    monkeypatch.setattr(lifecycle, "_show", lambda *_: None)
    monkeypatch.setattr(command, "_conclude", lambda *_: None)
    whole, refused = finished_run(tmp_path / "whole", *UNTYING), 0
    for seed in range(draws(15)):
        folder = shutil.copytree(unfinished, tmp_path / "damaged")
        done, status = (
            damage_at_random(folder, seed),
            command.main([*UNTYING, "--out", str(folder)]),
        )
        lines = capsys.readouterr().err.splitlines()
        assert all(line.startswith("jaxtie: ") for line in lines), (done, lines)
        notes = [line for line in lines if "cannot be used" in line or "from the start" in line]
        if status == 2:
            refused += 1
            assert len(lines) == len(notes) + 1, (done, lines)
        else:
            assert status == 0 and lines == notes, (done, lines)
            assert same(folder, whole), done
        shutil.rmtree(folder)
    print(f"{seed + 1} damages: {refused} refused, the others repaired")
