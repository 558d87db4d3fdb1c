"""What the README shows in Python is what happens."""

import doctest
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_sessions():
    """Blocks marked `pycon`, in one session from the first to the last."""
    blocks = [block.split("```")[0] for block in README.read_text().split("```pycon\n")[1:]]
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, "README.md", str(README), 0)
    assert len(test.examples) > 5
    report = []
    doctest.DocTestRunner().run(test, out=report.append)
    assert not report, "".join(report)
