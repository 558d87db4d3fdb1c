"""A member's jaxpr, evaluated for many members as a structure of arrays: every scalar of a member is a row of members.

So an array is none to the device but a grid of cells, known while tracing: what moves, cuts or repeats parts of it is free, a
product of matrices is multiply-adds of cells, and no operation but on whole cells is left. Of all axes one is kept on the
device, that of the samples of a batch: it lies in the cells, below the row of members. `jaxtie.training.kernel` makes one
kernel of that; there is no rule for what it would not need.

Shapes: R samples, M members. A cell is a NumPy scalar (known), a scalar of the device, or an array 1xM or RxM; or a function
that gives one, called where it is used.
"""

import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var

from jaxtie.training.lanes import ELEMENTWISE, INLINED, TRANSCENDENTAL, threefry_rounds

RowCell = Any
AS_IT_IS = frozenset("copy optimization_barrier stop_gradient".split())


class NoKernel(NotImplementedError):
    """There is no rule for something: it is trained another way."""


class Grid(NamedTuple):
    """An array that every member has.

    Attributes:
      cells: in its shape but for the axis of samples, which is as long as its multiple of R: 1, mostly.
      shape: for one member.
      numbers: of what all members share, the memory where it lies, one after the other.
    """

    cells: np.ndarray
    shape: tuple[int, ...]
    numbers: Any = None


def value_of(cell: RowCell) -> RowCell:
    """The cell itself, where it is a function."""
    return cell() if callable(cell) else cell


def apply(f: Callable, *cells: RowCell) -> RowCell:
    """f of cells, brought to one shape; at once, where all are known."""
    cells = [value_of(cell) for cell in cells]
    if all(isinstance(cell, np.generic) for cell in cells):
        with jax.ensure_compile_time_eval():
            return np.asarray(f(*map(jnp.asarray, cells)))[()]
    shape = jnp.broadcast_shapes(*map(jnp.shape, cells))
    return f(*(jnp.broadcast_to(jnp.asarray(cell), shape) for cell in cells))


class Evaluator:
    """Runs a member's jaxpr on grids. What is named after an operation of JAX is the rule for it.

    Args:
      samples: R. The first axis of so many, or of a multiple, is that of samples.
      members: M.

    Raises:
      NoKernel: where there is no rule, or samples would not stay in their cells.
    """

    def __init__(self, samples: int, members: int):
        self.samples, self.members = samples, members

    def samples_axis(self, shape: Sequence[int]) -> int | None:
        """Which axis of a member's array lies in the cells."""
        return next((axis for axis, size in enumerate(shape) if size and size % self.samples == 0), None)

    def cells_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Of a member's array of some shape."""
        axis = self.samples_axis(shape)
        return tuple(size // self.samples if i == axis else size for i, size in enumerate(shape))

    def grid(self, cells: Iterable[RowCell], shape: Sequence[int]) -> Grid:
        """Of cells in their order."""
        found = np.empty(self.cells_shape(shape), object)
        for place, cell in zip(np.ndindex(found.shape), cells, strict=True):
            found[place] = cell
        return Grid(found, tuple(shape))

    def _grid_of(self, cells: np.ndarray, shape: Sequence[int]) -> Grid:
        if cells.shape != self.cells_shape(shape):
            raise NoKernel("a part of the samples, or samples along two axes")
        return Grid(cells, tuple(shape))

    def known(self, array: np.ndarray) -> Grid:
        """Of an array that is known while tracing."""
        if self.samples_axis(array.shape) is not None:
            raise NoKernel("a constant that samples do not share, within an inner function")
        return self.grid(array.ravel(), array.shape)

    def evaluate(self, closed: ClosedJaxpr, arguments: Sequence[Grid]) -> list[Grid]:
        """The results of a jaxpr."""
        variables = dict(zip(closed.jaxpr.constvars, map(self.known, map(np.asarray, closed.consts)), strict=True))
        variables |= zip(closed.jaxpr.invars, arguments, strict=True)
        for equation in closed.jaxpr.eqns:
            self.run(equation, variables)
        return [self.read(v, variables) for v in closed.jaxpr.outvars]

    def read(self, variable: Var | Literal, variables: dict[Var, Grid]) -> Grid:
        """The grid that a variable stands for."""
        if isinstance(variable, Literal):
            return self.known(np.asarray(variable.val, variable.aval.dtype))
        return variables[variable]

    def run(self, equation: JaxprEqn, variables: dict[Var, Grid]) -> None:
        """An equation; its results go to the variables."""
        name, parameters = equation.primitive.name, equation.params
        operands = [self.read(v, variables) for v in equation.invars]
        shapes = [v.aval.shape for v in equation.outvars]
        if name in INLINED:
            inner = next(parameters[key] for key in ("jaxpr", "call_jaxpr", "fun_jaxpr") if key in parameters)
            results = self.evaluate(inner if isinstance(inner, ClosedJaxpr) else ClosedJaxpr(inner, ()), operands)
        elif name in AS_IT_IS:
            results = operands
        elif name in ELEMENTWISE or name in TRANSCENDENTAL:
            results = self._elementwise(functools.partial(equation.primitive.bind, **parameters), shapes, operands)
        elif name == "scan":
            results = self.scan(equation, operands)
        elif (rule := getattr(self, f"_{name}", None)) is None:
            raise NoKernel(f"no rule for {name}")
        else:
            results = rule(shapes, *operands, **parameters)
        variables |= zip(equation.outvars, results, strict=True)

    def scan(self, equation: JaxprEqn, operands: Sequence[Grid]) -> list[Grid]:
        """A loop: how it keeps what it carries is a matter of the device."""
        raise NoKernel("a loop")

    def _elementwise(self, f, shapes, operands):
        """Scalars go with every shape."""
        own = self.cells_shape(shapes[0])
        cells = [np.broadcast_to(operand.cells, own) for operand in operands]
        return [self.grid([apply(f, *(each[place] for each in cells)) for place in np.ndindex(own)], shapes[0])]

    def _threefry2x32(self, shapes, *operands):
        own = self.cells_shape(shapes[0])
        cells = [np.broadcast_to(operand.cells, own) for operand in operands]
        words = [apply(threefry_rounds, *(each[place] for each in cells)) for place in np.ndindex(own)]
        return [self.grid(word, shapes[0]) for word in zip(*words, strict=True)]

    def _broadcast_in_dim(self, shapes, operand, *, broadcast_dimensions, **_):
        target, own = self.samples_axis(shapes[0]), self.samples_axis(operand.shape)
        if own is not None and broadcast_dimensions[own] != target:
            raise NoKernel("samples along two axes")
        where = [1] * len(shapes[0])
        for size, axis in zip(operand.cells.shape, broadcast_dimensions, strict=True):
            where[axis] = size
        return [Grid(np.broadcast_to(operand.cells.reshape(where), self.cells_shape(shapes[0])), shapes[0])]

    def _reshape(self, shapes, operand, *, dimensions=None, **_):
        """What lies after the axis of samples has to stay after it."""
        if dimensions is not None:
            raise NoKernel("a reshape with a permutation")
        return self._reshaped(shapes, operand)

    def _reshaped(self, shapes, operand, **_):
        axes = [(shape, self.samples_axis(shape)) for shape in (shapes[0], operand.shape)]
        after = {None if axis is None else math.prod(shape[axis + 1 :]) for shape, axis in axes}
        if len(after) != 1:
            raise NoKernel("a reshape across samples")
        return [Grid(operand.cells.reshape(self.cells_shape(shapes[0])), shapes[0])]

    _squeeze = _expand_dims = _reshaped

    def _transpose(self, shapes, operand, *, permutation):
        return [self._grid_of(np.transpose(operand.cells, permutation), shapes[0])]

    def _slice(self, shapes, operand, *, start_indices, limit_indices, strides):
        places, strides = [], strides or [1] * len(operand.shape)
        for axis, (start, stop, step) in enumerate(zip(start_indices, limit_indices, strides, strict=True)):
            size = self.samples if axis == self.samples_axis(operand.shape) else 1
            if start % size or stop % size or (size > 1 and step > 1):
                raise NoKernel("a part of the samples")
            places.append(slice(start // size, stop // size, step))
        return [self._grid_of(operand.cells[tuple(places)], shapes[0])]

    def _split(self, shapes, operand, *, sizes, axis):
        bounds, found = np.cumsum([0, *sizes]).tolist(), []
        for shape, (start, stop) in zip(shapes, itertools.pairwise(bounds), strict=True):
            starts, stops = [0] * len(shape), list(shape)
            starts[axis], stops[axis] = start, stop
            found += self._slice([shape], operand, start_indices=starts, limit_indices=stops, strides=None)
        return found

    def _concatenate(self, shapes, *operands, dimension):
        return [self._grid_of(np.concatenate([operand.cells for operand in operands], dimension), shapes[0])]

    def _stack(self, shapes, *operands, axis):
        return [self._grid_of(np.stack([operand.cells for operand in operands], axis), shapes[0])]

    def _pad(self, shapes, operand, padding, *, padding_config):
        if any(low < 0 or high < 0 or inner for low, high, inner in padding_config):
            raise NoKernel("padding that cuts, or between elements")
        sides = [(low, high) for low, high, _ in padding_config]
        axis = self.samples_axis(operand.shape)
        if axis is not None and any(sides[axis]):
            raise NoKernel("padding of samples")
        return [self._grid_of(np.pad(operand.cells, sides, constant_values=padding.cells), shapes[0])]

    def _iota(self, shapes, *, dtype, dimension, **_):
        own, axis = self.cells_shape(shapes[0]), self.samples_axis(shapes[0])
        found = [np.asarray(place[dimension], dtype)[()] for place in np.ndindex(own)]
        if axis == dimension:
            row = lax.broadcasted_iota(jnp.int32, (self.samples, self.members), 0)
            found = [(row + place[dimension] * self.samples).astype(dtype) for place in np.ndindex(own)]
        return [self.grid(found, shapes[0])]

    def _dot_general(self, shapes, left, right, *, dimension_numbers, **_):
        """Axes of the result: batch, left, right."""
        contracted, batch = dimension_numbers
        sides = []
        for own, summed, shared in zip((left, right), contracted, batch, strict=True):
            free = [i for i in range(len(own.shape)) if i not in (*summed, *shared)]
            cells = np.transpose(own.cells, (*shared, *free, *summed))
            last = math.prod(cells.shape[len(shared) + len(free) :])
            sides.append(cells.reshape((*cells.shape[: len(shared)], -1, last)))
        over_samples = self.samples_axis(left.shape) in contracted[0]
        found = [
            self._sum([apply(operator.mul, x, y) for x, y in zip(a, b, strict=True)], over_samples)
            for place in np.ndindex(sides[0].shape[: len(batch[0])])
            for a in sides[0][place]
            for b in sides[1][place]
        ]
        if len(found) != math.prod(self.cells_shape(shapes[0])):
            raise NoKernel("a product of every sample with every other")
        return [self.grid(found, shapes[0])]

    def _sum(self, cells: Sequence[RowCell], over_samples: bool) -> RowCell:
        total = value_of(functools.reduce(functools.partial(apply, operator.add), cells))
        if not over_samples:
            return total
        if self._differs(total):
            return jnp.sum(total, axis=0, keepdims=True)
        return apply(operator.mul, total, np.asarray(self.samples, total.dtype)[()])

    def _differs(self, cell: RowCell) -> bool:
        """Between samples."""
        return jnp.ndim(cell) == 2 and cell.shape[0] == self.samples

    def _extreme(self, operation: Callable, reduction: Callable, cells: Sequence[RowCell], over_samples: bool) -> RowCell:
        found = value_of(functools.reduce(functools.partial(apply, operation), cells))
        return reduction(found, axis=0, keepdims=True) if over_samples and self._differs(found) else found

    def _reduced(self, fold: Callable, shapes, operand, axes):
        kept = [axis for axis in range(len(operand.shape)) if axis not in axes]
        cells = np.transpose(operand.cells, (*kept, *axes))
        first = cells.shape[: len(kept)]
        cells = cells.reshape((*first, -1))
        over_samples = self.samples_axis(operand.shape) in axes
        return [self.grid([fold(cells[place], over_samples) for place in np.ndindex(first)], shapes[0])]

    def _reduce_sum(self, shapes, operand, *, axes, **_):
        return self._reduced(self._sum, shapes, operand, axes)

    def _reduce_max(self, shapes, operand, *, axes, **_):
        return self._reduced(functools.partial(self._extreme, jnp.maximum, jnp.max), shapes, operand, axes)

    def _reduce_min(self, shapes, operand, *, axes, **_):
        return self._reduced(functools.partial(self._extreme, jnp.minimum, jnp.min), shapes, operand, axes)
