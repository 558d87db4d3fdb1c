"""The compiled programs of a model of text: a step and an evaluation for each length of rows, a
start, a look at the tables.

Several devices have a share of a batch's rows each and all of the parameters: XLA partitions the
one program, so the loss is the mean over the whole batch, exactly, and masks do not depend on the
number of devices.

Shapes: B rows, L tokens a row, V vocabulary.
"""

import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxtie.config import Head, UserError
from jaxtie.models.language_model import TextModel, causal_model, masked_model
from jaxtie.text import masking
from jaxtie.text.config import Corpus, TextExperiment
from jaxtie.text.corpus import (
    FREQUENCIES,
    NEIGHBOURS,
    Material,
    frequency_groups,
    never_asked,
    probes,
    row_lengths,
)
from jaxtie.text.data.batches import Special
from jaxtie.text.task import (
    Ask,
    make_evaluation,
    make_look_at_predictions,
    make_step,
    make_step_by_role,
    nearest,
    pair_distances,
)
from jaxtie.training import devices as machine
from jaxtie.training.gradient_by_role import RoleSums, with_role_moments
from jaxtie.training.member import State, initial_state, key_at
from jaxtie.training.optimizer import adamw_of
from jaxtie.tying.head import get_tables
from jaxtie.tying.linen import make_embedding
from jaxtie.tying.tie import count_parameters

KEPT = 8  # programs that a process keeps at most


class Totals(NamedTuple):
    """Sums over the batches since the last record: of losses, nats, and right answers over all
    positions asked.
    """

    loss: jax.Array | np.ndarray
    right: jax.Array | np.ndarray
    asked: jax.Array | np.ndarray
    dropped: jax.Array | np.ndarray


class Carry(NamedTuple):
    """All that a step takes from the one before. `roles`: sums over the updates since the last
    record; or nothing.
    """

    state: State
    totals: Totals
    roles: RoleSums | tuple[()] = ()


class TextProgram(NamedTuple):
    """The compiled training of a tied or an untied member. A stream is the data of a key; a number
    tells the batch.
    """

    start: Callable  # seed -> Carry
    step: dict[int, Any]  # length of rows -> (Carry, donated; tokens; stream; number) -> Carry
    evaluate: dict[int, Any]  # length of rows -> (parameters, tokens, stream, number) -> Metrics
    look: Callable  # parameters -> distances of the pairs and nearest neighbours, in both tables
    shapes: Carry
    rows: NamedSharding  # of tokens
    whole: NamedSharding  # of all else


def no_totals() -> Totals:
    """Nothing summed up yet; on the host."""
    return Totals(
        *(np.zeros((), dtype) for dtype in (np.float32, np.float32, np.float32, np.int32))
    )


def no_role_sums(carry: Carry) -> RoleSums | tuple[()]:
    """No roles summed up yet, where they are looked at; on the host."""
    nothing: Any = np.zeros(len(FREQUENCIES), np.float32)
    return RoleSums(*[nothing] * len(RoleSums._fields)) if carry.state.role_moments else ()


def build_text_model(
    experiment: TextExperiment,
    material: Material,
    platform: str,
    *,
    tied: bool,
    head: Head = Head(),  # noqa: B008, frozen
) -> TextModel:
    """The model of an experiment; on accelerators products of matrices have bfloat16 operands."""
    sizes = {name: getattr(experiment.model, name) for name in ("layers", "heads", "feedforward")}
    dtype = None if platform == "cpu" else jnp.bfloat16
    special = material.text.special
    ends = make_embedding(
        head,
        len(material.vocabulary),
        experiment.model.width,
        tied=tied,
        init_std=experiment.init_std,
        padding=special.pad,
        matmul_dtype=dtype,
        row_sets=row_sets(experiment.objective, special),
    )
    make = {"causal": causal_model, "masked": masked_model}[experiment.objective]
    return make(ends, **sizes, dtype=dtype)


def row_sets(task: str, special: Special) -> dict[str, tuple[int, ...]]:
    """Token ids of the sets of rows that a head can name: tokens that cannot be a target by
    structure.

    Never made of the training text: what does not occur there may occur elsewhere.
    """
    start = {special.cls} if task == "causal" else set()
    never = {special.pad, special.mask} | start
    return {"mask": (special.mask,), "never-targets": tuple(sorted(never))}


def make_ask(experiment: TextExperiment, material: Material) -> Ask:
    """What the model is asked of a batch: words swapped for their duplicates, then masks or next
    tokens.
    """
    special, drawn = material.text.special, material.drawn

    def ask(key, tokens_BxL):
        swap_key, mask_key = jax.random.split(key)
        if experiment.duplicates:
            tokens_BxL = masking.swap(
                swap_key, tokens_BxL, drawn.words_K, drawn.duplicates_K, drawn.probability_K
            )
        if experiment.objective == "causal":
            return masking.next_tokens(tokens_BxL, padding=special.pad)
        return masking.mask(
            mask_key,
            tokens_BxL,
            mask=special.mask,
            never=never_asked(experiment, special),
            base_vocabulary=len(material.text.vocabulary),
            room=masking.capacity(tokens_BxL.size),
        )

    return ask


def _start(
    experiment: TextExperiment, model: TextModel, adamw: optax.GradientTransformation, seed
) -> Carry:
    """A fresh member. Tied and untied ones of a seed share the initial values of all they share."""
    state = initial_state(model, adamw, jax.random.key(seed), min(experiment.length, 16))
    if experiment.roles:
        state = with_role_moments(state)
    carry = Carry(state, jax.tree.map(jnp.asarray, no_totals()))
    return carry._replace(roles=jax.tree.map(jnp.asarray, no_role_sums(carry)))


def carry_shapes(
    experiment: TextExperiment, material: Material, *, tied: bool, head: Head
) -> Carry:
    """Shapes and dtypes of a member."""
    model = build_text_model(experiment, material, "cpu", tied=tied, head=head)
    return jax.eval_shape(
        partial(_start, experiment, model, adamw_of(experiment.optimizer, head)), np.uint32(0)
    )


def parameters_of(experiment: TextExperiment, material: Material, *, tied: bool, head: Head) -> int:
    """How many a member has."""
    return count_parameters(carry_shapes(experiment, material, tied=tied, head=head).state.params)


def make_mesh(batch: int, devices: Sequence[jax.Device]) -> Mesh:
    """As many devices in a row as share a batch evenly; of several processes' devices, all.

    Raises:
      UserError: where several processes' devices do not share it evenly.
    """
    count = max(each for each in range(1, len(devices) + 1) if batch % each == 0)
    if count < len(devices) and len({device.process_index for device in devices}) > 1:
        raise UserError(
            f"--distributed: a batch of {batch} rows cannot be shared evenly by {len(devices)}"
            " devices"
        )
    return jax.make_mesh((count,), ("rows",), axis_types=(AxisType.Auto,), devices=devices[:count])


def _make_look(
    experiment: TextExperiment, material: Material, model: TextModel
) -> Callable[[dict], dict[str, jax.Array]]:
    of_predictions = material.contexts and make_look_at_predictions(model, material.contexts)

    def look(params: dict) -> dict[str, jax.Array]:
        found = of_predictions(params) if of_predictions else {}
        tables = get_tables(params["embedding"], model.embedding.untied_rows)
        for name, table_VxD in zip(("input", "output"), tables, strict=True):
            distances = pair_distances(table_VxD, material.first.ravel(), material.second.ravel())
            found[f"{name}_distance"] = distances.reshape(material.first.shape)
            near = partial(nearest, table_VxD, count=NEIGHBOURS, besides=material.text.special)
            found[f"{name}_neighbour"] = jax.lax.map(near, material.words_K[probes(experiment)])
        return found

    return look


_kept: dict[tuple, TextProgram] = {}


def compile_text(
    experiment: TextExperiment,
    material: Material,
    mesh: Mesh,
    *,
    tied: bool,
    head: Head = Head(),  # noqa: B008
) -> TextProgram:
    """Compile all that training needs, every length of rows. A process keeps what it has
    compiled.
    """
    # Whatever a program does not depend on is left out: what is compared, on how many seeds, for
    # how long.
    once: dict[str, Any] = {"record_every": 1, "eval_every": 1, "steps": 1}
    # What is planted, and which halves: programs that tell roles, or match pairs, know how frequent
    # each token is, and those that look at predictions hold the places of the validation text.
    counts = experiment.roles or experiment.looks_at_predictions
    any_text: dict[str, Any] = {} if counts else {"half": None, "planted": 0}
    any_text["corpus"] = Corpus()
    static = dataclasses.replace(
        experiment, name="any", claim="", arms=("tied",), seeds=(0,), **any_text, **once
    )
    options = tuple(machine.REPEATABLE.get(mesh.devices.flat[0].platform, {}).items())
    key = (
        static,
        material.text.key,
        material.vocabulary,
        tied,
        head,
        tuple(mesh.devices.flat),
        options,
    )
    if key not in _kept:
        if len(_kept) >= KEPT:
            _kept.pop(next(iter(_kept)))
        _kept[key] = _compile(experiment, material, mesh, tied, head, dict(options))
    return _kept[key]


def _compile(
    experiment: TextExperiment,
    material: Material,
    mesh: Mesh,
    tied: bool,
    head: Head,
    options: dict[str, Any],
) -> TextProgram:
    rows, whole = NamedSharding(mesh, PartitionSpec("rows")), NamedSharding(mesh, PartitionSpec())
    model = build_text_model(
        experiment, material, mesh.devices.flat[0].platform, tied=tied, head=head
    )
    adamw, ask = adamw_of(experiment.optimizer, head), make_ask(experiment, material)
    evaluation = make_evaluation(model, ask)
    one_step: Callable[..., tuple]
    if experiment.roles and tied:
        adam, group_V = experiment.optimizer, frequency_groups(material)
        one_step = make_step_by_role(model, adamw, ask, adam, group_V, len(FREQUENCIES))
    else:
        one_step = make_step(model, adamw, ask)

    def step(carry, tokens_BxL, stream, number):
        state, found, *roles = one_step(carry.state, tokens_BxL, key_at(stream, number))
        new = Totals(
            found.loss * found.asked, found.accuracy * found.asked, found.asked, found.dropped
        )
        summed = jax.tree.map(jnp.add, carry.roles, roles[0]) if roles else ()
        return Carry(state, jax.tree.map(jnp.add, carry.totals, new), summed)

    def evaluate(params, tokens_BxL, stream, number):
        return evaluation(params, tokens_BxL, key_at(stream, number))

    shapes = carry_shapes(experiment, material, tied=tied, head=head)
    scalar, stream = jax.ShapeDtypeStruct((), np.int32), jax.ShapeDtypeStruct((2,), np.uint32)
    lengths = row_lengths(experiment)
    tokens = {
        length: jax.ShapeDtypeStruct((experiment.batch, length), np.int32) for length in lengths
    }
    shard: dict[str, Any] = {"in_shardings": (whole, rows, whole, whole), "out_shardings": whole}
    start, look = partial(_start, experiment, model, adamw), _make_look(experiment, material, model)
    jobs = {
        ("start", 0): jax.jit(start, out_shardings=whole).lower(jax.ShapeDtypeStruct((), np.uint32))
    }
    jobs["look", 0] = jax.jit(look, in_shardings=whole, out_shardings=whole).lower(
        shapes.state.params
    )
    for length, shape in tokens.items():
        jobs["step", length] = jax.jit(step, donate_argnums=0, **shard).lower(
            shapes, shape, stream, scalar
        )
        jobs["evaluate", length] = jax.jit(evaluate, **shard).lower(
            shapes.state.params, shape, stream, scalar
        )
    with ThreadPoolExecutor() as pool:  # compiling does not hold Python's lock
        compiling = {name: pool.submit(job.compile, options) for name, job in jobs.items()}
        done = {name: future.result() for name, future in compiling.items()}
    steps, evaluations = (
        {length: done[what, length] for length in tokens} for what in ("step", "evaluate")
    )
    return TextProgram(done["start", 0], steps, evaluations, done["look", 0], shapes, rows, whole)
