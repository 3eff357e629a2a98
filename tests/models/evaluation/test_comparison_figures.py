"""Figures of several models: lines and bands read back from their axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import FillBetweenPolyCollection
from matplotlib.figure import Figure

from models.evaluation.comparison_figures import plot_background_efficiency, plot_rejection
from models.evaluation.curves import EfficiencyCurve, background_curve
from models.evaluation.style import PlotLabels, save_figure

LABELS = PlotLabels("CMS", "technical sample", 13)
BOTH = pytest.mark.parametrize("plot", [plot_background_efficiency, plot_rejection])
Curves = Mapping[str, Mapping[str, EfficiencyCurve]]
Plot = Callable[[Curves, str, PlotLabels], Figure]


def made_curve(separation: float, *, lightest: float = 1.0, background: int = 300) -> EfficiencyCurve:
    """Curves of events whose signal lies a number of widths above the background."""
    rng = np.random.default_rng(1)
    labels = np.repeat([0, 1], [background, 300])
    weights = np.where(rng.random(len(labels)) < 0.1, lightest, 1.0)
    return background_curve(labels, rng.normal(separation * labels, 1.0), weights, signal=1, num_points=20)


CURVES: Curves = {
    "all backgrounds": {"hlf": made_curve(3), r"$x_1$": made_curve(1)},
    r"$t\bar{t}$_2": {"hlf": made_curve(2), r"$x_1$": made_curve(4)},
}
#: No background passes anywhere.
PERFECT = made_curve(50)


def words_of(axes: Axes) -> list[str]:
    return [text.get_text().replace(r"\$", "$") for text in axes.texts]


def band_of(axes: Axes, place: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Places across and both limits of a band, from the corners of what is filled."""
    bands = [each for each in axes.collections if isinstance(each, FillBetweenPolyCollection)]
    corners = bands[place].get_paths()[0].vertices
    across = np.unique(corners[:, 0])
    ends = [corners[corners[:, 0] == each, 1] for each in across]
    return across, np.array([each.min() for each in ends]), np.array([each.max() for each in ends])


def test_background_efficiencies_are_drawn_where_there_is_any_with_their_bands() -> None:
    figure = plot_background_efficiency(CURVES, "t_t", LABELS)
    for axes, models in zip(figure.axes, CURVES.values(), strict=True):
        for place, curve in enumerate(models.values()):
            there = curve.background_efficiency > 0
            line = axes.lines[place]
            np.testing.assert_array_equal(line.get_xdata(), curve.signal_efficiency[there])
            np.testing.assert_array_equal(line.get_ydata(), curve.background_efficiency[there])
            across, low, high = band_of(axes, place)
            np.testing.assert_allclose(across, curve.signal_efficiency)
            np.testing.assert_allclose(low, np.maximum(curve.low, 1e-12))
            np.testing.assert_allclose(high, curve.high)
        chance = axes.lines[len(models)]
        np.testing.assert_array_equal(chance.get_xdata(), chance.get_ydata())
    assert figure.axes[0].get_ylabel() == "Background efficiency"
    lowest = min(each.background_efficiency[each.background_efficiency > 0].min() for each in all_curves())
    assert figure.axes[0].get_ylim() == pytest.approx((lowest / 2, 1.5))


def test_rejection_is_one_over_the_efficiency_and_its_band_ends_above_the_axis_where_it_has_no_end() -> None:
    figure = plot_rejection(CURVES, "t_t", LABELS)
    highest = figure.axes[0].get_ylim()[1]
    endless = 0
    for axes, models in zip(figure.axes, CURVES.values(), strict=True):
        for place, curve in enumerate(models.values()):
            there = curve.background_efficiency > 0
            np.testing.assert_allclose(axes.lines[place].get_ydata(), 1 / curve.background_efficiency[there])
            across, low, high = band_of(axes, place)
            np.testing.assert_allclose(across, curve.signal_efficiency)
            np.testing.assert_allclose(low, 1 / curve.high)
            ends = curve.low > 0
            np.testing.assert_allclose(high[ends], 1 / curve.low[ends])
            assert (high[~ends] > highest).all()
            endless += int((~ends).sum())
        assert len(axes.lines) == 2
    assert endless > 0
    assert figure.axes[0].get_ylabel() == "Background rejection (1 / efficiency)"
    lowest = min(each.background_efficiency[each.background_efficiency > 0].min() for each in all_curves())
    assert figure.axes[0].get_ylim() == pytest.approx((0.9, 2 / lowest))


def all_curves() -> list[EfficiencyCurve]:
    return [curve for models in CURVES.values() for curve in models.values()]


@BOTH
def test_panels_say_what_is_on_them(plot: Plot) -> None:
    figure = plot(CURVES, "t_t", LABELS)
    assert [words_of(axes) for axes in figure.axes] == [["against all backgrounds"], [r"against $t\bar{t}$_2"]]
    for axes in figure.axes:
        assert axes.get_xlabel() == "Efficiency of t_t"
        assert (axes.get_xlim(), axes.get_xscale(), axes.get_yscale()) == ((0, 1), "linear", "log")
    # Panels share the label on the left.
    assert figure.axes[0].get_shared_y_axes().joined(*figure.axes)
    legend = figure.axes[-1].get_legend()
    assert legend is not None
    assert [text.get_text().replace(r"\$", "$") for text in legend.get_texts()][:2] == ["hlf", r"$x_1$"]
    assert figure.axes[0].get_title(loc="left") == "CMS technical sample"
    assert figure.axes[-1].get_title(loc="right") == "13 TeV"


@BOTH
def test_models_differ_in_colours_and_dashes_and_have_the_same_in_each_panel(plot: Plot) -> None:
    names = [f"model {place}" for place in range(6)]
    curves = {panel: dict.fromkeys(names, made_curve(1)) for panel in ("first", "second")}
    figure = plot(curves, "signal", LABELS)
    looks = [[(str(line.get_color()), str(line._dash_pattern)) for line in axes.lines[:6]] for axes in figure.axes]
    assert looks[0] == looks[1]
    assert len({colour for colour, _ in looks[0]}) == 6
    assert len({dashes for _, dashes in looks[0]}) == 6


@BOTH
@pytest.mark.slow
def test_the_band_of_a_model_that_lets_nothing_pass_can_be_seen(tmp_path: Path, plot: Plot) -> None:
    figure = plot({"all": {"perfect": PERFECT}}, "signal", LABELS)
    (axes,) = figure.axes
    assert not PERFECT.background_efficiency.any()
    assert len(axes.lines[0].get_xdata()) == 0
    low, high = axes.get_ylim()
    _, bottom, top = band_of(axes, 0)
    edge = (top if plot is plot_background_efficiency else bottom)[0]
    assert edge == pytest.approx(PERFECT.high[0] if plot is plot_background_efficiency else 1 / PERFECT.high[0])
    assert low < edge < high
    save_figure(figure, tmp_path / "plot")


@BOTH
def test_negative_weights_leave_the_line_away_where_less_than_nothing_passes(tmp_path: Path, plot: Plot) -> None:
    negative = EfficiencyCurve(
        np.array([0.25, 0.5, 0.75, 1.0]),
        np.array([-0.1, 0.0, 0.2, 1.1]),
        np.array([0.0, 0.0, 0.1, 0.9]),
        np.array([0.1, 0.1, 0.3, 1.0]),
    )
    figure = plot({"all": {"one": negative, "other": made_curve(2, lightest=-0.5)}}, "signal", LABELS)
    assert list(figure.axes[0].lines[0].get_xdata()) == [0.75, 1.0]
    save_figure(figure, tmp_path / "plot")


@BOTH
@pytest.mark.slow
def test_figures_are_saved_with_the_same_bytes_twice(tmp_path: Path, plot: Plot) -> None:
    written: list[list[bytes]] = []
    for name in ("first", "second"):
        save_figure(plot(CURVES, "t_t", LABELS), tmp_path / name)
        written.append([(tmp_path / f"{name}.{kind}").read_bytes() for kind in ("png", "pdf")])
    assert written[0] == written[1]
    assert written[0][0].startswith(b"\x89PNG")
    assert written[0][1].startswith(b"%PDF")
