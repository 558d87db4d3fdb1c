"""What all figures share: colours, proportions, files. Imports no jax."""

from pathlib import Path

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

ARM_COLOURS = ("#d1495b", "#00798c", "#edae49", "#66588f", "#3d3d3d")
FAILS, HOLDS = "#b5179e", "#2a9d5c"  # pairs for which the distributional hypothesis fails, holds
STYLE = {
    "figure.dpi": 110,
    "savefig.dpi": 110,
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "pdf.fonttype": 42,
}


def save(figure: Figure, folder: Path, name: str) -> Path:
    """Write a figure as PNG and PDF, and close it; returns the PNG's path."""
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"{name}.pdf")
    figure.savefig(folder / f"{name}.png")
    plt.close(figure)
    return folder / f"{name}.png"
