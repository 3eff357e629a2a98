"""Figures of several models on the same axes: ROC curves in the forms that physicists use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from models.evaluation.curves import EfficiencyCurve
from models.evaluation.style import COLOURS, DASHES, SMALL, PlotLabels, new_figure, plain

#: Margin of a logarithmic axis beyond the lowest efficiency or the highest rejection, as a factor.
_BELOW: Final = 2.0
#: End of an open band on the logarithmic axis (for rejections 1 over it): outside every panel.
_FAR: Final = 1e12


def plot_background_efficiency(
    curves: Mapping[str, Mapping[str, EfficiencyCurve]], signal: str, labels: PlotLabels
) -> Figure:
    """Background efficiency on a logarithmic axis against signal efficiency.

    Args:
        curves: Curves by background (one panel each) and model.
        signal: Name of the signal class.
        labels: Words on the plot.
    """
    figure, first = new_figure(labels, panels=len(curves))
    lowest = min(_lowest(curve) for models in curves.values() for curve in models.values())
    for axes, (background, models) in zip(figure.axes, curves.items(), strict=True):
        for place, (name, curve) in enumerate(models.items()):
            _draw(axes, place, name, curve.signal_efficiency, curve.background_efficiency, curve.low, curve.high)
        chance = np.linspace(0.01, 1, 100)
        axes.plot(chance, chance, color="#717581", linewidth=1, label="by chance")
        axes.set(xlabel=f"Efficiency of {plain(signal)}", xlim=(0, 1), yscale="log", ylim=(lowest / _BELOW, 1.5))
        axes.text(0.05, 0.94, f"against {plain(background)}", transform=axes.transAxes, va="top", fontsize=SMALL)
    first.set_ylabel("Background efficiency")
    figure.axes[-1].legend(loc="center left", fontsize=SMALL, frameon=True)
    return figure


def plot_rejection(curves: Mapping[str, Mapping[str, EfficiencyCurve]], signal: str, labels: PlotLabels) -> Figure:
    """Background rejection (1 / background efficiency) against signal efficiency.

    Args:
        curves: Curves by background (one panel each) and model.
        signal: Name of the signal class.
        labels: Words on the plot.
    """
    figure, first = new_figure(labels, panels=len(curves))
    highest = max(1 / _lowest(curve) for models in curves.values() for curve in models.values())
    for axes, (background, models) in zip(figure.axes, curves.items(), strict=True):
        for place, (name, curve) in enumerate(models.items()):
            with np.errstate(divide="ignore"):
                value, low, high = (1 / each for each in (curve.background_efficiency, curve.high, curve.low))
            _draw(axes, place, name, curve.signal_efficiency, value, low, high)
        axes.set(xlabel=f"Efficiency of {plain(signal)}", xlim=(0, 1), yscale="log", ylim=(0.9, highest * _BELOW))
        axes.text(0.05, 0.06, f"against {plain(background)}", transform=axes.transAxes, fontsize=SMALL)
    first.set_ylabel("Background rejection (1 / efficiency)")
    figure.axes[-1].legend(loc="upper right", fontsize=SMALL, frameon=True)
    return figure


def _draw(
    axes: Axes,
    place: int,
    name: str,
    across: np.ndarray[tuple[int], np.dtype[np.float64]],
    value: np.ndarray[tuple[int], np.dtype[np.float64]],
    low: np.ndarray[tuple[int], np.dtype[np.float64]],
    high: np.ndarray[tuple[int], np.dtype[np.float64]],
) -> None:
    """Draw a curve with its error band; where no background is left, the line ends and the band continues."""
    finite = np.isfinite(value) & (value > 0)
    colour = COLOURS[place % len(COLOURS)]
    axes.plot(across[finite], value[finite], color=colour, linestyle=DASHES[place % len(DASHES)], label=plain(name))
    axes.fill_between(across, np.maximum(low, 1 / _FAR), np.minimum(high, _FAR), color=colour, alpha=0.18, linewidth=0)


def _lowest(curve: EfficiencyCurve) -> float:
    """Lowest efficiency to show: of the line, or of the band's top if the sample has no background at any point."""
    positive = curve.background_efficiency > 0
    return float((curve.background_efficiency[positive] if positive.any() else curve.high).min())
