"""Train, untie into another group, train, resize, train, tie, train: against NumPy in float64."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from bodies import once
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from six_models import START, ByHand, D, V, WithEmbed, WithEmbedding, WithLinear, X, Y

from jaxtie import resize, tie, untie

RATES = {"output": 3e-3}
DECAYS = {"output": 0.3}
RATE, DECAY, EPS = 1e-2, 0.1, 1e-8
ONE = optax.adamw(RATE, eps=EPS, weight_decay=DECAY)
OF_OUTPUT = optax.adamw(RATES["output"], eps=EPS, weight_decay=DECAYS["output"])
NEW = V + 2


def labels(params):
    """The tables come in trees of many kinds; only the output's path has one of these names."""

    def label(path, _):
        keys = jax.tree_util.keystr(path)
        return "output" if any(name in keys for name in ("output", "head", "[1]")) else "rest"

    return jax.tree.map_with_path(label, params)


MANY = optax.multi_transform({"output": OF_OUTPUT, "rest": ONE}, labels)


class Reference(ByHand):
    """AdamW without clipping, a rate and a decay by table; the vocabulary can grow."""

    def loss_and_gradient(self):
        p = self.params
        output = p.get("output", p["input"])
        h = np.tanh(p["input"][X] @ p["W"] + p["b"])
        logits = h @ output.T
        mass = np.exp(logits - logits.max(1, keepdims=True))
        share = mass / mass.sum(1, keepdims=True)
        loss = -np.log(share[np.arange(len(Y)), Y]).mean()
        d_logits = (share - np.eye(len(output))[Y]) / len(Y)
        d_before = (d_logits @ output) * (1 - h**2)
        gradient = {"W": p["input"][X].T @ d_before, "b": d_before.sum(0)}
        gradient["input"] = np.zeros_like(p["input"])
        np.add.at(gradient["input"], X, d_before @ p["W"].T)
        if "output" in p:
            gradient["output"] = d_logits.T @ h
        else:
            gradient["input"] += d_logits.T @ h
        return loss, gradient

    def step(self):
        loss, gradient = self.loss_and_gradient()
        self.steps += 1
        for name, slope in gradient.items():
            one = 0.9 * self.moments[name][0] + 0.1 * slope
            two = 0.999 * self.moments[name][1] + 0.001 * slope**2
            self.moments[name] = np.stack([one, two])
            moved = one / (1 - 0.9**self.steps)
            moved /= np.sqrt(two / (1 - 0.999**self.steps)) + EPS
            decay = DECAYS.get(name, DECAY) * self.params[name]
            self.params[name] = self.params[name] - RATES.get(name, RATE) * (moved + decay)
        return loss

    def resize(self):
        for name in self.params.keys() & {"input", "output"}:
            table = self.params[name]
            rows = np.broadcast_to(table.mean(0), (NEW - V, D))
            self.params[name] = np.concatenate([table, rows])
            zeros = np.zeros((2, NEW - V, D))
            self.moments[name] = np.concatenate([self.moments[name], zeros], axis=1)


class Tree:
    """A tree and a function of it, trained with donation."""

    def __init__(self, params, logits, tables, paths, across=None):
        self.params, self.logits, self.tables = params, logits, tables
        self.paths, self.across = paths, across or {}
        self.use(ONE, ONE.init(self.arrays()))

    def arrays(self):
        return jax.tree.map(lambda leaf: leaf if hasattr(leaf, "shape") else None, self.params)

    def use(self, tx, opt_state):
        self.tx, self.opt_state = tx, opt_state
        shapes = partial(jax.tree.map, lambda leaf: (leaf.shape, leaf.dtype))
        assert shapes(opt_state) == shapes(jax.eval_shape(tx.init, self.arrays()))
        leaves, outline = jax.tree.flatten(self.params)
        self.fixed = [None if hasattr(leaf, "shape") else leaf for leaf in leaves]

        def update(arrays, opt_state):
            def loss_of(arrays):
                own = iter(jax.tree.leaves(arrays))
                leaves = [next(own) if leaf is None else leaf for leaf in self.fixed]
                logits = self.logits(jax.tree.unflatten(outline, leaves))
                return optax.softmax_cross_entropy_with_integer_labels(logits, Y).mean()

            loss, slope = jax.value_and_grad(loss_of)(arrays)
            updates, opt_state = tx.update(slope, opt_state, arrays)
            return loss, optax.apply_updates(arrays, updates), opt_state

        self.update, self.outline = once(update, donate_argnums=(0, 1)), outline

    def step(self):
        loss, arrays, self.opt_state = self.update(self.arrays(), self.opt_state)
        own = iter(jax.tree.leaves(arrays))
        leaves = [next(own) if leaf is None else leaf for leaf in self.fixed]
        self.params = jax.tree.unflatten(self.outline, leaves)
        return loss

    def edit(self, change, tx, *arguments, **options):
        found = change(self.params, self.opt_state, *arguments, **self.paths, **options, tx=tx)
        self.params = found[0]
        self.use(tx, found[1])

    def untie(self):
        self.edit(untie, MANY, **self.across)

    def resize(self):
        self.edit(resize, self.tx, NEW)

    def tie(self):
        self.edit(tie, ONE, "mean")

    def moments(self):
        """Return the tables' moments, from whichever group has them."""
        groups = [self.opt_state]
        if isinstance(self.opt_state, optax.PartitionState):
            groups = [group.inner_state for group in self.opt_state.inner_states.values()]
        return [group[0] for group in groups]


def maxtext_split():
    table, kernel, bias = map(jnp.asarray, START.values())
    mesh = jax.make_mesh((2,), ("vocabulary",), axis_types=(AxisType.Auto,))
    table = jax.device_put(table, NamedSharding(mesh, PartitionSpec("vocabulary", None)))
    kernel, bias = (jax.device_put(x, NamedSharding(mesh, PartitionSpec())) for x in (kernel, bias))

    def logits(params):
        table = params["token_embedder"]["embedding"]
        h = jnp.tanh(table[X] @ params["W"] + params["b"][None])
        return h @ params.get("decoder", {"head": table.T})["head"]

    def tables(params):
        head = params.get("decoder", {}).get("head")
        return params["token_embedder"]["embedding"], None if head is None else head.T

    paths = {"input": "token_embedder/embedding", "output": "decoder/head"}
    params = {"token_embedder": {"embedding": table}, "W": kernel, "b": bias}
    return Tree(params, logits, tables, paths, {"transposed": True})


def equinox_shared():
    import equinox as eqx

    table, kernel, bias = map(jnp.asarray, START.values())
    head = eqx.nn.Linear(D, V, use_bias=False, key=jax.random.key(0))
    layers = eqx.nn.Embedding(weight=table), eqx.tree_at(lambda head: head.weight, head, table)
    shared = eqx.nn.Shared(layers, lambda pair: pair[1].weight, lambda pair: pair[0].weight)

    def logits(params):
        embed, head = params["shared"]()
        return jnp.tanh(embed.weight[X] @ params["W"] + params["b"][None]) @ head.weight.T

    def tables(params):
        own = params["shared"].pytree
        output = own[1].weight
        return own[0].weight, output if hasattr(output, "shape") else None

    paths = {"input": "shared/pytree/0/weight", "output": "shared/pytree/1/weight"}
    return Tree({"shared": shared, "W": kernel, "b": bias}, logits, tables, paths)


@nnx.jit
def module_step(model, optimizer):
    def loss_of(model):
        return optax.softmax_cross_entropy_with_integer_labels(model(X), Y).mean()

    loss, gradient = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, gradient)
    return loss


class Module:
    """An NNX model; its optimizer has both groups from the start."""

    def __init__(self, make, names, paths=None):
        self.model, self.names, self.paths = make(nnx.Rngs(0)), names, paths or {}
        if paths:
            tie(self.model, how="input", **paths)
        self.optimizer = nnx.Optimizer(self.model, MANY, wrt=nnx.Param)

    params = property(lambda self: nnx.state(self.model, nnx.Param))

    def tables(self, params):
        found = []
        for name in self.names:
            node = params
            for key in name.split("/"):
                node = node[key] if node is not None and key in node else None
            value = None if node is None or isinstance(node, optax.MaskedNode) else node[...]
            found.append(value.T if value is not None and "kernel" in name else value)
        return found

    def step(self):
        return module_step(self.model, self.optimizer)

    def untie(self):
        untie(self.model, self.optimizer, **self.paths)

    def resize(self):
        resize(self.model, self.optimizer, NEW, **self.paths)

    def tie(self):
        tie(self.model, self.optimizer, **self.paths)

    def moments(self):
        groups = self.optimizer.opt_state.inner_states.values()
        return [group.inner_state[0] for group in groups]


WAYS = {  # others are in `six_models`
    "maxtext, split": maxtext_split,
    "equinox, shared": equinox_shared,
    "nnx": lambda: Module(WithEmbedding, ("embedding/input", "embedding/output")),
    "nnx, attend": lambda: Module(WithEmbed, ("embed/embedding", "embed/output")),
    "nnx, linear": lambda: Module(
        WithLinear,
        ("embed/embedding", "head/kernel"),
        {"input": "embed/embedding", "output": "head/kernel"},
    ),
}
TREE_MODE = [f"{name}, tree mode" for name in ("nnx", "nnx, attend")]


def is_array(leaf):
    return hasattr(leaf, "shape") and not isinstance(leaf, optax.MaskedNode)


def assert_alike(model, reference):
    close = partial(np.testing.assert_allclose, rtol=1e-11, atol=1e-12)
    expected = [reference.params.get(name) for name in ("input", "output")]
    for found, table in zip(model.tables(model.params), expected, strict=True):
        assert (found is None) == (table is None)
        if found is not None:
            close(found, table)
    of_tables = [
        sorted(np.sum(x[i] ** 2) for n, x in reference.moments.items() if n in reference.params)
        for i in (0, 1)
    ]
    for i, name in enumerate(("mu", "nu")):
        trees = [getattr(group, name) for group in model.moments()]
        sums = sorted(float(jnp.sum(leaf**2)) for leaf in jax.tree.leaves(trees))
        close(sums, of_tables[i])


SLOW = {"nnx, attend", "nnx, attend, tree mode"}  # much like others


@pytest.mark.parametrize(
    "way",
    [
        pytest.param(way, marks=[pytest.mark.slow] if way in SLOW else [])
        for way in (*WAYS, *TREE_MODE)
    ],
)
def test_a_table_through_all_edits(way, x64):
    if "equinox" in way:
        pytest.importorskip("equinox", reason="the test needs Equinox: pip install 'jaxtie[test]'")
    with nnx.set_graph_mode("tree mode" not in way):
        model, reference = WAYS[way.removesuffix(", tree mode")](), Reference()
        for change in (None, "untie", "resize", "tie"):
            if change:
                getattr(model, change)()
                getattr(reference, change)()
            assert_alike(model, reference)
            losses = np.array([[float(model.step()), reference.step()] for _ in range(4)])
            np.testing.assert_allclose(losses[:, 0], losses[:, 1], rtol=1e-12)
            assert_alike(model, reference)
            if "split" in way:  # tables and moments
                sizes = {V * D, NEW * D}
                for leaf in jax.tree.leaves((model.params, model.opt_state)):
                    assert leaf.size not in sizes or not leaf.is_fully_replicated
