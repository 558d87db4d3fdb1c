"""A live line of progress on standard error: rich on a terminal, a plain line now and then without one."""

import sys
import time
from collections.abc import Sequence

import numpy as np

PLAIN_SECONDS, LIVE_SECONDS = 15.0, 0.1  # between two lines, at least


def duration(seconds: float) -> str:
    """Hours, if any, minutes and seconds."""
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def add_times(
    times: dict, members: int, began: float, compiled: float, seed_steps: int, tokens: int = 0, evaluating: float = 0.0
) -> None:
    """Add what the training of an arm took to what earlier sittings took, as `config.json` has it.

    Args:
      members: of the arm.
      began, compiled: when, by `time.monotonic`.
      seed_steps: updates made since then, summed over members.
      tokens: real ones of text that were trained on.
      evaluating: seconds of the time that went into evaluations of text.
    """
    times["compile_seconds"] = round(times.get("compile_seconds", 0) + compiled - began, 2)
    times["train_seconds"] = round(times.get("train_seconds", 0) + time.monotonic() - compiled - evaluating, 2)
    seconds = max(times["train_seconds"], 0.01)
    times["seed_steps"] = times.get("seed_steps", 0) + seed_steps
    times["seed_steps_per_second"] = round(times["seed_steps"] / seconds, 1)
    times["steps_per_second"] = round(times["seed_steps"] / members / seconds, 1)
    if tokens or "tokens" in times:
        times["evaluate_seconds"] = round(times.get("evaluate_seconds", 0) + evaluating, 2)
        times["tokens"] = times.get("tokens", 0) + tokens
        times["tokens_per_second"] = round(times["tokens"] / seconds)


class Progress:
    """One arm's progress; use as a context manager.

    Attributes:
      arm, steps, members: what is trained.
      best: the best reachable losses, if known, shown beside the current one, nats.
    """

    def __init__(self, arm: str, steps: int, members: int, best_losses: Sequence[float] = (), *, quiet: bool):
        self.arm, self.steps, self.members = arm, steps, members
        ends = [f"{end(best_losses):.3f}" for end in (min, max)] if best_losses else []
        self.best = f" (best {' to '.join(dict.fromkeys(ends))})" if ends else ""
        self.quiet, self.live = quiet, None
        self._shown = self._drawn = time.monotonic()
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

    def update(self, seed_steps: int, loss: np.ndarray, tokens: int | None = None) -> None:
        """Show how far training is.

        Args:
          seed_steps: updates made so far, summed over members.
          loss: current training losses of some members, nats.
          tokens: of text, seen since the start of this sitting.
        """
        now = time.monotonic()
        if self._first is None:  # the rate is that of training alone, without compilation
            self._first = now, seed_steps, tokens
        if self.live and now - self._drawn < LIVE_SECONDS and seed_steps < self.steps * self.members:
            return
        self._drawn = now
        began, first, first_tokens = self._first
        rate = (seed_steps - first) / (now - began) if now > began else 0.0
        total = self.steps * self.members
        left = f"{duration((total - seed_steps) / rate)} left" if rate else ""
        middle = np.nanmedian(loss) if np.isfinite(loss).any() else np.nan
        speed = f"{rate / self.members:,.0f} steps/s  {rate:,.0f} seed-steps/s"
        if tokens is not None:
            speed = f"{(tokens - first_tokens) / (now - began) if now > began else 0:,.0f} tokens/s"
        loss = f"loss {middle:.3f}{self.best}" if np.isfinite(middle) else ""
        line = f"{seed_steps // self.members:,}/{self.steps:,} steps  {speed}  {left}  {loss}"
        if self.live:
            self.live.update(self._task, completed=seed_steps, line=line, refresh=True)
        elif not self.quiet and rate and (now - self._shown > PLAIN_SECONDS or seed_steps == total or self._done is None):
            self._shown, self._done = now, seed_steps
            print(f"{self.arm}: {line}", file=sys.stderr, flush=True)
