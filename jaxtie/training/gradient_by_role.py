"""Who writes a tied table: its gradient, Adam's first moment and Adam's step, each split in two by
role, exactly.

The loss is a function of the table as input and of the table as output. So the gradient with regard
to both, at equal values, is what either role asks for where the other is stopped, and their sum is
the tied table's gradient. Adam's first moment is linear in the gradient, so it splits likewise;
both parts are divided by the bias correction and by the root of the one second moment. So u = u_in
+ u_out, where u is the step before the learning rate and without the decay.

Shapes: V rows of the table, D width, G groups of rows, K pairs of rows.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxtie.training.member import Looked, State
from jaxtie.tying.tie import untie


class ByRole(NamedTuple):
    """What the two roles of a tied table add to something: two arrays of one shape."""

    input: jax.Array
    output: jax.Array

    @property
    def whole(self) -> jax.Array:
        """Their sum."""
        return self.input + self.output


class RoleStep(NamedTuple):
    """One update of a tied table by role, VxD: gradients, and Adam's step u before the learning
    rate, without decay.
    """

    gradient: ByRole
    step: ByRole


class RoleSums(NamedTuple):
    """Inner products over the rows of each group, G: all that shares, norms and cosines are made
    of.

    Attributes:
      step_square: ⟨u, u⟩.
      input_step_product: ⟨u, u_in⟩; the output's is what is left of ⟨u, u⟩.
      input_gradient_square, output_gradient_square, gradient_product: ⟨g_in, g_in⟩, ⟨g_out, g_out⟩,
      ⟨g_in, g_out⟩.
    """

    step_square: jax.Array
    input_step_product: jax.Array
    input_gradient_square: jax.Array
    output_gradient_square: jax.Array
    gradient_product: jax.Array


def with_role_moments(state: State) -> State:
    """A fresh member whose first moments are kept by role from now on. An untied one stays as it
    is.
    """
    embedding = state.params["embedding"]
    if "output" in embedding:
        return state
    nothing = jnp.zeros_like(embedding["input"])
    return state._replace(role_moments=ByRole(nothing, nothing))


def update_by_role(
    loss_of: Callable[[dict], tuple[jax.Array, Looked]],
    optimizer: optax.GradientTransformation,
    state: State,
    *,
    b1: float,
    b2: float,
    eps: jax.typing.ArrayLike,
) -> tuple[State, tuple[jax.Array, Looked], RoleStep]:
    """What `jaxtie.training.member.update` does, of a tied member; and who wrote it.

    Args:
      loss_of: of the parameters of an untied model, which has the one table twice.
      optimizer: AdamW with these b1, b2 and eps, see `jaxtie.training.optimizer.adamw`.
    """
    two, _ = untie(state.params)
    looked_at, gradient = jax.value_and_grad(loss_of, has_aux=True)(two)
    rest = dict(gradient["embedding"])
    raw = ByRole(rest.pop("input"), rest.pop("output"))
    gradient = {**gradient, "embedding": {**rest, "input": raw.whole}}
    updates, opt_state = optimizer.update(gradient, state.opt_state, state.params)
    moments = jax.tree.map(lambda m, g: (1 - b1) * g + b1 * m, state.role_moments, raw)
    adam = next(part for part in opt_state if isinstance(part, optax.ScaleByAdamState))
    second_VxD = adam.nu["embedding"]["input"] / (1 - b2**adam.count)
    scale_VxD = 1 / ((1 - b1**adam.count) * (jnp.sqrt(second_VxD) + eps))
    own = RoleStep(raw, jax.tree.map(lambda m: m * scale_VxD, moments))
    params = optax.apply_updates(state.params, updates)
    return state._replace(params=params, opt_state=opt_state, role_moments=moments), looked_at, own


def sum_by_row(own: RoleStep) -> RoleSums:
    """The inner products of one update, each row a group of its own."""

    def product(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.sum(a * b, axis=-1)

    whole, (g_in, g_out) = own.step.whole, own.gradient
    return RoleSums(
        product(whole, whole),
        product(whole, own.step.input),
        product(g_in, g_in),
        product(g_out, g_out),
        product(g_in, g_out),
    )


def sum_by_group(own: RoleStep, group_V: np.ndarray, groups: int) -> RoleSums:
    """The inner products of one update, the rows of a group together."""
    return jax.tree.map(
        lambda of_row_V: jax.ops.segment_sum(of_row_V, group_V, groups), sum_by_row(own)
    )


def pushes(
    table_VxD: jax.Array,
    step: ByRole,
    learning_rate: jax.Array | float,
    pairs: Sequence[tuple[int, int]],
) -> ByRole:
    """By how much each role's part of a step changes the logarithm of the distance of two rows, to
    first order; K.

    Summed over the training, and with the logarithm of what weight decay leaves, it is the change
    of ln |T_s − T_t|, but for
    second order: what noise adds to a distance, whatever its direction.

    Args:
      table_VxD: before the step.
      pairs: ids of rows (s, t).
    """
    first_K, second_K = np.array(pairs).T
    apart_KxD = table_VxD[first_K] - table_VxD[second_K]
    square_K = jnp.sum(apart_KxD**2, axis=-1)

    def push(step_VxD: jax.Array) -> jax.Array:
        along_K = jnp.sum((step_VxD[first_K] - step_VxD[second_K]) * apart_KxD, axis=-1)
        return -learning_rate * along_K / square_K

    return jax.tree.map(push, step)
