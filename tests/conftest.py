"""Setup of all tests: a core for each worker, strict broadcasting, two CPU devices, one cache."""

import os
import signal
import tempfile
from importlib.metadata import version

WORKER = os.environ.get("PYTEST_XDIST_WORKER")
if WORKER is None:  # workers, and the commands that the tests run, share the first one's
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        cache = tempfile.TemporaryDirectory(prefix="jaxtie-programs-")
        os.environ["JAX_COMPILATION_CACHE_DIR"] = cache.name
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"
# Threads of several workers on every core would wait for each other.
elif hasattr(os, "sched_setaffinity"):
    own = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {own[int(WORKER.removeprefix("gw")) % len(own)]})

# XLA starts a thread per core or device. With two threads the all-reduces of two devices deadlock
# now and then under JAX 0.12: each device waits for the other one in another all-reduce.
os.environ.setdefault("NPROC", "16")

# Single operations and plain `jax.jit` compile quickly too, see `quickly`, in a third less time.
# XLA ends the process at a flag that it does not know, and JAX 0.12 does not know the second one.
XLA_FLAGS = os.environ.get("XLA_FLAGS", "")
OLD_EMITTERS = " --xla_cpu_use_fusion_emitters=false" * version("jax").startswith("0.10.")
os.environ["XLA_FLAGS"] = f"{XLA_FLAGS} --xla_backend_optimization_level=0{OLD_EMITTERS}"

import jax  # noqa: E402, after its environment
import pytest  # noqa: E402

pytest_plugins = ("text_fixtures",)

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_num_cpu_devices", 2)  # before the backend starts, else it raises
jax.config.update("jax_cpu_enable_async_dispatch", False)  # as jaxtie does

import quickly  # noqa: E402, after the configuration: it asks the compiler

# XLA has read its flags; the commands that tests run compile as users' do.
os.environ["XLA_FLAGS"] = XLA_FLAGS


@pytest.fixture
def x64():
    """Run the test in float64."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def compiled_as_users_do():
    """Compile as users do: for bits of blocks of several sizes, and for long training."""
    with quickly.as_users():
        yield


@pytest.fixture
def hangups_count():
    """End processes by SIGHUP, also where the tests run under `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
