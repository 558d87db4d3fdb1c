"""Interventions on rows: tables of each role, gradients, training, and options that contradict."""

import dataclasses
import functools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bodies import assert_close, once, sample

import jaxtie
from jaxtie.config import Arm, Interventions, Layout, Mixer, Optimizer, UserError, Variant
from jaxtie.exor import data
from jaxtie.exor.config import Experiment
from jaxtie.exor.task import ExorTask
from jaxtie.training.interventions import effective
from jaxtie.training.lanes import lanes
from jaxtie.training.member import make_member
from jaxtie.training.optimizer import make_optimizer

V, MASK = data.VOCABULARY, data.MASK
FAST = Optimizer(learning_rate=1e-2, eta_min=1e-2)
# Arm -> its rows by role: (input on the residual path, in queries, keys and values, output), as
# functions of the raw rows i (input) and o (output), the initial row s and the factor f = exp(g).
ROLES = {
    "tied+gain=mask": lambda i, o, s, f: (i, i, o * f),
    "untied+gain=mask": lambda i, o, s, f: (i, i, o * f),
    "tied+untie-rows=mask+gain=mask": lambda i, o, s, f: (i, i, o * f),
    "tied+shared-gain=mask": lambda i, o, s, f: (i * f, i * f, o * f),
    "tied+minus=mask": lambda i, o, s, f: (i, i, -o),
    "tied+minus=mask+gain=mask": lambda i, o, s, f: (i, i, -o * f),
    "tied+input-norm=0.05": lambda i, o, s, f: (held(i, 0.05), held(i, 0.05), o),
    "untied+input-norm=3": lambda i, o, s, f: (held(i, 3), held(i, 3), o),
    "tied+untie-rows=mask+input-norm=3": lambda i, o, s, f: (held(i, 3), held(i, 3), o),
    "tied+targets-only+input-norm=3": lambda i, o, s, f: (held(i, 3), held(i, 3), o),
    "tied+input-norm=3+gain=mask": lambda i, o, s, f: (held(i, 3), held(i, 3), o * f),
    "untied+input-norm=3+residual-only": lambda i, o, s, f: (held(i, 3), i, o),
    "untied+input-norm=3+qkv-only": lambda i, o, s, f: (i, held(i, 3), o),
    "tied+input-norm=3+frozen-direction": lambda i, o, s, f: (held(s, 3), held(s, 3), o),
    "tied+learned-scale": lambda i, o, s, f: (i, i, o * f),
    "untied+input-decay=0.3": lambda i, o, s, f: (i, i, o),
}


def held(row, norm):
    return norm * row / np.linalg.norm(row)


def task_of(name: str, **changes) -> ExorTask:
    experiment = Experiment(arms=(name,), optimizer=FAST, **changes)
    return experiment.build(Arm.parse(name).variant, "cpu")


@functools.cache
def drawn(name: str) -> dict:
    """Return initial parameters; not compiled as a whole, so that all arms have the same bits."""
    task = task_of(name)
    return jax.device_get(task.init(jax.random.key(1), task.hparams()))


def fresh(task: ExorTask, dtype=np.float64) -> dict:
    """Return fresh parameters; gains and scales are not 0."""
    params = jax.tree.map(lambda x: x.astype(dtype), drawn(task.config.arms[0].name))
    for name in params["embedding"].keys() & {"log_gain", "log_scale"}:
        params["embedding"][name] = np.full_like(params["embedding"][name], 0.4)
    return params


def raw_row(params: dict, role: str) -> np.ndarray:
    embedding = params["embedding"]
    if f"own_{role}" in embedding:
        return embedding[f"own_{role}"][0]
    if role == "output" and "output_rows" in embedding:
        return embedding["output_rows"][0]
    return embedding.get(role, embedding["input"])[MASK]


@pytest.mark.parametrize("name", ROLES)
def test_rows_of_each_role(name, x64):
    """The mask's rows are those of the formula; all others are the plain arm's, or scaled."""
    task = task_of(name)
    params = fresh(task)
    start = raw_row(params, "input").copy()
    for each in ("input", "own_input", "output", "output_rows"):
        if each in params["embedding"] and "frozen" not in name:
            params["embedding"][each] = params["embedding"][each] * 1.5
    if "frozen" in name:  # its tied row is trained as an output only
        params["embedding"]["input"] = params["embedding"]["input"] * 1.5
    rows = raw_row(params, "input"), raw_row(params, "output")
    residual, qkv, output = ROLES[name](*rows, start, np.exp(0.4))
    model = task.effective(params)
    found = task.tables(params)
    np.testing.assert_allclose(found[0][MASK], residual, rtol=1e-14)
    np.testing.assert_allclose(model["embedding"]["input"][MASK], qkv, rtol=1e-14)
    np.testing.assert_allclose(found[1][MASK], output, rtol=1e-14)
    raw = params["embedding"]
    scale = np.exp(raw.get("log_scale", np.zeros((1, 1))))
    raw_tables = raw["input"], raw.get("output", raw["input"]) * scale
    for table, raw_table in zip(found, raw_tables):
        np.testing.assert_array_equal(table[:MASK], raw_table[:MASK])


def reference_hidden(params: dict, residual: np.ndarray, qkv: np.ndarray, tokens) -> np.ndarray:
    """Compute the hidden state at the mask of one sequence, as PyTorch's encoder layer does."""
    layer = params["body"]["layer_0"]
    (w_q, w_k, w_v), (b_q, b_k, b_v) = (
        np.split(layer[f"in_proj_{part}"], 3) for part in ("weight", "bias")
    )
    rows = qkv[tokens]
    score = (rows @ w_k.T + b_k) @ (w_q @ qkv[MASK] + b_q) / np.sqrt(len(b_q))
    weight = np.exp(score) / np.exp(score).sum()
    attended = layer["out_proj_weight"] @ (weight @ (rows @ w_v.T + b_v)) + layer["out_proj_bias"]

    def norm(x, name):
        normalised = (x - x.mean()) / np.sqrt(x.var() + 1e-5)
        return normalised * layer[f"{name}_weight"] + layer[f"{name}_bias"]

    h = norm(residual[MASK] + attended, "norm1")
    inner = jax.nn.gelu(layer["linear1_weight"] @ h + layer["linear1_bias"], approximate=False)
    return norm(h + layer["linear2_weight"] @ inner + layer["linear2_bias"], "norm2")


@pytest.mark.parametrize("path", ["residual", "qkv"])
def test_the_norm_is_held_on_one_path(path, x64):
    task = task_of(f"untied+input-norm=3+{path}-only")
    params = fresh(task)
    raw, held_VxD = (params["embedding"]["input"].copy() for _ in range(2))
    held_VxD[MASK] = held(raw[MASK], 3)
    tokens = np.array([0, 1, MASK, 2, 2, 3, 1, 4])
    paths = (held_VxD, raw) if path == "residual" else (raw, held_VxD)
    h = reference_hidden(params, *paths, tokens)
    logits = task.model.apply({"params": task.effective(params)}, tokens, np.array([2]))[0]
    np.testing.assert_allclose(logits, params["embedding"]["output"] @ h, rtol=1e-10)
    same = reference_hidden(params, raw, raw, tokens)
    assert np.abs(h - same).max() > 0.01


ONE_OF_A_KIND = ("tied+gain=mask", "tied+shared-gain=mask", "untied+input-norm=3+residual-only")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name not in ONE_OF_A_KIND)) for name in ROLES],
)
def test_gradients_are_finite_differences(name, x64):
    task, batch = task_of(name), jax.tree.map(jnp.asarray, sample())
    params, rng = fresh(task), np.random.default_rng(0)
    loss = once(jax.value_and_grad(lambda params: task.loss(params, batch)[0]))
    gradient = loss(params)[1]
    frozen = gradient["embedding"].pop("own_input") if "frozen" in name else 0
    assert np.all(frozen == 0)
    for leaf, value in gradient["embedding"].items():
        along = rng.standard_normal(value.shape)

        def moved(step, leaf=leaf, along=along):
            embedding = params["embedding"]
            own = {**embedding, leaf: embedding[leaf] + step * along}
            return float(loss({**params, "embedding": own})[0])

        expected = (moved(1e-5) - moved(-1e-5)) / 2e-5
        np.testing.assert_allclose(np.sum(value * along), expected, rtol=1e-6, atol=1e-9)
        assert leaf in ("input", "output") or np.any(value != 0)  # tables have unused rows


def trained(task: ExorTask, steps: int = 5):
    """Return the parameters at the start and after some steps."""
    member, hparams = make_member(task), task.hparams()
    state, stream = member.init(np.uint32(3), hparams), task.stream(3)
    step = once(lambda state, at: member.step(state, hparams, stream, at)[0])
    first = state.params
    for at in range(steps):
        state = step(state, np.int32(at))
    return first, state.params


@pytest.mark.parametrize(
    "name", ["tied+input-norm=0.05", "untied+input-norm=3", "tied+input-norm=3+frozen-direction"]
)
def test_norms_are_held_and_a_frozen_direction_is_constant(name):
    task = task_of(name)
    norm = task.variant.head.interventions.input_norm
    first, last = trained(task)
    (before, _), (row, output) = (
        tuple(np.asarray(table[MASK]) for table in task.tables(params)) for params in (first, last)
    )
    for each in (before, row):
        assert np.linalg.norm(each) == pytest.approx(norm, rel=2e-7)
    if "frozen" in name:
        np.testing.assert_array_equal(row, before)
        assert np.any(last["embedding"]["input"][MASK] != first["embedding"]["input"][MASK])
    else:
        assert np.abs(row - before).max() > 1e-4 * norm
    assert abs(np.linalg.norm(output) - norm) > 0.1  # it has its own length as an output


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("untied+input-decay=0.3", {"own_input": 0.3}),
        ("tied+untie-rows=mask+input-decay=0", {"own_input": 0.0}),
        ("tied+input-norm=3+frozen-direction", {"own_input": 0.0}),
        ("tied+gain=mask", {}),
    ],
)
def test_decay_by_role_is_a_product(name, own, weight_decay, x64):
    """With gradient 0 the decay is left: 1 - rate · decay at every step."""
    task = task_of(name)
    optimizer = dataclasses.replace(FAST, weight_decay=weight_decay, learning_rate=0.5, eta_min=0.5)
    adam = make_optimizer(optimizer, task.variant.head)
    params = fresh(task)
    assert own.keys() == {leaf for leaf in params["embedding"] if leaf.startswith("own_")}
    now, state = params, adam.init(params)
    for _ in range(2):
        updates, state = once(adam.update)(jax.tree.map(np.zeros_like, now), state, now)
        now = jax.tree.map(np.add, now, updates)
    kept = {leaf: 0.5 * own.get(leaf, weight_decay) for leaf in params["embedding"]}
    for leaf, value in params["embedding"].items():
        np.testing.assert_allclose(
            now["embedding"][leaf], (1 - kept[leaf]) ** 2 * value, rtol=1e-14
        )
    expected = jax.tree.map(lambda x: (1 - 0.5 * weight_decay) ** 2 * x, params["body"])
    assert_close(now["body"], expected, 1e-14)


def test_a_gain_trains_as_in_pytorch(x64):
    """Three steps of AdamW; the mask's logit is multiplied by exp(g)."""
    torch = pytest.importorskip("torch", reason="pip install 'jaxtie[parity]'")
    import torch_reference

    task, batch = task_of("tied+gain=mask"), sample()
    params = fresh(task)
    embedding = dict(params["embedding"])
    plain = {**params, "embedding": {"input": embedding["input"]}}
    model = torch_reference.Reference(task.config.model, tied=True).double()
    model = torch_reference.load(model, plain)
    gain = torch.full((), 0.4, dtype=torch.float64, requires_grad=True)
    adam = torch.optim.AdamW([*model.parameters(), gain], lr=1e-2, eps=1e-12, weight_decay=0.1)
    tokens, at, target = torch_reference.tensors(batch)
    is_mask = torch.eye(V, dtype=torch.float64)[MASK]
    optimizer = make_optimizer(FAST, task.variant.head)
    state = optimizer.init(params)
    batch = jax.tree.map(jnp.asarray, batch)

    @once
    def step(params, state):
        gradient = jax.grad(lambda params: task.loss(params, batch)[0])(params)
        updates, state = optimizer.update(gradient, state, params)
        return jax.tree.map(jnp.add, params, updates), state

    for _ in range(3):
        adam.zero_grad()
        logits = model(tokens, at) * (1 + is_mask * (gain.exp() - 1))
        torch.nn.functional.cross_entropy(logits.flatten(0, -2), target.flatten()).backward()
        adam.step()
        params, state = step(params, state)
    trained_gain = gain.item()
    assert params["embedding"]["log_gain"].item() == pytest.approx(trained_gain, abs=1e-9)
    theirs = torch_reference.parameters(model)
    np.testing.assert_allclose(
        params["embedding"]["input"], theirs["embedding"]["input"], rtol=0, atol=1e-9
    )
    assert abs(trained_gain - 0.4) > 0.01


def test_an_arm_without_interventions_is_untouched():
    """Its parameters are the model's own; a gain of 1 and rows of their own change no bit."""
    params = drawn("tied")
    assert effective(params, Interventions(), (), data.EXOR_ROW_SETS) is params
    names = ("tied+gain=all", "tied+shared-gain=all", "untied+learned-scale")
    for name in (*names, "untied+input-decay=0"):
        both = name.partition("+")[0], name
        tables = (task_of(each).tables(drawn(each)) for each in both)
        jax.tree.map(np.testing.assert_array_equal, *tables)
        jax.tree.map(np.testing.assert_array_equal, *(drawn(each)["body"] for each in both))


def test_lanes_are_as_vmap():
    """Many members in one program: derived tables and their gradients."""
    for name in ("tied+input-norm=3+gain=mask", "tied+shared-gain=all", "tied+minus=mask"):
        task = task_of(name)
        params = fresh(task, np.float32)
        own = Arm.parse(name).head.interventions
        members = jax.tree.map(lambda x: np.stack([x, 2 * x, -x], axis=-1), params)

        def total(params, own=own):
            tables = effective(params, own, (), data.EXOR_ROW_SETS)["embedding"]
            return jnp.sum(jnp.sin(tables["input"]) * tables["output"])

        both = [
            once(of(jax.value_and_grad(total)))(members)
            for of in (lanes, partial(jax.vmap, in_axes=-1, out_axes=-1))
        ]
        assert_close(*both, 1e-6)


@pytest.mark.slow
def test_a_run_with_interventions_resumes_to_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setattr(Experiment, "layout", lambda *_: Layout((1,)))  # compiles sooner
    arms = ("tied+gain=mask+input-norm=0.05+frozen-direction",)
    steps = {"record_every": 10, "eval_every": 10, "mask_logit": True}
    long = Experiment(arms=arms, seeds=(5,), steps=20, **steps)
    whole = jaxtie.run(long, out=tmp_path / "whole", quiet=True)
    jaxtie.run(dataclasses.replace(long, steps=10), out=tmp_path / "parts", quiet=True)
    parts = jaxtie.run(long, out=tmp_path / "parts", quiet=True)
    for name in ("loss", "train_loss", "input_table", "output_table", "mask_logit"):
        np.testing.assert_array_equal(parts[name], whole[name])
    norm = np.linalg.norm(whole["input_table"].sel(symbol="mask", table_step=20))
    assert norm == pytest.approx(0.05, rel=1e-6)


ERRORS = {
    "untied+gain=mask@10": "leave out @STEP",
    "tied+gain=rows": "gain is 'rows'; expected mask, labels, never-targets, rarer-half, all",
    "tied+untie-rows=all": "untie-rows is 'all'; expected mask, labels, never-targets",
    "tied+gain=mask+gain=all": "repeats or contradicts",
    "tied+input-norm=0": "expected a number above 0",
    "tied+frozen-direction": r"need \+input-norm=X",
    "untied+residual-only": r"need \+input-norm=X",
    "untied+input-norm=3+residual-only+qkv-only": "repeats or contradicts",
    "untied+input-norm=3+frozen-direction+input-decay=2": "a frozen row has no decay",
    "tied+input-decay=0": "needs an untied mask",
    "tied+untie-rows=labels+input-decay=0": "needs an untied mask",
    "untied+tie-rows=mask+input-decay=0": "needs an untied mask",
    "untied+minus=mask": "for rows that are tied",
    "tied+untie-rows=mask+shared-gain=mask": "for rows that are tied",
    "tied+targets-only+gain=mask": "out of the output",
    "tied+shared-gain=mask+gain=mask": "contradicts",
    "tied+shared-gain=mask+input-norm=3": "contradicts",
}


@pytest.mark.parametrize("name", ERRORS)
def test_contradicting_options_are_refused_in_one_line(name):
    with pytest.raises(UserError, match=ERRORS[name]) as raised:
        Arm.parse(name)
    assert "\n" not in str(raised.value) and name in str(raised.value)


def test_other_experiments_refuse_interventions():
    with pytest.raises(UserError, match="a Mixer has no queries, keys and values"):
        Experiment(arms=("untied+input-norm=3+qkv-only",), model=Mixer())
    with pytest.raises(UserError, match="gradients by role are of rows without interventions"):
        Experiment(arms=("tied+gain=mask",), roles=True)
    with pytest.raises(UserError, match=r"\+residual-only and \+qkv-only are for EXor"):
        jaxtie.TextExperiment(arms=("untied+input-norm=3+qkv-only",))
    with pytest.raises(UserError, match="no rows 'labels' on text"):
        jaxtie.TextExperiment(arms=("tied+gain=labels",))
    with pytest.raises(UserError, match="gradients by role are of rows without interventions"):
        jaxtie.TextExperiment(arms=("tied+gain=mask",), roles=True)
    Experiment(arms=("untied+input-norm=3",), model=Mixer())
    assert Variant(True, Arm.parse("tied+gain=mask").head) != Variant(True)
