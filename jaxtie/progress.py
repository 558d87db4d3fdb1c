"""A live line of progress on standard error: rich on a terminal, a plain line now and then without one."""

import sys
import time
from collections.abc import Sequence

import numpy as np

PLAIN_SECONDS = 15.0


def duration(seconds: float) -> str:
    """Hours, if any, minutes and seconds."""
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


class Progress:
    """One arm's progress; use as a context manager.

    Attributes:
      arm, steps, members: what is trained.
      best: the best reachable losses, shown beside the current one, nats.
    """

    def __init__(self, arm: str, steps: int, members: int, best_losses: Sequence[float], *, quiet: bool):
        self.arm, self.steps, self.members = arm, steps, members
        self.best = " to ".join(dict.fromkeys(f"{loss:.3f}" for loss in (min(best_losses), max(best_losses))))
        self.quiet, self.live = quiet, None
        self._shown = time.monotonic()
        self._done = self._first = None

    def __enter__(self) -> "Progress":
        if not self.quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn
            from rich.progress import Progress as Live

            self.live = Live(
                TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[line]}"),
                console=Console(stderr=True), auto_refresh=False,
            )  # fmt: skip
            self.live.start()
            self._task = self.live.add_task(self.arm, total=self.steps * self.members, line="")
        self.say("compiling")
        return self

    def __exit__(self, *_) -> None:
        if self.live:
            self.live.stop()

    def say(self, text: str) -> None:
        """Show a line that is not a rate."""
        if self.live:
            self.live.update(self._task, line=text, refresh=True)
        elif not self.quiet:
            print(f"{self.arm}: {text}", file=sys.stderr, flush=True)

    def update(self, seed_steps: int, loss: np.ndarray) -> None:
        """Show how far training is.

        Args:
          seed_steps: updates made so far, summed over members.
          loss: current training losses of some members, nats.
        """
        now = time.monotonic()
        if self._first is None:  # the rate is that of training alone, without compilation
            self._first = now, seed_steps
        began, first = self._first
        rate = (seed_steps - first) / (now - began) if now > began else 0.0
        total = self.steps * self.members
        left = f"{duration((total - seed_steps) / rate)} left" if rate else ""
        middle = np.nanmedian(loss) if np.isfinite(loss).any() else np.nan
        line = (
            f"{seed_steps // self.members:,}/{self.steps:,} steps  {rate / self.members:,.0f} steps/s  "
            f"{rate:,.0f} seed-steps/s  {left}  loss {middle:.3f} (best {self.best})"
        )
        if self.live:
            self.live.update(self._task, completed=seed_steps, line=line, refresh=True)
        elif not self.quiet and rate and (now - self._shown > PLAIN_SECONDS or seed_steps == total or self._done is None):
            self._shown, self._done = now, seed_steps
            print(f"{self.arm}: {line}", file=sys.stderr, flush=True)
