"""The READMEs' Python examples run, and their links lead to files."""

import doctest
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
READMES = sorted(
    path for path in ROOT.rglob("README.md") if not {".venv", "build", "runs"} & set(path.parts)
)
SESSIONS = [path for path in READMES if "```pycon" in path.read_text()]
LONGEST = {"README.md": 120, "experiments/README.md": 200}  # lines


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
    assert len(test.examples) > 5
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


def test_modules_in_the_architecture_page_exist():
    tree = (ROOT / "jaxtie" / "README.md").read_text().split("```")[1]
    for word in re.findall(r"[\w/]+\.py", tree):
        assert any((ROOT / "jaxtie").rglob(word)), word
    for package in re.findall(r"^(\w+)/ ", tree, re.MULTILINE):
        assert (ROOT / "jaxtie" / package).is_dir(), package


@pytest.mark.parametrize("name", LONGEST)
def test_numbers_of_the_findings_are_on_the_pages_they_link_to(name):
    """Of a paragraph without such a link: on any page."""
    pages = {path.name: path.read_text() for path in (ROOT / "experiments/results").glob("*.md")}
    text = (ROOT / name).read_text()
    if name == "README.md":
        text = text[text.index("## What we found") : text.index("## Run your own")]
    prose = re.sub(r"<!-- table.*?end of table -->", "", text, flags=re.DOTALL)
    for paragraph in re.split(r"\n\n|\n(?=- |\d\. |#)", prose):
        links = re.findall(r"\((?:experiments/)?results/([\w-]+\.md)\)", paragraph)
        own = "".join(pages[link] for link in links or pages)
        numbers = re.findall(r"\d+\.\d+", re.sub(r"\]\([^)]*\)", "", paragraph))
        assert not [number for number in numbers if number not in own], paragraph


def test_the_findings_count_the_verdicts_of_all_pages():
    pages = [path.read_text() for path in (ROOT / "experiments/results").glob("*.md")]
    counts = [len(re.findall(r"\*\*(?:holds|fails|inconclusive)\*\*", page)) for page in pages]
    stated = f"{sum(counts)} verdicts in {sum(map(bool, counts))} families"
    assert stated in (ROOT / "experiments/README.md").read_text()
