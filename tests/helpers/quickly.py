"""How tests compile, unless compiling is what they are about: quickly, at a third of the time that
users' programs take.

What runs is the same formulas and the same loop, several times slower. Bits may be others than
users', so what is compared to the bit is compiled alike. What compares programs of several sizes,
or trains for long, compiles as users do.
"""

import contextlib
from collections.abc import Iterator

import jax

from jaxtie.training import devices

AS_USERS = {name: dict(getattr(devices, name)) for name in ("FAST", "REPEATABLE", "ONCE")}


def quick_options() -> devices.CompilerOptions:
    """No optimization and, where XLA knows the option, the generator of loops that it had before
    MLIR's.
    """
    options = devices.ONCE["cpu"] | {"xla_cpu_use_fusion_emitters": False}
    try:
        jax.jit(lambda x: x, compiler_options=options).lower(0.0).compile()
    except Exception:  # what an unknown option raises is not documented
        return devices.ONCE["cpu"]
    return options


QUICK = quick_options()
for name in AS_USERS:
    getattr(devices, name)["cpu"] = QUICK


@contextlib.contextmanager
def as_users() -> Iterator[None]:
    """Within it programs are compiled as users' are."""
    now = {name: dict(getattr(devices, name)) for name in AS_USERS}
    for name, options in AS_USERS.items():
        getattr(devices, name).pop("cpu")
        getattr(devices, name).update(options)
    try:
        yield
    finally:
        for name, options in now.items():
            getattr(devices, name).update(options)
