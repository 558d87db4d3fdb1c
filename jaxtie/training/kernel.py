"""`kernel(f)`: what `jax.vmap(f, in_axes=-1, out_axes=-1)` computes, in one launch that keeps its members on the chip, a TPU.

As `jaxtie.training.lanes` does for a processor, it takes the jaxpr of `f` for one member and evaluates it for many: 128 at
a time, the width of a TPU's vectors, by `jaxtie.training.rows`. What `f` carries through a scan lies in the chip's vector
memory from the first step to the last. There is no second form of any model here.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var

from jaxtie.training.lanes import parts_of_scan
from jaxtie.training.rows import Evaluator, Grid, NoKernel, value_of

VECTOR = 128  # of a TPU's vectors

Ref = Any  # memory of the chip


def kernel(f: Callable, samples: int, *, interpret: bool = False) -> Callable:
    """Map `f` over the last axis, of a multiple of 128, of every array in its arguments; results have the axis last.

    What `f` closes over is not mapped. Differentiate inside `f`.

    Args:
      samples: R, of a batch; see `jaxtie.training.rows`.
      interpret: run it without a TPU, to see what it computes.

    Raises:
      NoKernel: while tracing, for what `f` does that there is no rule for.
    """

    def mapped(*arguments):
        leaves, tree = jax.tree.flatten(arguments)
        (members,) = {leaf.shape[-1] for leaf in leaves}
        if members % VECTOR:
            raise NoKernel(f"{members} members, no multiple of {VECTOR}")
        own = [jax.ShapeDtypeStruct(leaf.shape[:-1], leaf.dtype) for leaf in leaves]
        closed, shapes = jax.make_jaxpr(f, return_shape=True)(*tree.unflatten(own))
        return jax.tree.unflatten(jax.tree.structure(shapes), _launch(closed, samples, leaves, interpret))

    return mapped


class _Evaluator(Evaluator):
    """That of a kernel: it knows what memory is."""

    def scan(self, equation: JaxprEqn, operands: Sequence[Grid]) -> list[Grid]:
        """What is carried is a member's own and lies in vector memory; what is scanned is all members' and is numbers."""
        num_consts, num_carry = parts_of_scan(equation)
        consts, first, xs = operands[:num_consts], operands[num_consts:][:num_carry], operands[num_consts + num_carry :]
        carried = [v.aval for v in equation.outvars[:num_carry]]
        if (
            len(equation.outvars) > num_carry
            or equation.params["reverse"]
            or any(x.numbers is None or len(x.shape) != 1 for x in xs)
        ):
            raise NoKernel("a loop over members' own, or that hands out something at each turn")
        memory = [pltpu.VMEM(self.rows_of(aval), aval.dtype) for aval in carried]

        def loop(*refs):
            def turn(i, _):
                carry = [self.grid(_cells(ref), aval.shape) for ref, aval in zip(refs, carried, strict=True)]
                slices = [self.grid([x.numbers[i]], ()) for x in xs]
                _store(refs, self.evaluate(equation.params["jaxpr"], [*consts, *carry, *slices]))

            _store(refs, first)
            lax.fori_loop(0, equation.params["length"], turn, None)
            return [ref[...] for ref in refs]

        results = pl.run_scoped(loop, *memory)
        return [self.grid(_cells(array), aval.shape) for array, aval in zip(results, carried, strict=True)]

    def rows_of(self, aval: jax.ShapeDtypeStruct) -> tuple[int, int]:
        """The shape in memory of an array that members have: a row of members for each scalar."""
        if self.samples_axis(aval.shape) is not None or aval.dtype == bool:
            raise NoKernel("something that each sample has, or a truth, is kept in memory")
        return math.prod(aval.shape), self.members


def _cells(memory: Ref | jax.Array) -> list[Callable]:
    """Its rows, each to be loaded where it is used."""

    def row(i: int) -> jax.Array:
        return memory[i : i + 1, :]

    return [functools.partial(row, i) for i in range(memory.shape[0])]


def _store(refs: Sequence[Ref], grids: Sequence[Grid]) -> None:
    """Write rows, one below the other. All are there before the first is written: others may be made of what it replaces."""
    ready = [[value_of(cell) for cell in grid.cells.ravel()] for grid in grids]
    for ref, cells in zip(refs, ready, strict=True):
        for i, cell in enumerate(cells):
            ref[i : i + 1, :] = jnp.broadcast_to(jnp.asarray(cell, ref.dtype), (1, ref.shape[1]))


def _launch(closed: ClosedJaxpr, samples: int, leaves: Sequence[jax.Array], interpret: bool) -> list[jax.Array]:
    """The results of a member's jaxpr, members last: what no member has a part in outside the kernel, all else within."""
    of, members, jaxpr = _Evaluator(samples, VECTOR), leaves[0].shape[-1], closed.jaxpr
    shared, inside = _without_members(closed)
    used = {v for v in (*(v for equation in inside for v in equation.invars), *jaxpr.outvars) if isinstance(v, Var)}
    mapped = [(v, leaf.reshape(-1, members)) for v, leaf in zip(jaxpr.invars, leaves, strict=True) if v in used]
    shared = [(v, value, *_place(of, value)) for v, value in shared.items() if v in used]

    def body(*refs):
        variables = {v: of.grid(_cells(ref), v.aval.shape) for (v, _), ref in zip(mapped, refs, strict=False)}
        for (v, value, *_), ref in zip(shared, refs[len(mapped) :], strict=False):
            variables[v] = _shared_grid(of, v, value, ref)
        for equation in inside:
            of.run(equation, variables)
        _store(refs[len(mapped) + len(shared) :], [of.read(v, variables) for v in jaxpr.outvars])

    def block(v: Var) -> pl.BlockSpec:
        return pl.BlockSpec(of.rows_of(v.aval), lambda i: (0, i))

    launched = pl.pallas_call(
        body,
        grid=(members // VECTOR,),
        in_specs=[*(block(v) for v, _ in mapped), *(spec for *_, spec in shared)],
        out_specs=[block(v) for v in jaxpr.outvars],
        out_shape=[jax.ShapeDtypeStruct((math.prod(v.aval.shape), members), v.aval.dtype) for v in jaxpr.outvars],
        interpret=interpret,
    )
    results = launched(*(array for _, array in mapped), *(array for _, _, array, _ in shared))
    return [result.reshape(*v.aval.shape, members) for result, v in zip(results, jaxpr.outvars, strict=True)]


def _without_members(closed: ClosedJaxpr) -> tuple[dict[Var, Any], list[JaxprEqn]]:
    """What a jaxpr computes of no member's own; and its equations that are left."""
    values = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    inside = []
    for equation in closed.jaxpr.eqns:
        if not all(isinstance(v, Literal) or v in values for v in equation.invars):
            inside.append(equation)
            continue
        own = (v.val if isinstance(v, Literal) else values[v] for v in equation.invars)
        results = equation.primitive.bind(*own, **equation.params)
        values |= zip(equation.outvars, results if equation.primitive.multiple_results else [results], strict=True)
    return values, inside


def _place(of: Evaluator, value: Any) -> tuple[jax.Array, pl.BlockSpec]:
    """What all members share, as a kernel is given it: cells, where samples have their own; else numbers in scalar memory."""
    value = jnp.asarray(value)
    value = value.astype(jnp.int32) if value.dtype == bool else value  # memory has no truths
    axis = of.samples_axis(value.shape)
    if axis is None:
        return value.ravel(), pl.BlockSpec(memory_space=pltpu.SMEM)
    parts = value.reshape((*value.shape[:axis], -1, of.samples, *value.shape[axis + 1 :]))
    cells = jnp.moveaxis(parts, axis + 1, -1).reshape(-1, of.samples, 1)
    cells = jnp.broadcast_to(cells, (*cells.shape[:2], VECTOR))
    return cells, pl.BlockSpec(cells.shape, lambda i: (0, 0, 0))


def _shared_grid(of: Evaluator, variable: Var, value: Any, ref: Ref) -> Grid:
    """What all members share, as it is found in the kernel."""
    shape, truth = variable.aval.shape, variable.aval.dtype == bool
    in_cells = of.samples_axis(shape) is not None
    if not in_cells and not isinstance(value, jax.core.Tracer):
        return of.known(np.asarray(value))

    def load(i: int) -> jax.Array:
        return ref[i] != 0 if truth else ref[i]

    grid = of.grid([functools.partial(load, i) for i in range(ref.shape[0])], shape)
    return grid if in_cells or truth else grid._replace(numbers=ref)
