"""How a condensed run is written, so that what documents stand on can be committed: few bits, and
these packed.
"""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

KEPT_BITS = 16  # of a member's numbers, behind the first: five digits, and documents show no more
DECIMALS = {"train_loss": 3}  # decimals of what is kept of all evaluations, nat
# attributes of a run that may be put otherwise, and it is the same experiment
WORDING = (
    "claim",
    "command",
)


def write_kept(condensed: xr.Dataset, path: Path) -> None:
    """Write it as NetCDF; what is there already stays until all is written. The command is left
    out: it names folders.
    """
    condensed = condensed.assign_attrs()  # a copy
    condensed.attrs.pop("command", None)
    members = [
        name
        for name, values in condensed.data_vars.items()
        if "seed" in values.dims and values.dtype.kind == "f"
    ]
    # Seeds last: what is not there of any then lies in one piece, and a file takes a fifth less.
    rounded = {
        name: _rounded(condensed[name]).transpose(..., "seed")
        for name in members
        if name not in DECIMALS
    }
    condensed = condensed.assign(rounded)
    packed: dict[Hashable, dict[str, Any]] = {
        # In one piece: what finds the places of many small ones took a fifth of a file.
        name: {"zlib": True, "complevel": 9, "shuffle": True, "chunksizes": values.shape or None}
        for name, values in condensed.data_vars.items()
    }
    for name in DECIMALS.keys() & packed.keys():
        packed[name] |= {
            "dtype": "int32",
            "scale_factor": 10.0 ** -DECIMALS[name],
            "_FillValue": -1,
        }
    new = path.with_suffix(".new")
    condensed.to_netcdf(new, engine="h5netcdf", encoding=packed)
    new.replace(path)


def joined_seeds(kept: xr.Dataset, further: xr.Dataset) -> xr.Dataset:
    """What is kept of a run with what would be kept of another one, of other seeds, as if they had
    been run together.

    Of more seeds less is kept: variables and recorded steps that one of them lacks, and evaluations
    of which one has nothing, are left out.

    Raises:
      ValueError: where they differ in more than seeds, wording and the versions of libraries.
    """
    described = [
        {name: said for name, said in each.attrs.items() if _describes(name)}
        for each in (kept, further)
    ]
    if described[0] != described[1]:
        differing = sorted(
            name
            for name, said in {**described[0], **described[1]}.items()
            if described[0].get(name) != said
        )
        raise ValueError(f"they differ in {', '.join(differing)}")
    both = _in_common(further, kept)  # attributes are those of the first
    together = xr.concat(
        both,
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
    members = [
        name
        for name, values in one.data_vars.items()
        if "seed" in values.dims and values.dtype.kind == "f"
    ]
    with xr.set_options(arithmetic_join="exact"):
        there = {
            name: one[name].notnull().any("seed") & other[name].notnull().any("seed")
            for name in members
        }
        return [
            each.assign({name: each[name].where(there[name]) for name in members})
            for each in (one, other)
        ]


def _describes(attribute: str) -> bool:
    return attribute not in WORDING and not attribute.startswith("version_")


def _rounded(values: xr.DataArray) -> xr.DataArray:
    """Single precision, to the nearest number with so many bits: the zeros behind them take no
    room.
    """
    bits = np.ascontiguousarray(values.values, np.float32).view(np.uint32)
    spare = np.uint32(np.finfo(np.float32).nmant - KEPT_BITS)
    nearest = (bits + (np.uint32(1) << (spare - np.uint32(1)))) >> spare << spare
    return values.copy(
        data=np.where(np.isfinite(values), nearest.view(np.float32), values).astype(np.float32)
    )
