"""Six ways to write one model, each tied, trained, untied midway, trained on and tied again,
against NumPy.
"""

import jax
import numpy as np
import pytest
from six_models import WAYS, ByHand


@pytest.fixture(params=WAYS)
def model(request, x64):
    if request.param == "equinox":
        pytest.importorskip("equinox", reason="the test needs Equinox: pip install 'jaxtie[test]'")
    return WAYS[request.param]()


def assert_same(model, reference, tolerance=1e-9):
    """Tables and moments."""
    for tree, of_reference in zip(
        [model.params, *model.moments()],
        [
            reference.params,
            *({name: both[i] for name, both in reference.moments.items()} for i in (0, 1)),
        ],
        strict=True,
    ):
        for found, name in zip(model.tables(tree), ("input", "output"), strict=True):
            assert (found is None) == (name not in of_reference)
            if found is not None:
                np.testing.assert_allclose(
                    found, of_reference[name], rtol=tolerance, atol=tolerance
                )


def test_a_model_is_tied_trained_untied_trained_on_and_tied_again(model):
    reference = ByHand()
    tied_structure = jax.tree.structure((model.params, model.moments()))
    for change, tied_then in ((None, True), ("untie", False), ("tie", True)):
        if change:
            before = float(model.loss())
            getattr(model, change)()
            getattr(reference, change)()
            if change == "untie":
                assert abs(float(model.loss()) - before) < 1e-6
        assert model.is_tied() == tied_then
        assert (jax.tree.structure((model.params, model.moments())) == tied_structure) == tied_then
        assert_same(model, reference)
        losses = np.array([[float(model.step()), reference.step()] for _ in range(8)])
        np.testing.assert_allclose(losses[:, 0], losses[:, 1], rtol=1e-9)
        assert losses[-1, 0] < losses[0, 0]
        assert_same(model, reference)


@pytest.mark.slow  # the test above sees them too, by what they do in so many steps
def test_a_tied_tables_gradient_is_the_sum_of_both_roles(model):
    model.step()
    tied, none = model.tables(model.gradient())
    model.untie()
    of_input, of_output = model.tables(model.gradient())
    assert none is None and np.abs(of_input).max() > 1e-3 and np.abs(of_output).max() > 1e-3
    np.testing.assert_allclose(tied, of_input + of_output, rtol=1e-12, atol=1e-14)
