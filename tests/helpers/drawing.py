"""Save figures quickly, where a test does not look at them: small."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure


def save_small(figure: Figure, folder: Path, name: str, suffixes: Sequence[str]) -> Path:
    """Replace `jaxtie.results.plots.save`; other files than the PNG are empty."""
    folder.mkdir(parents=True, exist_ok=True)
    for suffix in suffixes:
        (folder / f"{name}.{suffix}").touch()
    figure.savefig(folder / f"{name}.png", dpi=20)
    return folder / f"{name}.png"
