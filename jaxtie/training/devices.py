"""Cores, devices, compiler options, cache folder. Imports jax where it is used."""

import contextlib
import ctypes
import os
import platform
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from jaxtie.config import UserError, check

if TYPE_CHECKING:
    import jax

CompilerOptions = dict[str, int | bool]
# Settings that change random numbers, at JAX's defaults: the environment may set others.
RANDOM_SETTINGS = {
    "jax_default_prng_impl": "threefry2x32",
    "jax_threefry_partitionable": True,
    "jax_random_seed_offset": 0,
}
# Compiler options by platform. Without these a GPU adds in any order and chooses the algorithm of a
# product by timing, so a resumed run would have other bits. Triton's products need that choice: not
# tuned, they work on tiles of 16 x 8 by two warps. cuBLAS chooses by size.
REPEATABLE: dict[str, CompilerOptions] = {
    "gpu": {
        "xla_gpu_deterministic_ops": True,
        "xla_gpu_autotune_level": 0,
        "xla_gpu_enable_triton_gemm": False,
    }
}
# On a CPU use the widest vectors. A higher optimization level unrolls an inner loop of 32 members
# before it is vectorised, which takes seven times as long.
FAST: dict[str, CompilerOptions] = REPEATABLE | {
    "cpu": {"xla_cpu_prefer_vector_width": 512, "xla_backend_optimization_level": 2}
}
ONCE: dict[str, CompilerOptions] = REPEATABLE | {
    "cpu": {"xla_backend_optimization_level": 0}  # compiling takes longer than running once
}


def cache_folder() -> Path:
    """Return the folder of this user's caches of jaxtie."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jaxtie"


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def keep_memory() -> None:
    """Make glibc keep large freed blocks for reuse.

    A compiled CPU program asks for its working memory at every call. glibc would map and unmap it
    each time, and the kernel would clear it page by page: a quarter of the time of a text step.
    """
    trim_threshold, mmap_threshold, no_limit = -1, -3, 2**31 - 1  # of mallopt, see its manual page
    with contextlib.suppress(OSError, AttributeError, TypeError):  # other systems have no mallopt
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(trim_threshold, no_limit)
        mallopt(mmap_threshold, no_limit)


def start_jax() -> ModuleType:
    """Import jax with a cache of compiled programs; several threads may use one CPU device.

    Random numbers do not depend on the environment.
    The cache is JAX_COMPILATION_CACHE_DIR, else below the user's cache folder.

    Raises:
      UserError: if JAX_DISABLE_JIT is set, so that a run would take days, or JAX_ENABLE_X64, or
        JAX_NUMPY_DTYPE_PROMOTION to "strict".
    """
    import jax

    config: Any = jax.config  # whose attributes have no types
    check(
        not config.jax_disable_jit, "JAX_DISABLE_JIT is set, so nothing would be compiled; unset it"
    )
    check(not config.jax_enable_x64, "JAX_ENABLE_X64 is set, and members are float32; unset it")
    check(
        config.jax_numpy_dtype_promotion == "standard",
        f"JAX_NUMPY_DTYPE_PROMOTION is {config.jax_numpy_dtype_promotion}, and the programs mix"
        " dtypes; unset it",
    )
    keep_memory()
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    for name, value in RANDOM_SETTINGS.items():
        jax.config.update(name, value)
    if config.jax_compilation_cache_dir is None:
        cache = cache_folder()
        with contextlib.suppress(OSError):  # it only saves time
            cache.mkdir(parents=True, exist_ok=True)
            jax.config.update("jax_compilation_cache_dir", str(cache))
    return jax


def check_devices() -> None:
    """Raise UserError if JAX finds no device; several processes must have been joined before."""
    import jax

    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:
        platforms = os.environ.get("JAX_PLATFORMS", "")
        reason = " ".join(str(error).split()).partition(". ")[0] or "no such device here"
        raise UserError(
            f"JAX_PLATFORMS={platforms}: {reason}; unset it, or install what it needs, such as"
            ' pip install "jaxtie[cuda]"'
        ) from None


def describe_device(device: "jax.Device") -> str:
    """Return a device in words; a CPU device is one core of its processor."""
    if device.platform != "cpu":
        return device.device_kind
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return f"core of {models[0] if models else platform.machine()}"
