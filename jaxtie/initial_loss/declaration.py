"""What is asked of fresh models: arms over a grid of sizes. Imports no jax."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from jaxtie.experiment import Arm, Declaration, Head, check, check_positive_integers, check_size
from jaxtie.formulas import Size

ARMS = ("tied", "tied+logit-scale=1-by-root-D", "tied+shuffle", "tied+half-swap", "tied+projection", "untied")


@dataclass(frozen=True)
class InitialLoss(Declaration):
    """The loss of fresh models over a grid of widths and vocabularies: nothing is trained, so there is no step but 0.

    Attributes:
      name, claim, seeds: as experiments have them.
      arms: tied or untied, with a transform and a logit scale or without; all arms of a seed share tokens and tables.
      vocabularies, widths: n and D; each pair of them is a setting.
      deviations: of the tables, numbers or formulas; measured together, for a deviation only multiplies logits.
      tokens: that each value is the mean over.
    """

    kind: ClassVar[str] = "initial-loss"
    steps: ClassVar[int] = 0
    record_every: ClassVar[int] = 1
    eval_every: ClassVar[int] = 1
    name: str = "initial-loss"
    claim: str = ""
    arms: tuple[Arm | str, ...] = ARMS
    vocabularies: tuple[int, ...] = (100, 1000, 10_000, 100_000)
    widths: tuple[int, ...] = (16, 32, 64, 128, 256, 512, 1024, 2048)
    deviations: tuple[Size, ...] = (0.02, 1.0, "1/sqrt(D)", "log(n)/D")
    tokens: int = 256
    seeds: tuple[int, ...] = tuple(range(8))

    def __post_init__(self):
        self.check_names_and_members()
        check_positive_integers(self, "tokens")
        for name in ("vocabularies", "widths"):
            values = getattr(self, name)
            whole = all(isinstance(value, int) and value > 1 for value in values)
            check(
                bool(values) and whole and len(set(values)) == len(values), f"{name} = {values!r}: expected integers above 1"
            )
        check(bool(self.deviations), "deviations: expected at least one")
        for deviation in self.deviations:
            check_size("deviations", deviation)
        check(len(set(self.deviations)) == len(self.deviations), "deviations: each may be named once")
        for arm in self.arms:
            self._check_arm(arm)
        self.check_heads(*self.widths)

    def _check_arm(self, arm: Arm) -> None:
        check(arm.untie_at is None, f"arm {arm}: expected tied or untied; there is no training in which it could untie")
        head = arm.head
        check(
            head == Head(transform=head.transform, groups=head.groups, logit_scale=head.logit_scale),
            f"arm {arm}: expected no options but a transform and logit-scale=X, for they alone are measured on fresh models",
        )

    @property
    def sweep(self) -> tuple[tuple[str, tuple[float, ...]], ...]:
        """The grid, as other experiments have it."""
        return ("width", self.widths), ("vocabulary", self.vocabularies)

    def scaled(self, factor: float) -> Self:
        """There are no steps, so a grid of at most `factor` times the words times widths: the largest sizes are left out.

        Two widths and two vocabularies stay, so that it is seen how the loss goes with each.
        """
        grid = {"vocabularies": sorted(self.vocabularies), "widths": sorted(self.widths)}

        def cost() -> int:
            return math.prod(map(sum, grid.values()))

        most = factor * cost()
        for sizes in grid.values():  # the largest vocabulary first: it costs as much as all the others, and ten times more
            while len(sizes) > 2 and cost() > most:
                sizes.pop()
        kept = {name: tuple(size for size in getattr(self, name) if size in sizes) for name, sizes in grid.items()}
        return replace(self, **kept)
