"""The PyTorch baseline of jaxtie's speed and results."""

import itertools
import shutil
from pathlib import Path

import numpy as np
import pytest

from jaxtie import Experiment
from jaxtie.config import LSTM, Mixer, Transformer
from jaxtie.exor import data

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
SEEDS, STEPS = 3, 4
pytestmark = [  # PyTorch's, of kernels that have no rule for vmap
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
NEEDS_A_COMPILER = pytest.mark.skipif(
    shutil.which("g++") is None, reason="torch.compile needs a C++ compiler"
)


@pytest.fixture(autouse=True)
def path_of_benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))


@pytest.mark.parametrize(
    ("model", "arm", "compiled"),
    [
        (Transformer(), "tied", False),
        pytest.param(Transformer(), "untied", True, marks=[pytest.mark.slow, NEEDS_A_COMPILER]),
        pytest.param(LSTM(), "untied", False, marks=pytest.mark.slow),
        pytest.param(Mixer(), "tied", False, marks=pytest.mark.slow),
    ],
    ids=["transformer", "transformer-compiled", "lstm", "mixer"],
)
def test_seeds_at_once_have_the_losses_of_the_loop(model, arm, compiled):
    """For the same initial values, samples and optimizer."""
    import pytorch_loop

    experiment = Experiment(model=model)
    drawn = list(itertools.islice(pytorch_loop.batches(experiment, SEEDS), STEPS))
    models = [pytorch_loop.make_models(experiment, arm, SEEDS) for _ in range(2)]
    together = pytorch_loop.SeedsAtOnce(experiment, models[0], compiled)
    found = np.array([together(batch).numpy() for batch in drawn])
    plain = [pytorch_loop.loop_of(experiment, each) for each in models[1]]
    alone = [
        [each(tuple(x[i : i + 1] for x in batch)).item() for i, each in enumerate(plain)]
        for batch in drawn
    ]
    np.testing.assert_allclose(found, alone, rtol=2e-5)
    assert len(np.unique(np.round(found, 4))) == found.size  # other seeds, and they train


def test_its_contexts_are_those_of_the_process():
    import pytorch_seeds

    experiment = Experiment()
    found, own = pytorch_seeds.enumerate_contexts(experiment), experiment.process
    strings = data.split(own.length, own.all_strings, own.data_seed).train
    tokens, _, joint = data.enumerate_contexts(strings, own.zeros, own.ones, ordered=True)
    ours, theirs = (np.lexsort(np.asarray(each).T) for each in (tokens, found.tokens))
    np.testing.assert_array_equal(tokens[ours], found.tokens.numpy()[theirs])
    np.testing.assert_allclose(joint[ours], found.joint.numpy()[theirs], atol=1e-9)


@pytest.mark.slow
def test_seeds_that_are_stopped_go_on_as_they_began(tmp_path, monkeypatch):
    import pytorch_seeds

    monkeypatch.setattr(pytorch_seeds, "SAVED_EVERY", 5)
    whole = pytorch_seeds.train("tied", 2, 8, tmp_path / "whole.pt")
    measure = pytorch_seeds.measure

    def stop_once_saved(*given):
        if (tmp_path / "parts.pt").exists():
            raise KeyboardInterrupt
        return measure(*given)

    monkeypatch.setattr(pytorch_seeds, "measure", stop_once_saved)
    with pytest.raises(KeyboardInterrupt):
        pytorch_seeds.train("tied", 2, 8, tmp_path / "parts.pt")
    monkeypatch.setattr(pytorch_seeds, "measure", measure)
    assert pytorch_seeds.train("tied", 2, 8, tmp_path / "parts.pt") == whole
    assert len(whole) == 2 * 4 * 3  # seeds, steps, two distances and a loss
    assert {row[2] for row in whole} == {1, 3, 5, 8}
