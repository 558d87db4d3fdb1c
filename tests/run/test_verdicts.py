"""A run of an experiment file with claims ends with the verdicts that it can give."""

import json
import shutil

import pytest

from jaxtie.config import UserError
from jaxtie.exor.claims import Claim
from jaxtie.run import command, lifecycle

DECLARATION = """from jaxtie import Experiment
from jaxtie.exor.claims import Claim
experiment = Experiment(name="small", arms=("tied", "untied"), steps=20, record_every=10,
                        eval_every=20)
claims = (
    Claim("There is a loss.", "loss", "tied", low=-99),
    Claim("There is none.", "loss", "tied", high=-99, opposite=True),
    Claim("Tying costs.", "loss", {"tied": 1, "untied": -1}, low=0),
    Claim("It is as elsewhere.", "loss", {"tied": 1, "elsewhere: tied": -1}, -1e-6, 1e-6),
    Claim("It is nearer.", "nearness by CKA", "tied", low=0),
)
"""


def test_a_run_ends_with_the_verdicts_that_it_can_give(tmp_path, monkeypatch, capsys):
    """No verdict without an arm, a variable or the other run; a finished one next to it is read."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lifecycle, "draw", lambda *_: [])
    (tmp_path / "mine.py").write_text(DECLARATION)
    line = "mine.py --arms tied --seeds 3 --quiet --out runs/small".split()
    assert command.main(line) == 0
    shown = capsys.readouterr().out
    assert (
        "Claims of small, with verdicts on a run that differs from it in arms, seeds (holds: 1,"
        " fails: 1, no data yet: 3), all in runs/small/claims.md:\n- holds: There is a loss. +"
    ) in shown
    missing = "- no data yet: 3 claims about arms, records or other runs that are not in runs\n"
    assert missing in shown
    assert command.main([*line, "--json"]) == 0
    first, second, _, other, _ = json.loads(capsys.readouterr().out)["claims"]
    assert second["claim"] == "There is none. (Our hypothesis is the opposite.)"
    assert first["verdict"] == "holds" and first["claim"] == "There is a loss."
    assert first["holds_if"] == "> -99" and first["found"].startswith("+")
    assert other["verdict"] == "no data yet"
    shutil.copytree("runs/small", "runs/elsewhere")
    assert command.main(line) == 0
    shown = capsys.readouterr().out
    assert "- holds: It is as elsewhere. +0.000 [+0.000, +0.000], 3 seeds, holds if -1e-06" in shown
    written = (tmp_path / "runs/small/claims.md").read_text()
    assert written.count("**holds**") == 2 and written.count("**no data yet**") == 2
    page = (tmp_path / "runs/small/report.html").read_text()
    assert page.count('<th scope="row">holds</th>') == 2 and "It is as elsewhere." in page


def test_a_claim_about_an_unknown_quantity_is_refused_at_once():
    with pytest.raises(UserError, match=r"'length': expected one of .*, loss, stuck share, "):
        Claim("It is long.", "length", "tied")
