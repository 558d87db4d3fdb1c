"""Committed results: how they are written, and how further seeds join them."""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

KEPT_BITS = 16  # of the mantissa of members' numbers: five digits; documents show no more
# Of variables that are committed of all evaluations; they are at least 0.
DECIMALS = {"train_loss": 3, "mask_norm": 3}
WORDING = ("claim", "command")  # attributes that may differ within an experiment


def write_committed(condensed: xr.Dataset, path: Path) -> None:
    """Write results as NetCDF in few bits, packed; an existing file stays until all is written.

    The command is omitted, because it names folders.
    """
    condensed = condensed.assign_attrs()  # a copy
    condensed.attrs.pop("command", None)
    # Seeds last: values that are missing of all seeds lie together, and a file takes a fifth less.
    rounded = {
        name: _rounded(condensed[name]).transpose(..., "seed")
        for name in _of_members(condensed)
        if name not in DECIMALS
    }
    condensed = condensed.assign(rounded)
    packed: dict[Hashable, dict[str, Any]] = {
        # One chunk: the index of many small ones took a fifth of a file.
        name: {"zlib": True, "complevel": 9, "shuffle": True, "chunksizes": values.shape or None}
        for name, values in condensed.data_vars.items()
    }
    for name in DECIMALS.keys() & packed.keys():
        scale = 10.0 ** -DECIMALS[name]
        packed[name] |= {"dtype": "int32", "scale_factor": scale, "_FillValue": -1}
    new = path.with_suffix(".new")
    new.write_bytes(condensed.to_netcdf(engine="h5netcdf", encoding=packed))
    new.replace(path)


def join_seeds(kept: xr.Dataset, further: xr.Dataset) -> xr.Dataset:
    """Join committed results with those of other seeds, as if they had been run together.

    Variables, recorded steps and evaluations that one of them lacks are omitted, because less is
    committed of many seeds.

    Raises:
      ValueError: where they differ in more than seeds, wording and the versions of libraries.
    """
    one, other = (
        {
            name: value
            for name, value in each.attrs.items()
            if name not in WORDING and not name.startswith("version_")
        }
        for each in (kept, further)
    )
    if differing := sorted(name for name in one | other if one.get(name) != other.get(name)):
        raise ValueError(f"they differ in {', '.join(differing)}")
    together = xr.concat(
        _in_common(further, kept),  # attributes are those of the first
        "seed",
        data_vars="minimal",
        coords="minimal",
        compat="equals",
        join="exact",
        combine_attrs="override",
    )
    return together.sortby("seed")


def _in_common(one: xr.Dataset, other: xr.Dataset) -> list[xr.Dataset]:
    steps = np.intersect1d(one["step"], other["step"])
    shared = [name for name in one.data_vars if name in other.data_vars]
    one, other = (each[shared].sel(step=steps) for each in (one, other))
    with xr.set_options(arithmetic_join="exact"):
        there = {
            name: one[name].notnull().any("seed") & other[name].notnull().any("seed")
            for name in _of_members(one)
        }
        return [
            each.assign({name: each[name].where(there[name]) for name in there})
            for each in (one, other)
        ]


def _of_members(results: xr.Dataset) -> list[Hashable]:
    """Return the names of the variables that hold a number of each seed."""
    return [
        name
        for name, values in results.data_vars.items()
        if "seed" in values.dims and values.dtype.kind == "f"
    ]


def _rounded(values: xr.DataArray) -> xr.DataArray:
    """Round to the nearest single-precision number with few bits; the zeros compress well."""
    bits = np.ascontiguousarray(values.values, np.float32).view(np.uint32)
    spare = np.uint32(np.finfo(np.float32).nmant - KEPT_BITS)
    nearest = (bits + (np.uint32(1) << (spare - np.uint32(1)))) >> spare << spare
    return values.copy(
        data=np.where(np.isfinite(values), nearest.view(np.float32), values).astype(np.float32)
    )
