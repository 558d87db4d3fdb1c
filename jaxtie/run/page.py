"""Write `report.html`, one self-contained page about a run. Imports no jax.

Names and claims come from users' files: the template escapes every value, and the page's policy
lets a browser run no script and fetch nothing.
"""

import base64
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import xarray as xr

import jaxtie
from jaxtie.results import analysis
from jaxtie.results.conclusion import TOO_SHORT
from jaxtie.results.folder import RunFolder, atomic_write
from jaxtie.results.tables import Table

CLAIM_COLUMNS = ("verdict", "claim", "found", "holds if", "whose idea")  # of claims.md


def write_report(folder: RunFolder, results: xr.Dataset) -> Path:
    """Write the page about a run into its folder; return the file.

    The file is the old one or the new one at any moment.

    Args:
      folder: of the run; its figures, `claims.md` and `config.json` are read.
      results: of the run.
    """
    conclusion, claims = analysis.conclude(results), None
    lines = conclusion.lines()
    if folder.claims.exists():
        claims = Table.read(folder.claims.read_text(encoding="utf-8", errors="replace"))
    config, diverged = folder.config() or {}, results["diverged_at"] >= 0
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(
        files("jaxtie.run").joinpath("page.html").read_text(encoding="utf-8")
    )
    text = template.render(
        version=jaxtie.__version__,
        written=datetime.now(UTC),
        command=config.get("command", ""),
        experiment=results.attrs["experiment"],
        claim=results.attrs["claim"],
        lines=lines,
        is_too_short=bool(lines) and lines[0].startswith(TOO_SHORT),
        answer=conclusion.table,
        claims=claims and claims.select(CLAIM_COLUMNS),
        images=_images(folder, results),
        tables=analysis.tables(results),
        facts=_facts(config, f"{int(diverged.sum())} of {diverged.size} members"),
    )
    atomic_write(folder.page, text.encode(errors="xmlcharrefreplace"))  # names may be any bytes
    return folder.page


def _images(folder: RunFolder, results: xr.Dataset) -> list[dict[str, str]]:
    """Return the figures that were drawn: name, caption and the PNG file as a data URI."""
    found = []
    for name, picture in analysis.plots(results).items():
        path = folder.figures / f"{name}.png"
        if path.exists():
            data = base64.b64encode(path.read_bytes()).decode()
            uri = f"data:image/png;base64,{data}"
            found.append({"name": name, "caption": picture.caption, "uri": uri})
    return found


def _facts(config: dict[str, Any], diverged: str) -> dict[str, str]:
    """Return what `config.json` says of a run, as label -> text."""
    experiment = config.get("experiment", {})

    def per_arm(name: str) -> str:
        arms = config.get("arms", {}).items()
        return ", ".join(f"{arm} {numbers[name]:,.0f}" for arm, numbers in arms if name in numbers)

    text = config.get("text", {}).get("report")
    facts = {
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
        "diverged": "" if diverged.startswith("0 ") else diverged,
        "took": f"{config['wall_seconds'] / 60:,.1f} min" if "wall_seconds" in config else "",
    }
    return {label: text for label, text in facts.items() if text}
