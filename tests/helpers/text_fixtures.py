"""A small made-up corpus and cheap variants of the text experiments, for tests that train."""

from pathlib import Path

import numpy as np
import pytest
from corpora import random_text

from jaxtie.run import command as cli

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
SIZES = "layers=1, heads=2, width=16, feedforward=16"
TINY = """import dataclasses, runpy
from jaxtie import Corpus, Optimizer, Transformer
full = runpy.run_path({path!r})["experiment"]
experiment = dataclasses.replace(
    full, model=Transformer({sizes}), batch=16, length=16, buckets=(8, 16), words=10, steps=40,
    record_every=10, eval_every=20, arms={arms}, seeds=(3,),
    optimizer=Optimizer(learning_rate=1e-2),
)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """Make a folder with a corpus, cheap variants of the experiments and a cache."""
    place = tmp_path_factory.mktemp("place")
    (place / "corpus").mkdir()
    (place / "corpus" / "a.txt").write_text(random_text(np.random.default_rng(7), 150))
    for name, arms in (("text_mlm", ("tied", "untied@20")), ("text_clm", ("tied", "untied"))):
        source = TINY.format(path=str(EXPERIMENTS / f"{name}.py"), sizes=SIZES, arms=arms)
        (place / f"{name}.py").write_text(source)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(place / "cache"))
        yield place


def command(place: Path, *options: str, name: str = "text_mlm") -> list[str]:
    text = ["--text", str(place / "corpus")]
    if not any("vocab_size=" in option for option in options):  # swept
        is_causal = "text_clm" in (place / f"{name}.py").read_text()
        text += ["--vocab-size", "300" if is_causal else "120"]
    return [str(place / f"{name}.py"), *text, "--quiet", *options]


def finished_run(place: Path, folder: Path, *options: str, name: str = "text_mlm") -> Path:
    assert cli.main([*command(place, *options, name=name), "--out", str(folder)]) == 0
    return folder
