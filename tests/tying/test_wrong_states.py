"""No state of an optimizer is lost: whatever it is of, it is edited as a whole or refused."""

from collections import Counter
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import zoo
from flax import nnx

import jaxtie.nnx
from jaxtie import is_tied, tie, untie

V, D = 7, 4
RNG = np.random.default_rng(0)
PATHS = {"embedding": {}, "maxtext": {"input": "embedding/table", "output": "body/head"}}
NOT_LAID_OUT = "is not laid out like the parameters; expected the state of an optimizer of exactly"


def start(layout, untied=False):
    body = {"w": jnp.ones((D, D)), "b": jnp.ones(D)}
    params = {"embedding": {"input" if layout == "embedding" else "table": jnp.ones((V, D))}}
    if untied and layout == "embedding":
        params["embedding"]["output"] = jnp.ones((V, D))
    elif untied:
        body["head"] = jnp.ones((D, V))
    return params | {"body": body}


def filled(tx, params):
    """Return a state after 5 steps, with another number for each value of a parameter."""

    def fill(leaf):
        of_params = not {V, D}.isdisjoint(leaf.shape)
        value = RNG.integers(6, 2**24, leaf.shape) if of_params else np.full(leaf.shape, 5)
        return value.astype(leaf.dtype)

    return jax.tree.map(fill, jax.eval_shape(tx.init, params))


def same(params):
    return params


def without_body(params):
    return {"embedding": params["embedding"]}


def with_more(params):
    return params | {"more": jnp.ones(3)}


def below_params(params):
    return {"params": params}


def labels(params):
    def label(path, _):
        keys = jax.tree_util.keystr(path)
        return "out" if "output" in keys or "head" in keys else "rest"

    return jax.tree.map_with_path(label, params)


def in_groups(tx):
    return optax.multi_transform({"out": tx, "rest": tx}, labels)


def in_masks(tx):
    def is_group(name):
        return lambda params: jax.tree.map(lambda label: label == name, labels(params))

    return optax.chain(*(optax.masked(tx, is_group(name)) for name in ("out", "rest")))


NESTINGS = {  # of the state: what it is of, instead of the parameters, and of which optimizer
    "right": (same, lambda tx: tx),
    "below params": (below_params, lambda tx: tx),
    "one more": (with_more, lambda tx: tx),
    "one less": (without_body, lambda tx: tx),
    "flattened": (same, optax.flatten),
    "groups": (same, in_groups),
    "masks": (same, in_masks),
}


def arrays(tree):
    """Return the arrays by their sorted values: an array may be transposed."""
    return {tuple(np.sort(np.ravel(x)).tolist()) for x in jax.tree.leaves(tree)}


def without_output(state):
    """Return a state without the entries of output tables, which `tie` removes."""

    def keep(path, leaf):
        keys = jax.tree_util.keystr(path)
        return None if "output" in keys or "head" in keys else leaf

    return jax.tree.map_with_path(keep, state)


def edit(change, params, state, tx, paths):
    """Return what `untie` or `tie` does with a state: preserved, refused or lost."""
    options = {"how": "input"} if change is tie else {"transposed": bool(paths)}
    try:
        _, new = change(params, state, **paths, **options, tx=tx)
    except ValueError as error:
        assert "\n" not in str(error)
        return "refused"
    before = arrays(without_output(state) if change is tie else state)
    return "lost" if before - arrays(new) else "preserved"


def outcomes(name, layout):
    """Return the outcome for each edit and nesting, with and without `tx`."""
    tx, found = zoo.make(name), {}
    another = zoo.make(zoo.NAMES[zoo.NAMES.index(name) - 3])
    for change in (untie, tie):
        params, paths = start(layout, untied=change is tie), PATHS[layout]
        below = {key: f"params/{path}" for key, path in paths.items()}
        cases = {
            "of another optimizer": (params, partial(filled, another, params), paths),
            "params above": ({"params": params}, partial(filled, tx, params), below),
        }
        for nesting, (of, wrap) in NESTINGS.items():
            cases[nesting] = params, partial(filled, wrap(tx), of(params)), paths
        for nesting, (own, make, own_paths) in cases.items():
            try:
                state = make()
            except (IndexError, TypeError, ValueError):  # Optax has none for such parameters
                continue
            for given in (tx, None) if nesting != "of another optimizer" else (tx,):
                key = change.__name__, nesting, given is not None
                found[key] = edit(change, own, state, given, own_paths)
    return found


REFUSED = {  # though right: they cannot be transposed, or train one table only
    ("lbfgs", "maxtext"),
    ("galore", "maxtext"),
    ("masked-part", "maxtext"),
    ("masked-other-part", "maxtext"),
}


def assert_nothing_lost(name, layout):
    """Return the outcomes."""
    found = outcomes(name, layout)
    assert "lost" not in found.values(), (name, found)
    if (name, layout) not in REFUSED:
        right = {key: outcome for key, outcome in found.items() if key[1] == "right"}
        assert set(right.values()) == {"preserved"}, (name, right)
    return found


@pytest.mark.parametrize("layout", PATHS)
@pytest.mark.parametrize("name", ["adamw", "adafactor", "sm3", "injected", "masked-part"])
def test_no_state_is_lost(name, layout):
    found = assert_nothing_lost(name, layout)
    for edit in ("untie", "tie"):
        for nesting in ("params above", "one more", "one less", "flattened"):
            assert {found.get((edit, nesting, given), "refused") for given in (True, False)} == {
                "refused"
            }


@pytest.mark.slow
def test_no_optimizer_loses_its_state():
    """Print a table: of 47 optimizers in two layouts, how many states of each nesting."""
    table = Counter()
    for name in zoo.NAMES:
        for layout in PATHS:
            for key, outcome in assert_nothing_lost(name, layout).items():
                table[(*key, outcome)] += 1
    for edit, nesting, given in sorted({key[:3] for key in table}):
        counts = (table[edit, nesting, given, outcome] for outcome in ("preserved", "refused"))
        print(f"{edit:6}{nesting:21}{'tx' if given else 'no tx':6}", *map("{:>4}".format, counts))


ADAM = optax.adam(1e-2)
NO_PLACE = "for which the optimizer tx has no place; pass the one that made the state"
ERRORS = [
    (below_params, ADAM, ADAM, rf"has ScaleByAdamState.\w+/params, {NO_PLACE}"),
    (with_more, ADAM, ADAM, rf"an array \(4,\) at 0/mu/body/b, which {NOT_LAID_OUT}"),
    (with_more, ADAM, None, NOT_LAID_OUT),
    (without_body, ADAM, None, NOT_LAID_OUT),
    (same, optax.flatten(ADAM), None, rf"an array \(48,\) at 0/mu, which {NOT_LAID_OUT}"),
    (same, optax.lion(1e-3), ADAM, rf"has ScaleByLionState.\w+, {NO_PLACE}"),
    (same, in_masks(ADAM), None, "group '0' has no parameter yet; pass the optimizer as tx="),
]


@pytest.mark.parametrize(("of", "old", "new", "message"), ERRORS)
def test_what_is_wrong_is_said_in_one_line(of, old, new, message):
    params = start("embedding")
    with pytest.raises(ValueError, match=message) as error:
        untie(params, filled(old, of(params)), tx=new)
    assert "\n" not in str(error.value)


def test_an_nnx_model_and_a_state_of_other_parameters():
    model = jaxtie.nnx.Embedding(V, D, True, bias=True, rngs=nnx.Rngs(0))
    state = ADAM.init(nnx.state(model, nnx.PathContains("input")))
    for tx in (None, ADAM):
        with pytest.raises(ValueError, match=NOT_LAID_OUT):
            untie(model, state, tx=tx)
    assert is_tied(model)


def test_groups_that_began_at_different_steps_become_one():
    """Its count is that of the group that has trained for longer."""
    params = start("embedding", untied=True)
    state = filled(in_groups(ADAM), params)
    of_output = state.inner_states["out"]
    late = jax.tree.map(lambda x: x if x.ndim else np.zeros_like(x), of_output)
    state = state._replace(inner_states=state.inner_states | {"out": late})
    assert tie(params, state, tx=ADAM)[1][0].count == 5


def test_the_moments_of_parameters_that_are_frozen_may_go():
    frozen = optax.multi_transform({"out": ADAM, "rest": optax.set_to_zero()}, labels)
    params = start("embedding")
    _, state = untie(params, filled(ADAM, params), tx=frozen)
    assert len(jax.tree.leaves(state)) == 3
