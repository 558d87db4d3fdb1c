"""The life of a small GPT-2: train, trim, reset, resize, untie and tie, and save in between."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from bodies import once
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import jaxtie
from jaxtie import is_tied, reset_rows, resize, tie, untie

V, D, T, HEADS, BATCH = 24, 8, 6, 2, 4
KEEP = [20, 3, 4, 5, 7, 8, 9, 11, 12, 13, 14, 16, 17, 18, 22, 0]
TX = optax.adamw(1e-2, weight_decay=0.1)


def start():
    """Return the table and the body of a model of two blocks."""
    rng = np.random.default_rng(0)

    def draw(*shape):
        return jnp.asarray(rng.normal(size=shape) * 0.3)

    def norm():
        return {"scale": 1 + draw(D), "shift": draw(D)}

    def block():
        matrices = {"qkv": draw(3, D, D), "merge": draw(D, D)}
        matrices |= {"up": draw(D, 4 * D), "down": draw(4 * D, D)}
        return {"one": norm(), "two": norm(), **matrices}

    body = {"positions": draw(T, D), "last": norm(), "blocks": {"a": block(), "b": block()}}
    return draw(V, D), body


def hidden(body, rows):
    """Return the hidden states of a batch of embeddings; BxTxD."""

    def norm(p, h):
        h = (h - h.mean(-1, keepdims=True)) * jax.lax.rsqrt(h.var(-1, keepdims=True) + 1e-5)
        return h * p["scale"][None, None] + p["shift"][None, None]

    h = rows + body["positions"][None]
    for block in body["blocks"].values():
        query, key, value = (
            (norm(block["one"], h) @ matrix).reshape(*h.shape[:2], HEADS, -1)
            for matrix in block["qkv"]
        )
        scores = jnp.einsum("bqhc,bkhc->bhqk", query, key) / np.sqrt(D // HEADS)
        sees = np.tril(np.ones((T, T), bool))[None, None]
        share = jax.nn.softmax(jnp.where(sees, scores, -jnp.inf))
        mixed = jnp.einsum("bhqk,bkhc->bqhc", share, value)
        h = h + mixed.reshape(h.shape) @ block["merge"]
        h = h + jax.nn.gelu(norm(block["two"], h) @ block["up"]) @ block["down"]
    return norm(body["last"], h)


def loss_by_hand(table, output, body, tokens):
    """Return the loss in NumPy, a sequence, head and position at a time."""

    def norm(p, x):
        return (x - x.mean()) / np.sqrt(x.var() + 1e-5) * p["scale"] + p["shift"]

    def gelu(x):
        return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

    losses = []
    for sequence in tokens:
        h = [table[token] + body["positions"][i] for i, token in enumerate(sequence[:-1])]
        for block in body["blocks"].values():
            normed = [norm(block["one"], x) for x in h]
            q, k, v = (np.array([x @ matrix for x in normed]) for matrix in block["qkv"])
            for i in range(len(h)):
                mixed = []
                for own in np.split(np.arange(D), HEADS):
                    mass = np.exp(k[: i + 1, own] @ q[i, own] / np.sqrt(len(own)))
                    mixed.append(mass @ v[: i + 1, own] / mass.sum())
                h[i] = h[i] + np.concatenate(mixed) @ block["merge"]
            h = [x + gelu(norm(block["two"], x) @ block["up"]) @ block["down"] for x in h]
        for x, target in zip(h, sequence[1:], strict=True):
            logits = output @ norm(body["last"], x)
            losses.append(np.log(np.exp(logits).sum()) - logits[target])
    return np.mean(losses)


def loss_of(logits, tokens):
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


class OfTree:
    """Parameters and state of a tree; `loss` is a function of both tables and the body."""

    def __init__(self, params, paths, logits, parts):
        self.params, self.paths, self.logits, self.parts = params, paths, logits, parts
        self.opt_state, self.update = TX.init(params), once(self._update)

    def _update(self, params, opt_state, tokens):
        def loss(params):
            return loss_of(self.logits(params, tokens[:, :-1]), tokens)

        value, slope = jax.value_and_grad(loss)(params)
        updates, opt_state = TX.update(slope, opt_state, params)
        return value, optax.apply_updates(params, updates), opt_state

    def step(self, tokens):
        loss, self.params, self.opt_state = self.update(self.params, self.opt_state, tokens)
        return loss

    def edit(self, change, *arguments, **options):
        more = {} if change is tie else {"tx": TX}
        if change is untie and "head/kernel" in self.paths.values():
            more["transposed"] = True
        found = change(self.params, self.opt_state, *arguments, **self.paths, **options, **more)
        self.params, self.opt_state = found[:2]
        return found[2:]

    def is_tied(self):
        return is_tied(self.params, **self.paths)

    def moments(self):
        return self.opt_state[0].mu, self.opt_state[0].nu

    def put(self, leaves):
        both = self.params, self.opt_state
        self.params, self.opt_state = jax.tree.unflatten(jax.tree.structure(both), leaves)

    def leaves(self):
        return jax.tree.leaves((self.params, self.opt_state))


def plain(table, body):
    def logits(params, tokens):
        own = params["wte"]["embedding"]
        head = params["head"]["kernel"] if "head" in params else own.T
        return hidden(params["body"], own[tokens]) @ head

    def parts(tree):
        head = tree["head"]["kernel"].T if "head" in tree else None
        return tree["wte"]["embedding"], head, tree["body"]

    params = {"wte": {"embedding": table}, "body": body}
    paths = {"input": "wte/embedding", "output": "head/kernel"}
    return OfTree(params, paths, logits, parts)


def linen(table, body):
    class Model(nn.Module):
        rows: int

        @nn.compact
        def __call__(self, tokens):
            embedding = jaxtie.Embedding(
                self.rows, D, tied=True, param_dtype="float64", name="embedding"
            )
            return embedding.logits(hidden(self.param("body", lambda _: body), embedding(tokens)))

    def logits(params, tokens):
        return Model(len(params["embedding"]["input"])).apply({"params": params}, tokens)

    def parts(tree):
        return tree["embedding"]["input"], tree["embedding"].get("output"), tree["body"]

    return OfTree({"embedding": {"input": table}, "body": body}, {}, logits, parts)


def equinox(table, body):
    eqx = pytest.importorskip("equinox", reason="needs Equinox: pip install 'jaxtie[test]'")

    class Model(eqx.Module):
        embed: eqx.nn.Embedding
        head: jax.Array | None
        body: dict

    def logits(model, tokens):
        own = model.embed.weight
        output = own if model.head is None else model.head
        return hidden(model.body, own[tokens]) @ output.T

    def parts(tree):
        return tree.embed.weight, tree.head, tree.body

    model = Model(eqx.nn.Embedding(weight=table), None, body)
    return OfTree(model, {"input": "embed/weight", "output": "head"}, logits, parts)


class OfModule:
    """An NNX model, whose `nnx.Embed` makes the logits, and its optimizer."""

    class Model(nnx.Module):
        def __init__(self, table, body):
            self.embed = nnx.Embed(V, D, param_dtype=table.dtype, rngs=nnx.Rngs(0))
            self.embed.embedding.set_value(table)

            def variables(tree):
                is_dict = isinstance(tree, dict)
                return (
                    nnx.Dict({k: variables(v) for k, v in tree.items()})
                    if is_dict
                    else (nnx.Param(tree))
                )

            self.body = variables(body)

        def __call__(self, tokens):
            body = nnx.to_pure_dict(nnx.state(self.body))
            return self.embed.attend(hidden(body, self.embed(tokens)))

    def __init__(self, table, body):
        self.model = self.Model(table, body)
        self.optimizer = nnx.Optimizer(self.model, TX, wrt=nnx.Param)
        self.params, self.step_of = None, nnx.jit(self.update)

    @staticmethod
    def update(model, optimizer, tokens):
        loss, slope = nnx.value_and_grad(lambda model: loss_of(model(tokens[:, :-1]), tokens))(
            model
        )
        optimizer.update(model, slope)
        return loss

    def step(self, tokens):
        return self.step_of(self.model, self.optimizer, tokens)

    def edit(self, change, *arguments, **options):
        return change(self.model, self.optimizer, *arguments, **options)[2:]

    def is_tied(self):
        return is_tied(self.model)

    def parts(self, tree):
        own = nnx.to_pure_dict(nnx.state(self.model) if tree is None else tree)
        return own["embed"]["embedding"], own["embed"].get("output"), own["body"]

    def moments(self):
        return self.optimizer.opt_state[0].mu, self.optimizer.opt_state[0].nu

    def leaves(self):
        return jax.tree.leaves((nnx.state(self.model), nnx.state(self.optimizer)))

    def put(self, leaves):
        both = nnx.state(self.model), nnx.state(self.optimizer)
        states = jax.tree.unflatten(jax.tree.structure(both), leaves)
        nnx.update(self.model, states[0])
        nnx.update(self.optimizer, states[1])


WAYS = {"plain": plain, "linen": linen, "nnx": OfModule, "equinox": equinox}


def save_and_restore(model, path):
    """Put what Orbax restores into the model, after everything in it was set to 0."""
    saved = {str(i): leaf for i, leaf in enumerate(model.leaves())}
    before = list(map(np.asarray, saved.values()))
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, saved)
        checkpointer.wait_until_finished()
        model.put([jnp.zeros_like(leaf) for leaf in saved.values()])
        like = {
            name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
            for name, leaf in saved.items()
        }
        restored = checkpointer.restore(path, like)
    model.put([restored[name] for name in saved])
    for one, other in zip(before, model.leaves(), strict=True):
        np.testing.assert_array_equal(one, other)


def tables(model, tree=None):
    """Return the tables of the model, or of a tree laid out like it, on the host."""
    one, other, _ = model.parts(model.params if tree is None else tree)
    return [None if table is None else np.asarray(table) for table in (one, other)]


def edit_and_compare(model, change):
    """Edit a model; compare tables and moments with the same edit in NumPy; return the tokens."""
    trees = [lambda: None, lambda: model.moments()[0], lambda: model.moments()[1]]
    before = [tables(model, tree()) for tree in trees]
    tokens = len(KEEP)
    if change == "trim":
        (_, new_ids) = model.edit(resize, keep=KEEP)
        assert [int(new_ids[old]) for old in KEEP] == list(range(len(KEEP)))
        expected = [[table[KEEP], None] for table, _ in before]
    elif change == "reset":
        model.edit(reset_rows, [1, 6])
        expected = [[table.copy(), None] for table, _ in before]
        rest = np.delete(before[0][0], [1, 6], axis=0)
        for number, (table, _) in enumerate(expected):
            table[[1, 6]] = 0 if number else rest.mean(0)
    elif change == "resize":
        tokens += 3
        model.edit(resize, tokens, multiple=4)
        rows = [table.mean(0) * (number == 0) for number, (table, _) in enumerate(before)]
        expected = [
            [np.vstack([table, *[row] * 4]), None]
            for row, (table, _) in zip(rows, before, strict=True)
        ]
    elif change == "untie":
        model.edit(untie)
        expected = [[table, table] for table, _ in before]
        tokens += 3
    else:
        model.edit(tie)
        expected = [[(one + other) / 2, None] for one, other in before]
        tokens += 3
    for tree, both in zip(trees, expected, strict=True):
        for found, table in zip(tables(model, tree()), both, strict=True):
            assert (found is None) == (table is None)
            if found is not None:
                np.testing.assert_allclose(found, table, rtol=1e-12, atol=1e-14)
    assert model.is_tied() == (change != "untie")
    return tokens


def live(way, steps, path):
    """Return the largest relative difference between a loss and NumPy's from the parameters."""
    mesh = jax.make_mesh((2,), ("vocabulary",), axis_types=(AxisType.Auto,))
    split = NamedSharding(mesh, PartitionSpec("vocabulary", None))
    table, body = start()
    body = jax.device_put(body, NamedSharding(mesh, PartitionSpec()))
    model = WAYS[way](jax.device_put(table, split), body)
    rng, tokens = np.random.default_rng(1), V
    changes, largest = [None, "trim", "reset", "resize", "untie", "tie"], 0.0
    for change in changes:
        if change:
            tokens = edit_and_compare(model, change)
            save_and_restore(model, path / change)
        for _ in range(-(-steps // len(changes))):
            batch = jnp.asarray(rng.integers(tokens, size=(BATCH, T + 1)))
            one, other, own = jax.device_get(model.parts(model.params))
            expected = loss_by_hand(one, one if other is None else other, own, np.asarray(batch))
            difference = abs(float(model.step(batch)) / expected - 1)
            assert difference < 1e-10
            largest = max(largest, difference)
        for leaf in model.leaves():
            if leaf.ndim == 2 and D in leaf.shape and len(leaf) not in (T, D, 4 * D):
                assert not leaf.sharding.is_fully_replicated
    return largest


@pytest.mark.parametrize("way", ["plain", "nnx"])
def test_a_life_of_a_few_steps(way, tmp_path, x64):
    live(way, 6, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_life_of_200_steps(way, tmp_path, x64):
    print(f"{way}: losses differ by at most {live(way, 200, tmp_path):.1e}")
