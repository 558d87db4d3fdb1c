"""`report.html`: one page about a run, even with hostile names."""

import base64
import itertools
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import xarray as xr
from drawing import save_small
from made_up import exor_results

from jaxtie import Experiment
from jaxtie.results import analysis, plots
from jaxtie.results.folder import RunFolder, write_sealed
from jaxtie.results.tables import Table
from jaxtie.run import command, lifecycle
from jaxtie.run.page import write_report

NAME = """<script>alert('&"$_{$')<script>"""
CLAIM = """</p></title><img src=http://a.b/c.png onerror="d()"> {{ 7 }} &amp; é"""
PNG = "data:image/png;base64,"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The folder of a run, of made-up results."""
    made = RunFolder(tmp_path_factory.mktemp("runs") / NAME)
    made.path.mkdir()
    line, versions = "jaxtie run hostile.py", {"orbax-checkpoint": "0"}
    made.write_config({"experiment": {"steps": 100}, "command": line, "versions": versions})
    names = {"task": "exor", "experiment": NAME, "claim": CLAIM}
    names |= Experiment.reports.attributes(Experiment())
    results = exor_results("untied").assign_attrs(names)
    write_sealed(made.results, bytes(results.to_netcdf(engine="h5netcdf")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "save", save_small)
        assert command.main_report([str(made.path)]) == 0
    return made.path


class Page(HTMLParser):
    """Tags and text of a page; its tags must be balanced."""

    VOID = ("meta", "img")

    def __init__(self, source: str):
        super().__init__()
        self.open, self.tags, self.text = [], [], ""
        self.feed(source)
        self.close()
        assert not self.open

    @classmethod
    def of(cls, folder: Path) -> "Page":
        return cls((folder / "report.html").read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text += data

    def all(self, tag: str) -> list[dict]:
        return [attributes for name, attributes in self.tags if name == tag]


def written_anew(path: Path, results: xr.Dataset, **config: object) -> Page:
    """Write the page about results into an empty folder and read it."""
    RunFolder(path).write_config({"experiment": {}, **config})
    write_report(RunFolder(path), results)
    return Page.of(path)


def test_cells_of_any_text_keep_their_places(folder, tmp_path, monkeypatch):
    """As tokens of a text: a bar would begin a cell of a table in Markdown, a line break end it."""
    tokens = ["|", "a|b", "a||", "a\nb", "<b>|</b>", "\\", "", CLAIM]
    table = Table("Nearest | neighbours", ("word", "a|b"), [(token, "0.5") for token in tokens])
    lines = table.markdown().splitlines()[2:]
    assert len(lines) == len(tokens) + 2
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 3 for line in lines), lines
    cells = [line[2:-2].split(" | ")[0] for line in lines[2:]]
    shown = [cell.replace("\\|", "|") for cell in cells]
    assert shown == [token.replace("\n", " ") for token in tokens]
    results = lifecycle.load(folder)
    own, rows = analysis.tables(results), len(Page.of(folder).all("tr"))
    monkeypatch.setattr(analysis, "tables", lambda _: [*own, table])
    page = written_anew(tmp_path, results)
    assert len(page.all("tr")) == rows + len(tokens) + 1 and not page.all("b")
    assert all(token in page.text for token in tokens)


def test_the_page_is_self_contained_and_escapes_names(folder):
    page = Page.of(folder)
    assert not {"script", "link", "iframe", "object", "base"} & {tag for tag, _ in page.tags}
    for tag, attributes in page.tags:
        assert not {"srcset", "style", "href"} & attributes.keys(), tag
        assert not any(name.startswith("on") for name in attributes)
        assert attributes.get("src", PNG).startswith(PNG)
    source = (folder / "report.html").read_text(encoding="utf-8")
    assert "url(" not in source and "@import" not in source
    assert page.text.count(NAME) >= 2 and page.text.count(CLAIM) == 1
    assert "default-src 'none'" in str(page.all("meta"))


def test_every_figure_and_table_is_on_the_page(folder):
    page = Page.of(folder)
    images = [base64.b64decode(image["src"].removeprefix(PNG)) for image in page.all("img")]
    files = [*(folder / "figures").glob("*.png")]
    assert sorted(images) == sorted(path.read_bytes() for path in files) and len(files) == 2
    assert all(len(image["alt"]) > 50 for image in page.all("img"))
    plotted = analysis.plots(lifecycle.load(folder)).items()
    shown = {name for name, _ in plotted}
    assert shown == {path.stem for path in files}
    for text in ("Too short to conclude", "distance X-Y, input", "decay-adjusted distance"):
        assert text in page.text
    assert len(page.all("table")) == len(page.all("caption")) == 3
    for text in ("jaxtie run hostile.py", "orbax-checkpoint"):
        assert page.text.count(text) == 1


def test_the_page_is_accessible(folder):
    page = Page.of(folder)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    labels = {attributes.get("aria-labelledby") for _, attributes in page.tags} - {None}
    assert len(ids) == len(set(ids)) and labels == set(ids)
    levels = [int(tag[1]) for tag, _ in page.tags if tag in ("h1", "h2", "h3", "h4")]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(below <= above + 1 for above, below in itertools.pairwise(levels))
    assert page.all("html")[0]["lang"] == "en" and {"scope"} <= page.all("th")[0].keys()


def test_a_name_may_be_any_bytes_and_diverged_members_are_counted(folder, tmp_path):
    results = lifecycle.load(folder).assign_attrs(experiment="a\udce9")
    results["diverged_at"][0, 1] = 20
    page = written_anew(tmp_path, results, command="jaxtie run \udce9.py")
    assert "&#56553;" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "1 of 4 members" in page.text and "of 4 members" not in Page.of(folder).text
