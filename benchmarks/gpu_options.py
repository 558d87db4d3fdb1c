"""Time a step of the main experiment on a GPU under other compiler options and layouts.

    python benchmarks/gpu_options.py --out options.json     # two minutes on an H200
    python benchmarks/gpu_options.py --toy                  # the same in small, on any machine
    python benchmarks/gpu_options.py --target h200.txtpb    # compile for a GPU that is not there

With `--target`, a text of XLA's GpuTargetConfigProto (its sources have one for each GPU), nothing
runs: jaxtie[cuda] must be installed, JAX_PLATFORMS=cpu and JAX_SKIP_CUDA_CONSTRAINTS_CHECK=1 set.

For each block size and variant: kernels of a step in the compiled program and MB that they move
(of `both arms` those of the larger loop), microseconds a step, seed-steps a second, whether a
second call from the same state has the same bits, and the mean loss, in which variants differ by
rounding only. `both arms` trains a block of each in one program; compare its time with the sum of
the two.
"""

import argparse
import json
import math
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

OPERATION = re.compile(r"\s+(?:ROOT )?%([\w.\-]+) = (.*?) ([a-z\-]+)\((.*?)\)")
NO_KERNEL = "parameter constant get-tuple-element tuple bitcast while conditional call".split()
GRAPHS = "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,DYNAMIC_SLICE_FUSION"
LOOP = f"{GRAPHS},WHILE,CONDITIONAL"


class Variant(NamedTuple):
    """Options of the compiler in addition to jaxtie's; most terms of a sum in one expression."""

    options: dict[str, Any]
    short: int = 8


VARIANTS = {
    "as it is": Variant({}),
    "no graphs": Variant({"xla_gpu_enable_command_buffer": ""}),
    "graph of the loop": Variant({"xla_gpu_enable_command_buffer": LOOP}),
    "graph of the loop, concurrent": Variant(
        {
            "xla_gpu_enable_command_buffer": LOOP,
            "xla_gpu_command_buffer_scheduling_mode": "CONCURRENT",
        }
    ),
    "graph of the loop, unrolled": Variant(
        {"xla_gpu_enable_command_buffer": LOOP, "xla_gpu_command_buffer_unroll_loops": True}
    ),
    "two steps an iteration": Variant(
        {"xla_gpu_enable_while_loop_unrolling": "WHILE_LOOP_UNROLLING_DOUBLE_BUFFER"}
    ),
    "sums in one expression": Variant({}, 128),
    "sums in one expression, graph of the loop": Variant(
        {"xla_gpu_enable_command_buffer": LOOP}, 128
    ),
}


def step_of(text: str) -> dict[str, float]:
    """Return the kernels of the largest innermost loop of a compiled program, and MB they move.

    Operands are counted whole, as if nothing stayed in a cache.
    """
    operations: dict[str, list[tuple[str, str, str, list[str]]]] = {}
    for line in text.splitlines():
        if begins := re.match(r"%([\w.\-]+) \(.*\{$", line):
            own = operations.setdefault(begins[1], [])
        elif (found := OPERATION.match(line)) and operations:
            own.append((*found.groups()[:3], re.findall(r"%([\w.\-]+)", found[4])))
    loops = [operations[name] for name in set(re.findall(r"body=%([\w.\-]+)", text))]
    inner = [loop for loop in loops if all(kind != "while" for _, _, kind, _ in loop)]
    loop = max(inner, key=len, default=[])
    shapes = {name: shape for name, shape, _, _ in loop}
    kernels = [each for each in loop if each[2] not in NO_KERNEL]
    written = sum(bytes_of(shape) for _, shape, _, _ in kernels)
    read = sum(bytes_of(shapes.get(name, "")) for *_, operands in kernels for name in operands)
    return {"kernels": len(kernels), "MB written": written / 1e6, "MB read": read / 1e6}


def bytes_of(shape: str) -> int:
    """Return the bytes of an array, or of a tuple of arrays, as "(f32[4,128]{1,0}, s32[])"."""
    arrays = re.findall(r"(pred|[a-z]+(\d+))\[([\d,]*)\]", shape)
    return sum(
        int(bits or 8) // 8 * math.prod(map(int, filter(None, sizes.split(","))))
        for _, bits, sizes in arrays
    )


def compile_arms(
    config, block: int, arms: tuple[bool, ...], variant: Variant, target: Path | None
) -> tuple[Any, list]:
    """Compile the training of a block of each arm in one program; return it and the arms."""
    import jax

    from jaxtie.config import Variant as Arm
    from jaxtie.training import block_engine, devices, lanes

    platform, own, device = jax.default_backend(), lanes.SHORT, jax.local_devices()[0]
    if target:
        platform, device = "gpu", absent_gpu(target)
    layout = block_engine.layout_of(config, platform)
    lanes.SHORT = max(own, variant.short)
    try:
        with jax.default_matmul_precision("highest"):
            batched = [
                block_engine.batch_members(config.program_key(), Arm(tied), layout, block, platform)
                for tied in arms
            ]

            functions, shapes = zip(*(advance for _, advance in batched), strict=True)

            def advance(states, streams, hparams, step, count, last):
                rest = hparams, step, count, last
                return [each(*own, *rest) for each, *own in zip(functions, states, streams)]

            place = jax.sharding.SingleDeviceSharding(device)
            arguments = jax.tree.map(
                lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place),
                ([each[0] for each in shapes], [each[1] for each in shapes], *shapes[0][2:]),
            )
            traced = jax.jit(advance, donate_argnums=0).trace(*arguments)
            lowered = traced.lower(lowering_platforms=("cuda" if target else platform,))
        return lowered.compile(devices.FAST.get(platform, {}) | variant.options), batched
    finally:
        lanes.SHORT = own


def absent_gpu(target: Path) -> Any:
    """Return a device to compile for, of a GPU that is described in a file."""
    from jax.experimental import topologies

    described = topologies.get_topology_desc(
        "gpu", platform="cuda", topology="1x1x1", target_config=target.read_text()
    )
    return described.devices[0]


def time_one(program: Any, batched: list, config, block: int, records: int) -> dict[str, Any]:
    """Return the time of a step, whether bits are the same again, and the mean loss."""
    import jax

    from jaxtie.config import Variant as Arm

    seeds, found = np.arange(block, dtype=np.uint32), []
    hparams = config.build(Arm(True), jax.default_backend()).hparams()
    hparams = jax.tree.map(lambda x: np.stack([x] * block), hparams)
    started = [jax.device_get(start(seeds, hparams)[:2]) for (start, _), _ in batched]
    streams, hparams = jax.device_put([each for _, each in started]), jax.device_put(hparams)
    for _ in range(2):
        states = jax.device_put([each for each, _ in started])
        numbers = (np.int32(x) for x in (0, records, 10**6))
        jax.block_until_ready(states)
        began = time.perf_counter()
        result = program(states, streams, hparams, *numbers)
        jax.block_until_ready(result)
        found.append((time.perf_counter() - began, jax.device_get(result)))
    (_, one), (seconds, other) = found
    same = all(
        np.array_equal(a, b, equal_nan=True)
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    )
    losses = [float(records_["loss"][records - 1].mean()) for _, records_ in other]
    return {
        "us a step": round(1e6 * seconds / (records * config.record_every), 2),
        "seed-steps/s": round(
            sum(len(s) for s in streams) * records * config.record_every / seconds
        ),
        "same bits": same,
        "loss": [round(loss, 5) for loss in losses],
    }


def measure(
    blocks: list[int], records: int, chosen: list[str], target: Path | None
) -> Iterator[tuple[str, Any]]:
    """Yield the name of each case and what was measured of it."""
    from jaxtie import Experiment
    from jaxtie.training.devices import start_jax

    jax = start_jax()
    config = Experiment()
    cases = {"untied": (False,), "tied": (True,), "both arms": (True, False)}
    for block in blocks:
        for name, variant in VARIANTS.items():
            for case, arms in cases.items():
                if name not in chosen or (case != "untied" and name not in (chosen[0], chosen[-1])):
                    continue
                if variant.options and jax.default_backend() == "cpu" and not target:
                    continue  # a CPU's compiler does not know them
                began = time.perf_counter()
                label = f"{block} members, {case}, {name}"
                try:
                    program, batched = compile_arms(config, block, arms, variant, target)
                    found = {"s to compile": round(time.perf_counter() - began, 1)}
                    found |= step_of(program.as_text())
                    if not target:
                        found |= time_one(program, batched, config, block, records)
                    yield label, found
                except Exception as error:  # the other variants are worth as much
                    yield label, f"failed: {' '.join(str(error).split())[:200]}"


def main() -> None:
    """Measure and print one case after another."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", default="128,2048", help="(%(default)s)")
    parser.add_argument("--records", type=int, default=40, help="of 100 steps (%(default)s)")
    parser.add_argument("--variants", default=";".join(VARIANTS), help="by name; all")
    parser.add_argument("--toy", action="store_true", help="one block, two records")
    parser.add_argument("--target", type=Path, help="compile for the GPU described there")
    parser.add_argument("--out", type=Path, help="file of JSON")
    own = parser.parse_args()
    blocks = [8] if own.toy else [int(block) for block in own.blocks.split(",")]
    found = {}
    for name, each in measure(
        blocks, 2 if own.toy else own.records, own.variants.split(";"), own.target
    ):
        found[name] = each
        print(f"{name}: {each}", flush=True)
        if own.out:
            own.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
