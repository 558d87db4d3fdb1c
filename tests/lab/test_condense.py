"""Committed form of runs on EXor, of a run that is trained for a few steps."""

import numpy as np
import pytest
import xarray as xr
from condense import condense_exor, join_seeds, label_geometry, write_committed
from exor_tables import equivalence_table, mask_table

from jaxtie import Experiment, Process, run
from jaxtie.config import Layout
from jaxtie.exor.tables import distances_table
from jaxtie.run import lifecycle


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Train tied, targets-only and partly tied arms for a few steps."""
    folder = tmp_path_factory.mktemp("runs") / "small"
    arms = ("tied", "tied+targets-only", "tied+untie-rows=mask")
    experiment = Experiment(
        process=Process(length=4),  # sooner compiled
        arms=arms,
        seeds=range(3),
        steps=20,
        record_every=10,
        eval_every=10,
        mask_logit=True,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lifecycle, "draw", lambda *_, **__: [])
        patch.setattr(Experiment, "layout", lambda *_: Layout((1,)))  # compiles sooner
        return run(experiment, out=folder, quiet=True)


def test_mask_logit_and_probability(trained):
    """Only a fresh model with a tied mask row predicts the mask at the mask."""
    p = trained["mask_probability"].sel(eval_step=0).mean("seed")
    assert p.sel(arm="tied") > 2 * p.sel(arm="tied+untie-rows=mask") > 0
    assert np.all(trained["mask_probability"].sel(arm="tied+targets-only") == 0)
    assert trained["mask_logit"].sel(arm="tied", eval_step=0).mean() > 0
    missing = trained["mask_logit"].isnull().all(["seed", "eval_step"])
    assert missing["arm"].values[missing].tolist() == ["tied+targets-only"]
    table = mask_table(trained)
    assert table.header == ("arm", "step 0")
    middle = float(np.median(trained["mask_probability"].sel(arm="tied", eval_step=0)))
    assert table.rows[0][:1] == ("tied",) and table.rows[0][1].startswith(f"{middle:.3f}")


def test_partly_tied_arms_differ_in_the_untied_rows(trained):
    own = trained.sel(arm="tied+untie-rows=mask", table_step=20)
    apart = (own["input_table"] != own["output_table"]).any(["seed", "dim"])
    assert apart["symbol"].values[apart].tolist() == ["mask"]
    tied = trained.sel(arm="tied", table_step=20)
    np.testing.assert_array_equal(tied["input_table"], tied["output_table"])


def test_label_geometry(trained):
    kept = condense_exor(trained)
    at = {"arm": "tied", "seed": 1}
    table = trained["output_table"].sel(at | {"table_step": 20}).astype(float)
    even, odd = table.sel(symbol="E").values, table.sel(symbol="D").values
    found = kept.sel(at | {"table": "input", "eval_step": 20})
    assert np.isnan(kept["label_cosine"].sel(at | {"table": "output", "eval_step": 20}))
    np.testing.assert_allclose(found["label_distance"], np.linalg.norm(even - odd), rtol=1e-6)
    cosine = even @ odd / np.linalg.norm(even) / np.linalg.norm(odd)
    np.testing.assert_allclose(found["label_cosine"], cosine, rtol=1e-6)
    whole = label_geometry(trained, trained["table_step"].values)
    apart = whole["label_distance"].sel(arm="tied+untie-rows=mask")
    np.testing.assert_array_equal(apart.sel(table="input"), apart.sel(table="output"))
    row = next(row for row in equivalence_table(trained).rows if row[0] == "E-D")
    assert row[1:4] == ("1.000", "0.000", "–") and len(row) == 4 + 1 + 1 + 2


def test_cosines_of_pairs_stand_beside_their_distances(trained):
    kept = condense_exor(trained)
    at = {"arm": "tied+untie-rows=mask", "seed": 2}
    for table, pair in (("input", "X-Y"), ("output", "A-B")):
        rows = trained[f"{table}_table"].sel(at | {"table_step": 20}).astype(float)
        first, second = (rows.sel(symbol=symbol).values for symbol in pair.split("-"))
        expected = first @ second / np.linalg.norm(first) / np.linalg.norm(second)
        found = kept["pair_cosine"].sel(at | {"table": table, "pair": pair, "eval_step": 20})
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert distances_table(kept).rows == distances_table(trained).rows
    (place,) = (i for i, name in enumerate(distances_table(kept).header) if name == "cosine")
    tied = kept["pair_cosine"].sel(arm="tied", pair="X-Y", table="input", eval_step=20)
    assert distances_table(kept).rows[0][place].startswith(f"{float(tied.median()):.3f}")
    assert "cosine" not in distances_table(kept.drop_vars("pair_cosine")).header


def test_committed_parts_join_by_seed(trained, tmp_path):
    """Join runs of `--seeds 0-1` and `--seeds 2-2` as `commit.py RUN` does."""
    parts = [condense_exor(trained.sel(seed=seeds)) for seeds in ([0, 1], [2])]
    for part, name in zip(parts, "ab", strict=True):
        write_committed(part, tmp_path / f"{name}.nc")
    kept = [xr.load_dataset(tmp_path / f"{name}.nc", engine="h5netcdf") for name in "ab"]
    together = join_seeds(*kept)
    assert together["seed"].values.tolist() == [0, 1, 2]
    whole = condense_exor(trained)
    for name in ("label_cosine", "mask_logit", "train_loss"):
        values = together[name].transpose(*whole[name].dims)
        np.testing.assert_allclose(values, whole[name], rtol=1e-4, atol=1e-3)


def test_seeds_join_results_with_fewer_variables(trained):
    older = condense_exor(trained.sel(seed=[0, 1])).drop_vars(["label_distance", "label_cosine"])
    together = join_seeds(older, condense_exor(trained.sel(seed=[2])))
    assert together["seed"].values.tolist() == [0, 1, 2] and "label_cosine" not in together


def test_norm_turn_and_projection_of_the_masks_rows(trained):
    """By hand; the norm and the projection are the two factors of the mask's logit."""
    kept = condense_exor(trained)
    at = {"arm": "tied+untie-rows=mask", "seed": 1}
    for table in ("input", "output"):
        rows = trained[f"{table}_table"].sel(at | {"symbol": "mask"}).astype(float).values
        found = kept.sel(at | {"table": table})
        norms = np.linalg.norm(rows, axis=-1)
        np.testing.assert_allclose(found["mask_norm"], norms, rtol=1e-6)
        cosines = (rows[1:] * rows[:-1]).sum(axis=-1) / norms[1:] / norms[:-1]
        turns = np.degrees(np.arccos(cosines))
        assert np.isnan(found["mask_turn"][0]) and np.all(turns > 0.01)
        np.testing.assert_allclose(found["mask_turn"][1:], turns, rtol=1e-3)
    own = kept.sel(at)
    product = own["mask_norm"].sel(table="output") * own["mask_projection"]
    np.testing.assert_allclose(product, trained["mask_logit"].sel(at), rtol=1e-6)
    missing = kept["mask_projection"].isnull().all(["seed", "eval_step"])
    assert missing["arm"].values[missing].tolist() == ["tied+targets-only"]
