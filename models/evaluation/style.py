"""The common style of all figures: mplhep's CMS style, and labels of axes and figures.

The colours are those of Petroff (2021), chosen for colour-blind readers; lines differ in dashes
too.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from functools import wraps
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

import matplotlib as mpl
import mplhep
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.style import context

from features.columns import HIGH_LEVEL, Feature
from hep_core.allocation import usable_cores
from hep_core.scarce_memory import is_memory_scarce

#: Colours, dashes and markers of models or classes, by their index.
COLOURS: Final = ("#3f90da", "#bd1f01", "#ffa90e", "#832db6", "#94a4a2", "#a96b59")
GREY: Final = "#717581"
DASHES: Final = ("-", "--", "-.", ":", (0, (5, 1, 1, 1)), (0, (1, 1)))
MARKERS: Final = "os^vD"
#: Width of every figure [inches]: figures fill the page.
WIDTH: Final = 12.0
#: Pixels per inch of the PNG files.
DPI: Final = 110

#: How physicists write the features of the package, by name.
_SYMBOLS: Final = {
    "ht": "$H_T$",
    "met": r"$E_T^{miss}$",
    "met_phi": r"$\phi(E_T^{miss})$",
    "mt": "$m_T$",
    "num_jets": "Number of jets",
    "num_bjets": "Number of b-jets",
    "lepton_pt": r"Lepton $p_T$",
    "lepton_eta": r"Lepton $\eta$",
    "lepton_phi": r"Lepton $\phi$",
    "lepton_iso_charged": "Lepton isolation, charged",
    "lepton_iso_photon": "Lepton isolation, photons",
    "lepton_iso_neutral": "Lepton isolation, neutrals",
    "num_particles": "Number of particles",
    "lepton_is_electron": "Lepton is an electron",
    "pt": "$p_T$",
    "eta": r"$\eta$",
    "phi": r"$\phi$",
    "iso_charged": "Isolation, charged",
    "iso_photon": "Isolation, photons",
    "iso_neutral": "Isolation, neutrals",
}


def line_look(index: int) -> dict[str, Any]:
    """Return colour and dashes of the line of a model or class, by its index."""
    colour = COLOURS[index % len(COLOURS)]
    dashes = DASHES[index % len(DASHES)]
    return {"color": colour, "linestyle": dashes}


def point_look(index: int) -> dict[str, Any]:
    """Return colour and marker of the points of a model or class, by its index; with error bars."""
    colour = COLOURS[index % len(COLOURS)]
    marker = MARKERS[index % len(MARKERS)]
    return {
        "color": colour,
        "marker": marker,
        "markersize": 4,
        "linestyle": "",
        "elinewidth": 1,
    }


class PlotLabels(NamedTuple):
    """Texts above a figure: which experiment, sample, model and energy it shows."""

    experiment: str
    """Name of the experiment; empty if there is none."""
    sample_note: str
    """Description of the sample, such as simulation."""
    energy_tev: float | None
    """Energy of the collisions in the centre of mass [TeV]; None if it is unknown."""
    model: str = ""
    """Name of the model; empty on figures of several models, whose legend names them."""
    luminosity: str = ""
    """Integrated luminosity of the events, or empty where they have none."""


#: Labels of figures without a sample.
NO_LABELS: Final = PlotLabels("", "", None)


def style() -> Any:
    """Return matplotlib's settings: the CMS style of mplhep at the size of a page.

    The font is that of matplotlib, since that of mplhep may be missing.
    """
    return {
        **mplhep.style.CMS,
        "font.size": 15,
        "font.sans-serif": ["DejaVu Sans"],
        "mathtext.fontset": "dejavusans",
        "axes.linewidth": 1.2,
        "lines.linewidth": 1.8,
        "xtick.major.size": 8,
        "ytick.major.size": 8,
        "xtick.minor.size": 4,
        "ytick.minor.size": 4,
    }


_P = ParamSpec("_P")
_R = TypeVar("_R")


def styled(draw: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorate a drawing function so that the whole of it runs with the style.

    Labels, legends and ticks take the style when they are made, so it must be set around all of
    them.
    """

    @wraps(draw)
    def drawn(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        # Settings of a user's `matplotlibrc` do not count.
        with context(["default", style()]):
            return draw(*args, **kwargs)

    return drawn


@styled
def new_figure(
    labels: PlotLabels, *, panels: int = 1, height: float = 6.2, ratios: tuple[int, ...] = (1,)
) -> tuple[Figure, Axes]:
    """Make a figure of panels side by side with a common y axis; returns it with its first panel.

    The axes of the figure are in order of rows.

    Args:
        labels: Texts above the figure.
        panels: Number of panels.
        height: Height of the figure [inches].
        ratios: Heights of the rows of each panel, relative to each other; rows of a panel have a
            common x axis.
    """
    layout = ConstrainedLayoutEngine(wspace=0.04)
    figure = Figure(figsize=(WIDTH, height), layout=layout)
    # The canvas draws without a display.
    FigureCanvasAgg(figure)
    # Panels of a row share the y axis, rows of a panel the x axis.
    axes = figure.subplots(
        len(ratios),
        panels,
        sharex="col" if len(ratios) > 1 else False,
        sharey="row",
        squeeze=False,
        height_ratios=ratios,
    )
    write_labels(axes[0][0], axes[0][-1], labels)
    return figure, axes[0][0]


@styled
def new_grid(
    labels: PlotLabels,
    *,
    panels: int,
    columns: int,
    height: float = 2.9,
    ratios: tuple[int, ...] = (1,),
) -> tuple[Figure, list[Any]]:
    """Make a figure of small panels in rows, each with its own axes; returns it with the panels.

    With one ratio a panel is a matplotlib axes, with several it is a list of axes, from top to
    bottom.

    Args:
        labels: Texts above the figure.
        panels: Number of panels.
        columns: Number of panels in a row.
        height: Height of a row of panels [inches].
        ratios: Heights of the axes of each panel, relative to each other.
    """
    rows = math.ceil(panels / columns)
    axes_of_panel = len(ratios)
    with mpl.rc_context({"font.size": 13, "lines.linewidth": 1.4}):
        figure = Figure(figsize=(WIDTH, height * rows + 0.5), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(
            rows * axes_of_panel, columns, squeeze=False, height_ratios=ratios * rows
        )
    # Rows of axes become (panel row, panel column, axes of the panel).
    by_panel = axes.reshape(rows, axes_of_panel, columns).transpose(0, 2, 1)
    grid = by_panel.reshape(rows * columns, axes_of_panel)
    for unused in grid[panels:].ravel():
        unused.set_axis_off()
    write_labels(axes[0][0], axes[0][-1], labels)
    if axes_of_panel == 1:
        return figure, list(grid[:panels, 0])
    return figure, list(grid[:panels])


def luminosity_text(per_pb: float) -> str:
    """Format an integrated luminosity [1/pb] as physicists write it; from 1000 on in 1/fb.

    Examples:
        >>> luminosity_text(1.2), luminosity_text(36_300)
        ('1.2 pb⁻¹', '36.3 fb⁻¹')
    """
    return f"{per_pb:g} pb⁻¹" if per_pb < 1000 else f"{per_pb / 1000:g} fb⁻¹"


@styled
def write_labels(left: Axes, right: Axes, labels: PlotLabels) -> None:
    """Write experiment and sample above the left axes, model and energy above the right axes.

    Empty labels are left out.
    """
    # The first of these texts is bold, the other one stands beside it.
    bold, italic = labels.experiment, labels.sample_note
    if not bold:
        bold, italic = labels.sample_note, ""
    title = left.set_title(bold, loc="left", fontsize="medium", fontweight="bold", parse_math=False)
    note = left.annotate(
        italic,
        (1, 0.45),
        (6, 0),
        xycoords=title,
        textcoords="offset points",
        fontsize="small",
        fontstyle="italic",
        va="center",
        annotation_clip=False,
        parse_math=False,
    )
    # The note may be wider than its panel, which must not shrink the panel.
    note.set_in_layout(False)
    energy = "" if labels.energy_tev is None else f"{labels.energy_tev:g} TeV"
    if labels.luminosity and energy:
        energy = f"{labels.luminosity} ({energy})"
    elif labels.luminosity:
        energy = labels.luminosity
    texts = [text for text in (labels.model, energy) if text]
    right.set_title(", ".join(texts), loc="right", fontsize="small", parse_math=False)


def legend_below(figure: Figure, axes: Axes, *, columns: int = 4) -> None:
    """Draw the legend of some axes below all panels, where it covers nothing.

    Its entries read row by row.
    """
    handles, texts = axes.get_legend_handles_labels()
    columns = min(columns, len(handles))
    # matplotlib fills a legend column by column, so the entries are reordered.
    order: list[int] = []
    for column in range(columns):
        order += range(column, len(handles), columns)
    figure.legend(
        [handles[index] for index in order],
        [texts[index] for index in order],
        loc="outside lower center",
        ncols=columns,
        frameon=False,
    )


def show_positive(axes: Axes, values: list[Any], *, room: float = 3.0) -> None:
    """Give axes a logarithmic y axis that holds all positive values.

    Numbers that are not finite or not above 0 do not count. `room` is the factor between the end of
    the axis and the highest value.
    """
    flat = np.concatenate([np.ravel(array) for array in values])
    is_positive = np.isfinite(flat) & (flat > 0)
    positive = flat[is_positive]
    low, high = 0.1, 1.0
    if len(positive):
        low, high = positive.min(), positive.max()
    axes.set_yscale("log")
    axes.set_ylim(low / 1.5, high * room)


@styled
def save_figure(figure: Figure, stem: Path) -> None:
    """Write `stem.png` and `stem.pdf`; the same figure gives the same bytes."""
    # `savefig` would draw the figure once more to lay it out, and again for each file.
    figure.dpi = DPI
    for axes in figure.axes:
        # They end where their axes do; a layout with them takes a fifth longer.
        for spine in axes.spines.values():
            spine.set_in_layout(False)
    if engine := figure.get_layout_engine():
        engine.execute(figure)
        figure.set_layout_engine(None)
    figure.savefig(stem.with_suffix(".png"), dpi=DPI)
    figure.savefig(stem.with_suffix(".pdf"), metadata={"CreationDate": None})


#: Writes a figure as `stem.png` and `stem.pdf`.
Save = Callable[[Figure, Path], None]


@contextmanager
def saving_in_processes() -> Iterator[Save]:
    """Return a context that gives a function, which saves figures in up to four other processes.

    The function only starts to write. When the context ends, all figures are written, and an error
    of a write is raised. Drawing takes most of the time of an evaluation.

    Where memory is scarce, and where there can be no pool of processes, the function writes the
    figure itself: the same bytes, later.
    """
    pool = None if is_memory_scarce() else _drawing_pool()
    if pool is None:
        yield save_figure
        return
    writes: list[Future[None]] = []
    try:
        yield lambda figure, stem: writes.append(pool.submit(save_figure, figure, stem))
        for write in writes:
            # `result` waits for a write, and raises its error.
            write.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _drawing_pool() -> ProcessPoolExecutor | None:
    """Return a pool of processes; None where the system lets processes share no semaphores."""
    try:
        return ProcessPoolExecutor(
            min(4, usable_cores()),
            mp_context=get_context("spawn"),
            # An interrupt is for this process alone.
            initializer=signal.signal,
            initargs=(signal.SIGINT, signal.SIG_IGN),
        )
    except OSError:
        # Semaphores are files in /dev/shm, which a container may lack or protect.
        return None


def literal_text(text: str) -> str:
    """Change a text so that matplotlib draws it as it is.

    `$` starts no formula, and a leading `_` hides no label.
    """
    # A zero-width space, since legends leave out labels that begin with an underscore.
    prefix = "\u200b" if text.startswith("_") else ""
    return prefix + text.replace("$", r"\$")


def symbol_of(name: str) -> str:
    """Return how physicists write a feature; a feature of a plugin has the label that it gives.

    Examples:
        >>> symbol_of("ht"), symbol_of("lepton_charge")
        ('$H_T$', 'Lepton charge')
    """
    for feature in HIGH_LEVEL:
        if feature.name == name and feature.label:
            return feature.label
    if name in _SYMBOLS:
        return _SYMBOLS[name]
    return name[:1].upper() + name[1:].replace("_", " ")


def axis_label(feature: Feature) -> str:
    """Return symbol and unit of a feature, for an axis."""
    symbol = symbol_of(feature.name)
    return symbol if feature.unit == "1" else f"{symbol} [{feature.unit}]"
