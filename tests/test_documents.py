"""The READMEs' Python examples run, their links lead to files, documented commands exist."""

import ast
import doctest
import itertools
import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest

from jaxtie.__main__ import COMMANDS, HELP
from jaxtie.advise.command import AdviseOptions
from jaxtie.audit.command import AuditOptions
from jaxtie.compare.command import CompareOptions
from jaxtie.options import parse_command
from jaxtie.run.command import ReportOptions, parse_run
from jaxtie.run.experiment_files import find_experiment

ROOT = Path(__file__).parents[1]
READMES = sorted(
    path for path in ROOT.rglob("README.md") if not {".venv", "build", "runs"} & set(path.parts)
)
SESSIONS = [path for path in READMES if "```pycon" in path.read_text()]
LONGEST = {"README.md": 110, "experiments/README.md": 180}  # lines


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", SESSIONS, ids=relative)
def test_sessions(path):
    """Run the blocks marked `pycon` as one session."""
    blocks = [block.split("```")[0] for block in path.read_text().split("```pycon\n")[1:]]
    if not find_spec("equinox"):
        print("skipping the examples of Equinox, not installed: pip install 'jaxtie[test]'")
        blocks = [block for block in blocks if "import equinox" not in block]
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, path.name, str(path), 0)
    assert len(test.examples) > 4
    report = []
    doctest.DocTestRunner().run(test, out=report.append)
    assert not report, "".join(report)


@pytest.mark.parametrize("path", READMES, ids=relative)
def test_links_lead_to_files(path):
    links = re.findall(r"\]\((?!https?:)([^)#]*)", path.read_text())
    missing = [link for link in links if link and not (path.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize(("name", "lines"), [*LONGEST.items(), ("jaxtie/tying/README.md", 120)])
def test_documents_are_short(name, lines):
    assert len((ROOT / name).read_text().splitlines()) <= lines


def sources_of(name: str) -> list[str]:
    """Return the sources of the functions and classes of a name, `OWNER.NAME` those of an owner."""
    owner, _, last = name.rpartition(".")
    found = []
    for path in (ROOT / "jaxtie").rglob("*.py"):
        text = path.read_text()
        whole = ast.parse(text)
        parts = [each for each in whole.body if getattr(each, "name", "") == owner]
        for part in [whole] if owner in ("", path.stem) else parts:
            for node in ast.walk(part):
                if getattr(node, "name", "") == last:
                    found.append(ast.get_source_segment(text, node) or "")
    return found


def test_each_arrow_of_the_architecture_page_is_in_the_code():
    text = (ROOT / "jaxtie" / "README.md").read_text().partition("To follow something")[2]
    chains = [chain for chain in re.findall("`([^`]*)`", text) if "->" in chain]
    steps = [re.split(r"\s*->\s*", chain) for chain in chains]
    pairs = [pair for own in steps for pair in itertools.pairwise(own)]
    assert len(pairs) > 40
    for caller, callee in pairs:
        last = callee.rpartition(".")[2]
        calls = [re.search(rf"\b{last}\b", source) for source in sources_of(caller)]
        assert any(calls), f"{caller} -> {callee}"


def test_modules_in_the_architecture_page_exist():
    tree = (ROOT / "jaxtie" / "README.md").read_text().split("```")[1]
    for word in re.findall(r"[\w/]+\.py", tree):
        assert any((ROOT / "jaxtie").rglob(word)), word
    for package in re.findall(r"^(\w+)/ ", tree, re.MULTILINE):
        assert (ROOT / "jaxtie" / package).is_dir(), package


@pytest.mark.parametrize("name", LONGEST)
def test_numbers_of_the_findings_are_on_the_pages_they_link_to(name):
    """Of a paragraph without such a link: on any page."""
    folders = (ROOT / "experiments").glob("*_*.md"), (ROOT / "experiments/results").glob("*.md")
    pages = {path.name: path.read_text() for folder in folders for path in folder}
    text = (ROOT / name).read_text()
    if name == "README.md":
        text = text[text.index("## What does tying cost") : text.index("## Two commands")]
    prose = re.sub(r"<!-- table.*?end of table -->", "", text, flags=re.DOTALL)
    for paragraph in re.split(r"\n\n|\n(?=- |\d\. |#)", prose):
        links = re.findall(r"\((?:experiments/)?(?:results/)?([\w-]+\.md)\)", paragraph)
        own = "".join(pages[link] for link in {*links} & {*pages} or pages)
        numbers = re.findall(r"\d+\.\d+", re.sub(r"\]\([^)]*\)", "", paragraph))
        assert not [number for number in numbers if number not in own], paragraph


def test_the_findings_count_the_verdicts_of_all_pages():
    pages = [path.read_text() for path in (ROOT / "experiments/results").glob("*.md")]
    counts = [len(re.findall(r"\*\*(?:holds|fails|inconclusive)\*\*", page)) for page in pages]
    stated = f"{sum(counts)} verdicts in {sum(map(bool, counts))} families"
    assert stated in (ROOT / "experiments/README.md").read_text()


SOURCES = sorted(
    path
    for folder in ("jaxtie", "experiments", "benchmarks")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".md", ".ipynb", ".html") and "results" not in path.parts[-2:]
)
PARSERS = {
    "run": parse_run,
    "advise": lambda words: parse_command(AdviseOptions, "jaxtie advise", words),
    "audit": lambda words: parse_command(AuditOptions, "jaxtie audit", words),
    "compare": lambda words: parse_command(CompareOptions, "jaxtie compare", words),
    "report": lambda words: parse_command(ReportOptions, "jaxtie report", words),
}


def documented_commands(text: str) -> list[str]:
    """Return the commands that stand on lines of their own or between backticks."""
    text = re.sub(r"\\+\n *", "", text)
    lines = re.findall(r"^ *(?:\$ |%|!)?((?:jaxtie|python) [^\n]+)", text, re.MULTILINE)
    lines = [re.split(r" {2,}|  *#|\) ", line)[0] for line in lines]
    return [line for line in [*lines, *re.findall(r"`((?:jaxtie|python) [^`\n]+)`", text)]]


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *SOURCES], ids=relative
)
def test_documented_commands_exist(path):
    text = path.read_text()
    for line in documented_commands(text):
        program, first, *words = shlex.split(line)
        is_whole = words and not re.search(r"\[|\.\.\.", line)
        if program == "jaxtie" and first in COMMANDS and is_whole:
            PARSERS[first](words)
            if first == "run" and not words[0].startswith("-") and words[0] != "FILE":
                assert (ROOT / find_experiment(words[0])).is_file(), line
        elif program == "python" and first.endswith(".py") and "NAME" not in first:
            assert (ROOT / first).is_file(), line
        elif program == "python" and first == "-m" and words[0].startswith("jaxtie"):
            assert (ROOT / words[0].replace(".", "/") / "__main__.py").is_file(), line
    for module in re.findall(r"python -m (jaxtie[.\w]*)", text):
        assert (ROOT / module.replace(".", "/") / "__main__.py").is_file(), module
    for name in re.findall(r"[`\"](?:f?)jaxtie\.(\w+): ", text):
        assert name in COMMANDS, name


@pytest.mark.parametrize("path", sorted((ROOT / "experiments").glob("*.py")), ids=relative)
def test_results_that_an_experiment_names_are_committed(path):
    header = path.read_text().split('"""')[1]
    assert f"jaxtie run {path.stem}" in header
    for name in re.findall(r"(?:results|data|jaxtie)/[\w./-]+\w", header):
        assert any((folder / name).exists() for folder in (ROOT, ROOT / "experiments")), name
    assert not re.search(r"Results[^.]*: README", header), "no README has results of one experiment"


def test_help_names_every_command():
    assert re.findall(r"^  (\w+)  ", HELP, re.MULTILINE) == [*COMMANDS]
