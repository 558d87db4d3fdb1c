"""Train one member, one seed of one arm at one sweep point, of any task. Pure functions."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxtie.training.gradient_by_role import (
    CONTRIBUTIONS,
    Aux,
    RoleSums,
    no_roles,
    sum_by_role,
    update_by_role,
    with_role_moments,
)
from jaxtie.training.optimizer import SCHEDULE, make_optimizer, periodic_cosine
from jaxtie.training.task import KEY_IMPLEMENTATION, Metrics, Params, Roles, State, Task
from jaxtie.tying.tie import untie


class Member(NamedTuple):
    """Functions that train one member.

    Attributes:
      init: (seed u32[], hparams) -> fresh state.
      start: (seed, hparams) -> fresh state, stream, record at step 0 without `measure`.
      step: (state, hparams, stream, step, rows) -> state, terms of the sums since the last record.
      advance: (state, stream, hparams, step) -> state, record `record_every` steps later.
      measure: state -> further metrics of every record.
      evaluate: (state, hparams) -> metrics of an evaluation.
    """

    init: Callable
    start: Callable
    step: Callable
    advance: Callable
    measure: Callable
    evaluate: Callable


def update(
    loss_of: Callable[[Params], tuple[jax.Array, Aux]],
    optimizer: optax.GradientTransformation,
    state: State,
) -> tuple[State, tuple[jax.Array, Aux]]:
    """Take one step along the gradient; return the new state, and the loss and its aux before."""
    found, gradient = jax.value_and_grad(loss_of, has_aux=True)(state.params)
    updates, opt_state = optimizer.update(gradient, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    return state._replace(params=params, opt_state=opt_state), found


def keep_finite(new: State, old: State, loss: jax.Array, at: jax.Array) -> State:
    """Return the new state; for a member that has diverged, at this step or before, the old one.

    It has diverged if `loss` or a parameter is not finite. One check per record is enough, since
    infinity and NaN do not become finite again.
    """
    finite = jnp.isfinite(loss + sum(jnp.sum(leaf) for leaf in jax.tree.leaves(new.params)))
    trains = new.diverged_at < 0
    state = jax.tree.map(lambda new, old: jnp.where(trains & finite, new, old), new, old)
    return state._replace(diverged_at=jnp.where(trains & ~finite, at, new.diverged_at))


def untie_state(state: State) -> State:
    """Untie a tied member: copy its table and the moments."""
    params, opt_state = untie(state.params, state.opt_state)
    return state._replace(params=params, opt_state=opt_state, role_moments=())


def weighted(metrics: Metrics) -> Metrics:
    """Return the terms of weighted sums: each metric times `weight`, where there is one."""
    metrics = {name: x.astype(jnp.float32) if x.dtype == bool else x for name, x in metrics.items()}
    if "weight" not in metrics:
        return metrics
    return {name: x if name == "weight" else x * metrics["weight"] for name, x in metrics.items()}


def means(totals: Metrics, updates: int) -> Metrics:
    """Return the record of sums over updates: means, but sums of contributions by role."""
    count = totals.get("weight", updates)

    def mean(name: str, total: jax.Array) -> jax.Array:
        if name in CONTRIBUTIONS:
            return total
        return total / (updates if name in RoleSums._fields else count)

    return {name: mean(name, total) for name, total in totals.items() if name != "weight"}


def unmeasured_roles(task: Task) -> Metrics:
    """Return NaN for the records of gradients by role, where the configuration asks for them."""
    return no_roles(task.roles or Roles(0)) if task.config.roles else {}


def make_member(task: Task) -> Member:
    """Close over all that is constant in a member's training."""
    config, variant = task.config, task.variant
    every, by_role = config.record_every, config.roles and variant.tied
    step = make_step(task)

    def init(seed, hparams):
        params = task.init(jax.random.key(seed, impl=KEY_IMPLEMENTATION), hparams)
        optimizer = make_optimizer(config.optimizer, variant.head, hparams)
        state = State(params, optimizer.init(params), jnp.int32(-1))
        return with_role_moments(state) if config.roles else state

    def start(seed, hparams):
        state, stream = init(seed, hparams), task.stream(seed)
        _, metrics = task.loss(state.params, task.batch(stream, hparams, jnp.int32(0), None))
        record = means(weighted(metrics), 1) | unmeasured_roles(task)
        return state, stream, record | evaluate(state, hparams)

    def advance(state, stream, hparams, at):
        def body(carry, place):
            state, totals = carry
            state, terms = step(state, hparams, stream, place)
            return (state, jax.tree.map(jnp.add, totals, terms)), None

        _, terms = jax.eval_shape(step, state, hparams, stream, at)
        zero = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), terms)
        steps = at + jnp.arange(every, dtype=jnp.int32)
        (new, totals), _ = jax.lax.scan(body, (state, zero), steps)
        state = keep_finite(new, state, totals["loss"], at + every)
        record = {} if by_role else unmeasured_roles(task)
        return state, record | means(totals, every) | measure(state)

    def measure(state):
        return {**task.measure(state.params), "diverged_at": state.diverged_at}

    def evaluate(state, hparams):
        return task.evaluate(state.params, hparams)

    return Member(init, start, step, advance, measure, evaluate)


def make_step(task: Task) -> Callable:
    """Return `Member.step`; it splits the update by role where that is recorded."""
    config, variant, adam = task.config, task.variant, task.config.optimizer

    def step(state, hparams, stream, at, rows=None):
        batch = task.batch(stream, hparams, at, rows)
        if rows is None:
            batch = jax.lax.optimization_barrier(batch)
        optimizer = make_optimizer(adam, variant.head, hparams)

        def loss_of(params):
            return task.loss(params, batch)

        if not (config.roles and variant.tied):
            state, (_, metrics) = update(loss_of, optimizer, state)
            return state, weighted(metrics)
        own = vars(adam) | dict(hparams)
        moments = {name: own[name] for name in ("b1", "b2", "eps")}
        new, (_, metrics), parts = update_by_role(loss_of, optimizer, state, **moments)
        rate = periodic_cosine(at, **{name: own[name] for name in SCHEDULE})
        rate = rate * variant.head.table_rate
        table_VxD = state.params["embedding"]["input"]
        return new, weighted(metrics) | sum_by_role(parts, table_VxD, rate, task.roles)

    return step


def as_host(tree):
    """Copy arrays to the host; a device's own may be donated to the next call."""
    return jax.tree.map(np.array, tree)
