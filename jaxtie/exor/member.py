"""What one member does on EXor: it starts, trains from record to record, is evaluated exactly. All pure.

A member is one seed at one setting in one arm. What all members of a program share is `Static`; what a member has of its own
is an argument, `Setting`, so one compiled program serves every setting. `jaxtie.exor.blocks` batches members.

Shapes: B samples, L tokens, P masked positions, V symbols, C contexts, K pairs of symbols, D width.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxtie.exor import process
from jaxtie.exor.declaration import Experiment, Process
from jaxtie.exor.process import Batch, Contexts
from jaxtie.experiment import Head
from jaxtie.models.bodies import build_body
from jaxtie.models.embedding import make_embedding, tables_of_params
from jaxtie.models.masked_lm import MaskedLM
from jaxtie.models.sizes import Body
from jaxtie.training import streams
from jaxtie.training.member import State, initial_state, keep_finite, update
from jaxtie.training.optimiser import make_adamw

AT_ONCE = 64  # contexts that an ordered model is evaluated on at once: there are 56,448, and a cache holds that many well
SPELLINGS = ((process.X, process.X + 1), (process.A, process.A + 1))  # token ids of symbols that spell the same bit


class Static(NamedTuple):
    """All of an experiment that a compiled program depends on, and nothing else."""

    model: Body
    tied: bool
    head: Head
    length: int
    all_strings: bool
    data_seed: int
    data: str
    record_every: int
    eval_every: int
    half_period: int
    b1: float
    b2: float

    @classmethod
    def of(cls, experiment: Experiment, *, tied: bool, head: Head = Head()) -> "Static":  # noqa: B008, it is frozen
        """What is static of an experiment's members while they are tied, or untied, with a head."""
        own, adam = experiment.process, experiment.optimiser
        return cls(
            experiment.model, tied, head, own.length, own.all_strings, own.data_seed, experiment.data,
            experiment.record_every, experiment.eval_every, adam.half_period, adam.b1, adam.b2,
        )  # fmt: skip

    @property
    def process(self) -> Process:
        """The process, at probabilities that are no member's own: contexts are the same ones whatever these are."""
        return Process(length=self.length, all_strings=self.all_strings, data_seed=self.data_seed)


class Setting(NamedTuple):
    """What a member has of its own: an argument of the compiled program, which is one for all values. float32."""

    learning_rate: jax.Array
    eta_min: jax.Array
    weight_decay: jax.Array
    eps: jax.Array
    zeros: jax.Array  # p(X), p(Y)
    ones: jax.Array  # p(A), p(B)
    train_CxV: jax.Array  # the exact law of the training split over its contexts
    valid_CxV: jax.Array


def build_model(static: Static) -> MaskedLM:
    """The model of a program's members."""
    ends = make_embedding(static.head, process.VOCABULARY, static.model.width, tied=static.tied)
    return MaskedLM(ends, build_body(static.model), process.MASK)


@functools.lru_cache(8)  # a run asks for its own many times, and they take a while
def build_contexts(own: Process, *, ordered: bool) -> tuple[Contexts, Contexts]:
    """The exact laws of the training and the validation split."""
    strings = process.split(own.length, own.all_strings, own.data_seed)
    return tuple(
        process.enumerate_contexts(bits, own.zeros, own.ones, ordered=ordered) for bits in (strings.train, strings.valid)
    )


def stack_settings(experiment: Experiment) -> Setting:
    """Every setting of the sweep, or the only one; host arrays (settings, ...)."""
    ordered = build_body(experiment.model).ordered
    laws: dict[Process, list[np.ndarray]] = {}

    def own(setting: Experiment) -> Setting:
        law, adam = setting.process, setting.optimiser
        if law not in laws:
            laws[law] = [split.joint_CxV for split in build_contexts(law, ordered=ordered)]
        scalars = (getattr(adam, name) for name in Setting._fields[:4])
        return jax.tree.map(np.float32, Setting(*scalars, np.array(law.zeros), np.array(law.ones), *laws[law]))

    return jax.tree.map(lambda *values: np.stack(values), *map(own, experiment.settings))


def loss_and_accuracy(model: nn.Module, params: dict, batch: Batch) -> tuple[jax.Array, jax.Array]:
    """Cross-entropy at the masked positions, nats, and share of likeliest symbols that are right; batch means."""
    logits_BxPxV = jax.vmap(lambda tokens, at: model.apply({"params": params}, tokens, at))(batch.tokens_BxL, batch.at_BxP)
    # One-hot, not an indexed load: on every backend the cheaper of the two for a small vocabulary.
    target_BxPxV = jax.nn.one_hot(batch.target_BxP, logits_BxPxV.shape[-1], dtype=logits_BxPxV.dtype)
    top_BxP = jnp.max(logits_BxPxV, axis=-1)
    shifted_BxPxV = logits_BxPxV - jax.lax.stop_gradient(top_BxP)[..., None]
    chosen_BxP = jnp.sum(shifted_BxPxV * target_BxPxV, axis=-1)
    loss_BxP = jnp.log(jnp.sum(jnp.exp(shifted_BxPxV), axis=-1)) - chosen_BxP
    return jnp.mean(loss_BxP), jnp.mean(chosen_BxP >= 0, dtype=loss_BxP.dtype)


def step(
    model: nn.Module, optimiser: optax.GradientTransformation, state: State, batch: Batch
) -> tuple[State, tuple[jax.Array, jax.Array]]:
    """One update; returns the new state and the batch's loss and accuracy before it."""
    return update(lambda params: loss_and_accuracy(model, params, batch), optimiser, state)


def distances(table_VxD: jax.Array) -> jax.Array:
    """Euclidean distance between every two rows, VxV."""
    return jnp.sqrt(jnp.sum((table_VxD[:, None] - table_VxD[None]) ** 2, axis=-1))


def record(state: State) -> dict[str, jax.Array]:
    """What is looked at every record: distances in both tables, and whether the member still trains."""
    input_VxD, output_VxD = tables_of_params(state.params["embedding"])
    return {
        "input_distance": distances(input_VxD),
        "output_distance": distances(output_VxD),
        "diverged_at": state.diverged_at,
    }


def expectations(
    model: nn.Module, params: dict, splits: Sequence[Contexts], pairs: tuple[tuple[int, int], ...]
) -> list[dict[str, jax.Array]]:
    """Exact expectations over each split and every draw.

    Args:
      pairs: token ids (first, second) of symbols that spell the same bit.

    Returns:
      For each split `loss` in nats, `accuracy`; and one entry per pair, over the contexts where either can stand, of
      ln p(second) - ln p(first): `log_odds`, its expectation, and `log_odds_deviation`, its standard deviation. The
      process has one value in all of them (`jaxtie.exor.theory.log_odds`), so a perfect model has deviation 0.
    """
    contexts = tuple(np.concatenate(arrays) for arrays in zip(*(split[:2] for split in splits), strict=True))

    def logits_of(context: tuple[jax.Array, jax.Array]) -> jax.Array:
        return model.apply({"params": params}, *context)[0]

    ordered = model.body.ordered
    logits_CxV = jax.lax.map(logits_of, contexts, batch_size=AT_ONCE) if ordered else jax.vmap(logits_of)(contexts)
    ends = np.cumsum([len(split.tokens_CxL) for split in splits])[:-1]
    parts = zip(jnp.split(logits_CxV, ends), splits, strict=True)
    return [_expectations_of_split(logits, split.joint_CxV, *np.array(pairs).T) for logits, split in parts]


def _expectations_of_split(
    logits_CxV: jax.Array, joint_CxV: np.ndarray, first_K: np.ndarray, second_K: np.ndarray
) -> dict[str, jax.Array]:
    joint_CxV = jnp.asarray(joint_CxV, logits_CxV.dtype)
    likeliest_CxV = jax.nn.one_hot(jnp.argmax(logits_CxV, axis=-1), logits_CxV.shape[-1], dtype=logits_CxV.dtype)
    weight_CxK = joint_CxV[:, first_K] + joint_CxV[:, second_K]
    weight_CxK /= jnp.sum(weight_CxK, axis=0, keepdims=True)
    odds_CxK = logits_CxV[:, second_K] - logits_CxV[:, first_K]
    odds_K = jnp.sum(weight_CxK * odds_CxK, axis=0)
    return {
        "loss": -jnp.sum(joint_CxV * jax.nn.log_softmax(logits_CxV)),
        "accuracy": jnp.sum(joint_CxV * likeliest_CxV),
        "log_odds": odds_K,
        "log_odds_deviation": jnp.sqrt(jnp.sum(weight_CxK * (odds_CxK - odds_K[None]) ** 2, axis=0)),
    }


class Member(NamedTuple):
    """What one member does, as pure functions of its seed, setting and state."""

    start: Callable  # seed, Setting -> State, stream of samples, loss, accuracy and evaluation at step 0
    advance: Callable  # State, stream of samples, Setting, step -> State, records at step + record_every
    evaluate: Callable  # State, Setting -> exact evaluation


def make_member(static: Static) -> Member:
    """Close over all that is static in a member's training."""
    model, every = build_model(static), static.record_every
    bits = process.split(static.length, static.all_strings, static.data_seed).train
    contexts = build_contexts(static.process, ordered=model.body.ordered)

    def optimiser_of(setting):
        own = {name: getattr(setting, name) for name in ("learning_rate", "eta_min", "weight_decay", "eps")}
        return make_adamw(**own, half_period=static.half_period, b1=static.b1, b2=static.b2)

    def batch(stream, setting, at):
        return process.sample(stream, at, bits, setting.zeros, setting.ones)

    def start(seed, setting):
        state = initial_state(model, optimiser_of(setting), jax.random.key(seed), static.length + 1)
        stream = streams.stream(static.data_seed, seed if static.data == "per-seed" else None)
        loss, accuracy = loss_and_accuracy(model, state.params, batch(stream, setting, 0))
        return state, stream, {"loss": loss, "accuracy": accuracy, **evaluate(state, setting)}

    def advance(state, stream, setting, at):
        optimise = optimiser_of(setting)

        def body(carry, place):
            state, total = carry
            drawn = jax.lax.optimization_barrier(batch(stream, setting, place))
            state, looked_at = step(model, optimise, state, drawn)
            return (state, jax.tree.map(jnp.add, total, looked_at)), None

        zero = (jnp.float32(0), jnp.float32(0))
        (new, total), _ = jax.lax.scan(body, (state, zero), at + jnp.arange(every, dtype=jnp.int32))
        state = keep_finite(new, state, total[0], at + every)
        return state, {"loss": total[0] / every, "accuracy": total[1] / every, **record(state)}

    def evaluate(state, setting):
        laws = setting.train_CxV, setting.valid_CxV
        own = [split._replace(joint_CxV=law_CxV) for split, law_CxV in zip(contexts, laws, strict=True)]
        on_train, on_valid = expectations(model, state.params, own, SPELLINGS)
        input_table, output_table = tables_of_params(state.params["embedding"])
        return {
            "train_loss": on_train["loss"],
            "train_accuracy": on_train["accuracy"],
            "valid_loss": on_valid["loss"],
            "valid_accuracy": on_valid["accuracy"],
            "log_odds": on_train["log_odds"],
            "log_odds_deviation": on_train["log_odds_deviation"],
            "input_table": input_table,
            "output_table": output_table,
        }

    return Member(start, advance, evaluate)
