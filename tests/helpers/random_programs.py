"""Random programs of JAX, each a function of arrays, as inputs of what must agree on any program.

A program is drawn while it is traced, by shapes and types alone, so tracing it again gives the same
one. Results stay small, and what jumps (floor, a comparison, argmax) is shifted, so that another
order of summation does not change it.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.random import threefry_2x32

SIZES = (1, 2, 3, 4, 9, 23)
LARGEST = 200  # elements of an array
INTEGERS = (jnp.int32, jnp.uint32, jnp.int8)
SHIFT = 0.12345  # no sum of a few small numbers is so


class Program:
    """Values so far, and the random numbers that choose the next one."""

    def __init__(self, seed: int, values: Sequence[jax.Array], depth: int, zero_size: bool):
        self.rng = np.random.default_rng(seed)
        self.values, self.depth, self.zero_size = [*values], depth, zero_size

    def integer(self, high: int) -> int:
        return int(self.rng.integers(high))

    def one_of(self, choices: Sequence[Any]) -> Any:
        return choices[self.integer(len(choices))]

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def shape(self, rank: int | None = None) -> tuple[int, ...]:
        sizes = (0, *SIZES) if self.zero_size and self.chance(0.4) else SIZES
        rank = self.integer(4) if rank is None else rank
        shape = tuple(self.one_of(sizes) for _ in range(rank))
        return shape if np.prod(shape) <= LARGEST else self.shape(rank)

    def axis(self, x: jax.Array) -> int:
        return self.integer(x.ndim)

    def axes(self, x: jax.Array) -> tuple[int, ...]:
        return tuple(i for i in range(x.ndim) if self.chance(0.5))

    def order(self, x: jax.Array) -> tuple[int, ...]:
        return tuple(map(int, self.rng.permutation(x.ndim)))

    def any(self, shape: tuple[int, ...] | None = None, rank: int = 0) -> jax.Array:
        """Return a value, of this shape or of at least this rank."""
        x = self.one_of(self.values)
        if shape is not None:
            return fit(x, shape)
        return x if x.ndim >= rank else fit(x, self.shape(rank + self.integer(2)))

    def floats(self, shape: tuple[int, ...] | None = None, rank: int = 0) -> jax.Array:
        return as_float(self.any(shape, rank))

    def ints(self, shape: tuple[int, ...] | None = None, rank: int = 0) -> jax.Array:
        return as_integer(self.any(shape, rank), self.one_of(INTEGERS))

    def bools(self, shape: tuple[int, ...] | None = None, rank: int = 0) -> jax.Array:
        return as_bool(self.any(shape, rank))

    def number(self, shape: tuple[int, ...] | None = None, rank: int = 0) -> jax.Array:
        return self.one_of((self.floats, self.floats, self.ints))(shape, rank)

    def index(self, size: int, shape: tuple[int, ...] = ()) -> jax.Array:
        """Return places in an axis, a few of them outside."""
        return as_integer(self.any(shape), jnp.int32) % (size + 1 + self.integer(2)) - self.integer(
            2
        )

    def inner(self, steps: int = 3) -> Callable[..., jax.Array]:
        """Return a program of arrays to an array like the first; it may use the values so far."""
        seed, outer = self.integer(2**31), [self.any() for _ in range(self.integer(3))]

        def program(*arrays: jax.Array) -> jax.Array:
            own = Program(seed, [*arrays, *outer], self.depth - 1, self.zero_size)
            own.extend(1 + own.integer(steps))
            return as_type(fit(own.values[-1], arrays[0].shape), arrays[0].dtype)

        return program

    def closed(self) -> Callable[..., jax.Array]:
        """Return an inner program that uses its arguments alone."""
        seed = self.integer(2**31)

        def program(*arrays: jax.Array) -> jax.Array:
            own = Program(seed, arrays, self.depth - 1, self.zero_size)
            own.extend(1 + own.integer(3))
            return as_type(fit(own.values[-1], arrays[0].shape), arrays[0].dtype)

        return program

    def extend(self, steps: int) -> None:
        """Add the results of so many operations to the values."""
        names = [*PLAIN, *KNOWN, *(NESTED if self.depth else ())]
        for _ in range(steps):
            name = self.one_of(names)
            found = (PLAIN | NESTED)[name](self)
            self.values += map(bounded, found if isinstance(found, (tuple, list)) else [found])


def bounded(x: jax.Array) -> jax.Array:
    return lax.clamp(jnp.array(-4.0, x.dtype), x, jnp.array(4.0, x.dtype)) if is_float(x) else x


def is_float(x: jax.Array) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)


def fit(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Return the elements in another shape, repeated or cut."""
    if x.shape == shape:
        return x
    size = int(np.prod(shape))
    if x.size < size:
        x = jnp.tile(x.ravel(), -(-size // x.size)) if x.size else jnp.zeros(size, x.dtype)
    return x.ravel()[:size].reshape(shape)


def as_float(x: jax.Array) -> jax.Array:
    return x.astype(float) if is_float(x) else jnp.sin(x.astype(float) + SHIFT)


def as_integer(x: jax.Array, dtype: Any) -> jax.Array:
    if is_float(x):
        x = jnp.floor(7 * jnp.nan_to_num(x) + SHIFT).astype(jnp.int32)
    return x.astype(dtype)


def as_bool(x: jax.Array) -> jax.Array:
    return x > SHIFT if is_float(x) else x if x.dtype == bool else x % jnp.array(2, x.dtype) == 1


def as_type(x: jax.Array, dtype: Any) -> jax.Array:
    if jnp.issubdtype(dtype, jnp.floating):
        return as_float(x).astype(dtype)
    return as_integer(x, dtype) if jnp.issubdtype(dtype, jnp.integer) else as_bool(x)


def spread_out(x: jax.Array) -> jax.Array:
    """Return distinct elements, whose order does not depend on rounding."""
    return x + 0.01 * jnp.arange(x.size, dtype=x.dtype).reshape(x.shape) if is_float(x) else x


# ----- Operations.


def unary(p: Program) -> jax.Array:
    x = p.floats()
    name = p.one_of(
        "abs cos sin tan tanh logistic erf erfc expm1 exp2 neg square is_finite cbrt asinh atan"
        " integer_pow exp log log1p sqrt rsqrt lgamma erf_inv floor ceil round sign copy"
        " reduce_precision".split()
    )
    if name == "integer_pow":
        return lax.integer_pow(x, p.one_of((-1, 2, 3)))
    if name in ("floor", "ceil", "round", "sign"):
        return getattr(lax, name)(x + SHIFT)
    if name in ("log", "log1p", "sqrt", "rsqrt", "lgamma"):
        return getattr(lax, name)(abs(x) + 0.5)
    if name == "erf_inv":
        return lax.erf_inv(0.9 * jnp.tanh(x))
    if name == "copy":
        return jnp.copy(x)
    if name == "reduce_precision":  # as it stands a change of the last bit may round otherwise
        return lax.reduce_precision(jnp.floor(x + SHIFT), 5, 10)
    return getattr(lax, name)(x)


def unary_of_integers(p: Program) -> jax.Array:
    x = p.ints()
    name = p.one_of("abs neg not population_count clz sign".split())
    if name == "not":
        return ~(p.bools() if p.chance(0.5) else x)
    if name in ("abs", "neg") and x.dtype == jnp.uint32:
        return x + 1
    return getattr(lax, {"not": "bitwise_not"}.get(name, name))(x)


def operands(p: Program, kind: Callable) -> tuple[jax.Array, jax.Array]:
    """Return two arrays of one shape, one of them a literal now and then."""
    x = kind()
    if p.chance(0.2):
        y = np.full(x.shape, 1 + p.integer(3), x.dtype) if p.chance(0.5) else 1 + p.integer(3)
        return (x, y) if p.chance(0.5) else (y * jnp.ones_like(x), x)
    y = kind(x.shape) if p.chance(0.8) else jnp.full(x.shape, kind(()))
    return x, as_type(y, x.dtype)


def binary(p: Program) -> jax.Array:
    x, y = operands(p, p.floats)
    name = p.one_of("add subtract multiply maximum minimum divide power remainder arctan2".split())
    if name in ("divide", "remainder"):
        y = abs(y) + 0.37
    if name == "power":
        x = abs(x) + 0.5
    return getattr(jnp, name)(x, y)


def binary_of_integers(p: Program) -> jax.Array:
    x, y = operands(p, p.ints)
    name = p.one_of(
        "add subtract multiply maximum minimum floor_divide remainder bitwise_and bitwise_or"
        " bitwise_xor left_shift right_shift".split()
    )
    if name in ("floor_divide", "remainder"):
        y = jnp.where(y == 0, jnp.ones_like(x), y)
    if "shift" in name:
        y = jnp.clip(y, 0, 5).astype(x.dtype)
    return getattr(jnp, name)(x, y)


def compare(p: Program) -> jax.Array:
    x, y = operands(p, p.number)
    x = x + SHIFT if is_float(x) else x
    return getattr(jnp, p.one_of("equal not_equal less less_equal greater greater_equal".split()))(
        x, y
    )


def logical(p: Program) -> jax.Array:
    x = p.bools()
    return getattr(jnp, p.one_of(("logical_and", "logical_or", "logical_xor")))(x, p.bools(x.shape))


def select(p: Program) -> jax.Array:
    x, y = operands(p, p.number)
    return lax.select_n(p.bools(() if p.chance(0.3) else x.shape), x, y + jnp.zeros_like(x))


def clamp(p: Program) -> jax.Array:
    x = p.floats()
    low, high = (p.floats(() if p.chance(0.5) else x.shape) for _ in range(2))
    return lax.clamp(low - 1, x, high + 1) if low.shape == high.shape else lax.clamp(-1.0, x, 1.0)


def convert(p: Program) -> jax.Array:
    x = p.any()
    return as_type(x, p.one_of((*INTEGERS, bool, float, jnp.float32 if not is_float(x) else float)))


def reduce(p: Program) -> jax.Array:
    x = p.floats()
    axes = p.axes(x)
    name = p.one_of("sum max min prod".split())
    x = spread_out(x) if name in ("max", "min") else x
    return getattr(lax, f"reduce_{name}")(x, axes)


def reduce_integers(p: Program) -> jax.Array:
    x = p.ints()
    return getattr(lax, f"reduce_{p.one_of('sum max min prod and or xor'.split())}")(x, p.axes(x))


def reduce_bools(p: Program) -> jax.Array:
    x = p.bools()
    return getattr(lax, f"reduce_{p.one_of('and or xor'.split())}")(x, p.axes(x))


def reduce_by_function(p: Program) -> jax.Array:
    x = p.floats()
    return lax.reduce(x, x.dtype.type(1), lambda a, b: a * b, p.axes(x))


def arg(p: Program) -> jax.Array:
    x = spread_out(p.number(rank=1))
    axis = p.axis(x)
    if not x.shape[axis]:
        return x
    return getattr(lax, p.one_of(("argmax", "argmin")))(x, axis, p.one_of((jnp.int32, jnp.uint32)))


def cumulate(p: Program) -> jax.Array:
    x = p.number(rank=1)
    name = p.one_of("cumsum cumprod cummax cummin cumlogsumexp".split())
    x = as_float(x) if name == "cumlogsumexp" else spread_out(x)
    return getattr(lax, name)(x, p.axis(x), p.chance(0.5))


def nn(p: Program) -> jax.Array:
    x = p.floats(rank=1)
    name = p.one_of(
        "relu relu6 softmax log_softmax logsumexp gelu silu softplus elu one_hot".split()
    )
    if name == "one_hot":
        return jax.nn.one_hot(p.index(4, p.shape(2)), 4)
    if name in ("softmax", "log_softmax", "logsumexp"):
        axis = p.axis(x)
        return getattr(jax.nn, name)(spread_out(x), axis) if x.shape[axis] else x
    return getattr(jax.nn, name)(x)


def reshape(p: Program) -> jax.Array:
    x = p.any()
    if p.chance(0.4):
        return lax.reshape(x, (x.size,), p.order(x))
    return x.reshape(p.one_of([(x.size,), (1, x.size), x.shape[::-1], (*x.shape, 1)]))


def axes_changed(p: Program) -> jax.Array:
    x = p.any(rank=1)
    name = p.one_of("transpose rev squeeze expand_dims moveaxis".split())
    if name == "transpose":
        return lax.transpose(x, p.order(x))
    if name == "rev":
        return lax.rev(x, p.axes(x))
    if name == "squeeze":
        ones = [i for i in p.axes(x) if x.shape[i] == 1]
        return lax.squeeze(x, ones)
    if name == "expand_dims":
        return lax.expand_dims(x, (p.axis(x),))
    return jnp.moveaxis(x, p.axis(x), p.axis(x))


def broadcast(p: Program) -> jax.Array:
    x = p.any()
    if p.chance(0.5):
        return jnp.broadcast_to(x, (2, *x.shape))
    return lax.broadcast_in_dim(
        x, (*x.shape[:1], 3, *x.shape[1:]), [i + (i > 0) for i in range(x.ndim)]
    )


def cut(p: Program) -> jax.Array:
    x = p.any(rank=1)
    starts = [p.integer(n + 1) for n in x.shape]
    ends = [p.integer(n - a + 1) + a for n, a in zip(x.shape, starts)]
    return lax.slice(x, starts, ends, None if p.chance(0.4) else [1 + p.integer(3) for _ in starts])


def split(p: Program) -> list[jax.Array]:
    x = p.any(rank=1)
    axis = p.axis(x)
    first = p.integer(x.shape[axis] + 1)
    return lax.split(x, (first, x.shape[axis] - first), axis)


def pad(p: Program) -> jax.Array:
    x = p.number()
    value = as_type(p.any(()), x.dtype) if p.chance(0.5) else x.dtype.type(1)
    negative = [-min(n, p.integer(2)) if p.chance(0.3) else p.integer(3) for n in x.shape]
    return lax.pad(x, value, [(p.integer(3), high, p.integer(3)) for high in negative])


def concatenate(p: Program) -> jax.Array:
    x = p.any(rank=1)
    return lax.concatenate([x, as_type(p.any(x.shape), x.dtype), x][: 1 + p.integer(3)], p.axis(x))


def take(p: Program) -> jax.Array:
    x = p.any(rank=1)
    axis = p.axis(x)
    if not x.shape[axis]:
        return x
    where = p.index(x.shape[axis], p.shape(p.integer(3)))
    mode = p.one_of(("clip", "fill", "wrap"))
    return jnp.take(x, where, axis, mode=mode)


def take_along(p: Program) -> jax.Array:
    x = p.any(rank=1)
    axis = p.axis(x)
    if not x.size:
        return x
    return jnp.take_along_axis(x, p.index(x.shape[axis], x.shape), axis, mode="clip")


def gather(p: Program) -> jax.Array:
    x = p.any(rank=2)
    return x[p.index(x.shape[0], (3,)), :, None] if x.shape[0] else x


def dynamic_slice(p: Program) -> jax.Array:
    x = p.any(rank=1)
    starts = [p.index(n) if p.chance(0.7) else jnp.int32(0) for n in x.shape]
    return lax.dynamic_slice(x, starts, [min(n, 1 + p.integer(3)) for n in x.shape])


def dynamic_update(p: Program) -> jax.Array:
    x = p.any(rank=1)
    part = as_type(p.any(tuple(min(n, 1 + p.integer(3)) for n in x.shape)), x.dtype)
    return lax.dynamic_update_slice(x, part, [p.index(n) for n in x.shape])


def scatter(p: Program) -> jax.Array:
    x = p.number(rank=1)
    if not x.shape[0]:
        return x
    where = p.index(x.shape[0], (3,))
    name = p.one_of("set add mul max min".split())
    if name == "set":  # which of several wins is not defined
        where = where[:1]
    y = as_type(p.any((*where.shape, *x.shape[1:])), x.dtype)
    return getattr(x.at[where], name)(y, mode=p.one_of(("clip", "drop")))


def sort(p: Program) -> jax.Array | list[jax.Array]:
    x = spread_out(p.number(rank=1))
    axis = p.axis(x)
    if p.chance(0.4):
        return lax.sort([x, as_type(p.any(x.shape), jnp.int32), p.floats(x.shape)], dimension=axis)
    if p.chance(0.5):
        return jnp.argsort(x, axis)
    return lax.sort(x, dimension=axis)


def top(p: Program) -> list[jax.Array]:
    x = spread_out(p.floats(rank=1))
    return list(lax.top_k(x, min(2, x.shape[-1])))


def contract(p: Program) -> jax.Array:
    """Contract with random batch and contracted axes."""
    kind = p.one_of((p.floats, p.floats, p.ints, p.bools))
    x = kind()
    order = p.order(x)
    batch = p.integer(x.ndim + 1)
    count = p.integer(x.ndim - batch + 1)
    shared = order[: batch + count]
    sizes = [*(x.shape[i] for i in shared), *p.shape(p.integer(3))]
    places = p.rng.permutation(len(sizes))
    shape = [0] * len(sizes)
    for place, size in zip(places, sizes):
        shape[place] = size
    if np.prod(shape) > LARGEST or x.size * np.prod(sizes[len(shared) :]) > 20 * LARGEST:
        return x
    y = as_type(p.any(tuple(shape)), x.dtype)
    theirs = [int(i) for i in places[: len(shared)]]
    numbers = ((shared[batch:], theirs[batch:]), (shared[:batch], theirs[:batch]))
    wide = None if is_float(x) or x.dtype == bool or p.chance(0.5) else jnp.int32
    found = lax.dot_general(x, y, numbers, preferred_element_type=wide)
    return found / (1 + x.shape[0] if x.ndim else 1) if is_float(found) else found


def contract_scalars(p: Program) -> jax.Array:
    return lax.dot_general(2.0, p.floats(()), (((), ()), ((), ())))


def convolve(p: Program) -> jax.Array:
    x, kernel = p.floats((1, 2, 9)), p.floats((3, 2, 2))
    return lax.conv_general_dilated(x, kernel, (1 + p.integer(2),), p.one_of(("SAME", "VALID")))


def window(p: Program) -> jax.Array:
    x = spread_out(p.floats((3, 4)))
    return lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (1, 2), p.one_of(("SAME", "VALID")))


def algebra(p: Program) -> jax.Array:
    x = p.floats((3, 3))
    x = x @ x.T + 3 * jnp.eye(3)
    name = p.one_of(("cholesky", "solve", "fft", "inv", "qr"))
    if name == "solve":
        return jnp.linalg.solve(x, p.floats((3, 2)))
    if name == "fft":
        return jnp.fft.fft(x).real
    if name == "qr":
        return jnp.linalg.qr(x)[0] ** 2
    return getattr(jnp.linalg, name)(x)


def draw(p: Program) -> jax.Array:
    seed = as_integer(p.any(()), jnp.uint32)
    if p.chance(0.5):
        key = jax.random.fold_in(jax.random.key(p.integer(9)), seed)
    else:
        key = jax.random.wrap_key_data(jnp.stack([seed, seed + 1]))
    shape = p.shape()
    name = p.one_of("normal uniform bits bernoulli randint permutation categorical split".split())
    if name == "split":
        key, other = jax.random.split(key)
        return jax.random.key_data(other) % 7
    if name == "randint":
        return jax.random.randint(key, shape, 0, 1 + abs(as_integer(p.any(()), jnp.int32)))
    if name == "permutation":
        return jax.random.permutation(key, p.any((4,)))
    if name == "categorical":
        return jax.random.categorical(key, p.floats((5,)))
    if name == "bernoulli":
        return jax.random.bernoulli(key, 0.3, shape)
    return getattr(jax.random, name)(key, shape)


def threefry(p: Program) -> jax.Array:
    return threefry_2x32(as_integer(p.any((2,)), jnp.uint32), as_integer(p.any(), jnp.uint32))


def barrier(p: Program) -> list[jax.Array]:
    return list(lax.optimization_barrier((p.any(), p.any(), jnp.arange(3))))


def draw_in_loop(p: Program) -> list[jax.Array]:
    key = jax.random.key(as_integer(p.any(()), jnp.uint32) if p.chance(0.5) else 3)
    x = p.floats()

    def body(carry, _):
        key, x = carry
        key, own = jax.random.split(key)
        return (key, x + jax.random.normal(own, x.shape)), jax.random.gamma(own, 2.0)

    (key, x), ys = lax.scan(body, (key, x), None, 2)
    return [x, ys, jax.random.poisson(key, 3.0)]


def attend(p: Program) -> jax.Array:
    q, k, v = (p.floats((3, 2, 4)) for _ in range(3))
    return jax.nn.dot_product_attention(q, k, v, is_causal=p.chance(0.5))


def bits_of(p: Program) -> jax.Array:
    x = as_type(p.ints(), jnp.float32)  # exact
    return lax.bitcast_convert_type(jnp.floor(10 * x + SHIFT), p.one_of((jnp.int32, jnp.uint8)))


def new(p: Program) -> jax.Array:
    """Return an array that depends on no argument."""
    shape = p.shape()
    name = p.one_of(("arange", "iota", "full", "numpy"))
    if name == "arange":
        return jnp.arange(float(p.one_of(SIZES))) - 1
    if name == "iota":
        return lax.broadcasted_iota(jnp.int32, shape, 0) if shape else jnp.int32(2)
    if name == "full":
        return jnp.full(shape, 0.5)
    return jnp.asarray(p.rng.standard_normal(shape))


# ----- Operations with programs in them.


def scan(p: Program) -> list[jax.Array]:
    length = p.one_of((0, 1, 2, 5)) if p.zero_size else p.one_of((1, 2, 5))
    carry, xs = [p.any(), p.any()], [p.any((length, *p.shape(p.integer(3)))) for _ in range(2)]
    f, g, h = p.inner(), p.inner(), p.inner()

    def body(carry, slices):
        new = f(carry[0], *slices), g(carry[1], slices[0])
        return new, (h(slices[0], *carry), slices[1])

    given = tuple(xs) if p.chance(0.8) else None
    if given is None:
        f0 = f
        return jax.tree.leaves(
            lax.scan(lambda c, _: (f0(c), c), carry[0], None, length, reverse=p.chance(0.5))
        )
    options = {"reverse": p.chance(0.5), "unroll": p.one_of((1, 2)) if length else 1}
    return jax.tree.leaves(lax.scan(body, tuple(carry), given, **options))


def while_loop(p: Program) -> jax.Array:
    f, x = p.inner(), p.any()
    count = as_integer(p.any(()), jnp.int32) % 4

    def body(state):
        return state[0] + 1, f(state[1])

    return lax.while_loop(lambda state: state[0] < count, body, (jnp.int32(0), x))[1]


def fori_loop(p: Program) -> jax.Array:
    f = p.inner()
    return lax.fori_loop(0, p.integer(4), lambda i, x: f(x, i), p.any())


def condition(p: Program) -> jax.Array:
    f, g, x = p.inner(), p.inner(), p.any()
    if p.chance(0.3):
        return lax.switch(p.index(2), [f, g, lambda x, *_: x], x, p.any())
    return lax.cond(p.bools(()), f, g, x, p.any())


def mapped(p: Program) -> jax.Array:
    return lax.map(p.inner(), p.any((3, *p.shape(1))))


def vmapped(p: Program) -> jax.Array:
    x, y = p.any((3, *p.shape(1))), p.any((4, 3))
    return jax.vmap(p.inner(), (0, 1), p.integer(2))(x, y)


def associative(p: Program) -> jax.Array:
    return lax.associative_scan(jnp.add, p.number(rank=1))


def called(p: Program) -> jax.Array:
    how = p.one_of((jax.jit, jax.checkpoint, partial(jax.jit, inline=True)))
    return how(p.inner())(p.any(), p.any())


def with_jvp(p: Program) -> jax.Array:
    f, g = p.closed(), p.closed()
    rule = jax.custom_jvp(f)
    rule.defjvp(lambda primals, tangents: (f(*primals), tangents[0] * as_float(g(*primals))))
    return rule(p.floats(), p.any())


def with_vjp(p: Program) -> jax.Array:
    f, g = p.closed(), p.closed()
    rule = jax.custom_vjp(f)
    rule.defvjp(
        lambda x, y: (f(x, y), (x, y)), lambda kept, c: (c * as_float(g(*kept)), 0 * kept[1])
    )
    return rule(p.floats(), p.floats())


def gradient(p: Program) -> list[jax.Array]:
    f = p.inner()
    x, y = p.floats(), p.floats()
    return list(jax.grad(lambda x, y: jnp.sum(f(x, y) * jnp.cos(x)), (0, 1))(x, y))


def derivative(p: Program) -> list[jax.Array]:
    f, x = p.inner(), p.floats()
    return list(jax.jvp(f, (x,), (as_float(p.any(x.shape)),)))


PLAIN: dict[str, Callable] = {
    f.__name__: f
    for f in (
        unary, unary_of_integers, binary, binary_of_integers, compare, logical, select, clamp,
        convert, reduce, reduce_integers, reduce_bools, reduce_by_function, arg, cumulate, nn,
        reshape, axes_changed, broadcast, cut, split, pad, concatenate, take, take_along, gather,
        dynamic_slice, dynamic_update, scatter, sort, top, contract, contract_scalars, convolve,
        window, algebra, draw, threefry, barrier, bits_of, draw_in_loop,
        attend, new,
    )
}  # fmt: skip
NESTED: dict[str, Callable] = {
    f.__name__: f
    for f in (
        scan, while_loop, fori_loop, condition, mapped, vmapped, associative, called, with_jvp,
        with_vjp, gradient, derivative,
    )
}  # fmt: skip


# With rules in `lanes`: as often again.
KNOWN = "reduce reduce_integers contract contract reshape cut split pad concatenate barrier".split()


def random_program(seed: int) -> tuple[Callable[..., list[jax.Array]], jax.Array]:
    """Return a program, and arguments with the member axis last: floats, integers and bools.

    It uses an array that it closes over, too.
    """
    rng = np.random.default_rng(seed)
    members, zero_size = int(rng.choice([1, 2, 5])), rng.random() < 0.3
    shapes = Program(int(rng.integers(2**31)), [], 0, bool(zero_size))
    types = [float, *rng.choice(np.array(["float64", "int32", "uint32", "bool"]), 2)]
    arguments = [
        jnp.asarray(rng.integers(-9, 9, (*shapes.shape(), members)) / 5).astype(bool)
        if kind == "bool"
        else jnp.asarray(rng.standard_normal((*shapes.shape(), members)))
        if kind in (float, "float64")
        else jnp.asarray(rng.integers(0, 9, (*shapes.shape(), members))).astype(kind)
        for kind in types
    ]
    shared = jnp.asarray(rng.standard_normal(shapes.shape()))
    own, steps = int(rng.integers(2**31)), int(rng.integers(2, 9))

    def function(*arrays: jax.Array) -> list[jax.Array]:
        program = Program(own, [*arrays, shared], 2, bool(zero_size))
        program.extend(steps)
        return program.values[len(arrays) :]

    try:
        jax.eval_shape(jax.vmap(function, in_axes=-1, out_axes=-1), *arguments)
    except (ValueError, NotImplementedError):  # a derivative that JAX does not have
        return random_program(seed + 10_000)
    return function, *arguments
