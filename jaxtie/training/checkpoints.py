"""Keep the last three checkpoints of a run by Orbax, with SHA-256 sums that detect damage.

A checkpoint is a folder `checkpoints/<number>` with the members of every arm begun. Orbax writes it
under another name first. It does not notice flipped bits or some missing files, hence the sums;
they are written last, so a checkpoint without them is unfinished.
"""

import contextlib
import logging
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from jaxtie.config import UserError
from jaxtie.results.folder import Say, find_damage, write_sums
from jaxtie.training.distributed import Processes
from jaxtie.training.task import Members

KEEP = 3


class Checkpoints:
    """The checkpoints in a folder, which need not exist yet; see `opened`. A thread writes them."""

    def __init__(self, folder: Path, *, to_read: bool = False):
        self._folder = folder.absolute()  # Orbax wants it so
        self._to_read = to_read
        self._thread = ThreadPoolExecutor(1)
        self._under_way: Future | None = None
        self._manager = None

    def load(self, report: Say) -> dict[str, Members]:
        """Return arm -> members of the newest sound checkpoint, {} if there is none.

        Damaged ones are reported and, unless `to_read`, removed.

        Raises:
          UserError: if a sound one cannot be read by this version or machine.
        """
        for number in sorted(self._numbers(), reverse=True):
            folder = self._folder / str(number)
            if damage := find_damage(folder):
                report(f"checkpoint {folder} cannot be used ({damage}); going on without it")
                if not self._to_read:
                    shutil.rmtree(folder)
                continue
            try:
                return self._thread.submit(self._restore, number).result()
            except Exception as error:
                reason = " ".join(f"{type(error).__name__} {error}".split())[:200]
                raise UserError(
                    f"{folder}: is whole, but cannot be read here ({reason}); take the versions"
                    " that config.json names, or begin anew with --overwrite"
                ) from error
        return {}

    def save(self, arms: dict[str, Members]) -> None:
        """Start to write a checkpoint.

        Raises:
          UserError: if the one before could not be written.
        """
        self.wait()
        self._under_way = self._thread.submit(self._save, arms)

    def wait(self) -> None:
        """Wait until the checkpoint that `save` started is on the disk.

        Raises:
          UserError: if it could not be written.
        """
        under_way, self._under_way = self._under_way, None
        if under_way:
            try:
                under_way.result()
            except Exception as error:
                text = " ".join(str(error).split())
                reason = (
                    "No space left on device"
                    if "No space left" in text
                    else text[:200] or type(error).__name__
                )
                raise UserError(
                    f"{self._folder}: a checkpoint could not be written ({reason}); the one before"
                    " is kept: make room, and run the same command again, without --overwrite, to"
                    " go on"
                ) from error

    def close(self) -> None:
        """Wait for the last checkpoint and close Orbax."""
        try:
            self.wait()
        finally:
            if self._manager:
                self._thread.submit(self._manager.close).result()
            self._thread.shutdown()

    def _numbers(self) -> list[int]:
        found = self._folder.glob("[0-9]*")
        return [
            int(path.name)
            for path in found
            if re.fullmatch("0|[1-9][0-9]*", path.name) and path.is_dir()
        ]

    def _open(self):
        """Return Orbax's manager, in the thread. Only the first of several processes writes."""
        import orbax.checkpoint as ocp  # heavy

        if self._manager is None:
            # it logs the tracebacks of errors that it also raises
            logging.getLogger("absl").setLevel(logging.CRITICAL)
            if not self._to_read:
                self._folder.mkdir(exist_ok=True)
            alone = ocp.options.MultiprocessingOptions(
                primary_host=0, active_processes={0}, barrier_sync_key_prefix="jaxtie"
            )
            options = ocp.CheckpointManagerOptions(
                max_to_keep=KEEP,
                create=False,
                enable_async_checkpointing=False,
                cleanup_tmp_directories=not self._to_read,
                multiprocessing_options=alone,
            )
            self._manager = ocp.CheckpointManager(self._folder, options=options)
        return self._manager, ocp.args

    def _save(self, arms: dict[str, Members]) -> None:
        manager, args = self._open()
        number = max(self._numbers(), default=0) + 1
        trees = {arm: members._asdict() for arm, members in arms.items()}
        manager.save(number, args=args.Composite(members=args.PyTreeSave(trees)))
        write_sums(self._folder / str(number))

    def _restore(self, number: int) -> dict[str, Members]:
        manager, args = self._open()
        restored = manager.restore(number, args=args.Composite(members=args.PyTreeRestore()))
        return {arm: Members(**tree) for arm, tree in restored["members"].items()}


def exchange(processes: Processes, arms: dict[str, Members]) -> dict[str, Members]:
    """Return the first process's arms on every process."""
    trees = processes.broadcast({arm: members._asdict() for arm, members in arms.items()})
    return {arm: Members(**tree) for arm, tree in trees.items()}


@contextlib.contextmanager
def opened(folder: Path, *, to_read: bool = False) -> Iterator[Checkpoints]:
    """Open checkpoints, and close them at the end; an error in closing hides no other error.

    `to_read`: leave the folder as it is, since a run may be writing there.
    """
    checkpoints = Checkpoints(folder, to_read=to_read)
    try:
        yield checkpoints
    except BaseException:
        with contextlib.suppress(Exception):
            checkpoints.close()
        raise
    checkpoints.close()
