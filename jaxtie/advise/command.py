"""Command line of `jaxtie advise`. Imports no jax."""

import json
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from jaxtie.options import (
    argument,
    escape,
    flag,
    option,
    parse_above_0,
    parse_command,
    parse_path,
    parse_positive,
    run_command,
)


@dataclass(frozen=True)
class AdviseOptions:
    """Options of `jaxtie advise`."""

    HELP: ClassVar[str] = """
usage: jaxtie advise [CONFIG] [OPTIONS]

Should a model of this size tie its embeddings? What it saves, what others measured. Trains nothing.
Exit status: 0 done, 2 a user's error.

  CONFIG             a model's config.json, or the folder that has it
  --width D          width of your model
  --layers N         its layers
  --vocabulary V     entries of its vocabulary
  --tokens N         training tokens of your run, such as 2e9
  --margin NAT       gap that matters (0.01)
  --json             print the answer as JSON instead
"""
    config: Path | None = argument(parse_path)
    width: int | None = option(parse_positive)
    layers: int | None = option(parse_positive)
    vocabulary: int | None = option(parse_positive)
    tokens: float | None = option(parse_above_0("a number of tokens, such as 2e9"))
    margin: float = option(parse_above_0("a gap above 0"), 0.01)
    json: bool = flag()


def main_advise(arguments: Sequence[str] | None = None) -> int:
    """Run `jaxtie advise` and return the exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    return run_command(lambda: _run(parse_command(AdviseOptions, "jaxtie advise", words)))


def _run(options: AdviseOptions) -> int:
    from jaxtie.advise.answer import advise  # imports NumPy

    sizes = {name: getattr(options, name) for name in ("width", "layers", "vocabulary", "tokens")}
    found = advise(options.config, **sizes, margin=options.margin)
    if options.json:
        print(json.dumps(found.as_dict(), indent=1))
    else:
        print(*map(_wrap, found.lines), sep="\n")
    return 0


def _wrap(line: str) -> str:
    """Break a line at 100 letters, a row of a list with an indent; links stay whole."""
    indent = "    " if line[:1] == " " else ""
    wrapper = textwrap.TextWrapper(
        100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return wrapper.fill(escape(line))
