"""One kernel for a TPU, interpreted on a CPU: it computes what `vmap` computes; where it does not, it is not taken."""

import functools
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bodies import once

from jaxtie.exor import forms
from jaxtie.exor.declaration import Experiment
from jaxtie.exor.member import Static, make_member
from jaxtie.experiment import Arm
from jaxtie.models.sizes import Mixer, Transformer
from jaxtie.training.kernel import kernel
from jaxtie.training.rows import NoKernel

SAMPLES, MEMBERS = 6, 256
BITS = np.arange(SAMPLES * 4).reshape(SAMPLES, 4) % 3 == 0
BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def random(*shapes):
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.standard_normal((*shape, MEMBERS)), jnp.float32) for shape in shapes]


def words(a):
    """Sampling's: a counter, cut and put together along samples."""
    count = jnp.concatenate([jnp.full(12, 7, jnp.uint32), jnp.arange(12, dtype=jnp.uint32)])
    found = jax.extend.random.threefry_2x32((a[:2] * 1e9).astype(jnp.int32).astype(jnp.uint32), count)
    return jnp.concatenate([found >> 16, found & 0xFFFF]).reshape(8, SAMPLES).T


def hidden(x, w):
    return jnp.tanh(x[:, :1] * w[0][None]) @ w[1:]


FUNCTIONS = {
    "elementwise, of one and of several": (lambda a, b: (jnp.where(a > 0, a, b[0]), a**-2, jnp.round(b) % 3), (2, 3), (3,)),
    "moved and cut": (lambda a, b: jnp.stack([a.T[1:], jnp.concatenate([b, b])], 1), (4, 3), (1, 4)),
    "products": (lambda a, b: (a @ b, jnp.einsum("ab,cb->ca", a, a), jnp.einsum("ab,ab->a", a, a)), (4, 3), (3, 5)),
    "samples' own constants": (lambda a: jnp.sum(jnp.where(BITS, a[None], 1.0) @ a[:, None], 0), (4,)),
    "sums and extremes over samples": (lambda a: [of(jnp.where(BITS, a[None], a[0]), 0) for of in (jnp.sum, jnp.max)], (4,)),
    "what samples share, summed over them": (lambda a: jnp.sum(jnp.broadcast_to(a[None], (SAMPLES, 4)), (0, 1)), (4,)),
    "gradient of a product with samples": (
        jax.grad(lambda w: jnp.sum(jax.nn.softmax(hidden(jnp.where(BITS, 1.0, w[0, 0]), w)) ** 2)),
        (5, 4),
    ),
    "one-hot of samples' numbers": (
        lambda a: jnp.sum(jax.nn.one_hot(jnp.argsort(BITS, 1)[:, 0] + (a[:1] > 0), 5), 0),
        (4,),
    ),
    "random numbers": (lambda a: jnp.sum(words(a), 0), (4,)),
    "what is known outside, traced": (lambda a: (a * jnp.zeros(3).at[1].set(2.0)[:, None], jnp.arange(4.0) ** 2), (3, 1)),
    "a loop": (
        lambda a, b: jax.lax.scan(
            lambda c, x: ((c[1] + x, c[0] * b[None]), None), (a, a.T.reshape(2, 4)), jnp.arange(3.0) * 2
        )[0],
        (2, 4),
        (4,),
    ),
}


@pytest.mark.parametrize("f_and_shapes", FUNCTIONS.values(), ids=FUNCTIONS.keys())
def test_a_kernel_is_vmap(f_and_shapes):
    f, *shapes = f_and_shapes
    arguments = random(*shapes)
    expected = once(jax.vmap(f, in_axes=-1, out_axes=-1))(*arguments)
    found = once(kernel(f, SAMPLES, interpret=True))(*arguments)
    for got, want in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("f", "shape"),
    [
        (lambda a: jnp.sort(a), (4,)),
        (lambda a: jnp.sum(jnp.where(BITS, a[None], 0.0)[1:], 0), (4,)),
        (lambda a: jnp.sum(jnp.where(BITS, a[None], 0.0) @ jnp.where(BITS, 1.0, a[None]).T), (4,)),
        (lambda a: jnp.where(BITS, a[None], 0.0), (4,)),
        (lambda a: jax.lax.scan(lambda c, _: (c + 1, c), a, length=2), (4,)),
        (lambda a: jax.lax.scan(lambda c, x: (c + x, None), a[0], a), (4,)),
    ],
    ids=["no rule", "a part", "every sample with every other", "samples handed out", "turns handed out", "own turns"],
)
def test_what_there_is_no_kernel_of_is_said_while_tracing(f, shape):
    with pytest.raises(NoKernel):
        jax.eval_shape(kernel(f, SAMPLES, interpret=True), *random(shape))


def test_members_are_whole_vectors():
    with pytest.raises(NoKernel, match="100 members"):
        jax.eval_shape(kernel(jnp.sin, SAMPLES, interpret=True), jnp.zeros(100))


def static_of(model, arm="tied") -> Static:
    arm = Arm.parse(arm)
    return Static.of(Experiment(model=model), tied=arm.tied, head=arm.head)


@pytest.mark.parametrize(
    ("model", "arm"),
    [
        (Transformer(width=2, feedforward=2), "untied"),
        pytest.param(Transformer(), "tied", marks=pytest.mark.slow),
        pytest.param(Transformer(width=2, feedforward=2), "tied+bias+soft-cap=3+half-swap", marks=pytest.mark.slow),
        pytest.param(Mixer(width=2, tokenwise=2, channelwise=2), "tied", marks=pytest.mark.slow),
    ],
)
def test_steps_in_a_kernel_are_those_of_vmap(model, arm):
    """Of 128 members: what is recorded after some steps, and where they stand.

    Adam divides one moment by the other. So where a gradient is all rounding, as that of a key's bias, which is 0, a
    parameter may be anywhere. And the norm of two numbers is nearly a sign: of members of width 2 some are further off.
    """
    static = static_of(model, arm)._replace(record_every=3)
    own = once(jax.vmap(functools.partial(forms._fresh_member, static)))(np.arange(128, dtype=np.uint32))
    member = make_member(static, accelerated=True)
    advance = functools.partial(forms.advance_members, member, model, "tpu", interpret=True)
    (states, records), (expected, recorded) = (
        once(functools.partial(advance, in_kernel=in_kernel))(*own, np.int32(5)) for in_kernel in (True, False)
    )
    for name, value in recorded.items():
        np.testing.assert_allclose(records[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
    leaves = zip(jax.tree_util.tree_leaves_with_path(expected), jax.tree.leaves(states), strict=True)
    for (path, want), got in leaves:
        name, keys = jax.tree_util.keystr(path), slice(model.width, 2 * model.width)
        off = np.abs(got - want)
        off = np.delete(off, keys, axis=1) if name.startswith(".params") and "in_proj_bias" in name else off
        if model.width > 2:
            assert np.max(off) < (5e-3 if name.startswith(".params") else 1e-4), name
        assert np.quantile(off, 0.9) < 1e-5, name


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "fault"), [(1.0, ""), (1.01, "off by")])
def test_a_kernel_that_makes_other_steps_is_found(factor, fault, monkeypatch):
    """One whose learning rate is a hundredth too large stands for it."""
    advance = forms.advance_members

    def other(*parts, in_kernel, interpret):
        *before, settings, step = parts
        scaled = settings._replace(learning_rate=settings.learning_rate * (factor if in_kernel else 1))
        return advance(*before, scaled, step)

    monkeypatch.setattr(forms, "advance_members", other)
    found = forms._fault_of_kernel(static_of(Transformer(width=2, feedforward=2)), jax.devices()[0])
    assert fault in found and bool(found) == bool(fault)


class Failing:
    """A TPU on which something happens."""

    platform = "tpu"

    def __init__(self, error):
        self.error = error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (None, ""),
        (NoKernel("no rule for sort"), ""),
        (RuntimeError("Mosaic failed\nat length"), "without the kernel for TPUs, several times as slowly: Mosaic failed\n"),
    ],
)
def test_a_tpu_that_cannot_is_given_the_plain_form(error, said, monkeypatch, capsys):
    def checked(static, device):
        if device.error:
            raise device.error
        return ""

    monkeypatch.setattr(forms, "_fault_of_kernel", checked)
    assert forms.kernel_holds(static_of(Transformer()), Failing(error)) == (error is None)
    assert said in capsys.readouterr().err


def test_what_is_large_or_no_tpu_is_not_tried(monkeypatch, capsys):
    monkeypatch.setattr(forms, "_fault_of_kernel", None)
    assert not forms.kernel_holds(static_of(Transformer(width=32, feedforward=32)), Failing(None))
    assert not forms.kernel_holds(static_of(Transformer()), jax.devices()[0])
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_it_compiles_for_a_tpu():
    """The main experiment's, for a chip that is not there, and is many times faster than the bound here."""
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip('no compiler for TPUs: pip install "jax[tpu]"')
    options = "--chips v5e --models transformer_small --arms tied --blocks 128 --forms kernel --json".split()
    done = subprocess.run([sys.executable, "accelerators.py", *options], cwd=BENCHMARKS, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert row["form"] == "kernel" and 2 < row["microseconds"] < 20, row  # 8 with jax 0.10.2
    assert row["rounded_products"] == 0 and not row["has_64_bits"], row
    assert 1 < row["on_chip_mebibytes"] < 15, row
