"""`--all`: run every experiment of a folder and write one page about them."""

import base64
import itertools
import os
import re
import shutil
import signal
from html.parser import HTMLParser
from pathlib import Path

import pytest
import xarray as xr
from drawing import save_small

from jaxtie.results import analysis, plots
from jaxtie.results.folder import RunFolder, write_sealed
from jaxtie.results.tables import Table
from jaxtie.run import command, lifecycle
from jaxtie.run.page import Section, check_page, write_page
from jaxtie.training.progress import Progress

NAME = """<script>alert('&"$_{$')<script>"""
CLAIM = """</p></title><img src=http://a.b/c.png onerror="d()"> {{ 7 }} &amp; é"""
TINY = """import jaxtie
experiment = jaxtie.Experiment(
    name={!r}, claim={!r}, arms=("untied",), steps=6000, record_every=20, eval_every=100
)
"""
FILES = {
    "a_hostile": TINY.format(NAME, CLAIM),
    "b_broken": "1 / 0",
    "c_plain": TINY.format("plain", "More of the same."),
    "d_twin": TINY.format("plain", "Not the same."),
    "e_third": TINY.format("third", "The third."),
}
ALL = ["--all", "--seeds", "3", "--scale", "0.01", "--quiet"]  # 60 of 6,000 steps
PNG = "data:image/png;base64,"
FOLDERS = (NAME, "plain", "third")


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with experiments."""
    place = tmp_path_factory.mktemp("place")
    (place / "experiments").mkdir()
    for name, text in FILES.items():
        (place / "experiments" / f"{name}.py").write_text(text)
    return place


@pytest.fixture(scope="module")
def done(place) -> Path:
    """The folder after a run of all that was interrupted once, in the first."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setattr(Progress, "add", lambda *_: os.kill(os.getpid(), signal.SIGINT))
        assert command.main(ALL) == 130
        assert RunFolder(place / "runs" / NAME).config()["finished"] is False
        assert not (place / "runs" / "plain").exists()
        text = Page.of(place).text
        assert "interrupted" in text and "to come" in text
        patch.undo()
        patch.chdir(place)
        patch.setattr(plots, "save", save_small)
        assert command.main(ALL) == 2
    return place


@pytest.fixture
def at(done, monkeypatch) -> Path:
    monkeypatch.chdir(done)
    return done / "runs"


def written(*folders: Path) -> dict[Path, int]:
    """Return the files of folders and when each was last written."""
    return {path: path.stat().st_mtime_ns for each in folders for path in each.rglob("*")}


class Page(HTMLParser):
    """Tags and text of a page; its tags must be balanced."""

    VOID = ("meta", "img")

    def __init__(self, source: str):
        super().__init__()
        self.open, self.tags, self.text, self.policy = [], [], "", ""
        self.feed(source)
        self.close()
        assert not self.open

    @classmethod
    def of(cls, place: Path) -> "Page":
        return cls((place / "runs" / "index.html").read_text(encoding="utf-8"))

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


def test_one_command_runs_every_valid_experiment(at, capsys):
    before = written(*(at / name for name in FOLDERS))
    assert command.main(ALL) == 2  # and again: finished ones are not run again
    assert before == written(*(at / name for name in FOLDERS))
    out, error = capsys.readouterr()
    rows = [line.split("│") for line in out.splitlines()]
    statuses = {cells[1].strip(): cells[2].strip() for cells in rows if len(cells) > 3}
    failed = dict.fromkeys(("b_broken", "plain"), "failed")  # "plain": the second file of that name
    assert statuses == dict.fromkeys(FOLDERS, "finished before") | failed
    assert "3 of 5 experiments are done" in out and "runs/index.html" in out
    assert error.count("\n") == 2 and "ZeroDivisionError" in error
    assert "d_twin.py: is named 'plain' as experiments/c_plain.py is" in error
    assert {path.name for path in at.iterdir()} == {*FOLDERS, "index.html"}
    assert RunFolder(at / "plain").config()["experiment"]["steps"] == 60


def test_cells_of_any_text_keep_their_places(tmp_path):
    """As tokens of a text: a bar would begin a cell of a table in Markdown, a line break end it."""
    tokens = ["|", "a|b", "a||", "a\nb", "<b>|</b>", "\\", "", CLAIM]
    table = Table("Nearest | neighbours", ("word", "a|b"), [(token, "0.5") for token in tokens])
    lines = table.markdown().splitlines()[2:]
    assert len(lines) == len(tokens) + 2
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 3 for line in lines), lines
    cells = [line[2:-2].split(" | ")[0] for line in lines[2:]]
    shown = [cell.replace("\\|", "|") for cell in cells]
    assert shown == [token.replace("\n", " ") for token in tokens]
    write_page(tmp_path / "index.html", "", [Section("", "x", tables=[table])])
    page = Page((tmp_path / "index.html").read_text(encoding="utf-8"))
    assert len(page.all("tr")) == len(tokens) + 1 and not page.all("b")
    assert all(token in page.text for token in tokens)


def test_an_interrupted_run_gives_what_one_go_gives(at):
    interrupted, other = (RunFolder(at / name).load().drop_attrs() for name in FOLDERS[:2])
    xr.testing.assert_identical(interrupted, other)


def test_the_status_counts_diverged_members(at, tmp_path):
    folder = RunFolder(shutil.copytree(at / "plain", tmp_path / "run"))
    results = folder.load()
    results["diverged_at"][0, 1] = 20
    write_sealed(folder.results, results.to_netcdf(engine="h5netcdf"))
    section = Section("experiments/c_plain.py", "plain", status="done")
    section.read(folder)
    assert section.status == "done, 1 of 3 members diverged"


def test_the_page_is_self_contained_and_escapes_names(at):
    page = Page.of(at.parent)
    assert not {"script", "link", "iframe", "object", "base"} & {tag for tag, _ in page.tags}
    for tag, attributes in page.tags:
        assert not {"srcset", "style"} & attributes.keys()
        assert not any(name.startswith("on") for name in attributes)
        assert attributes.get("src", PNG).startswith(PNG)
        assert attributes.get("href", "#").startswith("#"), tag
    source = (at / "index.html").read_text(encoding="utf-8")
    assert "url(" not in source and "@import" not in source
    assert page.text.count(NAME) >= 2 and page.text.count(CLAIM) == 1
    assert "default-src 'none'" in str(page.all("meta"))


def test_every_figure_and_table_is_on_the_page(at):
    page = Page.of(at.parent)
    images = [base64.b64decode(image["src"].removeprefix(PNG)) for image in page.all("img")]
    files = [path for name in FOLDERS for path in (at / name / "figures").glob("*.png")]
    assert sorted(images) == sorted(path.read_bytes() for path in files) and len(files) == 6
    assert all(len(image["alt"]) > 50 for image in page.all("img"))
    for name in FOLDERS:
        results = lifecycle.load(at / name)
        shown = {name for name, picture in analysis.plots(results).items() if picture.main}
        assert shown == {path.stem for path in (at / name / "figures").glob("*.png")}
    for text in (
        "Too short to conclude",
        "rank agreement with",
        "distance X-Y, input",
        "Per seed at step 60",
    ):
        assert text in page.text
    assert len(page.all("table")) == len(page.all("caption")) + 1 == 3 * 7 + 1
    assert page.text.count("jaxtie run --all") == 4
    assert page.text.count("orbax-checkpoint") == 3


def test_the_page_is_accessible(at):
    page = Page.of(at.parent)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = {link["href"].removeprefix("#") for link in page.all("a")}
    labels = {attributes.get("aria-labelledby") for _, attributes in page.tags} - {None}
    assert targets | labels == set(ids)
    levels = [int(tag[1]) for tag, _ in page.tags if tag in ("h1", "h2", "h3", "h4")]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(below <= above + 1 for above, below in itertools.pairwise(levels))
    assert page.all("html")[0]["lang"] == "en" and {"scope"} <= page.all("th")[0].keys()


def test_runs_that_differ_are_reported_and_left_alone(at, capsys):
    before = (at / "plain" / "config.json").read_bytes()
    assert command.main([*ALL, "--seeds", "1-2"]) == 2
    error = capsys.readouterr().err
    assert error.count("holds a run that differs in seeds") == 3
    page = Page.of(at.parent)
    assert page.text.count("holds a run that differs in seeds") == 3 and not page.all("img")
    assert (at / "plain" / "config.json").read_bytes() == before


@pytest.fixture
def run_all(place, monkeypatch, tmp_path, capsys):
    """Return a function that runs all with the second one replaced by an error."""
    monkeypatch.chdir(place)

    def start(error: type[BaseException]) -> tuple[int, str, str]:
        def run_one(experiment, *_):
            if experiment.name == "plain":
                raise error("all of it")
            return lifecycle.Outcome.DONE

        monkeypatch.setattr(command, "_run_one", run_one)
        status = command.main([*ALL[:-1], "--out", str(tmp_path)])
        return status, *capsys.readouterr()

    return start


def test_after_a_bug_in_one_the_others_are_run(run_all, tmp_path):
    status, out, error = run_all(MemoryError)
    assert (status, error.count("Traceback")) == (1, 1) and "third" in out
    assert "MemoryError: all of it" in (tmp_path / "index.html").read_text()


def test_an_interrupt_outside_of_training_ends_the_command(run_all):
    status, out, error = run_all(KeyboardInterrupt)
    assert status == 130 and "interrupted" in out and "to come" in out
    assert "2 of 3: plain, 0:00 since the start" in error


def test_a_dry_run_of_all_writes_nothing(place, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(place)
    monkeypatch.setattr(
        command, "plan_lines", lambda experiment, *_: [f"plan of {experiment.name}"]
    )
    assert command.main([*ALL, "--dry-run", "--out", str(tmp_path / "new")]) == 2
    assert capsys.readouterr().out == f"plan of {NAME}\nplan of plain\nplan of third\n"
    assert not (tmp_path / "new").exists()


def test_other_files_of_that_name_are_not_overwritten(place, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(place)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.html").write_text("<h1>My site</h1>")
    (tmp_path / "run").mkdir()
    RunFolder(tmp_path / "run").write_config({"experiment": {"name": "plain"}})
    (tmp_path / "file").touch()
    (tmp_path / "folder" / "index.html").mkdir(parents=True)
    before = written(tmp_path)
    for name in ("site", "run", "file", "file/below", "folder"):
        assert command.main([*ALL, "--out", str(tmp_path / name)]) == 2
        out, error = capsys.readouterr()
        assert out == "" and error.splitlines()[-1].startswith("jaxtie: ")
        assert str(tmp_path / name) in error
    assert before == written(tmp_path)


def test_a_file_name_may_be_any_bytes(tmp_path):
    write_page(tmp_path / "index.html", "command", [Section("experiments/\udce9.py", "a\udce9")])
    assert "&#56553;" in (tmp_path / "index.html").read_text(encoding="utf-8")
    check_page(tmp_path / "index.html")
