"""Show progress on standard error: a live line on a terminal, else a plain line now and then."""

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

if TYPE_CHECKING:
    from rich.progress import Progress as Live

    from jaxtie.training.task import Chunk

PLAIN_SECONDS, LIVE_SECONDS = 15.0, 0.1  # between two lines, at least


def duration(seconds: float) -> str:
    """Return hours, if any, minutes and seconds."""
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def add_times(
    times: dict[str, Any], members: int, compiling: float, training: float, done: "Done"
) -> None:
    """Add the times of an arm's training to those of earlier sessions, as `config.json` has them.

    Args:
      times: of earlier sessions; changed.
      members: number of members of the arm.
      compiling: seconds.
      training: seconds, without evaluations that were timed separately.
      done: in this session.
    """
    times["compile_seconds"] = round(times.get("compile_seconds", 0) + compiling, 2)
    times["train_seconds"] = round(times.get("train_seconds", 0) + training, 2)
    seconds = max(times["train_seconds"], 0.01)
    times["seed_steps"] = times.get("seed_steps", 0) + done.updates
    times["seed_steps_per_second"] = round(times["seed_steps"] / seconds, 1)
    times["steps_per_second"] = round(times["seed_steps"] / members / seconds, 1)
    if done.tokens or "tokens" in times:
        times["evaluate_seconds"] = round(times.get("evaluate_seconds", 0) + done.evaluating, 2)
        times["tokens"] = times.get("tokens", 0) + done.tokens
        times["tokens_per_second"] = round(times["tokens"] / seconds)


class Done:
    """Sums over chunks.

    Attributes:
      updates: of all members.
      tokens: of text, that the updates were made on.
      evaluating: seconds of evaluation that were timed separately.
    """

    def __init__(self) -> None:
        self.updates, self.tokens, self.evaluating = 0, 0, 0.0


class Progress:
    """One arm's progress; use as a context manager.

    Args:
      arm: its name.
      steps: updates of each member.
      members: number of members.
      before: updates in earlier sessions, summed over members.
      best_losses: the best reachable losses, if known, nats; shown next to the current one.
      quiet: show nothing.
    """

    def __init__(
        self,
        arm: str,
        steps: int,
        members: int,
        before: int,
        best_losses: Sequence[float] = (),
        *,
        quiet: bool,
    ):
        self.arm, self.steps, self.members, self.before = arm, steps, members, before
        self.done = Done()
        ends = [f"{end(best_losses):.3f}" for end in (min, max)] if best_losses else []
        self.best = f" (best {' to '.join(dict.fromkeys(ends))})" if ends else ""
        self.quiet = quiet
        self.live: Live | None = None
        self.total = steps * members
        self._loss = np.nan
        self._shown = self._drawn = time.monotonic()
        self._first: tuple[float, int, int] | None = None
        self._silent = True

    def __enter__(self) -> Self:
        if not self.quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn
            from rich.progress import Progress as Live

            self.live = Live(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[line]}"),
                console=Console(stderr=True),
                auto_refresh=False,
            )
            self.live.start()
            self._task = self.live.add_task(self.arm, total=self.total, line="")
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()

    def say(self, text: str) -> None:
        """Show a line that is not a rate."""
        if self.live:
            self.live.update(self._task, line=text, refresh=True)
        elif not self.quiet:
            print(f"{self.arm}: {text}", file=sys.stderr, flush=True)

    def add(self, chunk: "Chunk") -> None:
        """Count a chunk and show the progress."""
        self.done.updates += chunk.updates
        self.done.tokens += chunk.tokens
        self.done.evaluating += chunk.evaluating
        if (loss := (chunk.records or {}).get("loss")) is not None:
            self._loss = np.nanmedian(loss[-1]) if np.isfinite(loss[-1]).any() else np.nan
        now, at = time.monotonic(), self.before + self.done.updates
        if self._first is None:  # the rate is that of training alone, without compilation
            self._first = now, at, self.done.tokens
        if self.live and now - self._drawn < LIVE_SECONDS and at < self.total:
            return
        self._drawn = now
        self._show(now, at, *self._first)

    def _show(self, now: float, at: int, began: float, first: int, first_tokens: int) -> None:
        rate = (at - first) / (now - began) if now > began else 0.0
        left = f"{duration((self.total - at) / rate)} left" if rate else ""
        loss = f"loss {self._loss:.3f}{self.best}" if np.isfinite(self._loss) else ""
        speed = f"{rate / self.members:,.0f} steps/s  {rate:,.0f} seed-steps/s"
        if self.done.tokens:
            tokens = self.done.tokens - first_tokens
            speed = f"{tokens / (now - began) if now > began else 0:,.0f} tokens/s"
        line = f"{at // self.members:,}/{self.steps:,} steps  {speed}  {left}  {loss}"
        if self.live:
            self.live.update(self._task, completed=at, line=line, refresh=True)
        elif (
            not self.quiet
            and rate
            and (now - self._shown > PLAIN_SECONDS or at == self.total or self._silent)
        ):
            self._shown, self._silent = now, False
            print(f"{self.arm}: {line}", file=sys.stderr, flush=True)
