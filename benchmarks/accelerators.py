"""What a training step costs on a GPU or a TPU, by compiling for it: the chip itself is not needed.

    pip install "jax[tpu]"                                          # for TPUs
    pip install jax-cuda13-plugin nvidia-cuda-nvcc nvidia-nvvm      # for GPUs
    python benchmarks/accelerators.py --chips h100,v5e --models transformer_small
    python benchmarks/accelerators.py --json > accelerators.json

Of each model, arm and size of block it compiles what trains a block from one record to the next, and counts in the body of
the compiled loop, for one step of the whole block:

  kernels     what the device launches; a loop within a step counts as often as it turns (once, where that hangs on data)
  MB          what these read and write, of operands and results, be it in a cache
  MFLOP       the arithmetic that the step asks for, whatever the compiler makes of it
  MiB         arguments, results and working memory of the program
  us          an estimate, from the compiler's figures alone; nothing has run:
                GPU: the sum over kernels of 1.3 us (a node of a graph) and the largest of bytes / 3.0 TB/s, operations /
                (132 units of 128 lanes at 1.98 GHz), and a thread's operations at 4 cycles each
                TPU: the cycles that XLA estimates of each kernel, over the clock; of the form `kernel`, one launch of which
                makes all steps up to a record, the instruction words of its loop over steps, one a cycle: its schedule is
                static, and nothing in the loop waits for memory off the chip
  rate        seed-steps per second: members over that time
  fit         members whose states fill the chip's memory, beside one block's work and settings (which hold exact laws)

The form is how the steps are laid out: lanes, vmap, or kernel (TPUs: small models, and vmap where that does not hold).

Also how many products of matrices are not at highest precision, and whether anything has 64 bits. A model of text makes one
step of a batch instead (128 rows of 64 tokens; a vocabulary of 8,292), and its rate is in steps.
"""

import argparse
import importlib.util
import json
import math
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from compiled import Compiled, Kernel, bundles_of_loop
from turns import CHECKOUT

if TYPE_CHECKING:
    import jax

MODELS = ("transformer_small", "mixer_small", "lstm_small", "transformer_medium", "mixer_medium", "lstm_medium")
TEXT = ("masked_text", "causal_text")
TEXT_LENGTH = 64
STEPS = 100  # from one record to the next
DUMPS = tempfile.mkdtemp(prefix="jaxtie-schedules-")  # where the compiler for TPUs writes what it has come to
NODE, BANDWIDTH, UNITS, GPU_CLOCK, LATENCY = 1.3e-6, 3.0e12, 132 * 128, 1.98e9, 4  # s, bytes/s, lanes, Hz, cycles
# What the compiler asks of a GPU: the figures that NVIDIA publishes of an H100 SXM, in the words of XLA's GpuTargetConfig.
H100 = """
gpu_device_info {
  name: "NVIDIA H100 80GB HBM3"  device_vendor: "NVIDIA Corporation"
  cuda_compute_capability { major: 9  feature_extension: ACCELERATED_FEATURES }
  core_count: 132  fpus_per_core: 128  clock_rate_ghz: 1.98
  device_memory_size: 84942979072  memory_bandwidth: 3352320000000  l2_cache_size: 52428800
  threads_per_warp: 32  threads_per_block_limit: 1024  threads_per_core_limit: 2048
  registers_per_block_limit: 65536  registers_per_core_limit: 65536
  shared_memory_per_block: 49152  shared_memory_per_block_optin: 232448  shared_memory_per_core: 233472
  thread_dim_limit_x: 1024  thread_dim_limit_y: 1024  thread_dim_limit_z: 64
  block_dim_limit_x: 2147483647  block_dim_limit_y: 65535  block_dim_limit_z: 65535
  driver_version: "13.0.0"  runtime_version: "12.8.0"
}
platform_name: "CUDA"
dnn_version_info { major: 9  minor: 10 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""


class Chip(NamedTuple):
    """A kind of device: XLA's platform, its memory, its clock (of a TPU: from its published rate of products)."""

    platform: str
    gib: float
    clock: float


CHIPS = {
    "h100": Chip("cuda", 79.1, GPU_CLOCK),
    "v4": Chip("tpu", 32, 1.05e9),
    "v5e": Chip("tpu", 16, 1.5e9),
    "v5p": Chip("tpu", 95, 1.75e9),
    "v6e": Chip("tpu", 32, 1.75e9),
}
PLUGINS = {  # what must be installed, and by what
    "tpu": ("libtpu", 'pip install "jax[tpu]=={}"'),
    "cuda": (
        "jax_plugins.xla_cuda13",
        "pip install jax-cuda13-plugin=={0} jax-cuda13-pjrt=={0} nvidia-cuda-nvcc nvidia-nvvm",
    ),
}
# No chip is there, so none is looked for; a second process may load the compiler for TPUs.
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_STDERR_LOG_LEVEL": "3",
    "LIBTPU_INIT_ARGS": (
        f"--xla_jf_dump_llo_text=true --xla_jf_dump_to={DUMPS} --xla_jf_dump_llo_pass_label_regex=final_bundles"
    ),
}


class Row(NamedTuple):
    """What one training step of a block is, as compiled for a chip. A line of the table."""

    chip: str
    model: str
    arm: str
    form: str
    members: int
    kernels: int
    megabytes: float
    megaflop: float
    mebibytes: float
    microseconds: float
    rate: float  # seed-steps per second; of text, steps
    fit: int  # members that a chip's memory holds
    rounded_products: int
    has_64_bits: bool
    compile_seconds: float
    open_loops: int = 0  # that were counted once, because their turns hang on data
    on_chip_mebibytes: float = 0.0  # vector memory that the form `kernel` takes


class Job(NamedTuple):
    """A program to compile.

    Attributes:
      trace: from a device to the program, traced for it.
      form: lanes, vmap or kernel; of text, batch.
      state_bytes: of a member.
      settings_bytes: of a block.
    """

    model: str
    arm: str
    form: str
    members: int
    trace: Callable[["jax.Device"], "jax.stages.Traced"]
    state_bytes: int
    settings_bytes: int = 0


def plugin_missing(chip: str) -> str:
    """How to install what compiles for a chip; "" where it is."""
    module, install = PLUGINS[CHIPS[chip].platform]
    try:
        found = importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        found = False
    return "" if found else install.format(version("jax"))


def device_of(chip: str) -> "jax.Device":
    """A device that is not there, to compile for."""
    from jax.experimental import topologies

    if CHIPS[chip].platform == "cuda":
        described = topologies.get_topology_desc(platform="cuda", target_config=H100, topology="1x1x1")
    else:
        # A host of the kinds before v5e has four chips at least; one of them is compiled for.
        shape = {"v4": "2x2x1", "v5p": "2x2x1"}.get(chip, "1x1")
        where = {"topology_name": f"{chip}:{shape}", "chips_per_host_bounds": [*map(int, (shape + "x1").split("x"))][:3]}
        described = topologies.get_topology_desc(platform="tpu", **where)
    return described.devices[0]


def flop(jaxpr: Any) -> int:
    """Operations on floating-point numbers that a jaxpr asks for: a product and a sum for each term of a contraction."""
    import jax.numpy as jnp

    total = 0
    for each in jaxpr.eqns:
        inner = [sub for value in each.params.values() for sub in _jaxprs(value)]
        shape = each.outvars[0].aval
        if each.primitive.name == "dot_general":
            (axes, _), _ = each.params["dimension_numbers"]
            total += 2 * shape.size * math.prod(each.invars[0].aval.shape[axis] for axis in axes)
        elif inner:
            total += each.params.get("length", 1) * sum(map(flop, inner))
        elif jnp.issubdtype(shape.dtype, jnp.floating) and (
            each.primitive.name in ELEMENTWISE or each.primitive.name.startswith("reduce")
        ):
            total += max(shape.size, each.invars[0].aval.size)
    return total


ELEMENTWISE = frozenset(
    "add add_any sub mul div neg max min exp log log1p tanh erf rsqrt sqrt pow integer_pow square cos logistic abs".split()
)


def _jaxprs(value: Any) -> Iterator[Any]:
    for each in value if isinstance(value, (tuple, list)) else [value]:
        each = getattr(each, "jaxpr", each)
        if hasattr(each, "eqns"):
            yield each


def bytes_of(tree: Any) -> int:
    """Of all arrays of a tree."""
    import jax

    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def exor_jobs(
    models: Sequence[str], arms: Sequence[str], sizes: Sequence[int], forms: Sequence[str] | None, platform: str
) -> Iterator[Job]:
    """What trains a block from one record to the next; without sizes and forms, in those that jaxtie has on the platform."""
    from jaxtie.exor.blocks import batch_members, block_sizes, trace_record
    from jaxtie.exor.forms import in_lanes, may_be_kernel
    from jaxtie.exor.member import Static
    from jaxtie.runs import load_experiment

    for model in models:
        experiment = load_experiment(CHECKOUT / "experiments" / f"{model}.py")
        for arm in arms:
            static = Static.of(experiment, tied=arm == "tied")
            plain = "lanes" if in_lanes(platform, experiment.model) else "vmap"
            tried = [plain, "kernel"] if may_be_kernel(static, platform) else [plain]
            for members in sizes or block_sizes(platform, experiment.model):
                for form in tried if forms is None else [form for form in tried if form in forms]:
                    batched = batch_members(static, members, platform, in_kernel=form == "kernel")
                    state, settings = bytes_of(batched.states) // members, bytes_of(batched.settings)
                    yield Job(model, arm, form, members, partial(trace_record, batched), state, settings)


def text_job(model: str, arm: str) -> Job:
    """A step of a model of text at published size, as `text.py` beside this file has it."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import SingleDeviceSharding
    from text import ROWS, make_jaxtie

    from jaxtie.experiment import Optimiser
    from jaxtie.text.member import make_step
    from jaxtie.training.member import initial_state
    from jaxtie.training.optimiser import adamw_of

    made, ask = make_jaxtie(model == "causal_text", tied=arm == "tied", dtype=jnp.bfloat16)
    adamw = adamw_of(Optimiser(learning_rate=1e-4, eta_min=1e-5, half_period=10_000, weight_decay=0.01))
    state = jax.eval_shape(partial(initial_state, made, adamw, length=16), jax.random.key(0))
    tokens = jax.ShapeDtypeStruct((ROWS, TEXT_LENGTH), np.int32)

    def trace(device: "jax.Device") -> "jax.stages.Traced":
        own, sharding = (state, tokens, jax.eval_shape(lambda: jax.random.key(0))), SingleDeviceSharding(device)
        own = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), own)
        return jax.jit(make_step(made, adamw, ask), donate_argnums=0).trace(*own)

    return Job(model, arm, "batch", 1, trace, bytes_of(state))


def measure(chip: str, device: "jax.Device", job: Job) -> Row:
    """Compile a program and read what came of it."""
    from jaxtie.training.devices import FAST

    began, kind = time.perf_counter(), CHIPS[chip]
    traced = job.trace(device)
    try:
        compiled = traced.lower().compile(FAST.get(device.platform))
        cost = (cost_of_kernel if job.form == "kernel" else cost_of_step)(compiled, job, kind)
    finally:
        for file in Path(DUMPS).glob("*"):
            file.unlink()
    memory, text = compiled.memory_analysis(), compiled.as_text()
    asked = traced.jaxpr.jaxpr
    if job.form != "batch":
        asked = max(inner_loops(asked), key=lambda each: each.params["length"]).params["jaxpr"].jaxpr
    new = memory.output_size_in_bytes - memory.alias_size_in_bytes
    work = memory.argument_size_in_bytes + new + memory.temp_size_in_bytes
    room = max(0, int(kind.gib * 2**30 - work - job.settings_bytes))
    return Row(
        chip=chip,
        model=job.model,
        arm=job.arm,
        form=job.form,
        members=job.members,
        kernels=cost.kernels,
        megabytes=cost.bytes / 1e6,
        megaflop=flop(asked) * (job.members // 128 if job.form == "kernel" else 1) / 1e6,
        mebibytes=work / 2**20,
        microseconds=cost.seconds * 1e6,
        rate=job.members / cost.seconds,
        fit=1 if job.form == "batch" else room // job.state_bytes + job.members,
        rounded_products=Compiled(text).rounded_products(),
        has_64_bits=bool(re.search(r"\bf64\[", text)),
        compile_seconds=time.perf_counter() - began,
        open_loops=cost.open_loops,
        on_chip_mebibytes=cost.on_chip_bytes / 2**20,
    )


class Cost(NamedTuple):
    """Of a step: launches, bytes that they move, time; loops counted once; of a kernel, bytes of vector memory."""

    kernels: int
    bytes: float
    seconds: float
    open_loops: int = 0
    on_chip_bytes: int = 0


def cost_of_step(compiled: "jax.stages.Compiled", job: Job, kind: Chip) -> Cost:
    """Of a step that is a row of kernels."""
    text = Compiled(compiled.as_text())
    kernels = list(text.kernels(None if job.form == "batch" else text.longest_loop()))
    if kind.platform == "tpu":
        seconds = sum(times * kernel.cycles for times, kernel in kernels) / kind.clock
    else:
        seconds = sum(times * gpu_seconds(kernel) for times, kernel in kernels)
    moved = sum(times * kernel.bytes for times, kernel in kernels)
    return Cost(sum(times for times, _ in kernels), moved, seconds, len(text.open_loops))


def cost_of_kernel(compiled: "jax.stages.Compiled", job: Job, kind: Chip) -> Cost:
    """Of a step within a kernel, which works on 128 members after the others; its one launch is for many steps."""
    schedules = [file for file in Path(DUMPS).glob("*final_bundles.txt") if "schedule-analysis" not in file.name]
    bundles = bundles_of_loop(max(schedules, key=lambda file: file.stat().st_size).read_text())
    memory = compiled.memory_analysis()
    moved = memory.argument_size_in_bytes + memory.output_size_in_bytes
    used = re.findall(r'used_scoped_memory_configs":\[\{"memory_space":"1","offset":"0","size":"(\d+)"', compiled.as_text())
    return Cost(1, moved / STEPS, job.members // 128 * bundles / kind.clock, on_chip_bytes=max(map(int, used)))


def inner_loops(jaxpr: Any) -> Iterator[Any]:
    """The loops of a jaxpr that are not within another loop."""
    for each in jaxpr.eqns:
        if each.primitive.name == "scan":
            yield each
        else:
            for value in each.params.values():
                for inner in _jaxprs(value):
                    yield from inner_loops(inner)


def gpu_seconds(kernel: Kernel) -> float:
    """Of a launch: see this file's beginning."""
    issued = kernel.operations / (UNITS * GPU_CLOCK)
    longest = LATENCY * kernel.operations / kernel.threads / GPU_CLOCK
    return NODE + max(kernel.bytes / BANDWIDTH, issued, longest)


def measure_all(
    chips: Sequence[str], models: Sequence[str], arms: Sequence[str], sizes: Sequence[int], forms: Sequence[str] | None
) -> Iterator[Row]:
    """A row for each program; says on standard error what is being compiled."""
    for chip in chips:
        if install := plugin_missing(chip):
            print(f"{chip}: left out; what compiles for it is not installed: {install}", file=sys.stderr)
            continue
        device, exor = device_of(chip), [model for model in models if model in MODELS]
        jobs = list(exor_jobs(exor, arms, sizes, forms, device.platform))
        jobs += [text_job(model, arm) for model in models if model in TEXT for arm in arms]
        for number, job in enumerate(jobs, 1):
            what = f"{chip}, {number} of {len(jobs)}: {job.model}, {job.arm}, {job.members} members, {job.form}"
            print(f"{time.strftime('%H:%M:%S')} compiling for {what}", file=sys.stderr, flush=True)
            yield measure(chip, device, job)


HEADER = "| chip | model | arm | form | members | kernels | MB | MFLOP | MiB | us | rate | fit |\n|" + " --- |" * 12


def as_line(row: Row) -> str:
    """A row in Markdown."""
    kernels = "1 a record" if row.form == "kernel" else f"{'at least ' * bool(row.open_loops)}{row.kernels:,}"
    numbers = f"{row.members:,} | {kernels} | {row.megabytes:,.0f} | {row.megaflop:,.0f} | {row.mebibytes:,.1f}"
    wrong = f" **{row.rounded_products} products rounded**" if row.rounded_products and row.model not in TEXT else ""
    wrong += " **64 bits**" if row.has_64_bits else ""
    rate = f"{row.microseconds:,.0f} | {row.rate:,.0f} | {row.fit:,}{wrong}"
    return f"| {row.chip} | {row.model} | {row.arm} | {row.form} | {numbers} | {rate} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chips", default="h100,v5e,v6e", help=f"of {', '.join(CHIPS)} (default: %(default)s)")
    parser.add_argument("--models", default=",".join((*MODELS, *TEXT)), help="default: %(default)s")
    parser.add_argument("--arms", default="tied,untied", help="default: %(default)s")
    parser.add_argument("--blocks", default="", help="members in a block, such as 64,512 (default: the sizes that ship)")
    parser.add_argument("--forms", help="of lanes, vmap, kernel (default: those that there are)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    chips, models = options.chips.split(","), options.models.split(",")
    if unknown := [name for name in (*chips, *models) if name not in (*CHIPS, *MODELS, *TEXT)]:
        parser.error(f"{unknown[0]!r}: expected chips of {', '.join(CHIPS)} and models of {', '.join((*MODELS, *TEXT))}")
    os.environ.update(ENVIRONMENT)
    sizes = [int(size) for size in options.blocks.split(",") if size]
    rows = measure_all(chips, models, options.arms.split(","), sizes, options.forms and options.forms.split(","))
    if options.json:
        print(json.dumps([row._asdict() for row in rows], indent=1))
        return
    print(f"{time.strftime('%Y-%m-%d')}, jax {version('jax')}, compiled only: nothing here ran on a chip.\n\n{HEADER}")
    for row in rows:
        print(as_line(row), flush=True)


if __name__ == "__main__":
    try:
        main()
    finally:
        shutil.rmtree(DUMPS)
