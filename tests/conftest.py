"""What every test runs under: strict broadcasting, two CPU devices, compiled programs shared; float64 where asked for."""

import os
import tempfile

if "PYTEST_XDIST_WORKER" not in os.environ:  # workers, and the commands that the tests run, share the first one's
    cache = tempfile.TemporaryDirectory(prefix="jaxtie-programs-")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = cache.name
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.5"

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_num_cpu_devices", 2)  # before the backend starts, else it raises
jax.config.update("jax_cpu_enable_async_dispatch", False)  # as jaxtie.run does


@pytest.fixture
def x64():
    """Run the test in float64."""
    with jax.enable_x64(True):
        yield
