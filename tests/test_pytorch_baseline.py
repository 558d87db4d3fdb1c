"""The PyTorch that jaxtie's speed is compared with: many seeds at once are the loop's seeds."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from jaxtie import Experiment
from jaxtie.models.sizes import LSTM, Mixer, Transformer

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
SEEDS, STEPS = 3, 4


@pytest.mark.parametrize(
    ("model", "arm"),
    [
        (Transformer(), "tied"),
        pytest.param(Transformer(), "untied", marks=pytest.mark.slow),
        pytest.param(LSTM(), "untied", marks=pytest.mark.slow),
        pytest.param(Mixer(), "tied", marks=pytest.mark.slow),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
@pytest.mark.filterwarnings("ignore::UserWarning")  # PyTorch's, of kernels that have no rule for vmap
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_seeds_at_once_have_the_losses_of_the_loop(model, arm, monkeypatch):
    """Of the same initial values and the same samples, over steps of the same optimiser."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    import pytorch_loop

    experiment = Experiment(model=model)
    drawn = list(itertools.islice(pytorch_loop.batches(experiment, SEEDS), STEPS))
    together = pytorch_loop.vmap_of(experiment, pytorch_loop.make_models(experiment, arm, SEEDS))
    found = np.array([together(batch).numpy() for batch in drawn])
    plain = [pytorch_loop.loop_of(experiment, each) for each in pytorch_loop.make_models(experiment, arm, SEEDS)]
    alone = [[each(tuple(x[i : i + 1] for x in batch)).item() for i, each in enumerate(plain)] for batch in drawn]
    np.testing.assert_allclose(found, alone, rtol=2e-5)
    assert len(np.unique(np.round(found, 4))) == found.size  # other seeds, and they train
