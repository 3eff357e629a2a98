"""Figures of one model: what is on their axes, read back from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch

from features.columns import HLF_NAMES, NUM_HLF
from models.evaluation.curves import KINEMATIC_EDGES
from models.evaluation.figures import (
    plot_calibration,
    plot_confusion,
    plot_efficiencies,
    plot_importance,
    plot_learning_curve,
    plot_roc,
    plot_scores,
)
from models.evaluation.measurements import ScoredEvents, measure
from models.evaluation.metrics import RocCurve
from models.evaluation.style import COLOURS, DASHES, PlotLabels, save_figure

LABELS = PlotLabels("CMS", "technical sample", 13)
#: Names that matplotlib could take for formulas.
NAMES = [r"$t\bar{t}$", "a_b", "100% {x}"]
CURVE = RocCurve(np.array([0, 0.5, 1.0]), np.array([0, 0.01, 1.0]))
HISTORY = [{"epoch": epoch, "train_loss": 1 / (epoch + 1), "val_loss": abs(epoch - 2) + 0.5} for epoch in range(5)]


def made_events(count: int = 90, *, seed: int = 1, lightest: float = 1.0) -> ScoredEvents:
    """Events of three classes, none of which was given a probability from 0.4 to 0.5 of the first."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    raw = rng.exponential(1.0, (count, 3)) + 2 * np.eye(3)[labels]
    scores = raw / raw.sum(axis=1, keepdims=True)
    first = np.where((scores[:, 0] > 0.4) & (scores[:, 0] < 0.5), 0.55, scores[:, 0])
    scores = np.stack([first, *((1 - first) * scores[:, k] / (1 - scores[:, 0]) for k in (1, 2))], axis=1)
    weights = np.where(rng.random(count) < 0.3, lightest, 1.0)
    return ScoredEvents(
        labels, scores, weights, rng.normal(60, 60, (count, NUM_HLF)).astype(np.float32), labels.astype(str)
    )


def made_numbers(lightest: float = 1.0) -> tuple[ScoredEvents, ScoredEvents, dict[str, Any]]:
    """Test events, training events and the numbers of them."""
    test, train = made_events(lightest=lightest), made_events(60, seed=2, lightest=lightest)
    return test, train, measure(test, train, NAMES, signal=1, working_points=[0.5], rates=None)


def made_figure(name: str, lightest: float = 1.0) -> Figure:
    """One of each kind."""
    test, train, numbers = made_numbers(lightest)
    row = {name: {"value": float(place), "error": 0.1} for place, name in enumerate(HLF_NAMES)}
    kinds: dict[str, Callable[[], Figure]] = {
        "roc": lambda: plot_roc(dict.fromkeys(NAMES, CURVE), LABELS),
        "confusion": lambda: plot_confusion(np.array(numbers["confusion"]["by_truth"]), NAMES, LABELS),
        "scores": lambda: plot_scores(test, train, numbers["train_against_test"], NAMES, LABELS),
        "calibration": lambda: plot_calibration(numbers["calibration"], LABELS),
        "efficiencies": lambda: plot_efficiencies(numbers["efficiency_against"], NAMES[1], 0.5, LABELS),
        "importance": lambda: plot_importance(dict.fromkeys(NAMES, row), NAMES[1], LABELS),
        "learning_curve": lambda: plot_learning_curve(
            [{**each, "consensus_distance": 0.1} for each in HISTORY], LABELS
        ),
    }
    return kinds[name]()


every_figure = pytest.mark.parametrize(
    "name", ["roc", "confusion", "scores", "calibration", "efficiencies", "importance", "learning_curve"]
)


def legend_of(axes: Axes) -> list[str]:
    """Words of the legend as they are drawn."""
    legend = axes.get_legend()
    assert legend is not None
    return [text.get_text().replace(r"\$", "$") for text in legend.get_texts()]


def errorbars_of(axes: Axes) -> list[ErrorbarContainer]:
    return [each for each in axes.containers if isinstance(each, ErrorbarContainer)]


def points_and_bars(container: ErrorbarContainer, bars: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Heights of the points, and the ends of one kind of bars; the last kind is upright."""
    ends = np.array([segment[:, 1] for segment in container[2][bars].get_segments()])
    return np.asarray(container[0].get_ydata(), dtype=float), ends


@every_figure
@pytest.mark.slow
def test_figures_are_saved_with_the_same_bytes_twice(tmp_path: Path, name: str) -> None:
    written: list[list[bytes]] = []
    for each in ("first", "second"):
        save_figure(made_figure(name), tmp_path / each)
        written.append([(tmp_path / f"{each}.{kind}").read_bytes() for kind in ("png", "pdf")])
    assert written[0] == written[1]
    assert written[0][0].startswith(b"\x89PNG")
    assert written[0][1].startswith(b"%PDF")


@every_figure
def test_every_axis_has_a_label_and_the_figure_says_what_it_is_of(name: str) -> None:
    axes = made_figure(name).axes
    assert axes[0].get_title(loc="left") == "CMS technical sample"
    assert any(each.get_title(loc="right") == "13 TeV" for each in axes)
    panels = [each for each in axes if each.axison]
    is_twin = name == "learning_curve"
    assert all(each.get_xlabel() for each in panels[: 1 if is_twin else None])
    # Panels of a row have their common label on the left; feature names need none.
    lefts = panels if is_twin else [each for each in panels if each.get_subplotspec().is_first_col()]
    if name != "importance":
        assert all(each.get_ylabel() for each in lefts)


@every_figure
@pytest.mark.slow
def test_figures_can_be_made_with_negative_weights(tmp_path: Path, name: str) -> None:
    save_figure(made_figure(name, lightest=-0.5), tmp_path / name)
    assert (tmp_path / f"{name}.pdf").stat().st_size > 1000


@pytest.mark.parametrize("words", ["50%", "MC #3", "run_", "10^", r"C:\\data", "$5 $6", "a_b", "<script>", r"$\frac$"])
@pytest.mark.slow
def test_any_words_can_stand_on_plots(tmp_path: Path, words: str) -> None:
    figure = plot_confusion(np.eye(2), [words, "b"], PlotLabels(words, words, 13))
    save_figure(figure, tmp_path / "plot")
    assert (tmp_path / "plot.png").exists()


def test_colours_and_dashes_differ() -> None:
    assert len(set(COLOURS)) == len(COLOURS)
    assert len(set(DASHES)) == len(DASHES)
    lines = plot_roc(dict.fromkeys("abcdef", CURVE), LABELS).axes[0].lines[:6]
    assert len({str(line.get_color()) for line in lines}) == 6
    # `get_linestyle` says "--" of all that are no plain line.
    assert len({str(line._dash_pattern) for line in lines}) == 6


def test_roc_plots_have_signal_across_and_background_up_on_a_log_axis() -> None:
    axes = plot_roc({r"$t\bar{t}$ vs rest": CURVE, "a_b": CURVE}, LABELS).axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("Signal efficiency", "Background efficiency")
    assert (axes.get_xscale(), axes.get_yscale()) == ("linear", "log")
    drawn = axes.lines[0]
    assert (list(drawn.get_xdata()), list(drawn.get_ydata())) == ([0.5, 1.0], [0.01, 1.0])
    assert (axes.get_xlim(), axes.get_ylim()) == ((0, 1), (0.005, 1.5))
    assert legend_of(axes) == [r"$t\bar{t}$ vs rest", "a_b", "by chance"]


def test_confusion_plots_have_the_truth_down() -> None:
    matrix = np.array([[0.9, 0.1], [0.3, 0.7]])
    axes = plot_confusion(matrix, ["a", "b"], LABELS).axes[0]
    assert axes.get_xlabel() == "Predicted class"
    assert axes.get_ylabel().startswith("True class")
    texts = {(text.get_position()): text.get_text() for text in axes.texts}
    assert texts == {(0, 0): "0.900", (1, 0): "0.100", (0, 1): "0.300", (1, 1): "0.700"}
    np.testing.assert_array_equal(axes.images[0].get_array(), matrix)
    for ticks in (axes.get_xticklabels(), axes.get_yticklabels()):
        assert [text.get_text() for text in ticks] == ["a", "b"]


@pytest.mark.parametrize("lightest", [1.0, -0.5])
def test_score_plots_have_shares_of_both_splits_with_errors_of_the_test_split(lightest: float) -> None:
    test, train, numbers = made_numbers(lightest)
    figure = plot_scores(test, train, numbers["train_against_test"], NAMES, LABELS)
    assert len(figure.axes) == 3
    for output, axes in enumerate(figure.axes):
        steps = [patch for patch in axes.patches if isinstance(patch, StepPatch)]
        for truth, (step, points) in enumerate(zip(steps, errorbars_of(axes), strict=True)):
            heights, ends = points_and_bars(points)
            for place in range(20):
                expected, error = slow_share(test, output, truth, place)
                assert heights[place] == pytest.approx(expected)
                assert ends[place] == pytest.approx([expected - error, expected + error])
                assert step.get_data().values[place] == pytest.approx(slow_share(train, output, truth, place)[0])
            p_value = numbers["train_against_test"][NAMES[output]][NAMES[truth]]["p_value"]
            assert legend_of(axes)[truth] == f"true {NAMES[truth]} (p = {p_value:.2g})"
        assert axes.get_xlabel().replace(r"\$", "$") == f"Probability of {NAMES[output]}"
        assert axes.get_xlim() == (0, 1)
        assert (axes.get_ylim()[0] < 0) == (lightest < 0)


def slow_share(events: ScoredEvents, output: int, truth: int, place: int) -> tuple[float, float]:
    """Share of a class in a bin of 20, and its error."""
    total = inside = squares = 0.0
    for label, scores, weight in zip(events.labels, events.probabilities, events.weights, strict=True):
        if label == truth:
            total += weight
            if place <= 20 * scores[output] < place + 1:
                inside, squares = inside + weight, squares + weight**2
    return inside / total, squares**0.5 / total


def test_score_plots_without_training_events_have_points_and_lines_of_the_test_split_only() -> None:
    test = made_events()
    axes = plot_scores(test, None, {}, NAMES, LABELS).axes[0]
    assert legend_of(axes) == [f"true {name}" for name in NAMES]
    step = next(patch for patch in axes.patches if isinstance(patch, StepPatch))
    np.testing.assert_allclose(step.get_data().values, points_and_bars(errorbars_of(axes)[0])[0])
    # No event was given such a probability.
    assert step.get_data().values[8:10].tolist() == [0, 0]


@pytest.mark.parametrize("lightest", [1.0, -0.5])
def test_calibration_plots_have_the_observed_share_with_its_interval(lightest: float) -> None:
    numbers = made_numbers(lightest)[2]["calibration"]
    figure = plot_calibration(numbers, LABELS)
    for axes, (name, content) in zip(figure.axes, numbers.items(), strict=True):
        (points,) = errorbars_of(axes)
        heights, ends = points_and_bars(points)
        assert list(points[0].get_xdata()) == [each["mean_predicted"] for each in content["bins"]]
        check_intervals(heights, ends, [each["observed"] for each in content["bins"]])
        assert (list(axes.lines[0].get_xdata()), list(axes.lines[0].get_ydata())) == ([0, 1], [0, 1])
        assert axes.get_xlabel().replace(r"\$", "$") == f"Probability of {name}"
        assert axes.texts[0].get_text() == f"mean distance {content['error']:.3f}"


def check_intervals(heights: Sequence[float], ends: np.ndarray, expected: Sequence[dict[str, float]]) -> None:
    """Bars end where the interval does; a value outside it has a bar to one side only."""
    assert list(heights) == [each["value"] for each in expected]
    for (low, high), each in zip(ends, expected, strict=True):
        assert low == pytest.approx(min(each["low"], each["value"]))
        assert high == pytest.approx(max(each["high"], each["value"]))


@pytest.mark.parametrize("lightest", [1.0, -0.5])
def test_efficiencies_are_drawn_bin_by_bin_with_units_and_without_empty_bins(lightest: float) -> None:
    found = made_numbers(lightest)[2]["efficiency_against"]
    figure = plot_efficiencies(found, NAMES[1], 0.995, LABELS)
    panels = figure.axes[: len(KINEMATIC_EDGES)]
    assert [axes.get_xlabel() for axes in panels] == [
        "lepton_pt [GeV]",
        "lepton_eta",
        "ht [GeV]",
        "met [GeV]",
        "num_jets",
    ]
    assert not any(axes.axison for axes in figure.axes[len(panels) :])
    assert {axes.get_ylabel() for axes in panels} == {"Efficiency at 99.5% a_b", ""}
    empty = 0
    for axes, (variable, content) in zip(panels, found.items(), strict=True):
        edges = np.array(KINEMATIC_EDGES[variable])
        assert axes.get_xlim() == (edges[0], edges[-1])
        assert list(axes.lines[-1].get_ydata()) == [0.995, 0.995]
        for container, bins in zip(errorbars_of(axes), content["classes"].values(), strict=True):
            measured = [place for place, each in enumerate(bins) if each is not None]
            empty += len(bins) - len(measured)
            np.testing.assert_allclose(container[0].get_xdata(), (edges[:-1] + edges[1:])[measured] / 2)
            across = np.array([segment[:, 0] for segment in container[2][0].get_segments()])
            np.testing.assert_allclose(across, np.stack([edges[:-1], edges[1:]], axis=1)[measured])
            check_intervals(*points_and_bars(container, bars=1), [bins[place] for place in measured])
    assert empty > 0
    assert legend_of(panels[-1]) == NAMES


@pytest.mark.slow
def test_a_class_without_events_in_any_bin_leaves_its_points_away(tmp_path: Path) -> None:
    content = {"edges": [0.0, 1.0], "classes": {"a": [None], "b": [{"value": 0.5, "low": 0.4, "high": 0.6}]}}
    figure = plot_efficiencies({"met": content}, "b", 0.5, LABELS)
    empty, full = errorbars_of(figure.axes[0])
    assert (len(empty[0].get_xdata()), len(full[0].get_xdata())) == (0, 1)
    save_figure(figure, tmp_path / "plot")


def test_importance_is_sorted_by_the_first_model_and_has_bars_and_errors_of_each() -> None:
    found = {
        "hlf_$1$": {"met": {"value": 0.1, "error": 0.01}, "ht": {"value": 0.3, "error": 0.02}},
        "trees": {"met": {"value": 0.25, "error": 0.03}, "ht": {"value": -0.01, "error": 0.005}},
    }
    axes = plot_importance(found, "ttbar", LABELS).axes[0]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["met", "ht"]
    assert axes.get_xlabel() == "AUC of ttbar lost when shuffled"
    bars = [each for each in axes.containers if isinstance(each, BarContainer)]
    assert [[bar.get_width() for bar in each] for each in bars] == [[0.1, 0.3], [0.25, -0.01]]
    for each, values in zip(bars, found.values(), strict=True):
        ends = [list(segment[:, 0]) for segment in each.errorbar[2][0].get_segments()]
        assert ends == [
            pytest.approx(
                [values[name]["value"] - values[name]["error"], values[name]["value"] + values[name]["error"]]
            )
            for name in ("met", "ht")
        ]
    # The bars of a feature lie side by side around its tick.
    assert [[round(bar.get_y(), 6) for bar in each] for each in bars] == [[0.0, 1.0], [-0.4, 0.6]]
    assert [bar.get_height() for each in bars for bar in each] == pytest.approx([0.4] * 4)
    assert bars[0][0].get_facecolor() != bars[1][0].get_facecolor()
    assert legend_of(axes) == ["hlf_$1$", "trees"]


def test_the_learning_curve_marks_the_epoch_that_was_kept() -> None:
    figure = plot_learning_curve(HISTORY, LABELS)
    (axes,) = figure.axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("Epoch", "Weighted cross-entropy")
    training, validation, kept = axes.lines
    for line, key in ((training, "train_loss"), (validation, "val_loss")):
        assert list(line.get_xdata()) == [1, 2, 3, 4, 5]
        assert list(line.get_ydata()) == [record[key] for record in HISTORY]
    assert (list(kept.get_xdata()), list(kept.get_ydata())) == ([3], [0.5])
    assert legend_of(axes) == ["training", "validation", "kept: epoch 3"]


def test_the_learning_curve_of_several_workers_says_how_far_they_differ() -> None:
    figure = plot_learning_curve([{**each, "consensus_distance": each["epoch"] / 8} for each in HISTORY], LABELS)
    axes, other = figure.axes
    assert other.get_ylabel() == "Consensus distance"
    assert list(other.lines[0].get_ydata()) == [0, 0.125, 0.25, 0.375, 0.5]
    assert legend_of(axes)[-1] == "consensus distance"


def test_a_learning_curve_of_one_epoch_can_be_drawn(tmp_path: Path) -> None:
    figure = plot_learning_curve(HISTORY[:1], LABELS)
    assert figure.axes[0].get_xlim() == (0.5, 1.5)
    save_figure(figure, tmp_path / "plot")
