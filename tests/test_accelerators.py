"""GPUs and TPUs without one: which blocks they get, that what is laid out for them is the same training, what is compiled."""

import importlib.util
import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bodies import assert_close, build_model, once, random_params, sample

from jaxtie.exor import engine
from jaxtie.exor.blocks import block_size, block_sizes
from jaxtie.exor.declaration import Experiment
from jaxtie.exor.forms import advance_members, may_be_kernel
from jaxtie.exor.member import Static, make_member, optimiser_of, stack_settings
from jaxtie.exor.member import build_model as build
from jaxtie.experiment import UserError
from jaxtie.models.bodies import build_body
from jaxtie.models.sizes import LSTM, Mixer, Transformer
from jaxtie.training.kernel import VECTOR
from jaxtie.training.member import initial_state
from jaxtie.training.processes import Processes
from jaxtie.training.streams import stream

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def fake_devices(platform: str, count: int, memory: int | None = None) -> list[SimpleNamespace]:
    return [
        SimpleNamespace(platform=platform, device_kind="a chip", memory_stats=lambda: memory and {"bytes_limit": memory})
        for _ in range(count)
    ]


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
@pytest.mark.parametrize("model", [Transformer(), LSTM(), Mixer(), Transformer(2, 1, 32, 32), LSTM(4, 32, 32)])
def test_many_members_fill_an_accelerator_and_few_do_not_pad_up_to_that(platform, model):
    sizes = block_sizes(platform, model)
    few, many = sizes[0], sizes[-1]
    assert 64 <= few <= 128 and many % few == 0  # 64 seeds, the default, fill half; parts that are evaluated are of one size
    if may_be_kernel(Static.of(Experiment(model=model), tied=True), platform):
        assert few % VECTOR == 0
    assert block_size(platform, model, 1) == block_size(platform, model, 2 * few) == few
    assert block_size(platform, model, 2 * few + 1) == block_size(platform, model, 10**6) == many


def test_4096_seeds_are_two_programs_of_a_gpu_and_not_64(monkeypatch):
    """Each arm's; with two GPUs each has one of them."""
    for count in (1, 2, 8):
        monkeypatch.setattr(engine.jax, "local_devices", lambda count=count: fake_devices("gpu", count))
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
        return initial_state(build(static), optimiser_of(static, setting), jax.random.key(seed), 8), stream(14, seed)

    states, streams = once(jax.vmap(start))(seeds, settings)
    expected, recorded = once(jax.vmap(member.advance, in_axes=(0, 0, 0, None)))(states, streams, settings, 0)
    accelerated = once(partial(advance_members, make_member(static, accelerated=True), model, "gpu"))
    found, records = accelerated(states, streams, settings, 0)
    np.testing.assert_allclose(records["loss"], recorded["loss"], rtol=1e-5)
    assert_close(found.params["embedding"], expected.params["embedding"], 1e-4)
    padded = jax.tree.map(lambda x: x[np.array([0, 1, 1, 1])], (states, streams))
    again, _ = accelerated(*padded, settings, 0)
    for one, other in zip(*map(jax.tree.leaves, (found, again)), strict=True):
        np.testing.assert_array_equal(one[:2], other[:2])


@pytest.mark.parametrize("config", [LSTM(1, 4, 3), pytest.param(LSTM(3, 8, 5), marks=pytest.mark.slow)])
def test_an_lstm_in_few_operations_is_the_lstm(config, x64):
    """Values and gradients; of the same parameters."""
    plain, params = build_model(config, tied=False), random_params(config)
    few = plain.clone(body=build_body(config, accelerated=True))
    batch = sample()

    def loss(model, params):
        logits = jax.vmap(lambda tokens, at: model.apply({"params": params}, tokens, at))(batch.tokens_BxL, batch.at_BxP)
        return jnp.sum(jnp.sin(logits) * jnp.arange(logits.size).reshape(logits.shape))

    ours, theirs = (once(jax.value_and_grad(lambda p, m=model: loss(m, p)))(params) for model in (few, plain))
    assert_close(ours, theirs, 1e-11)


def program_of(arguments: int, work: int) -> SimpleNamespace:
    """As much of a compiled program as says what memory it takes: half of its arguments are states."""
    sizes = SimpleNamespace(argument_size_in_bytes=arguments, output_size_in_bytes=arguments, temp_size_in_bytes=work)
    compiled = SimpleNamespace(memory_analysis=lambda: sizes)
    states = {"table": jax.ShapeDtypeStruct((arguments // 8,), np.float32)}
    return SimpleNamespace(block=100, advance={"device": compiled, "other": compiled}, states=states)


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
    """A block under way takes 1 GiB of arguments, 1 of results and 5 of work; one that waits 1 GiB, or its states, a half."""
    program, workers = program_of(2**30, 5 * 2**30), ["device", "other"][:count]
    if needed is None:
        engine.check_memory(program, workers, members, swept=swept)
        return
    with pytest.raises(UserError) as refused:
        engine.check_memory(program, workers, members, swept=swept)
    assert str(refused.value) == (
        f"{members} members in blocks of 100 need {needed} GiB on each chip, where JAX may use 9.0; "
        f"train at most {(300 if swept else 500) * count} a run (--seeds, --out)"
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
    swept, members = engine.BlockRun(program, [device], experiment, 100), np.array(experiment.members)
    found = [swept._place(members[i : i + 2], device).weight_decay.tolist() for i in (0, 2, 4)]
    assert found == [[0, 0], [0, 0.25], [0.25, 0.25]]


HLO = """HloModule jit_f

%body.inner (a: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
  %a = (s32[], f32[8,4]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%a), index=0
  %x = f32[8,4]{1,0} get-tuple-element(%a), index=1
  %d = f32[8,4]{1,0} tanh(%x)
  ROOT %t = (s32[], f32[8,4]{1,0}) tuple(%i, %d)
}

%condition.inner (a: (s32[], f32[8,4])) -> pred[] {
  %a = (s32[], f32[8,4]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%a), index=0
  %n = s32[]{:T(128)} constant(8)
  ROOT %less = pred[] compare(%i, %n), direction=LT
}

%fused (p: f32[100,8,4], q: f32[4,3]) -> f32[8,3] {
  %p = f32[100,8,4]{2,1,0} parameter(0)
  %q = f32[4,3]{1,0:T(8,128)} parameter(1)
  %zero = s32[] constant(0)
  %one = f32[1,8,4]{2,1,0} dynamic-slice(%p, %zero, %zero, %zero), dynamic_slice_sizes={1,8,4}
  %flat = f32[8,4]{1,0} bitcast(%one)
  ROOT %m = f32[8,3]{1,0} dot(%flat, %q), lhs_contracting_dims={1}, rhs_contracting_dims={0}, operand_precision={PRECISION}
}

%body.outer (a: (s32[], f32[8,4], f32[100,8,4], f32[4,3])) -> (s32[], f32[8,4], f32[100,8,4], f32[4,3]) {
  %a = (s32[], f32[8,4]{1,0}, /*index=2*/f32[100,8,4]{2,1,0}, f32[4,3]{1,0}) parameter(0)
  %xs = f32[100,8,4]{2,1,0} get-tuple-element(%a), index=2
  %w = f32[4,3]{1,0} get-tuple-element(%a), index=3
  %y = f32[8,3]{1,0:T(8,128)S(1)} fusion(%xs, %w), kind=kLoop, calls=%fused, backend_config={"estimated_cycles":"70"}
  %start = (s32[], f32[8,4]{1,0}) tuple(%xs, %y)
  %inner = (s32[], f32[8,4]{1,0}) while(%start), condition=%condition.inner, body=%body.inner
  ROOT %t = (s32[], f32[8,4]{1,0}, f32[100,8,4]{2,1,0}, f32[4,3]{1,0}) tuple(%a)
}

ENTRY %main (s: (s32[], f32[8,4], f32[100,8,4], f32[4,3])) -> f32[8,4] {
  %s = (s32[], f32[8,4]{1,0}, f32[100,8,4]{2,1,0}, f32[4,3]{1,0}) parameter(0)
  %loop = (s32[], f32[8,4]{1,0}, f32[100,8,4]{2,1,0}, f32[4,3]{1,0}) while(%s), condition=%c, body=%body.outer, \
backend_config={"known_trip_count":{"n":"100"}}
  ROOT %r = f32[8,4]{1,0} get-tuple-element(%loop), index=1
}
"""


@pytest.fixture
def compiled(monkeypatch):
    """The benchmarks' reader of compiled programs."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import compiled

    return compiled


def test_kernels_of_a_step_are_counted_as_often_as_loops_turn(compiled):
    """By hand: a fusion that reads one slice of 100 (128 bytes) and 4x3 numbers, and writes 8x3; then tanh, 8 times."""
    program = compiled.Compiled(HLO)
    fusion, tanh = program.kernels(program.longest_loop())
    assert fusion == (1, compiled.Kernel("y", 128 + 48 + 96, 2 * 8 * 3 * 4, 24, 70))
    assert tanh == (8, compiled.Kernel("d", 2 * 128, 32, 32, 0))
    assert sum(times for times, _ in program.kernels()) == 100 * 9


@pytest.mark.parametrize(("precision", "rounded"), [("highest,highest", 0), ("default,default", 1), ("high,highest", 1)])
def test_products_that_round_their_operands_are_seen(compiled, precision, rounded):
    assert compiled.Compiled(HLO.replace("PRECISION", precision)).rounded_products() == rounded


LOOPS = """\
= control target key start
   0x1   :  { %s1 = smov 1 }
   0x2 LB: > { %s2 = sphi %s1 }  /* Start region 7 :: Start region 9 */
   0x3   : > { %v1 = vadd %v0 }
   0x4 LB: >> { %s3 = sphi %s1 }  /* Start region 12 :: Start region 4 */
   0x5   : >> { %v2 = vadd %v1 }
  0x1f   : >> { %v3 = vmul %v2 ;;  %15 = sbr.rel (!%p1_p1) target = $region12 }
  0x20 LB: >> { %s4 = sphi %s1 }  /* Start region 13 */
  0x21   : >> {  %15 = sbr.rel (!%p2_p2) target = $region13 }
  0x30   : > {  %15 = sbr.rel (%p4_p0) target = $region99 ;;  %16 = sbr.rel (!%p3_p3) target = $region7 }
"""


def test_words_of_the_longest_innermost_loop_are_counted(compiled):
    assert compiled.bundles_of_loop(LOOPS) == 0x1F - 0x4 + 1


@pytest.mark.slow
def test_a_step_for_a_tpu_is_few_kernels_in_float32():
    """The main experiment's, compiled for a chip that is not there; bounds, as exact counts change with the compiler."""
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip('no compiler for TPUs: pip install "jax[tpu]"')
    options = [
        "--chips",
        "v5e",
        "--models",
        "transformer_small",
        "--arms",
        "untied",
        "--blocks",
        "128",
        "--forms",
        "vmap",
        "--json",
    ]
    done = subprocess.run([sys.executable, "accelerators.py", *options], cwd=BENCHMARKS, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert 10 < row["kernels"] < 130, row  # 98 with jax 0.10.2
    assert row["rounded_products"] == 0 and not row["has_64_bits"], row
    assert row["mebibytes"] < 64 and row["microseconds"] < 400, row
