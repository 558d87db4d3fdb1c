"""Prepare a folder once, completely, by one process at a time.

A folder is filled under another name and renamed. It has the SHA-256 of its files, so a folder with
any changed bit is noticed and filled again, also after a loss of power.
"""

import hashlib
import json
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import filelock

from jaxtie.config import UserError
from jaxtie.results.folder import Say, find_damage, write_sums

CACHE_FORMAT = 1  # of prepared folders; a new one leaves those of older versions unused
COUNTS_FILE = "counts.json"
PATIENCE = 2.0  # seconds between two messages


def silence(line: str) -> None:
    """Say nothing."""


def key(*parts: object) -> str:
    """Name a folder by all that its content depends on, as JSON."""
    return hashlib.sha256(json.dumps([CACHE_FORMAT, *parts]).encode()).hexdigest()[:32]


def now_and_then(say: Say) -> Say:
    """Drop messages that come within `PATIENCE` of the last one."""
    last = time.monotonic()

    def speak(line: str) -> None:
        nonlocal last
        if time.monotonic() - last > PATIENCE:
            last = time.monotonic()
            say(line)

    return speak


def once(folder: Path, make: Callable[[Path, Say], dict], say: Say) -> dict:
    """Return what `make(new folder, say)` returned when it filled the folder, now or earlier.

    One process at a time makes it; the others wait. A damaged folder is reported and filled again.

    Raises:
      UserError: if the disk is full or the folder cannot be written.
    """
    try:
        if find_damage(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            with _acquire(folder.parent / f"{folder.name}.lock", say):
                if damage := find_damage(folder):
                    if folder.exists():
                        say(f"{folder} cannot be used ({damage}); preparing it again")
                    _fill(folder, make, now_and_then(say))
        return json.loads((folder / COUNTS_FILE).read_text())
    except (OSError, NotImplementedError) as error:
        reason = getattr(error, "strerror", None) or in_one_line(error)
        raise UserError(
            f"{folder.parent}: the text could not be prepared ({reason}); make room there, or set"
            " XDG_CACHE_HOME; nothing half-prepared is kept"
        ) from error


def _acquire(path: Path, say: Say) -> filelock.AcquireReturnProxy:
    lock = filelock.FileLock(path)
    while True:
        try:
            return lock.acquire(timeout=PATIENCE)
        except filelock.Timeout:
            say("another process is preparing this text; waiting for it")


def _fill(folder: Path, make: Callable[[Path, Say], dict], say: Say) -> None:
    for left in folder.parent.glob(f".{folder.name}.*"):  # of a process that was killed
        shutil.rmtree(left)
    new = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        counts = make(new, say)
        (new / COUNTS_FILE).write_text(json.dumps(counts, indent=1))
        write_sums(new)
        if folder.exists():  # damaged
            shutil.rmtree(folder)
        new.rename(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def in_one_line(error: BaseException) -> str:
    """Shorten an exception's message; TFDS puts all it knows in front of the reason."""
    text = re.sub(r'^Failed to construct dataset .*?}": ', "", " ".join(str(error).split()))
    return text[:200] or type(error).__name__
