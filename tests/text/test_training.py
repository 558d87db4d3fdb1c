"""The engine of text: what it hands out, arms with heads, untying, devices, programs that are
shared.
"""

import dataclasses
import time
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from bodies import once
from jaxtie.text.engine import MemberRun, TextEngine, load_carry
from jaxtie.text.engine import place as on_devices
from jaxtie.text.programs import build_text_model

from jaxtie.config import Arm, Head, UserError
from jaxtie.models.language_model import TextModel
from jaxtie.run.lifecycle import load_experiment
from jaxtie.text import masking, programs
from jaxtie.text.config import Corpus, TextExperiment
from jaxtie.text.corpus import Material, make_material, training_batches
from jaxtie.text.data.tokens import prepare_text
from jaxtie.text.task import metrics
from jaxtie.training.distributed import Processes
from jaxtie.training.member import State, initial_state, stream
from jaxtie.training.optimizer import adamw_of
from jaxtie.training.task import Control, Members, Phase, Piece, phases_of

SEED = 3
HEADS = ("tied+bias", "untied+bias@20", "tied+half-swap+input-gradient=0")
MORE_HEADS = (
    "untied tied+shuffle tied+projection tied+bert-head tied+logit-softcap=30"
    " tied+logit-scale=1-by-root-D untied+bias"
)


def small(place: Any, name: str, **changes: Any) -> tuple[TextExperiment, Material]:
    """A cheap variant of an experiment, and its text."""
    corpus = Corpus((str(place / "corpus"),), vocab_size=120)
    experiment = dataclasses.replace(
        load_experiment(place / f"{name}.py"), corpus=corpus, **changes
    )
    return experiment, make_material(experiment, prepare_text(corpus))


@pytest.fixture(scope="module")
def masked(place) -> tuple[TextExperiment, Material]:
    return small(place, "text_mlm", buckets=(16,))


@pytest.fixture(scope="module")
def causal(place) -> tuple[TextExperiment, Material]:
    return small(place, "text_clm", arms=("tied", *HEADS))


def engine_of(experiment: TextExperiment, material: Material, devices: int = 1) -> TextEngine:
    return TextEngine(experiment, material, Processes(), jax.devices()[:devices])


def phase(name: str, part: int = 0) -> Phase:
    """One of those of an arm that trains for 40 steps."""
    return phases_of(Arm.parse(name), 40)[part]


def always() -> bool:
    return True


def train(
    engine: TextEngine, name: str, until: int, standing: Members | None = None, part: int = 0
) -> list[Piece]:
    """All pieces of a phase, each with where the member stands."""
    program = engine.compile(phase(name, part))
    return list(engine.run(program, (SEED,), standing, until, Control([], always)))


def losses_of(pieces: list[Piece]) -> list[float]:
    return [piece.records["loss"].item() for piece in pieces if piece.records]


def measure(engine: TextEngine, of: Phase, members: Members) -> float:
    """The validation loss of a member where it stands."""
    program = engine.compile(of)
    params = jax.tree.map(
        lambda x: on_devices(x, program.whole), load_carry(program.shapes, members).state.params
    )
    return engine.evaluate(program, params)["valid_loss"].item()


def test_the_loss_does_not_jump_where_it_is_untied(masked):
    engine = engine_of(*masked)
    tied = train(engine, "untied@20", 20)[-1].members
    untied = engine.untie(phase("untied@20", 1), tied)
    before, after = (
        measure(engine, phase("untied@20"), tied),
        measure(engine, phase("untied@20", 1), untied),
    )
    assert abs(before - after) < 1e-6 * before


def test_two_devices_share_a_batch(masked):
    """Every mask and every mean is that of one device."""
    found = []
    for count in (1, 2):
        engine = engine_of(*masked, devices=count)
        assert engine.mesh.size == count
        found.append(losses_of(train(engine, "untied", 20)))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5)


def test_members_are_handed_out_when_they_are_wanted_and_at_the_end(masked):
    """Copying a model of text costs."""
    engine = engine_of(*masked)
    program, asked = engine.compile(phase("tied")), iter([False, True, False] + [False] * 30)
    pieces = list(engine.run(program, (SEED,), None, 20, Control([])))
    assert [piece.members is not None for piece in pieces] == [False] * 20 + [True]
    assert [piece.updates for piece in pieces] == [0] + [1] * 20 and sum(
        piece.tokens for piece in pieces
    ) > 20 * 16 * 4
    assert [piece.first_record for piece in pieces if piece.records] == [0, 1, 2]
    wanted = MemberRun(engine, program, SEED, None, 5).pieces(Control([], lambda: next(asked)))
    assert [piece.members is not None for piece in wanted] == [
        False,
        True,
        False,
        False,
        False,
        True,
    ]


def test_stopped_it_hands_out_where_it_stands_and_goes_on_with_the_same_bits(masked):
    engine = engine_of(*masked)
    whole, program, stopped = train(engine, "tied", 20), engine.compile(phase("tied")), []
    first = []
    for piece in engine.run(program, (SEED,), None, 20, Control(stopped)):
        first.append(piece)
        if len(first) == 8:
            stopped.append(2)
    assert first[-1].members.steps.tolist() == [8]
    rest = train(engine, "tied", 20, first[-1].members)
    assert losses_of([*first, *rest]) == losses_of(whole)
    for name, leaf in whole[-1].members.states.items():
        np.testing.assert_array_equal(rest[-1].members.states[name], leaf, err_msg=name)


def test_members_side_by_side_come_to_the_bits_of_members_one_after_the_other(masked, monkeypatch):
    """Whatever their number; large ones are trained one after the other."""
    engine, seeds = engine_of(*masked), (SEED, 4, 5)
    program, found = engine.compile(phase("tied")), {}
    for cores in (1, 2):
        monkeypatch.setitem(engine.facts, "workers", cores)
        assert engine.at_a_time(program) == cores
        pieces = list(engine.run(program, seeds, None, 20, Control([])))
        of_each = [
            [piece for piece in pieces if piece.numbers.tolist() == [seed]] for seed in seeds
        ]
        found[cores] = [(losses_of(each), each[-1].members.states) for each in of_each]
        assert (
            sum(piece.updates for piece in pieces) == 3 * 20
            and [len(each) for each in of_each] == [21] * 3
        )
        order = [piece.numbers.item() for piece in pieces]
        last_of_first = max(i for i, number in enumerate(order) if number == SEED)
        assert (order.index(4) < last_of_first) == (cores == 2)
    for (losses, states), (other_losses, other_states) in zip(*found.values(), strict=True):
        assert losses == other_losses
        for name, leaf in states.items():
            np.testing.assert_array_equal(leaf, other_states[name], err_msg=name)
    monkeypatch.setattr("jaxtie.text.engine.SIDE_BY_SIDE", 1)
    assert engine.at_a_time(program) == 1


def test_an_estimate_of_members_side_by_side_counts_their_evaluations_once(masked, monkeypatch):
    """Members evaluate at the same time, for longer than all of the steps that are timed."""
    experiment, material = masked
    engine = engine_of(dataclasses.replace(experiment, seeds=(SEED, 4)), material)
    evaluate, needed = TextEngine.evaluate, 0.5

    def slow(*args: Any) -> dict:
        time.sleep(needed)
        return evaluate(*args)

    monkeypatch.setattr(TextEngine, "evaluate", slow)
    monkeypatch.setitem(engine.facts, "workers", 2)
    found = engine.estimate(engine.compile(phase("tied")))
    assert found.seconds > needed * len(experiment.eval_steps) and "-" not in found.speed


def test_side_by_side_stopped_members_all_say_where_they_stand(masked, monkeypatch):
    engine, stopped, last = engine_of(*masked), [], {}
    monkeypatch.setitem(engine.facts, "workers", 2)
    for number, piece in enumerate(
        engine.run(engine.compile(phase("tied")), (SEED, 4, 5), None, 20, Control(stopped))
    ):
        last[piece.numbers.item()] = piece
        if number == 8:
            stopped.append(2)
    assert set(last) == {SEED, 4} and all(
        0 < piece.members.steps.item() < 20 for piece in last.values()
    )


def test_programs_are_shared_by_what_differs_in_nothing_static(masked, monkeypatch):
    """They are not compiled here: what is asked is who gets the one of whom."""
    experiment, material = masked
    monkeypatch.setattr(programs, "_kept", {})
    monkeypatch.setattr(programs, "_compile", lambda *_: object())

    def program(of: str, part: int = 0, **changes: Any) -> object:
        return engine_of(dataclasses.replace(experiment, **changes), material).compile(
            phase(of, part)
        )

    tied, untied = program("tied"), program("untied")
    alike = {
        "name": "other",
        "claim": "other",
        "seeds": (1, 2),
        "steps": 60,
        "arms": ("tied", "untied@40"),
    }
    alike |= {"record_every": 5, "eval_every": 10}
    assert program("tied", **alike) is program("untied@20", **alike) is tied is not untied
    assert program("untied", **alike) is program("untied@20", 1, **alike) is untied
    slower = dataclasses.replace(experiment.optimizer, learning_rate=1e-3)
    other = (
        program("tied", optimizer=slower),
        program("tied+bias"),
        program("tied", data_seed=1),
        program("tied", words=9),
    )
    assert len({tied, untied, *other}) == 6
    assert program("tied") is tied
    for words in range(3, 3 + programs.KEPT):
        program("tied", words=words)
    assert len(programs._kept) == programs.KEPT and program("tied") is not tied


class Trained(NamedTuple):
    """What became of an arm: where its member stood after each step, at the end of the first phase,
    and untied there.
    """

    after: list[Members]
    first_end: Members
    opened: Members | None
    losses: list[float]


@pytest.fixture(scope="module")
def heads(causal) -> tuple[TextEngine, dict[str, Trained]]:
    """An engine, and 30 steps of each arm."""
    engine, found = engine_of(*causal), {}
    for arm in causal[0].arms:
        until = arm.untie_at or 30
        pieces, opened = train(engine, arm.name, until), None
        first_end = pieces[-1].members
        if arm.untie_at:
            opened = engine.untie(phase(arm.name, 1), first_end)
            pieces += train(engine, arm.name, 30, opened, part=1)
        found[arm.name] = Trained(
            [piece.members for piece in pieces], first_end, opened, losses_of(pieces)
        )
    return engine, found


def test_every_head_of_a_seed_starts_from_the_same_values_and_has_the_same_batches(causal, heads):
    """Bit for bit, moments included; what a head has beside them is its own."""
    experiment, material = causal
    own_stream = stream(experiment.data_seed, np.uint32(SEED))
    plain = heads[1]["tied"].after[0].states
    for name, arm in heads[1].items():
        assert arm.losses[-1] < arm.losses[0], name
        np.testing.assert_array_equal(arm.after[0].streams[0], own_stream)
        found = arm.after[0].states
        for path, leaf in plain.items():
            np.testing.assert_array_equal(found[path], leaf, err_msg=f"{name}: {path}")
        assert sorted({path.rpartition("[")[2] for path in found.keys() - plain.keys()}) == [
            "'bias']"
        ] * ("bias" in name)

    @once
    def start(key: jax.Array) -> dict[str, dict]:
        rule, found = adamw_of(experiment.optimizer), {}
        for name in ("tied", *MORE_HEADS.split()):
            arm = Arm.parse(name)
            model = build_text_model(experiment, material, "cpu", tied=arm.tied, head=arm.head)
            found[name] = initial_state(model, rule, key, experiment.length).params
        return found

    fresh = jax.device_get(start(jax.random.key(SEED)))
    for name, params in fresh.items():
        jax.tree.map(np.testing.assert_array_equal, params["body"], fresh["tied"]["body"])
        np.testing.assert_array_equal(
            params["embedding"]["input"], fresh["tied"]["embedding"]["input"], err_msg=name
        )
        assert ("output" in params["embedding"]) == name.startswith("untied")
    np.testing.assert_array_equal(
        fresh["untied"]["embedding"]["output"], fresh["untied+bias"]["embedding"]["output"]
    )


def expected_loss(head: Head, model: TextModel, params: dict, asked: masking.Asked) -> jax.Array:
    """Of a tied arm, by the hidden states of the plain model and what its head is said to do."""
    table_VxD = params["embedding"]["input"]
    seen_VxD = jax.lax.stop_gradient(table_VxD) if head.input_gradient == 0 else table_VxD
    tree = {"body": params["body"], "embedding": {"input": seen_VxD}}
    h_PxD = model.apply({"params": tree}, asked.tokens_BxL, asked.at_P, method="hidden")
    if head.transform == "half-swap":
        half = h_PxD.shape[1] // 2
        h_PxD = jnp.concatenate([h_PxD[:, half:], h_PxD[:, :half]], axis=1)
    logits_PxV = h_PxD @ table_VxD.T
    if head.bias:
        logits_PxV = logits_PxV + params["embedding"]["bias"][None]
    loss_P = optax.softmax_cross_entropy_with_integer_labels(logits_PxV, asked.target_P)
    return jnp.sum(loss_P * asked.weight_P) / jnp.sum(asked.weight_P)


def asked_of(experiment: TextExperiment, material: Material, number: int) -> masking.Asked:
    """What a causal model is asked of a batch of the seed's."""
    tokens = training_batches(experiment, material, SEED)[number].tokens_BxL
    return masking.next_tokens(jnp.asarray(tokens), padding=material.text.special.pad)


@pytest.mark.parametrize("name", ["tied", *(name for name in HEADS if "@" not in name)])
def test_an_arm_is_the_plain_loop_with_its_head(causal, heads, name):
    """Step by step on the seed's batches, with the gradient that JAX takes of the formula."""
    (experiment, material), (engine, found) = causal, heads
    rule, plain = (
        adamw_of(experiment.optimizer),
        build_text_model(experiment, material, "cpu", tied=True),
    )
    state = load_carry(engine.compile(phase(name)).shapes, found[name].after[0]).state

    @once
    def advance(state: State, tokens_BxL: jax.Array):
        asked = masking.next_tokens(tokens_BxL, padding=material.text.special.pad)
        loss, gradient = jax.value_and_grad(partial(expected_loss, Arm.parse(name).head, plain))(
            state.params, asked
        )
        updates, opt_state = rule.update(gradient, state.opt_state, state.params)
        return (
            State(optax.apply_updates(state.params, updates), opt_state, state.diverged_at),
            loss,
            jnp.sum(asked.weight_P),
        )

    batches, losses = training_batches(experiment, material, SEED), []
    for number in range(10):
        state, *loss_and_weight = advance(state, batches[number].tokens_BxL)
        losses.append(jax.device_get(loss_and_weight))
    assert len({tuple(batches[number].tokens_BxL.ravel()) for number in range(10)}) == 10
    loss, weight = np.array(losses).T
    np.testing.assert_allclose(found[name].losses[0], loss[0], rtol=1e-6)
    np.testing.assert_allclose(
        found[name].losses[1], np.sum(loss * weight) / np.sum(weight), rtol=1e-5
    )
    table = load_carry(engine.compile(phase(name)).shapes, found[name].after[10]).state.params[
        "embedding"
    ]["input"]
    np.testing.assert_allclose(table, state.params["embedding"]["input"], rtol=1e-3, atol=1e-4)


def test_without_the_inputs_gradient_a_tied_table_has_that_of_the_output_alone(causal, heads):
    """The other parameters have the one that they have anyway."""
    (experiment, material), (engine, found) = causal, heads
    params = load_carry(engine.compile(phase("tied")).shapes, found["tied"].after[0]).state.params
    head, plain, asked = (
        Arm.parse("tied+input-gradient=0").head,
        build_text_model(*causal, "cpu", tied=True),
        asked_of(*causal, 0),
    )
    headed = build_text_model(experiment, material, "cpu", tied=True, head=head)

    def loss(params: dict) -> jax.Array:
        return metrics(headed, params, asked).loss

    @once
    def gradients(params: dict) -> tuple[dict, ...]:
        losses = (
            loss,
            *(partial(expected_loss, each, plain, asked=asked) for each in (head, Head())),
        )
        return tuple(jax.grad(each)(params) for each in losses)

    without, output_alone, both = jax.device_get(gradients(params))
    gap = np.abs(output_alone["embedding"]["input"] - both["embedding"]["input"]).max()
    assert gap > 0.01 * np.abs(both["embedding"]["input"]).max()
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-7), without, output_alone)
    jax.tree.map(
        partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-7), without["body"], both["body"]
    )


def test_untied_with_a_bias_midway_nothing_changes_at_that_step(heads):
    engine, found = heads
    tied, midway = found["tied+bias"], found["untied+bias@20"]
    first, second = phase("untied+bias@20"), phase("untied+bias@20", 1)
    assert engine.compile(first) is engine.compile(phase("tied+bias")) is not engine.compile(second)
    standing, opened = midway.first_end.states, midway.opened.states
    assert (
        midway.first_end.steps.tolist() == [20]
        and standing[".state.params['embedding']['bias']"].any()
    )
    for path, leaf in opened.items():
        np.testing.assert_array_equal(
            leaf, standing[path.replace("['output']", "['input']")], err_msg=path
        )
    assert sum("['output']" in path for path in opened) == 3  # the table and its two moments
    before, after = measure(engine, first, midway.first_end), measure(engine, second, midway.opened)
    assert abs(before - after) < 1e-6 * before
    # the same batches, the same program
    assert midway.losses[:3] == tied.losses[:3] and midway.losses[3] != tied.losses[3]
    np.testing.assert_allclose(midway.losses[3], tied.losses[3], rtol=0.02)  # nothing starts anew
    ends = [
        load_carry(engine.compile(second).shapes, midway.after[-1]).state.params["embedding"][table]
        for table in ("input", "output")
    ]
    assert (ends[0] != ends[1]).any()


def test_experiments_that_cannot_be_meant():
    wrong = (
        {"objective": "other"},
        {"words": 2},
        {"length": 3},
        {"buckets": (1,)},
        {"data_seed": -1},
        {"init_std": 0},
    )
    for each in wrong:
        with pytest.raises(UserError, match=next(iter(each))):
            TextExperiment(**each)
