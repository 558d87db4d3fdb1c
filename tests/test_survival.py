"""Runs that are killed, damaged, extended, or meet a full disk: nothing is lost, and the numbers are those of one go.

The whole of two of these tests takes minutes, so it is asked for:

    JAXTIE_KILLS=100 JAXTIE_DAMAGE=all python -m pytest tests/test_survival.py -n 0
"""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from commands import ended, start, until

from jaxtie import checkpoint, figures, run
from jaxtie.results import RunFolder

KILLS = int(os.environ.get("JAXTIE_KILLS", "2"))
EVERY_DAMAGE = os.environ.get("JAXTIE_DAMAGE") == "all"
OFTEN = ["--record-every", "20", "--eval-every", "100", "--checkpoint-every", "1e-6", "--quiet"]
ARMS = ["--arms", "untied"]


@pytest.fixture(autouse=True, scope="module")
def without_figures():
    """They take most of the time of a short run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "draw", lambda *_: None)
        yield


def results(folder: Path) -> xr.Dataset:
    """All that a run found; the command is that of its last sitting."""
    return RunFolder(folder).load().drop_attrs()


def same(one: Path, other: Path) -> bool:
    return results(one).identical(results(other))


def finished_run(folder: Path, *options: str) -> Path:
    assert run.main([*OFTEN, *options, "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def short(tmp_path_factory) -> Path:
    return finished_run(tmp_path_factory.mktemp("short") / "run", "--seeds", "3", "--steps", "200", *ARMS)


@pytest.fixture(scope="module")
def long(tmp_path_factory) -> Path:
    """The same, twice as long, in one go."""
    return finished_run(tmp_path_factory.mktemp("long") / "run", "--seeds", "3", "--steps", "400", *ARMS)


@pytest.fixture
def extended(short, tmp_path) -> Path:
    """A copy of the short run, to be made longer."""
    return shutil.copytree(short, tmp_path / "run")


TO_400 = [*OFTEN, "--seeds", "3", "--steps", "400", *ARMS]


def test_more_steps_give_what_one_go_gives(extended, long):
    assert run.main([*TO_400, "--out", str(extended)]) == 0
    assert same(extended, long)
    assert not (extended / "records").exists()


def test_more_seeds_give_what_one_go_gives(short, tmp_path):
    """Seeds are added before, between and behind those that are there, and to a block that was padded.

    Those that are new are tied at first, while those that are there are untied.
    """
    some = finished_run(tmp_path / "some", "--seeds", "1,37,5", "--steps", "200", "--arms", "untied@100")
    more = ["--seeds", "40", "--steps", "200", "--arms", "untied@100"]
    assert run.main([*OFTEN, *more, "--out", str(some)]) == 0
    assert same(some, finished_run(tmp_path / "one", *more))


@pytest.mark.parametrize("options", [("--seeds", "2"), ("--steps", "100"), ("--seeds", "1,2,3"), ("--zeros", "0.2,0.8")])
def test_less_or_other_than_what_is_there_is_refused(extended, capsys, options):
    before = {path: path.stat().st_mtime_ns for path in extended.rglob("*")}
    assert run.main([*TO_400, *options, "--out", str(extended)]) == 2
    assert "differs in" in capsys.readouterr().err
    assert before == {path: path.stat().st_mtime_ns for path in extended.rglob("*")}


def newest(folder: Path) -> Path:
    return max((folder / "checkpoints").iterdir(), key=lambda path: int(path.name))


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def delete(path: Path) -> None:
    path.unlink()


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES = [truncate, zero, delete, flip_a_bit]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_to_any_file_of_a_checkpoint_is_found(short, tmp_path, damage):
    files = [path.relative_to(short) for path in newest(short).rglob("*") if path.is_file()]
    assert len(files) > 8
    for file in files:
        copy = shutil.copytree(short / "checkpoints", tmp_path / file / "checkpoints")
        damage(tmp_path / file / file)
        assert checkpoint.find_damage(newest(copy.parent)), file


def damaged_files(folder: Path, rng: random.Random) -> list[Path]:
    files = sorted(path.relative_to(folder) for path in newest(folder).rglob("*") if path.is_file())
    return files if EVERY_DAMAGE else [rng.choice(files)]


@pytest.mark.parametrize("damage", DAMAGES if EVERY_DAMAGE else [flip_a_bit])
def test_a_damaged_checkpoint_is_reported_and_the_one_before_used(short, long, tmp_path, capsys, damage):
    for i, file in enumerate(damaged_files(short, random.Random(damage.__name__))):
        folder = shutil.copytree(short, tmp_path / str(i))
        damage(folder / file)
        assert run.main([*TO_400, "--out", str(folder)]) == 0
        assert f"{newest(short).name} cannot be used" in capsys.readouterr().err
        assert same(folder, long), file


def test_without_any_sound_checkpoint_a_run_starts_again(extended, long, capsys):
    for number in (extended / "checkpoints").iterdir():
        flip_a_bit(number / checkpoint.SUMS)
    assert run.main([*TO_400, "--out", str(extended)]) == 0
    assert capsys.readouterr().err.count("cannot be used") == checkpoint.KEEP
    assert same(extended, long)


def test_killed_at_random_moments_a_run_ends_as_if_it_had_not_been(tmp_path):
    """With as many kills as asked for, over as many runs as that takes; the moments are spread over a whole run."""
    options = ["--seeds", "40", "--steps", "3000", "--record-every", "50", "--eval-every", "500"]
    options += ["--arms", "tied,untied" if KILLS > 2 else "tied"]
    options += ["--checkpoint-every", "0.2", "--quiet"]
    for _ in range(2 if KILLS > 2 else 1):  # the first fills the cache of compiled programs
        began = time.monotonic()
        assert ended(start(tmp_path / "whole", *options, "--overwrite"))[0] == 0
    took, rng, kills, run_number = min(15, time.monotonic() - began), random.Random(14), 0, 0
    while kills < KILLS:
        folder, run_number = tmp_path / f"killed-{run_number}", run_number + 1
        while not finished(folder):
            process = start(folder, *options)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(rng.uniform(0.3, took) if kills < KILLS else None)
            if process.poll() is None:
                process.kill()
                kills += 1
            status, error = ended(process)
            assert status in (0, -signal.SIGKILL), error
        assert same(folder, tmp_path / "whole"), f"after {kills} kills"
        shutil.rmtree(folder)
    print(f"{kills} kills over {run_number} runs of {took:.0f} s", file=sys.stderr)


def finished(folder: Path) -> bool:
    return (folder / "config.json").exists() and json.loads((folder / "config.json").read_text())["finished"]


ENDLESS = ["--seeds", "2", "--arms", "tied", "--record-every", "20", "--eval-every", "100", "--steps", "3000000"]


def test_sigterm_saves_and_the_same_command_goes_on(tmp_path):
    folder, options = tmp_path / "run", ENDLESS[:-1]
    process = start(folder, *options, "300000")
    until(process, "seed-steps/s")
    process.terminate()
    assert ended(process)[0] == 130
    assert np.isfinite(results(folder)["loss"]).any()
    (reached,) = checkpoint.Checkpoints(folder / "checkpoints").load(report=print)["tied"].steps[:1]
    assert reached > 0
    process = start(folder, *options, "300000")
    until(process, "seed-steps/s")
    process.terminate()
    ended(process)
    again = checkpoint.Checkpoints(folder / "checkpoints").load(report=print)["tied"].steps[0]
    assert again > reached


def test_a_second_interrupt_ends_at_once(tmp_path):
    process = start(tmp_path / "run", *ENDLESS)
    until(process, "seed-steps/s")
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    status, error = ended(process)
    assert status == 130
    assert "Traceback" not in error


def test_two_runs_cannot_write_one_folder(tmp_path, capsys):
    process = start(tmp_path / "run", *ENDLESS)
    until(process, "seed-steps/s")
    assert run.main([*ENDLESS, "--out", str(tmp_path / "run")]) == 2
    assert "another run is writing there" in capsys.readouterr().err
    process.kill()
    ended(process)


def test_a_folder_that_vanishes_ends_in_one_line(tmp_path):
    process = start(tmp_path / "run", *ENDLESS)
    until(process, "seed-steps/s")
    shutil.rmtree(tmp_path / "run", ignore_errors=True)
    shutil.rmtree(tmp_path / "run", ignore_errors=True)
    status, error = ended(process)
    assert status == 2
    assert sum(line.startswith("jaxtie: ") for line in error.splitlines()) == 1, error


def test_no_room_on_the_disk_is_said_before_the_start(tmp_path, capsys, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=2**20))
    assert run.main(["--out", str(tmp_path / "run")]) == 2
    assert "the disk has 1 MiB left" in capsys.readouterr().err


def test_a_disk_that_fills_ends_in_one_line_with_the_last_checkpoint_intact(tmp_path):
    """A limit on the size of files stands for it: the dataset's is the first to be too large."""
    options = ["--seeds", "8", "--steps", "2000", "--record-every", "20", "--eval-every", "100", "--arms", "tied"]
    options += ["--checkpoint-every", "0.1"]
    status, error = ended(start(tmp_path / "run", *options, prefix=["bash", "-c", 'ulimit -f 150; exec "$@"', "-"]))
    assert status == 2, error
    assert sum(line.startswith("jaxtie: ") for line in error.splitlines()) == 1, error
    assert "Traceback" not in error
    assert ended(start(tmp_path / "run", *options))[0] == 0
    assert same(tmp_path / "run", finished_run(tmp_path / "one", *options))
