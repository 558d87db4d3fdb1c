"""What one member does on EXor: it starts, trains from record to record, is evaluated exactly. All
pure.

A member is one seed at one setting in one arm. What all members of a program share is `Static`;
what a member has of its own is an argument, `Setting`, so one compiled program serves every
setting. `jaxtie.exor.blocks` batches members.

Shapes: B samples, L tokens, P masked positions, V symbols, C contexts, K pairs of symbols, D width.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxtie.config import Body, Head
from jaxtie.exor import data as process
from jaxtie.exor import theory
from jaxtie.exor.config import Experiment, Process
from jaxtie.exor.data import Batch, Contexts
from jaxtie.models.language_model import MaskedLM, build_body
from jaxtie.training import member
from jaxtie.training.gradient_by_role import (
    RoleSums,
    pushes,
    sum_by_row,
    update_by_role,
    with_role_moments,
)
from jaxtie.training.member import State, initial_state, keep_finite, update
from jaxtie.training.optimizer import make_adamw, periodic_cosine
from jaxtie.tying.head import get_tables
from jaxtie.tying.linen import make_embedding

# Contexts that an ordered model is evaluated on at once, of 56,448: a CPU's cache holds 64 well;
# accelerators want more.
AT_ONCE, AT_ONCE_ACCELERATED = 64, 1024
PUSHES = ("input_push", "output_push")
SPELLINGS = {"X-Y": (process.X, process.X + 1), "A-B": (process.A, process.A + 1)}  # token ids


class Static(NamedTuple):
    """All of an experiment that a compiled program depends on, and nothing else."""

    model: Body
    tied: bool
    head: Head
    length: int
    all_strings: bool
    data_seed: int
    zeros_by_label: bool
    data: str
    record_every: int
    eval_every: int
    half_period: int
    b1: float
    b2: float
    roles: bool
    mask_logit: bool

    @classmethod
    def of(cls, experiment: Experiment, *, tied: bool, head: Head = Head()) -> "Static":  # noqa: B008, it is frozen
        """What is static of an experiment's members while they are tied, or untied, with a head."""
        own, adam = experiment.process, experiment.optimizer
        return cls(
            experiment.model,
            tied,
            head,
            own.length,
            own.all_strings,
            own.data_seed,
            own.zeros_by_label,
            experiment.data,
            experiment.record_every,
            experiment.eval_every,
            adam.half_period,
            adam.b1,
            adam.b2,
            experiment.roles,
            experiment.mask_logit,
        )

    @property
    def tells_roles(self) -> bool:
        """Whether the roles of a table are told from each other: it is tied, and they are asked
        for.
        """
        return self.roles and self.tied

    @property
    def process(self) -> Process:
        """The process, at probabilities that are no member's own: contexts are the same ones
        whatever these are.
        """
        own = {
            name: getattr(self, name)
            for name in ("length", "all_strings", "data_seed", "zeros_by_label")
        }
        return Process(**own)


class Setting(NamedTuple):
    """What a member has of its own: an argument of the compiled program, which is one for all
    values. float32.
    """

    learning_rate: jax.Array
    eta_min: jax.Array
    weight_decay: jax.Array
    eps: jax.Array
    zeros: jax.Array  # p(X), p(Y)
    ones: jax.Array  # p(A), p(B)
    train_CxV: jax.Array  # the exact law of the training split over its contexts
    valid_CxV: jax.Array


def build_model(static: Static, *, accelerated: bool = False) -> MaskedLM:
    """The model of a program's members; `accelerated`: for a GPU or TPU."""
    ends = make_embedding(
        static.head,
        process.VOCABULARY,
        static.model.width,
        tied=static.tied,
        row_sets=process.ROW_SETS,
    )
    return MaskedLM(ends, build_body(static.model, accelerated=accelerated), process.MASK)


@functools.lru_cache(8)  # a run asks for its own many times, and they take a while
def build_contexts(own: Process, *, ordered: bool) -> tuple[Contexts, Contexts]:
    """The exact laws of the training and the validation split."""
    strings = process.split(own.length, own.all_strings, own.data_seed)
    law = {"ordered": ordered, "zeros_by_label": own.zeros_by_label}
    train, valid = (
        process.enumerate_contexts(bits, own.zeros, own.ones, **law)
        for bits in (strings.train, strings.valid)
    )
    return train, valid


class Swaps(NamedTuple):
    """Contexts that differ in one spelling of a bit: E couples, by their numbers; NumPy.

    Attributes:
      context_2xE: the one with the pair's first symbol there, the one with its second.
      places_2xE: how many places of each context the couple stands for; contexts of a bag are told
        apart by no order.
    """

    context_2xE: np.ndarray
    places_2xE: np.ndarray


@functools.lru_cache(8)
def build_swaps(own: Process, pair: tuple[int, int], *, ordered: bool) -> Swaps:
    """Of two spellings of a bit (token ids), in the training split: it has every spelling of its
    strings.
    """
    tokens_CxL = build_contexts(own, ordered=ordered)[0].tokens_CxL
    forward, backward = (
        np.unique(theory.swaps(tokens_CxL, *each, ordered=ordered), axis=1, return_counts=True)
        for each in (pair, pair[::-1])
    )
    there = np.lexsort(backward[0])  # by the context with the first symbol, as `forward` is
    return Swaps(forward[0], np.stack([forward[1], backward[1][there]]))


def stack_settings(experiment: Experiment) -> Setting:
    """Every setting of the sweep, or the only one; host arrays (settings, ...)."""
    ordered = build_body(experiment.model).ordered
    laws: dict[Process, list[np.ndarray]] = {}

    def own(setting: Experiment) -> Setting:
        law, adam = setting.process, setting.optimizer
        if law not in laws:
            laws[law] = [split.joint_CxV for split in build_contexts(law, ordered=ordered)]
        scalars = (getattr(adam, name) for name in Setting._fields[:4])
        return jax.tree.map(
            np.float32,
            Setting._make((*scalars, np.array(law.zeros), np.array(law.ones), *laws[law])),
        )

    return jax.tree.map(lambda *values: np.stack(values), *map(own, experiment.settings))


def optimizer_of(static: Static, setting: Setting) -> optax.GradientTransformation:
    """A member's own."""
    own = {
        name: getattr(setting, name) for name in ("learning_rate", "eta_min", "weight_decay", "eps")
    }
    return make_adamw(
        **own, half_period=static.half_period, b1=static.b1, b2=static.b2, head=static.head
    )


def loss_and_accuracy(model: nn.Module, params: dict, batch: Batch) -> tuple[jax.Array, jax.Array]:
    """Cross-entropy at the masked positions, nats, and share of likeliest symbols that are right;
    batch means.
    """
    logits_BxPxV: Any = jax.vmap(lambda tokens, at: model.apply({"params": params}, tokens, at))(
        batch.tokens_BxL, batch.at_BxP
    )
    # One-hot, not an indexed load: on every backend the cheaper of the two for a small vocabulary.
    target_BxPxV = jax.nn.one_hot(
        batch.target_BxP, logits_BxPxV.shape[-1], dtype=logits_BxPxV.dtype
    )
    top_BxP = jnp.max(logits_BxPxV, axis=-1)
    shifted_BxPxV = logits_BxPxV - jax.lax.stop_gradient(top_BxP)[..., None]
    chosen_BxP = jnp.sum(shifted_BxPxV * target_BxPxV, axis=-1)
    loss_BxP = jnp.log(jnp.sum(jnp.exp(shifted_BxPxV), axis=-1)) - chosen_BxP
    return jnp.mean(loss_BxP), jnp.mean(chosen_BxP >= 0, dtype=loss_BxP.dtype)


def step(
    model: nn.Module, optimizer: optax.GradientTransformation, state: State, batch: Batch
) -> tuple[State, tuple[jax.Array, jax.Array]]:
    """One update; returns the new state and the batch's loss and accuracy before it."""
    return update(lambda params: loss_and_accuracy(model, params, batch), optimizer, state)


def step_by_role(
    model: nn.Module,
    optimizer: optax.GradientTransformation,
    static: Static,
    setting: Setting,
    state: State,
    batch: Batch,
    at: jax.Array,
) -> tuple[State, tuple[jax.Array, jax.Array, dict[str, jax.Array]]]:
    """One update of a tied member, the one that follows step `at`; and what either role had in
    it.
    """
    new, looked_at, own = update_by_role(
        lambda params: loss_and_accuracy(model, params, batch),
        optimizer,
        state,
        b1=static.b1,
        b2=static.b2,
        eps=setting.eps,
    )
    rate = periodic_cosine(setting.learning_rate, setting.eta_min, static.half_period)(at)
    pairs = [SPELLINGS[pair] for pair in static.process.pairs]
    pushed = pushes(state.params["embedding"]["input"], own.step, rate, pairs)
    return new, (*looked_at, sum_by_row(own)._asdict() | dict(zip(PUSHES, pushed, strict=True)))


def no_roles(static: Static) -> dict[str, jax.Array]:
    """What is recorded of roles where none is told from the other: at step 0, and of an untied
    member.
    """
    if not static.roles:
        return {}
    sizes = dict.fromkeys(RoleSums._fields, process.VOCABULARY) | dict.fromkeys(
        PUSHES, len(static.process.pairs)
    )
    return {name: jnp.full(size, jnp.nan) for name, size in sizes.items()}


def of_updates(
    static: Static, loss: jax.Array, accuracy: jax.Array, roles: dict[str, jax.Array] | None = None
) -> dict[str, jax.Array]:
    """What is recorded of the updates since the record before, of sums over them: means, and what
    pushes come to.
    """
    every, found = static.record_every, no_roles(static) if roles is None else roles
    shown = {name: value if name in PUSHES else value / every for name, value in found.items()}
    return {"loss": loss / every, "accuracy": accuracy / every, **shown}


def distances(table_VxD: jax.Array) -> jax.Array:
    """Euclidean distance between every two rows, VxV."""
    return jnp.sqrt(jnp.sum((table_VxD[:, None] - table_VxD[None]) ** 2, axis=-1))


def record(state: State, untied_rows: Sequence[int] = ()) -> dict[str, jax.Array]:
    """What is looked at every record: distances in both tables, and whether the member still
    trains.
    """
    input_VxD, output_VxD = get_tables(state.params["embedding"], untied_rows)
    return {
        "input_distance": distances(input_VxD),
        "output_distance": distances(output_VxD),
        "diverged_at": state.diverged_at,
    }


def exact_logits(
    model: nn.Module, params: dict, splits: Sequence[Contexts], at_once: int = AT_ONCE
) -> list[jax.Array]:
    """Logits of the masked position in every context of each split, CxV."""
    contexts = tuple(
        np.concatenate(arrays) for arrays in zip(*(split[:2] for split in splits), strict=True)
    )

    def logits_of(context: tuple[Any, ...]) -> jax.Array:
        return model.apply({"params": params}, *context)[0]

    ordered = model.body.ordered
    logits_CxV = (
        jax.lax.map(logits_of, contexts, batch_size=at_once)
        if ordered
        else jax.vmap(logits_of)(contexts)
    )
    return jnp.split(logits_CxV, np.cumsum([len(split.tokens_CxL) for split in splits])[:-1])


def expectations(
    logits_CxV: jax.Array, joint_CxV: jax.Array, pairs: Sequence[tuple[int, int]]
) -> dict[str, jax.Array]:
    """Exact expectations over a split and every draw.

    Args:
      joint_CxV: the split's law.
      pairs: token ids (first, second) of symbols that spell the same bit.

    Returns:
      `loss` in nats, `accuracy`; and one entry per pair, over the contexts where either can stand,
      of ln p(second) - ln p(first): `log_odds`, its expectation, and `log_odds_deviation`, its
      standard deviation: what the process has is `jaxtie.exor.theory.log_odds`.
    """
    first_K, second_K = np.array(pairs).T
    joint_CxV = jnp.asarray(joint_CxV, logits_CxV.dtype)
    likeliest_CxV = jax.nn.one_hot(
        jnp.argmax(logits_CxV, axis=-1), logits_CxV.shape[-1], dtype=logits_CxV.dtype
    )
    weight_CxK = joint_CxV[:, first_K] + joint_CxV[:, second_K]
    weight_CxK /= jnp.sum(weight_CxK, axis=0, keepdims=True)
    odds_CxK = logits_CxV[:, second_K] - logits_CxV[:, first_K]
    odds_K = jnp.sum(weight_CxK * odds_CxK, axis=0)
    return {
        "loss": -jnp.sum(joint_CxV * jax.nn.log_softmax(logits_CxV)),
        "accuracy": jnp.sum(joint_CxV * likeliest_CxV),
        "log_odds": odds_K,
        "log_odds_deviation": jnp.sqrt(
            jnp.sum(weight_CxK * (odds_CxK - odds_K[None]) ** 2, axis=0)
        ),
    }


def expected_mask(logits_CxV: jax.Array, joint_CxV: jax.Array) -> dict[str, jax.Array]:
    """Expected logit and probability of the mask itself over a split and every draw."""
    weight_C = jnp.sum(joint_CxV, axis=1)
    p_CxV = jax.nn.softmax(logits_CxV)
    return {
        "mask_logit": jnp.sum(weight_C * logits_CxV[:, process.MASK]),
        "mask_probability": jnp.sum(weight_C * p_CxV[:, process.MASK]),
    }


def swap_divergence(logits_CxV: jax.Array, joint_CxV: jax.Array, swaps: Swaps) -> jax.Array:
    """By how much a model's prediction moves when one spelling of a bit in its context takes the
    other's place; scalar.

    It is `jaxtie.exor.theory.semantic_divergence` of the model in place of the process: an expected
    total variation, in [0, 1], averaged over both directions. It says what the model does, whatever
    its tables are. NaN where one of the two never occurs.
    """
    # else the bits of the loss change
    p_CxV = jax.nn.softmax(jax.lax.optimization_barrier(logits_CxV))
    first_E, second_E = swaps.context_2xE
    variation_E = jnp.sum(jnp.abs(p_CxV[first_E] - p_CxV[second_E]), axis=-1) / 2
    weight_2xE = jnp.sum(joint_CxV, axis=-1)[swaps.context_2xE] * swaps.places_2xE.astype(
        logits_CxV.dtype
    )
    return jnp.mean(jnp.sum(weight_2xE * variation_E[None], axis=-1) / jnp.sum(weight_2xE, axis=-1))


class Member(NamedTuple):
    """What one member does, as pure functions of its seed, setting and state."""

    # seed, Setting -> State, stream of samples, loss, accuracy and evaluation at step 0
    start: Callable
    advance: (
        Callable  # State, stream of samples, Setting, step -> State, records at step + record_every
    )
    evaluate: Callable  # State, Setting -> exact evaluation
    untied_rows: tuple[int, ...]  # of the embedding


def make_member(static: Static, *, accelerated: bool = False) -> Member:
    """Close over all that is static in a member's training; `accelerated`: laid out for a GPU or
    TPU.
    """
    model, every = build_model(static, accelerated=accelerated), static.record_every
    own, ordered = static.process, model.body.ordered
    bits = process.split(own.length, own.all_strings, own.data_seed).train
    contexts, pairs = build_contexts(own, ordered=ordered), [SPELLINGS[pair] for pair in own.pairs]
    swaps, rows = (
        [build_swaps(own, pair, ordered=ordered) for pair in pairs],
        model.embedding.untied_rows,
    )

    def batch(stream, setting, at):
        return process.sample(stream, at, bits, setting.zeros, setting.ones, static.zeros_by_label)

    def start(seed, setting):
        state = initial_state(
            model, optimizer_of(static, setting), jax.random.key(seed), static.length + 1
        )
        state = with_role_moments(state) if static.roles else state
        stream = member.stream(static.data_seed, seed if static.data == "per-seed" else None)
        loss, accuracy = loss_and_accuracy(model, state.params, batch(stream, setting, 0))
        return (
            state,
            stream,
            {"loss": loss, "accuracy": accuracy, **no_roles(static), **evaluate(state, setting)},
        )

    def advance(state, stream, setting, at):
        optimize = optimizer_of(static, setting)

        def body(carry, place):
            state, total = carry
            drawn = jax.lax.optimization_barrier(batch(stream, setting, place))
            if static.tells_roles:
                state, looked_at = step_by_role(
                    model, optimize, static, setting, state, drawn, place
                )
            else:
                state, looked_at = step(model, optimize, state, drawn)
            return (state, jax.tree.map(jnp.add, total, looked_at)), None

        zero = (
            jnp.float32(0),
            jnp.float32(0),
            *([jax.tree.map(jnp.zeros_like, no_roles(static))] if static.tells_roles else ()),
        )
        (new, total), _ = jax.lax.scan(body, (state, zero), at + jnp.arange(every, dtype=jnp.int32))
        state = keep_finite(new, state, total[0], at + every)
        return state, {**of_updates(static, *total), **record(state, rows)}

    def evaluate(state, setting):
        logits = exact_logits(
            model, state.params, contexts, AT_ONCE_ACCELERATED if accelerated else AT_ONCE
        )
        laws = setting.train_CxV, setting.valid_CxV
        on_train, on_valid = (
            expectations(*split, pairs) for split in zip(logits, laws, strict=True)
        )
        embedding = state.params["embedding"]
        tables = get_tables(embedding, rows)
        bias_V = embedding.get("bias", jnp.zeros(process.VOCABULARY))
        return {
            "train_loss": on_train["loss"],
            "train_accuracy": on_train["accuracy"],
            "valid_loss": on_valid["loss"],
            "valid_accuracy": on_valid["accuracy"],
            "log_odds": on_train["log_odds"],
            "log_odds_deviation": on_train["log_odds_deviation"],
            "swap_divergence": jnp.stack(
                [swap_divergence(logits[0], laws[0], each) for each in swaps]
            ),
            "bias_odds": jnp.stack([bias_V[second] - bias_V[first] for first, second in pairs]),
            **dict(zip(("input_table", "output_table"), tables, strict=True)),
            **(expected_mask(logits[0], laws[0]) if static.mask_logit else {}),
        }

    return Member(start, advance, evaluate, rows)
