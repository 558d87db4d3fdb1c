"""What every test runs under: strict broadcasting, two CPU devices, compiled programs shared; float64 where asked for."""

import os
import tempfile

cache = tempfile.TemporaryDirectory(prefix="jaxtie-programs-")
os.environ["JAX_COMPILATION_CACHE_DIR"] = cache.name  # for the commands that the tests run, too
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.5"

import jax  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_num_cpu_devices", 2)  # before the backend starts, else it raises
jax.config.update("jax_cpu_enable_async_dispatch", False)  # as jaxtie.run does


@pytest.fixture
def x64():
    """Run the test in float64."""
    with jax.enable_x64(True):
        yield
