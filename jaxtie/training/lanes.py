"""Compute `jax.vmap(f, in_axes=-1, out_axes=-1)` laid out for a CPU's vector units or GPU threads.

Members are tiny: their matrix products are too small for a library call, and XLA's CPU backend
makes one call for every member. It is good at long elementwise loops. So `lanes` traces `f` for one
member and evaluates the jaxpr with the member axis last in every intermediate: elementwise
operations run over contiguous vectors of members, and contractions become unrolled multiply-adds of
such vectors. Values that depend on no mapped argument stay unmapped. An operation without a rule
goes through `jax.vmap`, so the result is always that of `vmap`.

Differentiate inside `f`: custom derivative rules are inlined.
"""

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal

SHORT = 8  # contractions and sums up to this length are one expression, by measurement
TERMS = 19  # terms of a partial sum of longer ones, about

ELEMENTWISE = frozenset(
    "abs add add_any and clamp convert_element_type copy cos div eq erf erfc floor ge gt"
    " integer_pow is_finite le lt max min mul ne neg not or pow rem round rsqrt select_n shift_left"
    " shift_right_arithmetic shift_right_logical sign sin sqrt square stop_gradient sub xor".split()
)
# Vectorised if alone in their loop; often not with a broadcast operand (a factor of 4).
TRANSCENDENTAL = frozenset("exp exp2 expm1 log log1p logistic tanh".split())
# Their parameters count axes from the front, so a further axis at the end changes nothing.
AXES_FROM_FRONT = frozenset(
    "argmax argmin concatenate cumsum reduce_and reduce_max reduce_min reduce_or squeeze".split()
)
INLINED = frozenset(
    "jit pjit closed_call custom_jvp_call custom_vjp_call custom_vjp_call_jaxpr checkpoint"
    " remat2".split()
)

# The value of a variable, and whether it has the member axis.
Value = tuple[Any, bool]


class LaneOptions(NamedTuple):
    """Options of `lanes`.

    Attributes:
      size: number of members.
      kept_apart: keep shared values, and operations that vectorise alone, from being fused with
        their uses. A CPU needs that; a GPU needs few kernels.
    """

    size: int
    kept_apart: bool

    def call(self, f: Callable, *arrays: jax.Array) -> Any:
        """Return f(*arrays), if `kept_apart` by a call that XLA does not inline.

        Otherwise the CPU backend's fusions compute the result again for each use.
        """
        if not self.kept_apart:
            return f(*arrays)
        shapes = [array.shape for array in arrays]

        def without_ones(*arrays: jax.Array) -> Any:
            given = (array.reshape(shape) for array, shape in zip(arrays, shapes, strict=True))
            return jax.tree.map(_without_ones, f(*given))

        with set_xla_metadata(inlineable="false"):
            results = jax.jit(without_ones)(*map(_without_ones, arrays))
        return jax.tree.map(
            lambda result, like: result.reshape(like.shape), results, jax.eval_shape(f, *arrays)
        )


def _without_ones(array: jax.Array) -> jax.Array:
    """Drop axes of size 1 before the last; in a call XLA may reorder them and copy the array."""
    return array.reshape([*(size for size in array.shape[:-1] if size != 1), *array.shape[-1:]])


def lanes(f: Callable, *, kept_apart: bool = True) -> Callable:
    """Map `f` over the last axis of every array in its arguments; results have the axis last.

    Args:
      f: the function; values it closes over are not mapped.
      kept_apart: see `LaneOptions`.

    Raises:
      ValueError: if the last axes differ.
    """

    def mapped(*arguments):
        leaves, tree = jax.tree.flatten(arguments)
        sizes = {leaf.shape[-1] for leaf in leaves}
        if len(sizes) != 1:
            raise ValueError(f"lanes: expected last axes of one size, found {sorted(sizes)}")
        options = LaneOptions(*sizes, kept_apart)
        members = [jax.typeof(leaf).update(shape=leaf.shape[:-1]) for leaf in leaves]
        jaxpr, shapes = jax.make_jaxpr(f, return_shape=True)(*tree.unflatten(members))
        results = _evaluate(jaxpr, options, [(leaf, True) for leaf in leaves])
        return jax.tree.unflatten(
            jax.tree.structure(shapes), [_spread(value, options.size) for value in results]
        )

    return mapped


def _evaluate(jaxpr: ClosedJaxpr, options: LaneOptions, arguments: Sequence[Value]) -> list[Value]:
    """Run a member's jaxpr on values of many members."""
    variables: dict[Any, Value] = dict(
        zip(jaxpr.jaxpr.constvars, ((c, False) for c in jaxpr.consts), strict=True)
    )
    variables |= zip(jaxpr.jaxpr.invars, arguments, strict=True)

    def read(variable: Any) -> Value:
        return (variable.val, False) if isinstance(variable, Literal) else variables[variable]

    for equation in jaxpr.jaxpr.eqns:
        variables |= zip(
            equation.outvars,
            _apply(equation, options, [read(v) for v in equation.invars]),
            strict=True,
        )
    return [read(v) for v in jaxpr.jaxpr.outvars]


def _apply(equation: JaxprEqn, options: LaneOptions, operands: Sequence[Value]) -> list[Value]:
    name, parameters = equation.primitive.name, equation.params
    arrays, mapped = zip(*operands, strict=True) if operands else ((), ())
    if name in INLINED and (any(mapped) or "jit" not in name):  # else one call
        inner = next(
            parameters[key] for key in ("jaxpr", "call_jaxpr", "fun_jaxpr") if key in parameters
        )
        return _evaluate(
            inner if isinstance(inner, ClosedJaxpr) else ClosedJaxpr(inner, ()), options, operands
        )
    bind = functools.partial(equation.primitive.bind, **parameters)
    if not any(mapped):
        results = bind(*arrays)
        return [
            (result, False)
            for result in (results if equation.primitive.multiple_results else [results])
        ]
    if name == "scan":
        return _scan(options, operands, equation)
    # rare forms that the rules do not cover
    is_rare = (
        (name == "reshape" and parameters["dimensions"] is not None)
        or (name == "pad" and mapped[1])
        or (name == "dot_general" and not all(map(jnp.ndim, arrays)))
        or any(0 in jnp.shape(array) for array in arrays)
    )
    if name in RULES and not is_rare:
        results = RULES[name](options, operands, **parameters)
    elif name in TRANSCENDENTAL:
        results = options.call(bind, *arrays)
    elif name in ELEMENTWISE:
        out: Any = equation.outvars[0]
        results = bind(*[_spread(operand, options.size, out.aval.shape) for operand in operands])
    elif name in AXES_FROM_FRONT:
        results = bind(*[_spread(operand, options.size) for operand in operands])
    else:
        results = jax.vmap(bind, [-1 if m else None for m in mapped], -1)(*arrays)
    return [
        (result, True) for result in (results if equation.primitive.multiple_results else [results])
    ]


def _spread(value: Value, size: int, shape: tuple[int, ...] | None = None) -> jax.Array:
    """Return the array with the member axis, repeated if need be; a scalar in `shape`."""
    array, mapped = value
    member = jnp.shape(array)[: jnp.ndim(array) - mapped]
    shape = member if shape is None or member else shape
    if mapped and member == shape:
        return array
    return lax.broadcast_in_dim(
        array, (*shape, size), [*range(len(member))] + [len(shape)] * mapped
    )


def _optimization_barrier(options, operands):
    # XLA removes its own barrier before the CPU backend fuses.
    return options.call(
        lambda *arrays: arrays, *[_spread(operand, options.size) for operand in operands]
    )


def _add(terms: Sequence[jax.Array]) -> jax.Array:
    return functools.reduce(operator.add, terms)


def _rank(variable: Any) -> int:
    return len(variable.aval.shape)


def parts_of_scan(equation: JaxprEqn) -> tuple[int, int]:
    """Return the numbers of constants and of carries among a scan's operands; inputs follow.

    Names of the parameters change between versions of JAX, shapes do not: an input has one more
    axis outside than inside.
    """
    jaxpr = equation.params["jaxpr"].jaxpr
    num_xs = sum(
        _rank(outer) > _rank(inner)
        for outer, inner in zip(equation.invars, jaxpr.invars, strict=True)
    )
    num_carry = sum(
        _rank(outer) == _rank(inner)
        for outer, inner in zip(equation.outvars, jaxpr.outvars, strict=True)
    )
    return len(equation.invars) - num_carry - num_xs, num_carry


def _scan(options: LaneOptions, operands: Sequence[Value], equation: JaxprEqn) -> list[Value]:
    """Scan with the member axis on every carry."""
    jaxpr, parameters = equation.params["jaxpr"], equation.params
    num_consts, num_carry = parts_of_scan(equation)
    consts, carry, xs = (
        operands[:num_consts],
        operands[num_consts:][:num_carry],
        operands[num_consts + num_carry :],
    )

    def body(carry, slices):
        sliced = [(array, m) for array, (_, m) in zip(slices, xs, strict=True)]
        results = _evaluate(jaxpr, options, [*consts, *((array, True) for array in carry), *sliced])
        results = [_spread(value, options.size) for value in results]
        return results[:num_carry], results[num_carry:]

    last, ys = lax.scan(
        body,
        [_spread(value, options.size) for value in carry],
        [array for array, _ in xs],
        *(parameters[name] for name in ("length", "reverse", "unroll")),
    )
    return [(array, True) for array in (*last, *ys)]


def _broadcast_in_dim(options, operands, *, shape, broadcast_dimensions, **_):
    return lax.broadcast_in_dim(
        operands[0][0], (*shape, options.size), (*broadcast_dimensions, len(shape))
    )


def _reshape(options, operands, *, new_sizes, **_):
    return lax.reshape(operands[0][0], (*new_sizes, options.size))


def _transpose(options, operands, *, permutation):
    return lax.transpose(operands[0][0], (*permutation, len(permutation)))


def _slice(options, operands, *, start_indices, limit_indices, strides):
    return lax.slice(
        operands[0][0],
        (*start_indices, 0),
        (*limit_indices, options.size),
        strides and (*strides, 1),
    )


def _split(options, operands, *, sizes, axis):
    return lax.split(operands[0][0], sizes, axis)


def _pad(options, operands, *, padding_config):
    array, (padding, _) = operands
    return lax.pad(_spread(array, options.size), padding, (*padding_config, (0, 0, 0)))


def threefry_rounds(k0, k1, x0, x1):
    """Threefry-2x32, 20 rounds (Salmon et al. 2011), as plain arithmetic on uint32 of one shape."""
    keys = k0, k1, k0 ^ k1 ^ jnp.uint32(0x1BD11BDA)
    x0, x1 = x0 + keys[0], x1 + keys[1]
    for i in range(5):
        for bits in ((13, 15, 26, 6), (17, 29, 16, 24))[i % 2]:
            x0 = x0 + x1
            x1 = x0 ^ ((x1 << jnp.uint32(bits)) | (x1 >> jnp.uint32(32 - bits)))
        x0, x1 = x0 + keys[(i + 1) % 3], x1 + keys[(i + 2) % 3] + jnp.uint32(i + 1)
    return x0, x1


def _threefry2x32(options, operands):
    """Threefry as plain arithmetic; the stock lowering is a loop of calls."""
    arrays, mapped = zip(*operands, strict=True)
    shape = max((jnp.shape(array)[: jnp.ndim(array) - m] for array, m in operands), key=len)

    def rounds(*arrays):  # spread inside the call, which saves memory for keys and counters
        return threefry_rounds(
            *(_spread(operand, options.size, shape) for operand in zip(arrays, mapped, strict=True))
        )

    return options.call(rounds, *arrays)


def _take(place: int | slice, array: jax.Array, axis: int) -> jax.Array:
    """Return one place of an axis, without the axis, or a slice of it."""
    if isinstance(place, slice):
        return lax.slice_in_dim(array, place.start, place.stop, axis=axis)
    return lax.index_in_dim(array, place, axis, keepdims=False)


def _unrolled_sum(
    options: LaneOptions, term: Callable, length: int, axis: int, *arrays: jax.Array
) -> jax.Array:
    """Return the sum of term(i, *arrays) over i < length.

    term(slice, *arrays) returns the terms of a slice along `axis`.
    """
    if length <= SHORT:
        return options.call(
            lambda *arrays: _add([term(i, *arrays) for i in range(length)]), *arrays
        )
    stride = -(-length // TERMS)
    full = length // stride * stride

    def partial(*arrays: jax.Array) -> jax.Array:
        return _add([term(slice(i, i + stride), *arrays) for i in range(0, full, stride)])

    sums = options.call(partial, *arrays)
    return _add(
        [
            *[_take(i, sums, axis) for i in range(stride)],
            *[term(i, *arrays) for i in range(full, length)],
        ]
    )


def _dot_general(options, operands, *, dimension_numbers, preferred_element_type, **_):
    """Contract without transposing, which would copy; axes: batch, left, right, member."""
    contracted, batch = dimension_numbers
    ranks = [array.ndim - mapped for array, mapped in operands]
    free = [[i for i in range(ranks[s]) if i not in (*contracted[s], *batch[s])] for s in (0, 1)]
    first_right = len(batch[0]) + len(free[0])
    last = first_right + len(free[1])
    gaps = (range(first_right, last), range(len(batch[1]), first_right))
    length = math.prod(operands[0][0].shape[i] for i in contracted[0])

    def term(place, *arrays):
        """Return the products at one place of the contracted axes, or at a slice as first axis."""
        sides, sliced = [], isinstance(place, slice)
        for s, (array, (_, mapped)) in enumerate(zip(arrays, operands, strict=True)):
            kept = [*batch[s], *free[s], *[ranks[s]] * mapped]
            if len(contracted[s]) == 1:
                (axis,) = contracted[s]
            else:
                array = jnp.transpose(array, (*contracted[s], *kept))
                array = array.reshape(length, *array.shape[len(contracted[s]) :])
                axis, kept = 0, range(1, array.ndim)
            array = _take(place, array, axis)
            order = [*[axis] * sliced, *(i - (i > axis and not sliced) for i in kept)]
            missing = [sliced + i for i in (*gaps[s], *[last] * (not mapped))]
            array = jnp.expand_dims(jnp.transpose(array, order), missing)
            sides.append(array.astype(preferred_element_type or array.dtype))
        return sides[0] * sides[1]

    return _unrolled_sum(options, term, length, 0, *[array for array, _ in operands])


def _reduce_sum(options, operands, *, axes, **_):
    array = operands[0][0]
    for axis in sorted(axes, reverse=True):
        array = _unrolled_sum(
            options, functools.partial(_take, axis=axis), array.shape[axis], axis, array
        )
    return array


def _reduce_extreme(operation, reduction, options, operands, *, axes, **_):
    array = operands[0][0]
    if any(array.shape[axis] > SHORT for axis in axes):
        return reduction(array, axes)

    def unrolled(array):
        for axis in sorted(axes, reverse=True):
            array = functools.reduce(
                operation,
                [lax.index_in_dim(array, i, axis, False) for i in range(array.shape[axis])],
            )
        return array

    return options.call(unrolled, array)


RULES: dict[str, Callable] = {
    "broadcast_in_dim": _broadcast_in_dim,
    "reshape": _reshape,
    "transpose": _transpose,
    "slice": _slice,
    "split": _split,
    "pad": _pad,
    "optimization_barrier": _optimization_barrier,
    "threefry2x32": _threefry2x32,
    "dot_general": _dot_general,
    "reduce_sum": _reduce_sum,
    "reduce_max": functools.partial(_reduce_extreme, jnp.maximum, jnp.max),
    "reduce_min": functools.partial(_reduce_extreme, jnp.minimum, jnp.min),
}
