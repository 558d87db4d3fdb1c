"""What earlier versions began goes on as they began it: their `config.json` knows fewer fields."""

import dataclasses
import json
from pathlib import Path

import pytest
from text_fixtures import command, finished_run

from jaxtie import TextExperiment, UserError, cli, runs
from jaxtie.results.folder import RunFolder
from jaxtie.text import trained
from jaxtie.text.declaration import UNSAID, UNSAID_OF_CORPUS, Corpus

THEN = {"masks_unknown": True, "contexts": 0, "corpus": Corpus(documents_to_split=50)}


def as_then(experiment: TextExperiment) -> dict:
    """What the version before these fields wrote of an experiment."""
    config = json.loads(json.dumps(experiment.as_dict()))
    return of_then(config)


def of_then(config: dict) -> dict:
    corpus = {name: value for name, value in config["corpus"].items() if name not in UNSAID_OF_CORPUS}
    kept = {name: value for name, value in config.items() if name not in UNSAID}
    return kept | {"corpus": corpus, "duplicates": bool(config["duplicates"])}


@pytest.mark.parametrize("duplicates", [True, False])
def test_what_was_not_said_is_what_was_done(duplicates):
    now, then = TextExperiment(duplicates=duplicates), TextExperiment(duplicates=duplicates, **THEN)
    folder, config = RunFolder(Path("nowhere")), {"experiment": as_then(then)}
    assert set(folder.differences(now, config)) == {"contexts", "corpus.documents_to_split", "masks_unknown"}
    begun = runs.as_begun(now, config)
    assert begun == then and not folder.differences(begun, config)
    assert runs.as_begun(now, {"experiment": json.loads(json.dumps(then.as_dict()))}) == then  # once it has gone on
    assert trained.declared_again(Path("nowhere"), as_then(then)) == then


def test_a_run_of_this_version_stays_what_it_is_declared_to_be():
    now = TextExperiment()
    assert runs.as_begun(now, None) == now
    assert runs.as_begun(now, {"experiment": json.loads(json.dumps(now.as_dict()))}) == now
    more = dataclasses.replace(now, contexts=3)
    assert runs.as_begun(more, {"experiment": as_then(now)}).contexts == 3  # which is refused then
    other = dataclasses.replace(now, optimiser=dataclasses.replace(now.optimiser, learning_rate=1.0))
    config = {"experiment": as_then(TextExperiment(**THEN))}
    assert RunFolder(Path("nowhere")).differences(runs.as_begun(other, config), config) == ["optimiser.learning_rate"]


@pytest.mark.slow
def test_a_folder_of_then_is_shown_extended_and_no_other_run(place, tmp_path, monkeypatch, capsys):
    """The same bits as a run that says so; a folder of a probability that was not known then is another run's."""
    monkeypatch.setattr(runs, "draw", lambda *_: [])
    source = (place / "text_mlm.py").read_text() + "from jaxtie import Corpus\n"
    said = ", ".join(f"{name}={value!r}" for name, value in THEN.items())
    (place / "then.py").write_text(f"{source}experiment = dataclasses.replace(experiment, {said})\n")
    (place / "skewed.py").write_text(f"{source}experiment = dataclasses.replace(experiment, duplicates=(0.1,))\n")
    folder = finished_run(place, tmp_path / "run", "--arms", "tied", name="then")
    config = RunFolder(folder).config()
    (folder / "config.json").write_text(json.dumps(config | {"experiment": of_then(config["experiment"])}))
    before = RunFolder(folder).load()
    now = command(place, "--arms", "tied", "--out", str(folder))
    capsys.readouterr()
    assert cli.main(now) == 0 and "figures, results" not in capsys.readouterr().out
    assert cli.main([*now, "--steps", "60"]) == 0
    whole = RunFolder(finished_run(place, tmp_path / "whole", "--arms", "tied", "--steps", "60", name="then")).load()
    after = RunFolder(folder).load()
    assert after.drop_attrs().identical(whole.drop_attrs())
    assert after["kind"].values.tolist() == before["kind"].values.tolist() == ["duplicate", "random"]
    capsys.readouterr()
    assert cli.main([*command(place, "--arms", "tied", name="skewed"), "--steps", "60", "--out", str(folder)]) == 2
    assert "holds a run that differs in duplicates" in capsys.readouterr().err


def test_another_versions_folder_is_refused_in_one_line():
    with pytest.raises(UserError, match="another version wrote its config"):
        trained.declared_again(Path("nowhere"), as_then(TextExperiment()) | {"unknown": 1})
