"""GPUs and TPUs without one: block sizes, memory checks, and that their layout is the same
training.
"""

from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bodies import assert_close, build_model, once, random_params, sample
from jaxtie.exor.blocks import block_size, block_sizes
from jaxtie.exor.forms import advance_members

from jaxtie.config import LSTM, Mixer, Transformer, UserError
from jaxtie.exor import engine
from jaxtie.exor.config import Experiment
from jaxtie.exor.task import Static, make_member, optimizer_of, stack_settings
from jaxtie.exor.task import build_model as build
from jaxtie.models.language_model import build_body
from jaxtie.training.distributed import Processes
from jaxtie.training.member import initial_state, stream


def fake_devices(platform: str, count: int, memory: int | None = None) -> list[SimpleNamespace]:
    return [
        SimpleNamespace(
            platform=platform,
            device_kind="a chip",
            memory_stats=lambda: memory and {"bytes_limit": memory},
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
@pytest.mark.parametrize(
    "model", [Transformer(), LSTM(), Mixer(), Transformer(2, 1, 32, 32), LSTM(4, 32, 32)]
)
def test_many_members_fill_an_accelerator_and_few_do_not_pad_up_to_that(platform, model):
    sizes = block_sizes(platform, model)
    few, many = sizes[0], sizes[-1]
    # 64 seeds, the default, fill half; parts that are evaluated are of one size
    assert 64 <= few <= 128 and many % few == 0
    assert block_size(platform, model, 1) == block_size(platform, model, 2 * few) == few
    assert block_size(platform, model, 2 * few + 1) == block_size(platform, model, 10**6) == many


def test_4096_seeds_are_two_programs_of_a_gpu_and_not_64(monkeypatch):
    """Each arm's; with two GPUs each has one of them."""
    for count in (1, 2, 8):
        monkeypatch.setattr(
            engine.jax, "local_devices", lambda count=count: fake_devices("gpu", count)
        )
        planned = engine.ExorEngine(Experiment(seeds=tuple(range(4096))), Processes())
        assert -(-len(planned.own) // planned.block) == 2
        assert len(planned.workers) == min(count, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [
        Transformer(),
        pytest.param(Mixer(), marks=pytest.mark.slow),
        pytest.param(LSTM(1, 4, 3), marks=pytest.mark.slow),
    ],
    ids=lambda model: type(model).__name__,
)
def test_what_is_laid_out_for_a_gpu_trains_as_plain_members_do(model):
    """The same steps, but for rounding; and whoever pads a block changes no bit of the others."""
    experiment = Experiment(model=model, record_every=5, eval_every=10)
    static, settings = Static.of(experiment, tied=True), stack_settings(experiment)
    member, seeds = make_member(static), jnp.array([3, 5, 7, 7], jnp.uint32)
    settings = jax.tree.map(lambda x: np.repeat(x, 4, axis=0), settings)

    def start(seed, setting):
        return initial_state(
            build(static), optimizer_of(static, setting), jax.random.key(seed), 8
        ), stream(14, seed)

    states, streams = once(jax.vmap(start))(seeds, settings)
    expected, recorded = once(jax.vmap(member.advance, in_axes=(0, 0, 0, None)))(
        states, streams, settings, 0
    )
    accelerated = once(
        partial(advance_members, make_member(static, accelerated=True), model, "gpu")
    )
    found, records = accelerated(states, streams, settings, 0)
    np.testing.assert_allclose(records["loss"], recorded["loss"], rtol=1e-5)
    assert_close(found.params["embedding"], expected.params["embedding"], 1e-4)
    padded = jax.tree.map(lambda x: x[np.array([0, 1, 1, 1])], (states, streams))
    again, _ = accelerated(*padded, settings, 0)
    for one, other in zip(*map(jax.tree.leaves, (found, again)), strict=True):
        np.testing.assert_array_equal(one[:2], other[:2])


@pytest.mark.parametrize(
    "config", [LSTM(1, 4, 3), pytest.param(LSTM(3, 8, 5), marks=pytest.mark.slow)]
)
def test_an_lstm_in_few_operations_is_the_lstm(config, x64):
    """Values and gradients; of the same parameters."""
    plain, params = build_model(config, tied=False), random_params(config)
    few = plain.clone(body=build_body(config, accelerated=True))
    batch = sample()

    def loss(model, params):
        logits = jax.vmap(lambda tokens, at: model.apply({"params": params}, tokens, at))(
            batch.tokens_BxL, batch.at_BxP
        )
        return jnp.sum(jnp.sin(logits) * jnp.arange(logits.size).reshape(logits.shape))

    ours, theirs = (
        once(jax.value_and_grad(lambda p, m=model: loss(m, p)))(params) for model in (few, plain)
    )
    assert_close(ours, theirs, 1e-11)


def program_of(arguments: int, work: int) -> SimpleNamespace:
    """As much of a compiled program as says what memory it takes: half of its arguments are
    states.
    """
    sizes = SimpleNamespace(
        argument_size_in_bytes=arguments, output_size_in_bytes=arguments, temp_size_in_bytes=work
    )
    compiled = SimpleNamespace(memory_analysis=lambda: sizes)
    states = {"table": jax.ShapeDtypeStruct((arguments // 8,), np.float32)}
    return SimpleNamespace(
        block=100, advance={"device": compiled, "other": compiled}, states=states
    )


@pytest.fixture
def nine_gib(monkeypatch):
    monkeypatch.setattr(engine, "memory_limit", lambda device: 9 * 2**30)
    monkeypatch.setattr(engine, "describe_device", lambda device: "chip")


@pytest.mark.parametrize(
    ("members", "count", "swept", "needed"),
    [
        (100, 1, True, None),
        (300, 1, True, None),
        (301, 1, True, "10.0"),
        (600, 2, True, None),
        (601, 2, True, "10.0"),
        (500, 1, False, None),
        (501, 1, False, "9.5"),
    ],
)
def test_memory_is_looked_at_before_anything_is_trained(members, count, swept, needed, nine_gib):
    """A block under way takes 1 GiB of arguments, 1 of results and 5 of work; one that waits 1 GiB,
    or its states, a half.
    """
    program, workers = program_of(2**30, 5 * 2**30), ["device", "other"][:count]
    if needed is None:
        engine.check_memory(program, workers, members, swept=swept)
        return
    with pytest.raises(UserError) as refused:
        engine.check_memory(program, workers, members, swept=swept)
    assert (
        str(refused.value)
        == f"{members} members in blocks of 100 need {needed} GiB on each chip, where JAX may use"
        f" 9.0; train at most {(300 if swept else 500) * count} a run (--seeds, --out)"
    )


def test_a_block_that_no_device_holds_is_refused_without_a_number(nine_gib):
    with pytest.raises(UserError, match=r"use devices with more$"):
        engine.check_memory(program_of(2**30, 2**33), ["device"], 1, swept=False)


def test_of_a_cpu_nothing_is_refused():
    engine.check_memory(program_of(2**50, 2**50), jax.devices()[:1], 10**9, swept=False)


def test_blocks_share_the_settings_that_are_the_same():
    """On the device; numbers of members count all seeds of a setting first."""
    (device, *_), program = jax.devices(), SimpleNamespace(block=2)
    plain = engine.BlockRun(program, [device], Experiment(seeds=(0, 1, 2)), 100)
    assert plain._place(np.array([0, 1]), device) is plain._place(np.array([2]), device)
    experiment = Experiment(seeds=(0, 1, 2), sweep=(("weight_decay", (0.0, 0.25)),))
    swept, members = (
        engine.BlockRun(program, [device], experiment, 100),
        np.array(experiment.members),
    )
    found = [swept._place(members[i : i + 2], device).weight_decay.tolist() for i in (0, 2, 4)]
    assert found == [[0, 0], [0, 0.25], [0.25, 0.25]]
