"""Show progress on standard error: a live line on a terminal, else a plain line now and then."""

import shutil
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from jaxtie.config import point_and_seed

if TYPE_CHECKING:
    from jaxtie.training.task import Chunk

PLAIN_SECONDS, LIVE_SECONDS = 15.0, 0.1  # between two lines, at least


def duration(seconds: float) -> str:
    """Return hours, if any, minutes and seconds."""
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


class Progress:
    """Progress of an arm of so many members, each of so many steps; use as a context manager.

    Of several sweep `points`, by name, it shows the best and the worst.

    Attributes:
      before: updates in earlier sessions, summed over members.
      updates: of all members, in this session.
      tokens: of text, that the updates were made on.
      evaluating: seconds of evaluation that were timed separately.
      best: the best reachable losses, if known, nats; shown next to the current one.
    """

    def __init__(
        self,
        arm: str,
        steps: int,
        members: int,
        before: int,
        best_losses: Sequence[float] = (),
        points: Sequence[str] = (),
        *,
        quiet: bool,
    ):
        self.arm, self.steps, self.members, self.before = arm, steps, members, before
        self.updates, self.tokens, self.evaluating = 0, 0, 0.0
        ends = [f"{end(best_losses):.3f}" for end in (min, max)] if best_losses else []
        self.best = f" (best {' to '.join(dict.fromkeys(ends))})" if ends else ""
        self.quiet, self.live = quiet, sys.stderr.isatty()
        self.points, self._shown = points, -np.inf
        self._losses: dict[int, float] = {}  # by member, at its latest record
        self._loss = ""
        self._first: tuple[float, int, int] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.live and not self.quiet:
            print(file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        """Show a line; on a terminal it replaces the one before."""
        line = f"{self.arm}: {text}"
        if self.live:
            line = f"\r\033[K{line[: shutil.get_terminal_size().columns - 1]}"
        if not self.quiet:
            print(line, end="" if self.live else "\n", file=sys.stderr, flush=True)

    def add(self, chunk: "Chunk") -> None:
        """Count a chunk and show the progress."""
        self.updates += chunk.updates
        self.tokens += chunk.tokens
        self.evaluating += chunk.evaluating
        if (loss := (chunk.records or {}).get("loss")) is not None:
            self._loss = self._describe(chunk.numbers, np.atleast_1d(loss[-1]))
        now, at, total = time.monotonic(), self.before + self.updates, self.steps * self.members
        if self._first is None:  # the rate is that of training alone, without compilation
            self._first = now, at, self.tokens
        began, first, first_tokens = self._first
        wait = LIVE_SECONDS if self.live else PLAIN_SECONDS
        if at == first or now == began or (now - self._shown < wait and at < total):
            return
        self._shown, rate = now, (at - first) / (now - began)
        speed = f"{rate / self.members:,.0f} steps/s  {rate:,.0f} seed-steps/s"
        if self.tokens:
            speed = f"{(self.tokens - first_tokens) / (now - began):,.0f} tokens/s"
        left = f"{duration((total - at) / rate)} left"
        self.say(f"{at // self.members:,}/{self.steps:,} steps  {speed}  {left}  {self._loss}")

    def _describe(self, numbers: np.ndarray, losses: np.ndarray) -> str:
        """Return the median loss of members; of text after the one before, of a sweep both ends."""
        before = self._losses.get(int(numbers[0]), np.nan)
        self._losses |= dict(zip(numbers.tolist(), losses.tolist()))
        if not np.isfinite(losses).any():
            return ""
        if len(self.points) < 2:
            since = f"{before:.3f} → " if self.tokens and np.isfinite(before) else ""
            return f"batch loss {since}{np.nanmedian(losses):.3f}{self.best}"
        by_point: dict[str, list[float]] = {}
        for number, loss in self._losses.items():
            if np.isfinite(loss):
                by_point.setdefault(self.points[point_and_seed(number)[0]], []).append(loss)
        medians = sorted((float(np.median(own)), name) for name, own in by_point.items())
        ends = [f"{loss:.3f} at {name}" for loss, name in (medians[0], medians[-1])]
        return f"batch loss {' to '.join(dict.fromkeys(ends))}{self.best}"

    def add_times(self, times: dict[str, Any], compiling: float, training: float) -> None:
        """Add the seconds of this session to those of earlier ones, as `config.json` has them.

        Training includes evaluations. `times` is changed.
        """
        training -= self.evaluating
        times["compile_seconds"] = round(times.get("compile_seconds", 0) + compiling, 2)
        times["train_seconds"] = round(times.get("train_seconds", 0) + training, 2)
        seconds = max(times["train_seconds"], 0.01)
        times["seed_steps"] = times.get("seed_steps", 0) + self.updates
        times["seed_steps_per_second"] = round(times["seed_steps"] / seconds, 1)
        times["steps_per_second"] = round(times["seed_steps"] / self.members / seconds, 1)
        if self.tokens or "tokens" in times:
            times["evaluate_seconds"] = round(times.get("evaluate_seconds", 0) + self.evaluating, 2)
            times["tokens"] = times.get("tokens", 0) + self.tokens
            times["tokens_per_second"] = round(times["tokens"] / seconds)
