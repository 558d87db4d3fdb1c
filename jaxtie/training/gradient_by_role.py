"""Split the update of a tied table into the parts of its two roles, input and output, exactly.

The loss is a function of the table as input and of the table as output. The gradient with regard to
both, at equal values, is what each role asks for while the other is stopped; their sum is the tied
table's gradient. Adam's first moment is linear in the gradient, so it splits likewise. Both parts
are divided by the bias correction and by the root of the one second moment. So u = u_in + u_out,
where u is the step before the learning rate and without the decay.

Shapes: V rows of the table, D width, G groups of rows, K pairs of rows.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxtie.training.task import Metrics, Params, Roles, State
from jaxtie.tying.tie import untie

Aux = TypeVar("Aux")
# Contributions to the log-distance of pairs, by role: recorded as sums over the updates, not means.
CONTRIBUTIONS = ("input_push", "output_push")


class ByRole(NamedTuple):
    """The parts of the two roles: two arrays of one shape."""

    input: jax.Array
    output: jax.Array

    @property
    def whole(self) -> jax.Array:
        """Return their sum."""
        return self.input + self.output


class RoleStep(NamedTuple):
    """One update of a tied table by role, VxD: the gradients, and Adam's step u."""

    gradient: ByRole
    step: ByRole


class RoleSums(NamedTuple):
    """Inner products over the rows of each group, G: shares, norms and cosines follow from them.

    Attributes:
      step_square: ⟨u, u⟩.
      input_step_product: ⟨u, u_in⟩; the output's is the rest of ⟨u, u⟩.
      input_gradient_square, output_gradient_square, gradient_product: ⟨g_in, g_in⟩, ⟨g_out, g_out⟩,
        ⟨g_in, g_out⟩.
    """

    step_square: jax.Array
    input_step_product: jax.Array
    input_gradient_square: jax.Array
    output_gradient_square: jax.Array
    gradient_product: jax.Array


def with_role_moments(state: State) -> State:
    """Return a fresh tied member whose first moments are kept by role; an untied one unchanged."""
    embedding = state.params["embedding"]
    if "output" in embedding:
        return state
    nothing = jnp.zeros_like(embedding["input"])
    return state._replace(role_moments=ByRole(nothing, nothing))


def update_by_role(
    loss_of: Callable[[Params], tuple[jax.Array, Aux]],
    optimizer: optax.GradientTransformation,
    state: State,
    *,
    b1: float,
    b2: float,
    eps: jax.typing.ArrayLike,
) -> tuple[State, tuple[jax.Array, Aux], RoleStep]:
    """Update a tied member as `jaxtie.training.member.update` does, and split the update by role.

    `loss_of` is a function of the parameters of an untied model, which has the one table twice;
    `optimizer` is AdamW with these b1, b2 and eps.
    """
    two, _ = untie(state.params)
    found, gradient = jax.value_and_grad(loss_of, has_aux=True)(two)
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
    return state._replace(params=params, opt_state=opt_state, role_moments=moments), found, own


def sum_by_role(
    own: RoleStep, table_VxD: jax.Array, learning_rate: jax.Array, roles: Roles
) -> Metrics:
    """Return what is recorded of one update: inner products by group, contributions by pair.

    `table_VxD` is the table before the update.
    """
    sums, group_V = sum_by_row(own), roles.group_V
    if group_V is not None:
        sums = jax.tree.map(lambda x_V: jax.ops.segment_sum(x_V, group_V, roles.groups), sums)
    if not roles.pairs:
        return sums._asdict()
    contributions = contribute(table_VxD, own.step, learning_rate, roles.pairs)
    return sums._asdict() | dict(zip(CONTRIBUTIONS, contributions, strict=True))


def no_roles(roles: Roles) -> Metrics:
    """Return NaN for all that `sum_by_role` returns: at step 0, and of an untied member."""
    sizes = dict.fromkeys(RoleSums._fields, roles.groups)
    if roles.pairs:
        sizes |= dict.fromkeys(CONTRIBUTIONS, len(roles.pairs))
    return {name: jnp.full(size, jnp.nan) for name, size in sizes.items()}


def sum_by_row(own: RoleStep) -> RoleSums:
    """Return the inner products of one update; each row is a group."""

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


def contribute(
    table_VxD: jax.Array,
    step: ByRole,
    learning_rate: jax.Array | float,
    pairs: Sequence[tuple[int, int]],
) -> ByRole:
    """Return each role's contribution to the change of ln |T_s - T_t| by a step, to first order; K.

    Summed over training and with the logarithm of the decay factor it is the change of
    ln |T_s - T_t|, but for second order: what noise adds to a distance, whatever its direction.
    `table_VxD` is the table before the step.
    """
    first_K, second_K = np.array(pairs).T
    apart_KxD = table_VxD[first_K] - table_VxD[second_K]
    square_K = jnp.sum(apart_KxD**2, axis=-1)

    def along(step_VxD: jax.Array) -> jax.Array:
        along_K = jnp.sum((step_VxD[first_K] - step_VxD[second_K]) * apart_KxD, axis=-1)
        return -learning_rate * along_K / square_K

    return jax.tree.map(along, step)
