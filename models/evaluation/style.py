"""The common style of all figures: mplhep's, with experiment, sample and energy on each figure.

The colours are those of Petroff (2021), chosen for colour-blind readers; lines differ in dashes too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

import matplotlib as mpl
import mplhep
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

COLOURS: Final = ("#3f90da", "#bd1f01", "#ffa90e", "#832db6", "#94a4a2", "#a96b59")
#: Font size of legends and remarks in panels side by side; "small" would be relative to matplotlib's default of 10.
SMALL: Final = 14
DASHES: Final = ("-", "--", "-.", ":", (0, (5, 1, 1, 1)), (0, (1, 1)))


class PlotLabels(NamedTuple):
    """Words on every plot."""

    experiment: str
    sample_note: str
    energy_tev: float | None


#: Labels of figures without a sample.
NO_LABELS: Final = PlotLabels("", "", None)


def new_figure(labels: PlotLabels, *, panels: int = 1) -> tuple[Figure, Axes]:
    """A figure of panels side by side with a common y axis, and its first panel."""
    # Panels side by side appear smaller on a page.
    with mpl.rc_context({**style(), "font.size": 15 if panels == 1 else 19}):
        figure = Figure(figsize=(1.5 + 5.5 * panels, 6.2), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(1, panels, sharey=True, squeeze=False)[0]
    put_labels(axes[0], axes[-1], labels)
    return figure, axes[0]


def new_grid(labels: PlotLabels, *, panels: int, columns: int) -> tuple[Figure, list[Axes]]:
    """A figure of small panels in rows, each with its own axes."""
    rows = -(-panels // columns)
    with mpl.rc_context({**style(), "font.size": 11, "lines.linewidth": 1.4}):
        figure = Figure(figsize=(3.4 * columns, 2.7 * rows + 0.4), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for unused in axes[panels:]:
        unused.set_axis_off()
    put_labels(axes[0], axes[columns - 1], labels)
    return figure, list(axes[:panels])


def put_labels(left: Axes, right: Axes, labels: PlotLabels) -> None:
    """Write experiment and sample above the left axes, and the energy above the right axes."""
    words = f"{labels.experiment} {labels.sample_note}".strip()
    left.set_title(words, loc="left", fontsize="medium", fontstyle="italic", parse_math=False)
    if labels.energy_tev is not None:
        right.set_title(f"{labels.energy_tev:g} TeV", loc="right", fontsize="medium")


def save_figure(figure: Figure, stem: Path) -> None:
    """Write `stem.png` and `stem.pdf` without a creation time, so that the same figure gives the same bytes."""
    figure.savefig(stem.with_suffix(".png"), dpi=110)
    # The layout is already computed; a second computation would take as long as drawing.
    figure.set_layout_engine(None)
    figure.savefig(stem.with_suffix(".pdf"), metadata={"CreationDate": None})


def plain(words: str) -> str:
    """Words that matplotlib draws as they are: `$` starts no formula, and a leading `_` hides no label."""
    # A zero-width space, since legends leave out labels that begin with an underscore.
    hidden = "\u200b" if words.startswith("_") else ""
    return hidden + words.replace("$", r"\$")


def style() -> Any:
    """The CMS style of mplhep, smaller, in matplotlib's own font (mplhep's may be missing)."""
    return {
        **mplhep.style.CMS,
        "font.size": 15,
        "font.sans-serif": ["DejaVu Sans"],
        "mathtext.fontset": "dejavusans",
    }
