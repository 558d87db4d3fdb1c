"""GPUs and TPUs without one: block sizes, memory checks, and training in their layout."""

from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bodies import assert_close, once

from jaxtie.config import LSTM, Mixer, Transformer, Variant
from jaxtie.exor.config import Experiment
from jaxtie.training import block_engine
from jaxtie.training.block_engine import Block, BlockEngine, BlockRun, members_per_block
from jaxtie.training.distributed import Processes
from jaxtie.training.member import make_member
from jaxtie.tying.cross_entropy import BLOCK_SIZE
from jaxtie.tying.cross_entropy import block_size as logits_block_size

WIDE = (Transformer(2, 1, 32, 32), LSTM(4, 32, 32))


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
@pytest.mark.parametrize("model", [Transformer(), LSTM(), Mixer(), *WIDE])
def test_many_members_fill_an_accelerator_and_few_are_padded_little(platform, model):
    layout = Experiment(model=model).layout(platform)
    few, *more = layout.blocks
    # 64 seeds, the default, fill half; parts that are evaluated are of one size
    assert 64 <= few <= 128 and all(many % few == 0 for many in more)
    sizes = [
        members_per_block(layout, members) for members in (1, layout.few, layout.few + 1, 10**6)
    ]
    many = layout.blocks[-1]
    assert sizes == [few, few, *(more or [few])[:1], many]
    assert [members_per_block(layout, members) for members in more] == more


@pytest.mark.parametrize("count", [1, 2, 8])
def test_4096_seeds_are_two_blocks_of_a_gpu(monkeypatch, count):
    gpu = SimpleNamespace(platform="gpu", device_kind="a chip", memory_stats=lambda: None)
    monkeypatch.setattr(block_engine.jax, "local_devices", lambda: [gpu] * count)
    engine = BlockEngine(Experiment(seeds=tuple(range(4096))), Processes())
    assert -(-len(engine.own) // engine.block) == 2
    assert len(engine.workers) == min(count, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "model", [Transformer(), Mixer(), LSTM(1, 4, 3)], ids=lambda model: type(model).__name__
)
def test_the_layout_of_a_gpu_trains_as_plain_members_do(model):
    """But for rounding; and padding a block changes no bit of the others."""
    config, variant = Experiment(model=model, record_every=5, eval_every=10), Variant(True)
    task, accelerated = (config.build(variant, platform) for platform in ("cpu", "gpu"))
    member, seeds = make_member(task), jnp.array([3, 5, 7, 7], jnp.uint32)
    hparams = jax.tree.map(lambda x: np.stack([x] * 4), task.hparams())

    def start(seed, hparams):
        return member.init(seed, hparams), task.stream(seed)

    states, streams = once(jax.vmap(start))(seeds, hparams)
    advance = once(jax.vmap(member.advance, in_axes=(0, 0, 0, None)))
    expected, recorded = advance(states, streams, hparams, 0)
    laid_out = make_member(accelerated), config.layout("gpu"), "gpu"
    on_gpu = once(partial(block_engine.advance_members, *laid_out))
    found, records = on_gpu(states, streams, hparams, 0)
    np.testing.assert_allclose(records["loss"], recorded["loss"], rtol=1e-5)
    assert_close(found.params["embedding"], expected.params["embedding"], 1e-4)
    padded = jax.tree.map(lambda x: x[np.array([0, 1, 1, 1])], (states, streams))
    again, _ = on_gpu(*padded, hparams, 0)
    for one, other in zip(*map(jax.tree.leaves, (found, again)), strict=True):
        np.testing.assert_array_equal(one[:2], other[:2])


@pytest.mark.parametrize(
    ("platform", "vocabulary", "expected"),
    [
        ("cpu", 2, BLOCK_SIZE),
        ("cpu", 256_000, BLOCK_SIZE),
        ("gpu", 8_192, 8_192),
        ("gpu", 32_000, 2_048),
        ("tpu", 30_522, 2_048),
        ("gpu", 10**9, BLOCK_SIZE),
    ],
)
def test_logits_of_a_block_fill_an_accelerator(platform, vocabulary, expected):
    assert logits_block_size(platform, vocabulary) == expected


def test_blocks_share_equal_hyperparameters_on_a_device():
    """Numbers of members count all seeds of a sweep point first."""
    device, found = jax.devices()[0], []

    def advance(states, streams, hparams, *_):
        found.append(hparams)
        return states, {"loss": np.zeros((1, 2))}

    program = SimpleNamespace(block=2, advance={device: advance})
    plain = Experiment(seeds=(0, 1, 2))
    swept = Experiment(seeds=(0, 1, 2), sweep=(("weight_decay", (0.0, 0.25)),))
    for config in (plain, swept):
        run, members = BlockRun(program, [device], config, 100), np.array(config.members)
        for i in range(0, len(members), 2):
            run._advance(Block(members[i : i + 2], device, 0, np.zeros((2, 2), np.uint32), {}))
    assert found[0] is found[1]
    assert [own["weight_decay"].tolist() for own in found[2:]] == [[0, 0], [0, 0.25], [0.25, 0.25]]
