"""Bodies against PyTorch: logits, loss, gradients, 500 updates, exact evaluation."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bodies import PROCESS, build_model, once
from flax.traverse_util import flatten_dict
from quickly import USUAL

from jaxtie.config import LSTM, Mixer, Optimizer, Transformer
from jaxtie.exor import data, task
from jaxtie.training.member import update
from jaxtie.training.optimizer import make_optimizer
from jaxtie.training.task import State, stream

torch = pytest.importorskip("torch", reason="pip install 'jaxtie[parity]'")
import torch_reference as reference  # noqa: E402

SMALL = Transformer(layers=1, heads=1, width=4, feedforward=4)
MEDIUM = Transformer(layers=2, heads=1, width=32, feedforward=32)
TWO_HEADS = Transformer(layers=1, heads=2, width=8, feedforward=16)
SIZES = {
    "small": SMALL,
    "medium": MEDIUM,
    "two-heads": TWO_HEADS,
    "lstm-small": LSTM(),
    "lstm-medium": LSTM(layers=4, width=32, hidden=32),
    "mixer-small": Mixer(),
    "mixer-medium": Mixer(layers=2, width=32, tokenwise=32, channelwise=32),
}
CASES = {
    f"{name}-{'tied' if tied else 'untied'}": (sizes, tied)
    for name, sizes in SIZES.items()
    for tied in (True, False)
    if tied is False or name != "two-heads"
}


@pytest.fixture(autouse=True)
def one_thread():
    """Sum in one order; on models of this size threads cost more than they save."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def batches():
    """Return the batches of 500 steps."""
    bits = data.split(PROCESS.length, PROCESS.all_strings, PROCESS.data_seed).train
    draw = jax.jit(
        jax.vmap(lambda step: data.sample(stream(14, 6), step, bits, PROCESS.zeros, PROCESS.ones))
    )
    return jax.device_get(draw(jnp.arange(500)))


def both(case: str, dtype: str, *, noise: float = 0.2, seed: int = 5):
    """Return the model, random parameters, and PyTorch's model with the same parameters."""
    config, tied = CASES[case]
    torch.manual_seed(5)
    twin = reference.Reference(config, tied=tied)
    rng = np.random.default_rng(seed)

    def add_noise(leaf):
        return (leaf + noise * rng.standard_normal(leaf.shape)).astype(dtype)

    params = jax.tree.map(add_noise, reference.parameters(twin))
    return build_model(config, tied=tied), params, reference.load(twin, params)


def logits(model, params: dict, batch: data.Batch) -> jax.Array:
    return jax.vmap(lambda tokens, at: model.apply({"params": params}, tokens, at))(
        batch.tokens_BxL, batch.at_BxP
    )


def difference(ours: dict, theirs: dict) -> float:
    """Return the largest difference of a leaf, relative to the leaf's largest value."""
    ours, theirs = flatten_dict(ours), flatten_dict(theirs)
    assert ours.keys() == theirs.keys()
    worst = 0.0
    for path, leaf in theirs.items():
        mine = np.asarray(ours[path])
        assert mine.dtype == leaf.dtype and mine.shape == leaf.shape, path
        # The gradient of attention's key bias is 0, and so is that of a mixer's bias at the label's
        # position: it is never predicted, and every norm removes the bias.
        if path[-1] == "in_proj_bias":
            mine, leaf = (np.delete(bias.reshape(3, -1), 1, axis=0) for bias in (mine, leaf))
        if path[-1] == "tokenwise2_bias":
            mine, leaf = mine[:-1], leaf[:-1]
        worst = max(worst, np.max(np.abs(mine - leaf)) / np.max(np.abs(leaf)))
    return worst


IN_FLOAT32 = ("small-tied", "small-untied", "medium-tied", "medium-untied")
CASES_AND_TYPES = [("float64", case) for case in CASES] + [("float32", case) for case in IN_FLOAT32]


def but_slow(*slow: str) -> list:
    """Return all cases; mark those with one of these words in their names as slow."""
    marks = {case: [pytest.mark.slow] * any(word in case for word in slow) for case in CASES}
    return [pytest.param(case, dtype, marks=marks[case]) for dtype, case in CASES_AND_TYPES]


@pytest.mark.parametrize(("case", "dtype"), but_slow("medium"))
def test_logits_loss_and_gradients(case, dtype, batches):
    model, params, twin = both(case, dtype)
    batch = data.Batch(*(array[0] for array in batches))

    @once
    def look(params):
        gradient_of = jax.value_and_grad(lambda p: task.loss_and_accuracy(model, p, batch)[0])
        return logits(model, params, batch), *gradient_of(params)

    with jax.enable_x64(dtype == "float64"):
        logits_BxPxV, loss, gradient = jax.device_get(look(params))

    tokens, at, target = reference.tensors(batch)
    expected = twin.loss(tokens, at, target)
    expected.backward()
    tolerance = {"float64": 1e-9, "float32": 1e-4}[dtype]
    np.testing.assert_allclose(loss, expected.item(), rtol=tolerance)
    theirs = twin(tokens, at).detach().numpy()
    assert difference({"logits": logits_BxPxV}, {"logits": theirs}) < tolerance
    assert difference(gradient, reference.gradients(twin)) < tolerance


@pytest.mark.parametrize(("case", "dtype"), but_slow("medium", "lstm-small", "two-heads"))
def test_500_updates(case, dtype, batches):
    model, params, twin = both(case, dtype)
    every = 10 if "lstm" in case else 3 if "mixer" in case else 1  # for time
    batches = data.Batch(*(array[:, ::every] for array in batches))
    adamw = make_optimizer(Optimizer())
    last = data.Batch(*(array[-1] for array in batches))

    @(partial(jax.jit, compiler_options=USUAL) if "medium" in case else once)
    def train_all(params, batches):
        state = State(params, adamw.init(params), jnp.int32(-1))
        state, (loss_T, _) = jax.lax.scan(
            lambda s, batch: update(
                lambda params: task.loss_and_accuracy(model, params, batch), adamw, s
            ),
            state,
            batches,
        )
        return state.params, loss_T, logits(model, state.params, last)

    with jax.enable_x64(dtype == "float64"):
        trained, loss_T, logits_BxPxV = jax.device_get(train_all(params, batches))

    optimizer = torch.optim.AdamW(
        twin.parameters(), lr=5e-4, betas=(0.9, 0.999), eps=1e-12, weight_decay=0.1
    )
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10_000, eta_min=1e-5)
    expected_T = []
    for batch in zip(*reference.tensors(batches)):
        optimizer.zero_grad()
        loss = twin.loss(*batch)
        loss.backward()
        optimizer.step()
        cosine.step()
        expected_T.append(loss.item())

    assert difference(params, reference.parameters(twin)) > 0.02  # it did train
    if dtype == "float64":  # in float32 the parameters drift along directions that change nothing
        assert difference(trained, reference.parameters(twin)) < 1e-9
    tolerance = {"float64": 1e-9, "float32": 1e-4}[dtype]
    np.testing.assert_allclose(loss_T, expected_T, rtol=tolerance)
    tokens, at, _ = reference.tensors(last)
    theirs = twin(tokens, at).detach().numpy()
    assert difference({"logits": logits_BxPxV}, {"logits": theirs}) < tolerance


@pytest.mark.parametrize(
    "case", ["small-tied", "small-untied", "lstm-small-untied", "mixer-small-untied"]
)
def test_exact_evaluation(case, x64):
    """PyTorch evaluates every ordered context, jaxtie's transformer each multiset once."""
    model, params, twin = both(case, "float64", noise=1.0, seed=8)
    valid = data.split(PROCESS.length, PROCESS.all_strings, PROCESS.data_seed).valid
    ordered, merged = (
        data.enumerate_contexts(valid, PROCESS.zeros, PROCESS.ones, ordered=o)
        for o in (True, False)
    )
    seen = ordered if model.body.ordered else merged

    def evaluate(params: dict) -> dict:
        (logits_CxV,) = task.exact_logits(model, params, [seen])
        return task.expectations(logits_CxV, seen.joint_CxV, [(0, 1), (2, 3)])

    ours = once(evaluate)(params)

    tokens, at = reference.tensors(ordered[:2])
    joint_CxV = torch.tensor(ordered.joint_CxV)
    with torch.no_grad():
        logits_CxV = twin(tokens, at)[:, 0]
    # targets: joint probabilities
    loss = torch.nn.functional.cross_entropy(logits_CxV, joint_CxV, reduction="sum")
    right_C = joint_CxV.gather(1, logits_CxV.argmax(1, keepdim=True))
    np.testing.assert_allclose(ours["loss"], loss, rtol=1e-9)
    np.testing.assert_allclose(ours["accuracy"], right_C.sum(), rtol=1e-9)
    # neither always wrong, as fresh models can be, nor perfect
    assert 0.01 < ours["accuracy"] < 0.5
    for pair, (first, second) in enumerate([(0, 1), (2, 3)]):
        weight_C = (joint_CxV[:, first] + joint_CxV[:, second]).numpy()
        odds_C = (logits_CxV[:, second] - logits_CxV[:, first]).numpy()
        mean = np.average(odds_C, weights=weight_C)
        np.testing.assert_allclose(ours["log_odds"][pair], mean, rtol=1e-9)
        variance = np.average((odds_C - mean) ** 2, weights=weight_C)
        np.testing.assert_allclose(ours["log_odds_deviation"][pair], variance**0.5, rtol=1e-9)
