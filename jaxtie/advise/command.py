"""Command line of `jaxtie advise`. Imports no jax."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from jaxtie.config import check
from jaxtie.options import (
    Flag,
    escape,
    option,
    parse_above_0,
    parse_command,
    parse_path,
    parse_positive,
    run_command,
)


@dataclass(frozen=True)
class AdviseOptions:
    """Should a model of this size tie its embeddings? What it saves, what others measured.

    Trains nothing. Exit status: 0 done, 2 a user's error.
    """

    checkpoint: Annotated[
        tyro.conf.Positional[Path | None], option("CHECKPOINT", parse_path, "none")
    ] = None
    """A folder that has a model's config.json."""
    width: Annotated[int | None, option("D", parse_positive, "of the configuration")] = None
    """Width of your model."""
    layers: Annotated[int | None, option("N", parse_positive, "of the configuration")] = None
    """Its layers."""
    vocabulary: Annotated[int | None, option("V", parse_positive, "of the configuration")] = None
    """Entries of its vocabulary."""
    tokens: Annotated[
        float | None, option("N", parse_above_0("a number of tokens, such as 2e9"), "unknown")
    ] = None
    """Training tokens of your run, such as 2e9."""
    config: Annotated[Path | None, option("FILE", parse_path, "none")] = None
    """A config.json that has width, layers and vocabulary."""
    margin: Annotated[float, option("NAT", parse_above_0("a gap above 0"), "0.01")] = 0.01
    """Gap that matters."""
    json: Flag = False
    """Print the answer as JSON instead."""


def main_advise(arguments: Sequence[str] | None = None) -> int:
    """Run `jaxtie advise` and return the exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    return run_command(lambda: _run(parse_command(AdviseOptions, "jaxtie.advise", words)))


def _run(options: AdviseOptions) -> int:
    from jaxtie.advise.answer import advise  # imports NumPy

    path = options.config or options.checkpoint
    check(not (options.config and options.checkpoint), f"--config {path}: expected one of the two")
    sizes = {name: getattr(options, name) for name in ("width", "layers", "vocabulary", "tokens")}
    found = advise(path, **sizes, margin=options.margin)
    if options.json:
        print(json.dumps(found.as_dict(), indent=1))
    else:
        print(*map(escape, found.lines), sep="\n")
    return 0
