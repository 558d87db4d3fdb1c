"""Compile quickly in tests, in a third of the time, unless they are about compiling.

These are the options of programs; `conftest` sets XLA's flags alike for all that has none.

The formulas and loops are the same, several times slower. Bits may differ from users', so programs
whose bits are compared are compiled alike. Tests that compare programs of several sizes, or train
for long, compile as users do.
"""

import contextlib
from collections.abc import Iterator

import jax

from jaxtie.training import devices
from jaxtie.training.block_engine import compile_block

AS_USERS = {name: dict(getattr(devices, name)) for name in ("FAST", "REPEATABLE", "ONCE")}


def quick_options() -> devices.CompilerOptions:
    """Return options without optimization and, where XLA knows it, with its older loop emitter."""
    options = devices.ONCE["cpu"] | {"xla_cpu_use_fusion_emitters": False}
    try:
        jax.jit(lambda x: x, compiler_options=options).lower(0.0).compile()
    except Exception:  # the exception for an unknown option is not documented
        return devices.ONCE["cpu"]
    return options


QUICK = quick_options()
# XLA's defaults, which a program has to name where flags have changed them.
USUAL = {"xla_backend_optimization_level": 3} | dict.fromkeys(
    QUICK.keys() & {"xla_cpu_use_fusion_emitters"}, True
)
for name in AS_USERS:
    getattr(devices, name)["cpu"] = QUICK


@contextlib.contextmanager
def as_users() -> Iterator[None]:
    """Compile programs as users' are within this context."""
    now = {name: dict(getattr(devices, name)) for name in AS_USERS}
    for name, options in AS_USERS.items():
        getattr(devices, name).update(options, cpu=USUAL | options.get("cpu", {}))
    compile_block.cache_clear()
    try:
        yield
    finally:
        for name, options in now.items():
            getattr(devices, name).update(options)
        compile_block.cache_clear()
