"""How the steps of a block are laid out on a kind of device: by `jax.vmap`, in lanes, or in one kernel. All are one training.

- A CPU, and a GPU for small models, works in lanes: see `jaxtie.training.lanes`.
- A TPU makes all steps from one record to the next in one kernel: see `jaxtie.training.kernel`. It is taken where a few steps
  of it, on the very device, come to what `jax.vmap` comes to there.
- All else goes by `jax.vmap`.
"""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np

from jaxtie.exor.declaration import Experiment
from jaxtie.exor.member import Member, Setting, Static, build_model, make_member, optimiser_of
from jaxtie.models.sizes import LSTM, Body
from jaxtie.training import devices as machine
from jaxtie.training import streams
from jaxtie.training.lanes import lanes
from jaxtie.training.member import State, initial_state
from jaxtie.training.roles import with_role_moments
from jaxtie.training.rows import NoKernel

WIDE = 32  # a member this wide fills a CPU's vector units and cache by itself: twice as fast alone, at 16 half as fast
MOST_PARAMETERS = 400  # in a kernel, which is tens of operations for each: 200 compile in 20 seconds
CHECKED_STEPS, CHECKED_MEMBERS = 8, 128
# Of 99 in 100 losses and distances after these steps. Forms that round differently differ by a hundredth of it; but Adam's
# first step goes by the sign of a gradient, which may be either where a gradient is hardly more than rounding.
TOLERANCE = 1e-4


def in_lanes(platform: str, model: Body) -> bool:
    """Whether a kind of device makes its steps in lanes; else by `jax.vmap`.

    On a GPU lanes are a fifth fewer kernels, and no product whose algorithm could be chosen by timing; an LSTM's or a wide
    model's would take minutes to compile. On a TPU they are three times as many kernels, and half as fast again.
    """
    if platform == "gpu":
        return model.width < WIDE and not isinstance(model, LSTM)
    return platform == "cpu" and model.width < WIDE


def advance_members(
    member: Member, model: Body, platform: str, states, streams, settings, step, *, in_kernel=False, interpret=False
):
    """The members of a block from one record to the next.

    Args:
      in_kernel: make the steps in one kernel for a TPU.
      interpret: that kernel without a TPU.
    """
    if not in_kernel and not in_lanes(platform, model):
        return jax.vmap(member.advance, in_axes=(0, 0, 0, None))(states, streams, settings, step)
    members_last = jax.tree.map(lambda x: jnp.moveaxis(x, 0, -1), (states, streams, settings))

    def of_one(*own):
        return member.advance(*own, step)

    if in_kernel:
        from jaxtie.training.kernel import kernel  # what it needs is slow to import, and of use on a TPU alone

        mapped = kernel(of_one, member.samples, interpret=interpret)
    else:
        mapped = lanes(of_one, kept_apart=platform == "cpu")
    return jax.tree.map(lambda x: jnp.moveaxis(x, -1, 0), mapped(*members_last))


def may_be_kernel(static: Static, platform: str) -> bool:
    """Whether a kernel of a model is tried: it is made for TPUs, of models that it does not take minutes to compile of."""
    if platform != "tpu":
        return False
    state, *_ = jax.eval_shape(functools.partial(_fresh_member, static), 0)
    return sum(leaf.size for leaf in jax.tree.leaves(state.params)) <= MOST_PARAMETERS


@functools.lru_cache(32)
def kernel_holds(static: Static, device: jax.Device) -> bool:
    """Whether a device makes the steps of fresh members in one kernel as it makes them by `jax.vmap`.

    Where it should and does not, be it that the kernel cannot be compiled, a line on standard error says so.
    """
    if not may_be_kernel(static, device.platform):
        return False
    try:
        fault = _fault_of_kernel(static, device)
    except NoKernel:  # of this model there is none, on any device
        return False
    except Exception as error:  # whatever a compiler does not take: there is another way
        fault = (str(error).splitlines() or [type(error).__name__])[0]
    if fault:
        line = f"steps are made without the kernel for TPUs, several times as slowly: {fault}"
        print(f"jaxtie: {line}", file=sys.stderr, flush=True)
    return not fault


def _fault_of_kernel(static: Static, device: jax.Device, *, interpret: bool = False) -> str:
    """In what the kernel differs from `jax.vmap` after a few steps; "" where it does not."""
    once = functools.partial(jax.jit, compiler_options=machine.ONCE.get(device.platform))
    seeds = jax.device_put(np.arange(CHECKED_MEMBERS, dtype=np.uint32), device)
    own = once(jax.vmap(functools.partial(_fresh_member, static)))(seeds)
    member = make_member(static._replace(record_every=CHECKED_STEPS), accelerated=True)
    advance = functools.partial(advance_members, member, static.model, "tpu", interpret=interpret)
    forms = (once(functools.partial(advance, in_kernel=in_kernel)) for in_kernel in (True, False))
    found, expected = (jax.device_get(form(*own, np.int32(0))[1]) for form in forms)
    for name in ("loss", "input_distance", "output_distance"):
        off = np.abs(found[name] - expected[name]) / (1 + np.abs(expected[name]))
        if not (np.quantile(off, 0.99) <= TOLERANCE and np.max(off) <= 100 * TOLERANCE):  # NaN is a fault
            return f"{name} is off by {np.max(off):.1g} after {CHECKED_STEPS} steps"
    return ""


def _fresh_member(static: Static, seed: jax.Array) -> tuple[State, jax.Array, Setting]:
    """State, stream and setting of a member that is checked, at the published setting; without laws to evaluate by."""
    like, of_no_law = Experiment(), np.zeros((0, 0))
    scalars = [getattr(like.optimiser, name) for name in Setting._fields[:4]]
    setting = Setting(*scalars, np.array(like.process.zeros), np.array(like.process.ones), of_no_law, of_no_law)
    setting = jax.tree.map(jnp.float32, setting)
    model, optimiser = build_model(static, accelerated=True), optimiser_of(static, setting)
    state = initial_state(model, optimiser, jax.random.key(seed), static.length + 1)
    state = with_role_moments(state) if static.roles else state
    return state, streams.stream(static.data_seed, seed), setting
