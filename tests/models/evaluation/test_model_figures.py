"""Figures of confusion, importance and learning curves, read back from their axes."""

from __future__ import annotations

import pytest
from drawn_figures import legend_texts
from matplotlib.axes import Axes
from matplotlib.container import BarContainer

from models.evaluation import figures
from models.evaluation.style import PlotLabels

LABELS = PlotLabels("", "technical sample", 13, "hlf")
HISTORY = [
    {"epoch": epoch, "train_loss": 1 / (epoch + 1), "val_loss": abs(epoch - 2) + 0.5}
    for epoch in range(5)
]


def test_confusion_plots_have_shares_and_events_by_true_and_predicted_class() -> None:
    matrix = {
        "classes": ["a", "b"],
        "by_truth": [[0.9, 0.1], [0.3, 0.7]],
        "events": [[1800, 200], [3, 7]],
    }

    shares, events = figures.plot_confusion(matrix, LABELS).axes

    def cells(axes: Axes) -> dict[tuple[float, float], str]:
        return {text.get_position(): text.get_text() for text in axes.texts[-4:]}

    assert shares.get_xlabel() == "Predicted class (shares of a row)"
    assert events.get_xlabel() == "Predicted class (events)"
    assert cells(shares) == {(0, 0): "0.900", (1, 0): "0.100", (0, 1): "0.300", (1, 1): "0.700"}
    assert cells(events) == {(0, 0): "1,800", (1, 0): "200", (0, 1): "3", (1, 1): "7"}
    for tick_labels in (shares.get_xticklabels(), shares.get_yticklabels()):
        assert [text.get_text() for text in tick_labels] == ["a", "b"]


def test_importance_is_sorted_by_the_first_model_and_has_bars_and_errors_of_each() -> None:
    importances = {
        "hlf_$1$": {"met": {"value": 0.1, "error": 0.01}, "ht": {"value": 0.3, "error": 0.02}},
        "trees": {"met": {"value": 0.25, "error": 0.03}, "ht": {"value": -0.01, "error": 0.005}},
    }

    figure = figures.plot_importance(importances, "ttbar", LABELS)

    (axes,) = figure.axes
    assert [text.get_text() for text in axes.get_yticklabels()] == ["$E_T^{miss}$", "$H_T$"]
    assert axes.get_xlabel() == "AUC of ttbar lost when shuffled"
    containers = [bars for bars in axes.containers if isinstance(bars, BarContainer)]
    for bars, losses in zip(containers, importances.values(), strict=True):
        segments = bars.errorbar[2][0].get_segments()
        for bar, segment, name in zip(bars, segments, ("met", "ht"), strict=True):
            value, error = losses[name]["value"], losses[name]["error"]
            assert bar.get_width() == value
            assert list(segment[:, 0]) == pytest.approx([value - error, value + error])
            assert bar.get_height() == pytest.approx(0.4)
    # The bars of a feature lie side by side around its tick.
    first, second = containers
    assert [bar.get_y() for bar in first] == pytest.approx([0.0, 1.0])
    assert [bar.get_y() for bar in second] == pytest.approx([-0.4, 0.6])
    assert first[0].get_facecolor() != second[0].get_facecolor()
    assert legend_texts(figure) == ["hlf_$1$", "trees"]


def test_the_learning_curve_marks_the_epoch_of_the_model_that_is_kept() -> None:
    figure = figures.plot_learning_curve(HISTORY, LABELS)

    (axes,) = figure.axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("Epoch", "Weighted cross-entropy")
    training, validation, mark = axes.lines
    for line, key in ((training, "train_loss"), (validation, "val_loss")):
        assert list(line.get_xdata()) == [1, 2, 3, 4, 5]
        assert list(line.get_ydata()) == [record[key] for record in HISTORY]
    assert (list(mark.get_xdata()), list(mark.get_ydata())) == ([3], [0.5])
    assert legend_texts(figure) == ["training", "validation", "kept: epoch 3"]


def test_the_learning_curve_of_several_workers_has_their_consensus_distance() -> None:
    history = [{**record, "consensus_distance": record["epoch"] / 8} for record in HISTORY]

    figure = figures.plot_learning_curve(history, LABELS)

    _, distance_axes = figure.axes
    assert distance_axes.get_ylabel() == "Consensus distance"
    assert list(distance_axes.lines[0].get_ydata()) == [0, 0.125, 0.25, 0.375, 0.5]
    assert legend_texts(figure)[-1] == "consensus distance"
