"""Text as a kind of experiment: see `jaxtie.run.kinds.Kind`. Imports no jax until something is
trained.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxtie.config import MissingInputError, UserError
from jaxtie.text.config import TextExperiment

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd
    import xarray as xr

    from jaxtie.results.folder import RunFolder, Say
    from jaxtie.results.netcdf import Schema
    from jaxtie.results.plots import Picture
    from jaxtie.results.tables import Table
    from jaxtie.text.corpus import Material
    from jaxtie.text.data.tokens import Text
    from jaxtie.text.engine import TextEngine
    from jaxtie.text.options import TextOptions
    from jaxtie.training.distributed import Processes

name = "text"
accepted = frozenset(
    "seeds steps scale arms record_every eval_every data_seed text tfds tfds_field vocab"
    " vocab_size".split()
)
refusal = "is of text"
many_seeds = False
required = frozenset(
    "loss accuracy valid_loss valid_accuracy perplexity input_distance output_distance"
    " input_neighbour output_neighbour first_word second_word probe_word token"
    " scheduled_learning_rate parameters estimated_initial_loss diverged_at".split()
)


def options() -> type[TextOptions]:
    """Its own options of the command line."""
    from jaxtie.text.options import TextOptions

    return TextOptions


def changes(experiment: TextExperiment, options: Any) -> dict[str, Any]:
    """Fields that its own options ask for; MissingInputError where there is no text."""
    if options.tfds_field and not options.tfds:
        raise UserError("--tfds-field: expected with --tfds only")
    given: dict[str, Any] = {
        "field": options.tfds_field,
        "vocab": options.vocab and str(options.vocab),
        "vocab_size": options.vocab_size,
    }
    given = {field: value for field, value in given.items() if value is not None}
    if options.tfds or options.text:
        given |= {"tfds": options.tfds, "paths": tuple(map(str, options.text))}
    fields: dict[str, Any] = {}
    if options.data_seed is not None:
        given["split_seed"] = fields["data_seed"] = options.data_seed
    corpus = dataclasses.replace(experiment.corpus, **given)
    if not corpus.is_given:
        raise MissingInputError(
            f"{experiment.name}: needs a text; give files or folders by --text PATH, or a data set"
            " by --tfds NAME"
        )
    return fields | {"corpus": corpus}


def schema(experiment: TextExperiment) -> Schema:
    """What its results hold of members."""
    from jaxtie.text.analysis import text_schema

    return text_schema(experiment)


def check_unchanged(experiment: TextExperiment, folder: RunFolder, earlier: dict) -> None:
    """UserError where the files of a finished run hold something else by now; they may be gone."""
    from jaxtie.text.data import files

    if experiment.corpus.paths:
        try:
            found = files.look_at(experiment.corpus.paths)
        except UserError:
            return
        _compare(folder, earlier, "source", found.key)


def prepare(
    experiment: TextExperiment,
    folder: RunFolder,
    earlier: dict | None,
    processes: Processes,
    say: Say,
) -> Material:
    """The text as the folder's run had it, if there is one: prepared by the first process, then
    alike by the others.

    Raises:
      UserError: where the text cannot be prepared, has changed since that run, or is not that of
        the first process.
    """
    from jaxtie.text.corpus import make_material
    from jaxtie.text.data.tokens import prepare_text
    from jaxtie.text.data.vocabulary import vocabulary_file

    if processes.leads:
        known = folder.vocabulary.read_bytes() if earlier and folder.vocabulary.exists() else None
        text: Text = prepare_text(experiment.corpus, say=say, vocabulary=known)
        _compare(folder, earlier, "key", text.key)
        say(str(text.report))
        # Now the others prepare the same, or find it prepared if they share the cache.
        processes.broadcast({"key": np.str_(text.key), "vocabulary": np.array(text.vocabulary)})
    else:
        first = processes.broadcast({})
        text = prepare_text(
            experiment.corpus, say=say, vocabulary=vocabulary_file(map(str, first["vocabulary"]))
        )
        if text.key != str(first["key"]):
            raise UserError(
                "--distributed: the text is not that of the first process; give each process the"
                " same text"
            )
    return make_material(experiment, text)


def _compare(folder: RunFolder, earlier: dict | None, what: str, found: str) -> None:
    if (earlier or {}).get("text", {}).get(what, found) != found:
        raise UserError(
            f"--out {folder.path}: holds a run on a text that has changed since, or that another"
            " version prepared; choose another --out"
        )


def keep(experiment: TextExperiment, material: Material, folder: RunFolder) -> dict[str, Any]:
    """Write the vocabulary, if it was trained: another version might train another."""
    from jaxtie.text.data.vocabulary import vocabulary_file

    text = material.text
    if not experiment.corpus.vocab:
        folder.write_vocabulary(vocabulary_file(text.vocabulary))
    return {
        "text": {"key": text.key, "source": text.source, "report": dataclasses.asdict(text.report)}
    }


def engine(experiment: TextExperiment, material: Material, processes: Processes) -> TextEngine:
    """What trains its members."""
    from jaxtie.text.engine import TextEngine

    return TextEngine(experiment, material, processes)


def attributes(experiment: TextExperiment, material: Material) -> dict[str, str | int]:
    """Attributes of its results."""
    from jaxtie.text.analysis import text_attributes

    return text_attributes(experiment, material)


def constants(experiment: TextExperiment, material: Material) -> dict[str, xr.DataArray]:
    """What no member owns."""
    from jaxtie.text.analysis import text_constants

    return text_constants(experiment, material)


def tables(results: xr.Dataset) -> list[Table]:
    """All that is told of its results."""
    from jaxtie.text.tables import text_tables

    return text_tables(results)


def pictures(results: xr.Dataset) -> dict[str, Picture]:
    """All that is drawn of its results."""
    from jaxtie.text.plots import text_pictures

    return text_pictures(results)


def frames(results: xr.Dataset) -> dict[str, pd.DataFrame]:
    """Its results as tidy tables."""
    from jaxtie.text.plots import text_frames

    return text_frames(results)


def animate(results: xr.Dataset, folder: Path) -> Path:
    """Refused: a table of words is too large to be drawn."""
    raise UserError("--animate: expected a run of EXor, whose tables are small enough to be drawn")


def condensed(results: xr.Dataset, run: Path) -> xr.Dataset:
    """Losses and, where the roles of a tied table were told apart, these and how alike the tables
    at the end are.
    """
    from jaxtie.text.analysis import condense_text

    return condense_text(results, run)


def exact_divergences(experiment: TextExperiment) -> xr.Dataset:
    """Refused: nobody knows the law of a text."""
    raise UserError(
        f"{experiment.name}: no exact law of a text is at hand; give --text PATH, or the folders of"
        " two runs"
    )
