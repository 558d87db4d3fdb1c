"""Untied and excluded rows of an embedding: initial values, logits, training."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from flax import nnx as flax_nnx
from text_fixtures import finished_run

import jaxtie
from jaxtie import Experiment, is_tied, nnx, tie, untie
from jaxtie.config import Arm, Head, UserError
from jaxtie.exor import data
from jaxtie.text.data.batches import Special
from jaxtie.text.task import row_sets
from jaxtie.tying.head import (
    MAX_SLICES,
    EmbeddingSpec,
    compute_logits,
    initial_params,
    replace_rows,
)
from jaxtie.tying.linen import Embedding, make_embedding

V, D, P = 7, 4, 5
IDS = (1, 4, 5)
KEY = jax.random.key(3)
HIDDEN = np.random.default_rng(0).standard_normal((P, D)).astype(np.float32)


def linen(**options):
    return Embedding(V, D, **options).init(KEY, jnp.zeros(1, int))["params"]


def pure(**options):
    return initial_params(EmbeddingSpec(V, D, **options), KEY)


def of_nnx(**options):
    return nnx.Embedding(V, D, rngs=flax_nnx.Rngs(3), **options)._parameters()


@pytest.mark.parametrize("make", [linen, pure, of_nnx])
@pytest.mark.parametrize("options", [{}, {"bias": True, "padding": 1}])
def test_untied_rows_start_as_those_of_the_untied_output(make, options):
    tied, untied = make(tied=True, **options), make(**options)
    partly = make(tied=True, untied_rows=IDS, **options)
    assert partly.keys() == {*tied, "output_rows"}
    np.testing.assert_array_equal(partly["input"], tied["input"])
    np.testing.assert_array_equal(partly["output_rows"], untied["output"][jnp.array(IDS)])
    whole = make(tied=True, untied_rows=tuple(range(V)), **options)
    np.testing.assert_array_equal(whole["output_rows"], untied["output"])


def test_the_projection_does_not_depend_on_untied_rows():
    heads = [Head(transform="projection", untied_rows=rows) for rows in (None, "mask")]
    made = [
        make_embedding(head, V, D, tied=True, row_sets=data.EXOR_ROW_SETS).init(KEY, 0)["params"]
        for head in heads
    ]
    jax.tree.map(np.testing.assert_array_equal, made[0]["projection"], made[1]["projection"])


@pytest.mark.parametrize("ids", [(0,), (6,), (1, 2, 5), tuple(range(V)), IDS])
def test_logits(ids):
    partly = linen(tied=True, untied_rows=ids)
    expected = partly["input"].at[jnp.array(ids)].set(partly["output_rows"])
    module = Embedding(V, D, True, untied_rows=ids)
    got = module.apply({"params": partly}, HIDDEN, method="logits")
    np.testing.assert_array_equal(got, HIDDEN @ expected.T)
    spec = EmbeddingSpec(V, D, True, untied_rows=ids)
    np.testing.assert_array_equal(compute_logits(spec, partly, HIDDEN), got)
    np.testing.assert_array_equal(module.apply({"params": partly}, 1), partly["input"][1])


def test_many_runs_of_rows():
    table, ids = np.zeros((40, 2)), tuple(range(1, 40, 2))
    assert len(ids) > MAX_SLICES
    rows = np.arange(40.0).reshape(20, 2)
    got = replace_rows(jnp.asarray(table), jnp.asarray(rows), ids)
    table[list(ids)] = rows
    np.testing.assert_array_equal(got, table)


ERRORS = [
    ({"untied_rows": (2, 1), "tied": True}, "untied_rows = .* expected ascending ids in 0...6"),
    ({"untied_rows": (7,), "tied": True}, "untied_rows"),
    ({"untied_rows": (1,)}, "all rows are untied; expected tied=True"),
    ({"untied_rows": (1,), "tied": True, "start": "output"}, "expected start='input'"),
    ({"excluded_rows": (1, 1)}, "excluded_rows"),
    ({"excluded_rows": tuple(range(V))}, "expected one that can be predicted"),
]


@pytest.mark.parametrize(("options", "message"), ERRORS)
@pytest.mark.parametrize("make", [linen, pure, of_nnx])
def test_impossible_rows(make, options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("tied", [True, False])
def test_excluded_rows_have_no_probability_and_no_gradient(tied, dtype):
    module = Embedding(V, D, tied, excluded_rows=IDS, bias=True)
    params = jax.tree.map(lambda x: x.astype(dtype), module.init(KEY, 0)["params"])
    h_PxD, target_P = HIDDEN.astype(dtype), np.array([0, 2, 3, 6, 0])

    def loss_of(params):
        logits = module.apply({"params": params}, h_PxD, method="logits")
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), target_P[:, None], 1))

    logits = module.apply({"params": params}, h_PxD, method="logits")
    assert np.all(jax.nn.softmax(logits)[:, list(IDS)] == 0) and np.all(0 * logits == 0)
    gradient = jax.grad(loss_of)(params)
    role = "input" if tied else "output"
    for name in (role, "bias"):
        assert np.all(gradient[name][jnp.array(IDS)] == 0)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradient))
    assert np.all(np.any(gradient[role][jnp.array([0, 2, 3, 6])] != 0, axis=-1))


def test_what_has_untied_rows_is_not_tied_and_cannot_be_untied():
    params = {"embedding": linen(tied=True, untied_rows=IDS)}
    assert not is_tied(params)
    with pytest.raises(ValueError, match="output_rows are rows of their own; expected an embedd"):
        untie(params)
    assert tie(params)[0] is params


ALL_ROWS = {**data.EXOR_ROW_SETS, "labels": tuple(range(7))}  # so that a name means all rows


def trained_exor(*arms, record_every=100):
    """Return the results of a few hundred steps."""
    steps = {"steps": 400, "eval_every": 400, "record_every": record_every}
    return jaxtie.run(Experiment(arms=arms, seeds=range(32), **steps), quiet=True)


@pytest.mark.parametrize(
    ("partly", "whole"),
    [
        pytest.param("tied+untie-rows=labels", "untied", marks=pytest.mark.slow),
        pytest.param("untied+tie-rows=labels", "tied", marks=pytest.mark.slow),
    ],
)
def test_untying_or_tying_all_rows_trains_to_the_same_bits(
    monkeypatch, compiled_as_users_do, partly, whole
):
    monkeypatch.setattr(data, "EXOR_ROW_SETS", ALL_ROWS)
    # the keys of programs do not contain the row sets; no other test has this one
    results = trained_exor(partly, whole, record_every=50)
    found, expected = (results.sel(arm=name, drop=True) for name in (partly, whole))
    xr.testing.assert_equal(found, expected)


@pytest.mark.slow
def test_training_in_lanes():
    """Untied rows differ between the tables, tied rows do not."""
    rows = {"tied+untie-rows=mask": [6], "untied+tie-rows=labels": [0, 1, 2, 3, 6]}
    end = trained_exor(*rows, "tied+targets-only").isel(table_step=-1, eval_step=-1, step=-1)
    for name in ("loss", "train_loss", "swap_divergence"):
        assert np.isfinite(end[name]).all()
    apart = (end["input_table"] != end["output_table"]).any(("seed", "dim"))
    for arm, expected in (rows | {"tied+targets-only": []}).items():
        assert np.flatnonzero(apart.sel(arm=arm)).tolist() == expected


def test_rows_of_tasks():
    def rows(name):
        arm = Arm.parse(name)
        made = make_embedding(arm.head, 7, D, tied=arm.tied, row_sets=data.EXOR_ROW_SETS)
        return made.tied, made.untied_rows, made.excluded_rows

    assert rows("tied+untie-rows=mask") == (True, (6,), ())
    assert rows("tied+untie-rows=labels") == (True, (4, 5), ())
    assert rows("untied+tie-rows=never-targets") == (True, (0, 1, 2, 3), ())
    assert rows("untied+tie-rows=mask") == (True, (0, 1, 2, 3, 4, 5), ())
    assert rows("untied+targets-only") == (False, (), (4, 5, 6))
    assert rows("tied+targets-only+bias") == (True, (), (4, 5, 6))
    assert not Arm.parse("tied+untie-rows=mask").tied and Arm.parse("tied+targets-only").tied
    assert Arm.parse("untied+targets-only@300").untie_at == 300
    with pytest.raises(UserError, match="rows 'labels': this task has no such rows; expected mask"):
        make_embedding(Head(untied_rows="labels"), 7, D, tied=True, row_sets={"mask": (6,)})


def test_rows_of_text():
    special = Special(pad=0, unk=1, cls=2, sep=3, mask=4)

    def sets(objective):
        prepared = SimpleNamespace(text=SimpleNamespace(special=special), vocabulary="abcdef")
        return row_sets(SimpleNamespace(objective=objective, prepared=prepared), Head())

    all_rows = tuple(range(6))
    assert sets("masked") == {"mask": (4,), "never-targets": (0, 4), "all": all_rows}
    assert sets("causal")["never-targets"] == (0, 2, 4)


@pytest.mark.slow
@pytest.mark.parametrize("task", [pytest.param("masked", marks=pytest.mark.slow), "causal"])
def test_text_trains_with_row_sets(place, tmp_path, task):
    """Every arm trains, with the right number of parameters and initial loss."""
    arms = "tied,tied+targets-only,untied+targets-only,tied+untie-rows=mask,untied+tie-rows=mask"
    name = {"masked": "text_mlm", "causal": "of_sentences"}[task]
    if task == "causal":  # whose vocabulary has tokens that are never a target
        sentences = "from jaxtie import Corpus\nown = Corpus(form='sentences')\n"
        sentences += "experiment = dataclasses.replace(experiment, corpus=own)\n"
        source = (place / "text_clm.py").read_text() + "import dataclasses\n" + sentences
        (place / "of_sentences.py").write_text(source)
    run = finished_run(place, tmp_path / "run", "--arms", arms, name=name)
    results = xr.open_dataset(run / "results.nc", engine="h5netcdf")
    assert np.all(np.isfinite(results["valid_loss"].isel(eval_step=-1)))
    count = results["parameters"]
    width = (count.sel(arm="tied+untie-rows=mask") - count.sel(arm="tied")).item()
    assert width > 0 and count.sel(arm="tied") == count.sel(arm="tied+targets-only")
    both = count.sel(arm="untied+targets-only") - count.sel(arm="untied+tie-rows=mask")
    assert both.item() == width
    first = results["valid_loss"].isel(eval_step=0).mean("seed")
    assert first.sel(arm="tied+targets-only") < first.sel(arm="tied")
