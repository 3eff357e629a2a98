"""Figures of the scores of one model, read back from their axes, and the style of all figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn_figures import data_outside_axes, legend_texts, style_faults
from example_figures import (
    ALL_FIGURES,
    EXPECTED,
    HISTORY,
    LABELS,
    MODEL_FIGURES,
    NAMES,
    draw_curves,
    draw_learning_curve,
    draw_scores,
    example_events,
    example_numbers,
)
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.patches import StepPatch
from matplotlib.text import Text

from features.columns import Feature
from models.evaluation import figures, style
from models.evaluation.curves import KINEMATIC_EDGES
from models.evaluation.discriminant_figure import plot_discriminant
from models.evaluation.scored_events import ScoredEvents
from models.evaluation.style import DPI, WIDTH, PlotLabels, save_figure, saving_in_processes

weights_of_both_signs = pytest.mark.parametrize("lightest", [1.0, -0.5])


def errorbars_of(axes: Axes) -> list[ErrorbarContainer]:
    return [bars for bars in axes.containers if isinstance(bars, ErrorbarContainer)]


def points_and_bars(container: ErrorbarContainer) -> tuple[np.ndarray, np.ndarray]:
    """Heights of the points, and the ends of their bars."""
    points, _, (bars,) = container
    assert points is not None
    heights = np.asarray(points.get_ydata(), dtype=float)
    ends = np.array([segment[:, 1] for segment in bars.get_segments()])
    return heights, ends


def check_intervals(container: ErrorbarContainer, intervals: Sequence[dict[str, float]]) -> None:
    """Check that bars are the intervals; a value outside has a bar to one side only."""
    heights, ends = points_and_bars(container)
    assert list(heights) == [interval["value"] for interval in intervals]
    for (low, high), interval in zip(ends, intervals, strict=True):
        assert low == pytest.approx(min(interval["low"], interval["value"]))
        assert high == pytest.approx(max(interval["high"], interval["value"]))


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL_FIGURES)
def test_figures_keep_within_their_axes_and_style_and_are_labelled(name: str) -> None:
    assert style_faults(lambda: ALL_FIGURES[name](1.0)) == []

    figure = ALL_FIGURES[name](1.0)

    assert data_outside_axes(figure) == []
    assert figure.get_size_inches()[0] == WIDTH
    assert figure.axes[0].get_title(loc="left") == "technical sample"
    assert any(axes.get_title(loc="right") == "hlf, 13 TeV" for axes in figure.axes)
    panels = [axes for axes in figure.axes if axes.axison]
    lowest, leftmost = panels, panels
    if name == "learning_curve":
        # The second axes share the x axis of the first.
        lowest = panels[:1]
    else:
        leftmost = [axes for axes in panels if axes.get_subplotspec().is_first_col()]
    if name in {"background_efficiency", "rejection", "discriminant"}:
        # Ratios and significances are below.
        lowest = panels[len(panels) // 2 :]
    assert all(axes.get_xlabel() for axes in lowest)
    # Names of features need no label.
    if name != "importance":
        assert all(axes.get_ylabel() for axes in leftmost)


def test_a_feature_of_a_plugin_has_the_label_that_it_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    share = Feature("share", "GeV", "a share", label="$p_T / H_T$")
    monkeypatch.setattr(style, "HIGH_LEVEL", [*style.HIGH_LEVEL, share])

    assert style.axis_label(share) == "$p_T / H_T$ [GeV]"
    assert style.symbol_of("share") == "$p_T / H_T$"
    assert style.axis_label(share._replace(name="own_share", label="")) == "Own share [GeV]"


def test_experiment_and_sample_are_written_above_the_axes() -> None:
    labels = PlotLabels("ALEPH", "collision data", 0.2)

    axes = figures.plot_learning_curve(HISTORY, labels).axes[0]

    assert axes.get_title(loc="left") == "ALEPH"
    assert [text.get_text() for text in axes.texts] == ["collision data"]


@pytest.mark.slow
@pytest.mark.parametrize("name", MODEL_FIGURES)
def test_figures_can_be_made_with_negative_weights(tmp_path: Path, name: str) -> None:
    save_figure(MODEL_FIGURES[name](-0.5), tmp_path / name)

    pdf = tmp_path / f"{name}.pdf"
    assert pdf.stat().st_size > 1000


@pytest.mark.slow
def test_figures_are_saved_with_the_same_bytes_by_another_process(tmp_path: Path) -> None:
    save_figure(draw_curves(rejection=False), tmp_path / "here")
    with saving_in_processes() as save:
        save(draw_curves(rejection=False), tmp_path / "other")

    png = (tmp_path / "here.png").read_bytes()
    pdf = (tmp_path / "here.pdf").read_bytes()
    assert (tmp_path / "other.png").read_bytes() == png
    assert (tmp_path / "other.pdf").read_bytes() == pdf
    assert png.startswith(b"\x89PNG")
    # A PNG has its width in these bytes.
    width = int.from_bytes(png[16:20])
    assert width == WIDTH * DPI
    assert pdf.startswith(b"%PDF")


@pytest.mark.slow
def test_a_figure_that_another_process_cannot_write_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"), saving_in_processes() as save:
        save(draw_learning_curve(1.0), tmp_path / "nowhere" / "plot")


@pytest.mark.slow
@pytest.mark.parametrize(
    "text", ["50%", "MC #3", "run_", "10^", r"C:\\data", "$5 $6", "a_b", "<script>", r"$\frac$"]
)
def test_any_text_can_stand_on_figures(tmp_path: Path, text: str) -> None:
    diagonal = [[1, 0], [0, 1]]
    matrix = {"classes": [text, "b"], "by_truth": diagonal, "events": diagonal}
    labels = PlotLabels(text, text, 13, text)

    figure = figures.plot_confusion(matrix, labels)
    save_figure(figure, tmp_path / "plot")

    assert (tmp_path / "plot.png").exists()


def shares_in_bins(events: ScoredEvents, output: int, label: int) -> tuple[np.ndarray, np.ndarray]:
    """Share of a class in each of 20 bins of an output, and its error."""
    in_class = events.labels == label
    weights = events.weights[in_class]
    total = weights.sum()
    bins = (20 * events.probabilities[in_class, output]).astype(int)
    sums = np.bincount(bins, weights, 20)
    squares = np.bincount(bins, weights**2, 20)
    return sums / total, np.sqrt(squares) / total


def plain(text: Text | str) -> str:
    """A text without the protection of its dollars."""
    drawn = text if isinstance(text, str) else text.get_text()
    return drawn.replace(r"\$", "$")


def check_test_points(points: ErrorbarContainer, shares: np.ndarray, errors: np.ndarray) -> float:
    """Check that points are the shares of filled bins; the position of the first in its bin."""
    (filled,) = np.nonzero(shares > 0)
    heights, ends = points_and_bars(points)
    lows, highs = ends.T
    assert heights == pytest.approx(shares[filled])
    assert highs == pytest.approx(shares[filled] + errors[filled])
    # A bar on a logarithmic axis ends above 0.
    errors_down = np.minimum(errors, 0.6 * shares)
    assert lows == pytest.approx(shares[filled] - errors_down[filled])
    positions = np.asarray(points[0].get_xdata()) * 20
    assert positions.astype(int).tolist() == filled.tolist()
    return round(float(positions[0] % 1), 6)


@weights_of_both_signs
def test_score_plots_have_test_events_as_points_and_training_events_as_lines(
    lightest: float,
) -> None:
    test, train, numbers = example_numbers(lightest)

    figure = draw_scores(lightest)

    positions_in_bin = set()
    for output, axes in enumerate(figure.axes):
        assert axes.get_yscale() == "log"
        assert axes.get_xlim() == (0, 1)
        assert plain(axes.get_xlabel()) == f"Probability of {NAMES[output]}"
        steps = [patch for patch in axes.patches if isinstance(patch, StepPatch)]
        p_values = [text for text in axes.texts if ": p = " in text.get_text()]
        # The colours of lines are too light for text.
        assert {text.get_color() for text in p_values} == {"black"}
        for label, points in enumerate(errorbars_of(axes)):
            test_shares, test_errors = shares_in_bins(test, output, label)
            position_in_bin = check_test_points(points, test_shares, test_errors)
            positions_in_bin.add(position_in_bin)
            train_shares, _ = shares_in_bins(train, output, label)
            heights, _, _ = steps[label].get_data()
            assert heights == pytest.approx(train_shares)
            comparison = numbers["train_against_test"][NAMES[output]][NAMES[label]]
            expected_text = f"{NAMES[label]}: p = {comparison['p_value']:.2g}"
            assert plain(p_values[label]) == expected_text
    # Classes stand beside each other in a bin, and in a column of the legend each.
    assert len(positions_in_bin) == 3
    expected_legend = []
    for name in NAMES:
        expected_legend += [f"true {name}, training", f"true {name}, test"]
    assert legend_texts(figure) == expected_legend


def test_score_plots_without_training_events_have_points_only() -> None:
    test = example_events(90)

    figure = figures.plot_scores(test, None, {}, NAMES, range(3), LABELS)

    assert legend_texts(figure) == [f"true {name}, test" for name in NAMES]
    for patch in figure.axes[0].patches:
        assert not isinstance(patch, StepPatch)


@weights_of_both_signs
def test_calibration_plots_have_observed_shares_against_mean_predictions(lightest: float) -> None:
    _, _, numbers = example_numbers(lightest)
    calibration = numbers["calibration"]

    figure = figures.plot_calibration(calibration, LABELS)

    for axes, (name, output) in zip(figure.axes, calibration.items(), strict=True):
        (points,) = errorbars_of(axes)
        predicted = [bin_["mean_predicted"] for bin_ in output["bins"]]
        observed = [bin_["observed"] for bin_ in output["bins"]]
        assert list(points[0].get_xdata()) == predicted
        check_intervals(points, observed)
        diagonal = axes.lines[0]
        assert list(diagonal.get_xdata()) == [0, 1]
        assert list(diagonal.get_ydata()) == [0, 1]
        assert plain(axes.get_xlabel()) == f"Probability of {name}"
        text = "distance {error:.3f}\nof a perfect model {expected:.3f}\np = {p_value:.2g}"
        assert axes.texts[-1].get_text() == text.format_map(output)
        # There is room for the text above the points, and for points at the ends.
        assert axes.get_xlim() == (-0.04, 1.04)
        assert axes.get_ylim() == (-0.05, 1.3)


@pytest.mark.slow
@weights_of_both_signs
def test_efficiencies_are_drawn_bin_by_bin_without_empty_bins(lightest: float) -> None:
    _, _, numbers = example_numbers(lightest)
    efficiencies = numbers["efficiency_against"]

    figure = figures.plot_efficiencies(efficiencies, NAMES[1], 0.995, LABELS)

    panels = figure.axes[: len(KINEMATIC_EDGES)]
    assert [axes.get_xlabel() for axes in panels] == [
        r"Lepton $p_T$ [GeV]",
        r"Lepton $\eta$",
        "$H_T$ [GeV]",
        "$E_T^{miss}$ [GeV]",
        "Number of jets",
    ]
    assert not any(axes.axison for axes in figure.axes[len(panels) :])
    assert {axes.get_ylabel() for axes in panels} == {"Efficiency at 99.5% a_b", ""}
    assert legend_texts(figure) == NAMES
    num_empty = 0
    for axes, (variable, efficiency) in zip(panels, efficiencies.items(), strict=True):
        edges = np.array(KINEMATIC_EDGES[variable])
        # Uneven bins are drawn equally wide: most events are in the narrow ones.
        if variable in ("lepton_pt", "ht", "met"):
            tick_labels = [text.get_text() for text in axes.get_xticklabels()]
            assert tick_labels == [f"{edge:g}" for edge in edges]
            edges = np.arange(len(edges))
            assert list(axes.get_xticks()) == list(edges)
        assert axes.get_xlim() == (edges[0], edges[-1])
        assert list(axes.lines[0].get_ydata()) == [0.995, 0.995]
        for label, bins in enumerate(efficiency["classes"].values()):
            points = errorbars_of(axes)[label]
            filled = [index for index, share in enumerate(bins) if share is not None]
            num_empty += len(bins) - len(filled)
            # The three classes stand at quarters of a bin.
            positions = edges[:-1] + (label + 1) / 4 * np.diff(edges)
            np.testing.assert_allclose(points[0].get_xdata(), positions[filled])
            intervals = [bins[index] for index in filled]
            check_intervals(points, intervals)
    assert num_empty > 0


def test_without_a_measurable_cut_the_panel_of_significances_says_why() -> None:
    test, _, numbers = example_numbers()
    empty = {**numbers["significance"], "best": None}
    for name in ("threshold", "simple", "asimov", "low", "high"):
        empty[name] = []

    score = test.probabilities[:, 1]

    figure = plot_discriminant(test, score, EXPECTED, [1], NAMES, empty, LABELS)

    reason = "behind every cut effectively fewer than 10 background events"
    assert reason in legend_texts(figure)
    assert data_outside_axes(figure) == []


def test_the_discriminant_has_all_expected_events_and_the_scan_of_significances() -> None:
    test, _, numbers = example_numbers()
    score = np.linspace(0, 1, len(test.labels))

    main, below = plot_discriminant(
        test, score, EXPECTED, [1], NAMES, numbers["significance"], LABELS
    ).axes

    steps = [patch for patch in main.patches if isinstance(patch, StepPatch)]
    sums = [float(np.nansum(step.get_data()[0])) for step in steps]
    # Backgrounds first, then the signal.
    assert sums == pytest.approx([50.0, 20.0, 5.0])
    assert main.get_yscale() == "log"
    simple: Any = below.get_legend_handles_labels()[0][0]
    assert list(simple.get_ydata()) == numbers["significance"]["simple"]
