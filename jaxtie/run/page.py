"""Write `report.html`, one self-contained page about a run, or about all. Imports no jax.

Names and claims come from users' files: the template escapes every value, and the page's policy
lets a browser run no script and fetch nothing.
"""

import base64
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import jinja2

import jaxtie
from jaxtie.config import UserError
from jaxtie.results import analysis
from jaxtie.results.conclusion import TOO_SHORT
from jaxtie.results.folder import RunFolder, atomic_write
from jaxtie.results.tables import Table

WAITING, FAILED, SKIPPED = "to come", "failed", "skipped"
CLAIM_COLUMNS = ("verdict", "claim", "found", "holds if", "whose idea")  # of claims.md
GENERATOR = '<meta name="generator" content="jaxtie'


class Image(NamedTuple):
    """A PNG file as a data URI, with its caption."""

    name: str
    caption: str
    uri: str

    @classmethod
    def read(cls, path: Path, caption: str) -> "Image":
        """Read a PNG file."""
        data = base64.b64encode(path.read_bytes()).decode()
        return cls(path.stem, caption, f"data:image/png;base64,{data}")


@dataclass
class Section:
    """An experiment on the page."""

    file: str
    name: str
    claim: str = ""
    status: str = WAITING
    error: str = ""  # message, if it failed or was skipped
    exit_status: int = 0  # of a command that ran this experiment alone
    minutes: float | None = None
    facts: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)  # the conclusion; the outcome first
    answer: Table | None = None  # of the conclusion
    claims: Table | None = None  # with verdicts
    images: list[Image] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)

    @property
    def is_too_short(self) -> bool:
        """Whether the first line says that nothing can be concluded."""
        return bool(self.lines) and self.lines[0].startswith(TOO_SHORT)

    @property
    def time(self) -> str:
        """Minutes as text."""
        return "–" if self.minutes is None else f"{self.minutes:,.1f}"

    def read(self, folder: RunFolder, *, if_finished: bool = True) -> None:
        """Take facts, conclusion, figures and tables from a run's folder.

        Args:
          folder: of the run.
          if_finished: leave out all but the facts of an unfinished run.

        Raises:
          UserError: if a file cannot be read.
        """
        config = folder.config() or {}
        self.minutes = config["wall_seconds"] / 60 if "wall_seconds" in config else None
        self.facts = _facts(config)
        if if_finished and not config.get("finished"):
            return
        results = folder.load()
        conclusion = analysis.conclude(results)
        self.lines, self.answer = conclusion.lines(), conclusion.table
        if folder.claims.exists():
            written = Table.read(folder.claims.read_text(encoding="utf-8", errors="replace"))
            self.claims = written and written.select(CLAIM_COLUMNS)
        self.tables = analysis.tables(results)
        if diverged := int((results["diverged_at"] >= 0).sum()):
            self.status += f", {diverged} of {results['diverged_at'].size} members diverged"
        self.images = [
            Image.read(path, picture.caption)
            for name, picture in analysis.plots(results).items()
            if picture.main and (path := folder.figures / f"{name}.png").exists()
        ]


def _facts(config: dict) -> dict[str, str]:
    """Return what `config.json` says of a run, as label -> text."""
    experiment = config.get("experiment", {})

    def per_arm(name: str) -> str:
        arms = config.get("arms", {}).items()
        return ", ".join(f"{arm} {numbers[name]:,.0f}" for arm, numbers in arms if name in numbers)

    text = config.get("text", {}).get("report")
    facts = {
        "command": config.get("command", ""),
        "seeds": f"{len(experiment.get('seeds', ())):,}",
        "steps": f"{experiment['steps']:,}" if "steps" in experiment else "",
        "device": f"{config['workers']} × {config['device']}" if "device" in config else "",
        "text": f"{sum(text['tokens'].values()):,} tokens, vocabulary {text['vocabulary']:,}"
        if text
        else "",
        "tokens a second": per_arm("tokens_per_second"),
        "parameters": per_arm("parameters"),
        "seed-steps a second": per_arm("seed_steps_per_second"),
        "versions": ", ".join(
            f"{name} {number}" for name, number in config.get("versions", {}).items()
        ),
    }
    return {label: text for label, text in facts.items() if text}


def status_table(sections: list[Section]) -> Table:
    """Return the table of experiment, status and minutes that the terminal shows."""
    done = sum(bool(section.tables) for section in sections)
    rows = [(section.name, section.status, section.time) for section in sections]
    return Table(
        f"{done} of {len(sections)} experiments are done", ("experiment", "status", "minutes"), rows
    )


def check_page(path: Path) -> None:
    """Check that the page may be written.

    Raises:
      UserError: if its folder is not a folder, holds a run, or has another page of that name.
    """
    folder = path.parent
    if RunFolder(folder).config():
        raise UserError(
            f"--out {folder}: holds a run; with --all give the folder that holds the runs' folders"
        )
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            if GENERATOR not in file.read(2000):
                raise UserError(
                    f"{path}: is no page of jaxtie, so is not overwritten; choose another --out"
                )
    except FileNotFoundError:
        pass
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read ({error.strerror}); choose another --out"
        ) from error


def write_report(folder: RunFolder, experiment: str, claim: str) -> Path:
    """Write the page about one run into its folder; return the file."""
    section = Section("", experiment, claim, "done")
    section.read(folder, if_finished=False)
    write_page(folder.page, section.facts.pop("command", ""), [section])
    return folder.page


def write_page(path: Path, command: str, sections: list[Section]) -> None:
    """Write a page; the file is the old one or the new one at any moment."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(
        files("jaxtie.run").joinpath("page.html").read_text(encoding="utf-8")
    )
    text = template.render(
        version=jaxtie.__version__, command=command, sections=sections, written=datetime.now(UTC)
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, text.encode(errors="xmlcharrefreplace"))  # file names may be any bytes
