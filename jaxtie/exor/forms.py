"""How the steps of a block are laid out on a device; either way is the same training.

Narrow models go in lanes on CPUs and GPUs (`jaxtie.training.lanes`), all else by `jax.vmap`.
"""

import jax
import jax.numpy as jnp

from jaxtie.config import LSTM, Body
from jaxtie.exor.task import Member
from jaxtie.training.lanes import lanes

# a member this wide fills a CPU's vector units and cache alone: twice as fast, at 16 half as fast
WIDE = 32


def in_lanes(platform: str, model: Body) -> bool:
    """Return whether a platform trains a model in lanes rather than by `jax.vmap`.

    On a GPU lanes need a fifth fewer kernels, and no matrix product whose algorithm autotuning
    could choose; an LSTM or a wide model would take minutes to compile.
    """
    if platform == "gpu":
        return model.width < WIDE and not isinstance(model, LSTM)
    return platform == "cpu" and model.width < WIDE


def advance_members(member: Member, model: Body, platform: str, states, streams, settings, step):
    """Train the members of a block from one record to the next."""
    if not in_lanes(platform, model):
        return jax.vmap(member.advance, in_axes=(0, 0, 0, None))(states, streams, settings, step)
    members_last = jax.tree.map(lambda x: jnp.moveaxis(x, 0, -1), (states, streams, settings))
    advance = lanes(lambda *own: member.advance(*own, step), kept_apart=platform == "cpu")
    return jax.tree.map(lambda x: jnp.moveaxis(x, -1, 0), advance(*members_last))
