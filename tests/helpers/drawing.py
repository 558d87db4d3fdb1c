"""Save figures quickly, where a test does not look at them: small, and without PDFs."""

from pathlib import Path

from matplotlib.figure import Figure


def save_small(figure: Figure, folder: Path, name: str, *_: object) -> Path:
    """Replace `jaxtie.results.plots.save`."""
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"{name}.png", dpi=20)
    return folder / f"{name}.png"
