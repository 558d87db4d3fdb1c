"""Run folders -> one page of HTML that needs nothing but itself: every figure, every table, of all
experiments.

What experiments are called and claim comes from users' files: the template escapes every value, and
the page's own policy lets a browser run no script and fetch nothing. Imports no jax.
"""

import base64
import os
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path

import jinja2

import jaxtie
from jaxtie.config import UserError
from jaxtie.results import analysis
from jaxtie.results.folder import RunFolder
from jaxtie.results.page_section import SECTION, read_section
from jaxtie.results.tables import Table
from jaxtie.run import lifecycle

WAITING, FAILED, SKIPPED = "to come", "failed", "skipped"
MARK = '<meta name="generator" content="jaxtie'


@dataclass
class Image:
    """A PNG, and what it shows in words; `main`: it is shown at once, the others on demand."""

    name: str
    caption: str
    png: bytes
    main: bool

    @property
    def uri(self) -> str:
        return "data:image/png;base64," + base64.b64encode(self.png).decode()


@dataclass
class Section:
    """An experiment on the page.

    Attributes:
      file: that declares it; name, claim: as declared.
      status: in a few words; error: the line, where it failed or was skipped.
      minutes: that the run took, over all its sittings.
      facts: label -> what `config.json` says.
    """

    file: str
    name: str
    claim: str = ""
    status: str = WAITING
    error: str = ""
    minutes: float | None = None
    facts: dict[str, str] = field(default_factory=dict)
    images: list[Image] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)

    @property
    def time(self) -> str:
        return "–" if self.minutes is None else f"{self.minutes:,.1f}"

    def read(self, folder: RunFolder) -> None:
        """Take what a run has left.

        Raises:
          UserError: where a file cannot be read.
        """
        config = folder.config() or {}
        self.minutes = config["wall_seconds"] / 60 if "wall_seconds" in config else None
        self.facts = _facts(config)
        if not config.get("finished"):
            return
        results = lifecycle.load(folder.path)
        self.tables, pictures = analysis.tables(results), analysis.plots(results)
        if diverged := int((results["diverged_at"] >= 0).sum()):
            self.status += f", {diverged} of {results['diverged_at'].size} members diverged"
        paths = {path.stem: path for path in sorted(folder.figures.glob("*.png"))}
        captions = {
            name: (picture.caption, picture.main)
            for name, picture in pictures.items()
            if name in paths
        }
        # of another version
        captions |= {
            name: (name.replace("_", " "), False) for name in paths if name not in captions
        }
        self.images = [
            Image(name, text, paths[name].read_bytes(), main)
            for name, (text, main) in captions.items()
        ]


def sections_left(out: Path) -> list[Section]:
    """A section for each folder in which a command that is no experiment has left one; what cannot
    be read says so.
    """
    found = []
    for path in sorted(out.glob(f"*/{SECTION}")):
        section = Section(str(path.parent), path.parent.name, status="done")
        try:
            left = read_section(path.parent)
            section.claim, section.tables, section.facts = (
                " ".join(left.sentences),
                left.tables,
                {"command": left.command},
            )
            pngs = {name: path.parent / "figures" / f"{name}.png" for name in left.captions}
            section.images = [
                Image(name, left.captions[name], png.read_bytes(), True)
                for name, png in pngs.items()
            ]
        except (UserError, OSError) as error:
            section.status, section.error = FAILED, str(error)
        found.append(section)
    return found


def _facts(config: dict) -> dict[str, str]:
    """What to know of a run beside its results."""
    experiment, arms = config.get("experiment", {}), config.get("arms", {})

    def rates(name: str) -> str:
        return ", ".join(
            f"{arm} {times[name]:,.0f}" for arm, times in arms.items() if name in times
        )

    text = config.get("text", {}).get("report")
    facts = {
        "command": config.get("command", ""),
        "seeds": f"{len(experiment.get('seeds', ())):,}",
        "steps": f"{experiment['steps']:,}" if "steps" in experiment else "",
        "device": f"{config['workers']} × {config['device']}" if "device" in config else "",
        "text": f"{sum(text['tokens'].values()):,} tokens, vocabulary {text['vocabulary']:,}"
        if text
        else "",
        "tokens a second": rates("tokens_per_second"),
        "parameters": rates("parameters"),
        "seed-steps a second": rates("seed_steps_per_second"),
        "versions": ", ".join(
            f"{name} {number}" for name, number in config.get("versions", {}).items()
        ),
    }
    return {label: text for label, text in facts.items() if text}


def status_table(sections: list[Section]) -> Table:
    """Experiment, status and minutes, for the terminal."""
    done = sum(bool(section.tables) for section in sections)
    rows = [(section.name, section.status, section.time) for section in sections]
    return Table(
        f"{done} of {len(sections)} experiments are done", ("experiment", "status", "minutes"), rows
    )


def check_page(path: Path) -> None:
    """See whether the page may be written.

    Raises:
      UserError: where its folder is no folder, is a run's, or holds another page of that name.
    """
    folder = path.parent
    if RunFolder(folder).config():
        raise UserError(
            f"--out {folder}: holds a run; with --all give the folder that holds the runs' folders"
        )
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            if MARK not in file.read(2000):
                raise UserError(
                    f"{path}: is no page of jaxtie, so is not overwritten; choose another --out"
                )
    except FileNotFoundError:
        pass
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read ({error.strerror}); choose another --out"
        ) from error


def write_page(path: Path, command: str, sections: list[Section]) -> None:
    """Write the page; a reader finds the old one or the new one."""
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
    temporary = path.with_name(f".{path.name}")
    # file names may be of no encoding
    temporary.write_bytes(text.encode(errors="xmlcharrefreplace"))
    os.replace(temporary, path)
