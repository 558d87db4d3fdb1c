"""All that is to be measured on a GPU, in one command of at most four minutes.

    python benchmarks/card.py --out card.json
    python benchmarks/card.py --toy             # the same in small, on any machine

Parts, in this order, each a line as soon as it is known; what does not fit into `--minutes` is left
out and named. Whole command of 64 seeds, by part; a decoder of today, width 256, against PyTorch,
compiled (`decoder.py`): tokens a second, peak memory, share of the peak rate; seed-steps a second
of 16,384 seeds; a run of EXor that is killed and goes on: variables that differ from those of a run
in one go; the decoder at width 768; losses of EXor and of text against a CPU's; a run of text that
is killed; a sweep of 24 points x 64 seeds; 2,048 seeds; the decoder at two sizes more. `--parts`
chooses some by a word of their names.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from turns import CHECKOUT

FOLDER = Path(__file__).parent
RUN = [sys.executable, "-m", "jaxtie.run", "--quiet"]
POINTS = ",".join(f"{0.05 + 0.035 * i:.3f}" for i in range(24))
WORDS = (
    "the cat saw a dog and this dog ran off with some very old bread under one tall tree".split()
)


def run(
    *options: str, out: Path, kill_after: str = "", platform: str | None = None
) -> dict[str, Any]:
    """Run an experiment and return its `config.json`; kill it once a file like this is there."""
    command = [*RUN, *options, "--out", str(out)]
    environment = os.environ | ({"JAX_PLATFORMS": platform} if platform else {})
    process = subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.DEVNULL, env=environment)
    while kill_after and process.poll() is None:
        if any(out.glob(kill_after)):
            time.sleep(0.5)
            process.send_signal(signal.SIGKILL)
            break
        time.sleep(0.05)
    if process.wait() and not kill_after:
        raise RuntimeError(f"{' '.join(options)}: status {process.returncode}")
    return json.loads((out / "config.json").read_text())


def whole_command(steps: int, folder: Path) -> dict[str, Any]:
    """Time `python -m jaxtie.run --seeds 64` from start to end, and each part that it reports."""
    began = time.perf_counter()
    config = run("--seeds", "64", "--steps", str(steps), out=folder / "whole")
    seconds = time.perf_counter() - began
    found = {
        "seconds": round(seconds, 1),
        "device": config["device"],
        "jax": config["versions"]["jax"],
    }
    return found | {"arms": config["arms"]}


def rates(seeds: int, steps: int, sweep: str, folder: Path) -> dict[str, float]:
    """Return seed-steps a second of the untied arm while it trains."""
    options = ["--seeds", str(seeds), "--steps", str(steps), "--arms", "untied"]
    options += ["--sweep", sweep] if sweep else []
    config = run(*options, out=folder / f"rates-{seeds}-{bool(sweep)}")
    return {name: round(arm["seed_steps_per_second"]) for name, arm in config["arms"].items()}


def differing(options: list[str], folder: Path) -> dict[str, Any]:
    """Return how many variables of a run that was killed and went on differ from one in one go."""
    import numpy as np
    import xarray as xr

    name = options[0].split("/")[-1]
    whole, parts = folder / f"{name}-whole", folder / f"{name}-parts"
    run(*options, out=whole)
    run(*options, "--checkpoint-every", "0.5", out=parts, kill_after="checkpoints/*/*")
    is_cut = not (parts / "results.nc").exists()
    run(*options, out=parts)
    one, other = (xr.load_dataset(path / "results.nc") for path in (whole, parts))
    differ = [
        each
        for each in one.variables
        if not np.array_equal(
            one[each].values, other[each].values, equal_nan=one[each].dtype.kind == "f"
        )
    ]
    return {"was killed": is_cut, "variables": len(one.variables), "differ": differ}


def losses(options: list[str], name: str, folder: Path) -> dict[str, Any]:
    """Return mean last losses here and on the CPU, and the largest difference of a seed."""
    import numpy as np
    import xarray as xr

    found = {}
    for place, platform in (("here", None), ("CPU", "cpu")):
        out = folder / f"{name}-{place}"
        run(*options, out=out, platform=platform)
        with xr.open_dataset(out / "results.nc") as results:
            found[place] = results["loss"].isel(step=-1).values
    differ = np.abs(found["here"] - found["CPU"])
    return {
        **{place: np.round(values.mean(axis=-1), 5).tolist() for place, values in found.items()},
        "largest difference": float(f"{np.nanmax(differ):.2g}"),
    }


def decoder(*options: str, folder: Path) -> list[str]:
    """Return the lines of `decoder.py`."""
    command = [sys.executable, str(FOLDER / "decoder.py"), "--repeats", "1", *options]
    answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=FOLDER)
    return answer.stdout.splitlines()[1:]


def text_run(folder: Path, steps: int) -> list[str]:
    """Return the options of a small run on text that is made up here, the same each time."""
    import numpy as np

    rng, path = np.random.default_rng(0), folder / "text.txt"
    sentences = (" ".join(rng.choice(WORDS, 9)) + "." for _ in range(20_000))
    path.write_text("\n\n".join(sentences))
    options = ["experiments/text_clm.py", "--text", str(path), "--vocab-size", "300"]
    return [
        *options,
        *("--seeds", "1", "--arms", "tied"),
        "--steps",
        str(steps),
        "--record-every",
        str(steps // 20),
        "--eval-every",
        str(steps),
    ]


def parts(toy: bool, peak: str, folder: Path) -> dict[str, Callable[[], Any]]:
    """Return the parts by name, the most important ones first."""
    steps, many = (2_000, 64) if toy else (150_000, 16_384)
    sizes = [
        tuple(f"--width {width} --layers 6 {rest}".split())
        for width, rest in (
            (256, "--vocabulary 8192 --context 256 --batch 32"),
            (768, "--vocabulary 32000 --context 1024 --batch 8"),
            (768, "--vocabulary 8192 --context 256 --batch 32"),
            (256, "--vocabulary 32000 --context 1024 --batch 8"),
        )
    ]
    if toy:
        sizes = [("--width", "64", "--layers", "2", "--vocabulary", "512", "--context", "32")]
    own = ("--sides", "jaxtie,pytorch-compiled", "--seconds", "1" if toy else "3", "--peak", peak)
    decoders = {
        f"decoder {' '.join(size)}": partial(decoder, *size, *own, folder=folder) for size in sizes
    }
    main = ["--seeds", "64", "--arms", "untied", "--steps"]
    text_steps = 200 if toy else 2_000
    found: dict[str, Callable[[], Any]] = {
        "64 seeds, whole command": partial(whole_command, steps, folder),
        **dict(list(decoders.items())[:1]),
        f"{many:,} seeds": partial(rates, many, 1_000 if toy else 3_000, "", folder),
        "killed, EXor": partial(differing, [*main, "8000" if toy else "30000"], folder),
        **dict(list(decoders.items())[1:2]),
        "losses, EXor": partial(losses, [*main, "1000"], "exor", folder),
        "losses, text": lambda: losses(text_run(folder, 100), "text", folder),
        "killed, text": lambda: differing(text_run(folder, text_steps), folder),
        "24 points x 64 seeds": partial(
            rates, 64, 1_000 if toy else 10_000, f"p_X={POINTS}", folder
        ),
        "2,048 seeds": partial(rates, 96 if toy else 2_048, 1_000 if toy else 20_000, "", folder),
    }
    return found | decoders


def main() -> None:
    """Measure one part after another."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--toy", action="store_true", help="small sizes, to try the command")
    parser.add_argument(
        "--minutes", type=float, default=4.0, help="no part begins later (%(default)s)"
    )
    parser.add_argument("--parts", default="", help="words; a part whose name has one is measured")
    parser.add_argument("--peak", default="989", help="bfloat16 rate, 10^12 operations a second")
    parser.add_argument("--out", type=Path, help="file of JSON")
    options = parser.parse_args()
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    path = os.pathsep.join([str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ["PYTHONPATH"] = path
    began, found = time.perf_counter(), {}
    with tempfile.TemporaryDirectory() as folder:
        for name, part in parts(options.toy, options.peak, Path(folder)).items():
            words = options.parts.split(",")
            if not any(word in name for word in words):
                continue
            at = time.perf_counter()
            if at - began > 60 * options.minutes:
                found[name] = "left out: no time"
            else:
                try:
                    found[name] = part()
                except Exception as error:  # the others are worth as much
                    found[name] = f"failed: {error}"
            seconds = time.perf_counter() - at
            print(f"[{seconds:5.1f} s] {name}: {found[name]}", flush=True)
            if options.out:
                options.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
