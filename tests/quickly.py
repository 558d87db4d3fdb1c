"""How tests compile, unless compiling is what they are about: quickly, at a third of the time that users' programs take.

What runs is the same formulas and the same loop, several times slower. Bits may be others than users', so what is compared
to the bit is compiled alike. What compares programs of several sizes, or trains for long, compiles as users do.
"""

import contextlib
from collections.abc import Iterator

from jaxtie.training import devices

AS_USERS = {name: dict(getattr(devices, name)) for name in ("FAST", "REPEATABLE", "ONCE")}


QUICK = devices.quick_options()
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
