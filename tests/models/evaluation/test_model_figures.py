"""Figures of confusion, importance and learning curves, read back from their axes."""

from __future__ import annotations

import pytest
from drawn_figures import legend_texts
from matplotlib.axes import Axes
from matplotlib.container import BarContainer

from models.evaluation import figures
from models.evaluation.style import PlotLabels

LABELS = PlotLabels("", "technical sample", 13, "hlf")
TRAIN_LOSSES = [1.0, 0.5, 0.33, 0.25, 0.2]
VAL_LOSSES = [2.5, 1.5, 0.5, 1.5, 2.5]
HISTORY = [
    {"epoch": epoch, "train_loss": train_loss, "val_loss": val_loss}
    for epoch, (train_loss, val_loss) in enumerate(zip(TRAIN_LOSSES, VAL_LOSSES, strict=True))
]


def cell_texts(axes: Axes) -> list[list[str]]:
    """Texts of the cells of a matrix of two classes, row by row."""
    texts = {text.get_position(): text.get_text() for text in axes.texts[-4:]}
    first_row = [texts[0, 0], texts[1, 0]]
    second_row = [texts[0, 1], texts[1, 1]]
    return [first_row, second_row]


def test_confusion_plots_have_shares_and_events_by_true_and_predicted_class() -> None:
    matrix = {
        "classes": ["a", "b"],
        "by_truth": [[0.9, 0.1], [0.3, 0.7]],
        "events": [[1800, 200], [3, 7]],
    }

    shares, events = figures.plot_confusion(matrix, LABELS).axes

    assert shares.get_xlabel() == "Predicted class (shares of a row)"
    assert events.get_xlabel() == "Predicted class (events)"
    assert cell_texts(shares) == [["0.900", "0.100"], ["0.300", "0.700"]]
    assert cell_texts(events) == [["1,800", "200"], ["3", "7"]]
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
        _, _, (error_lines,) = bars.errorbar
        segments = error_lines.get_segments()
        for bar, segment, name in zip(bars, segments, ("met", "ht"), strict=True):
            loss, error = losses[name]["value"], losses[name]["error"]
            begin, end = segment[:, 0]
            assert bar.get_width() == loss
            assert begin == pytest.approx(loss - error)
            assert end == pytest.approx(loss + error)
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
    assert axes.get_xlabel() == "Epoch"
    assert axes.get_ylabel() == "Weighted cross-entropy"
    training, validation, mark = axes.lines
    for line, losses in ((training, TRAIN_LOSSES), (validation, VAL_LOSSES)):
        assert list(line.get_xdata()) == [1, 2, 3, 4, 5]
        assert list(line.get_ydata()) == losses
    assert list(mark.get_xdata()) == [3]
    assert list(mark.get_ydata()) == [0.5]
    assert legend_texts(figure) == ["training", "validation", "kept: epoch 3"]


def test_the_learning_curve_of_several_workers_has_their_consensus_distance() -> None:
    history = [{**record, "consensus_distance": record["epoch"] / 8} for record in HISTORY]

    figure = figures.plot_learning_curve(history, LABELS)

    _, distance_axes = figure.axes
    assert distance_axes.get_ylabel() == "Consensus distance"
    assert list(distance_axes.lines[0].get_ydata()) == [0, 0.125, 0.25, 0.375, 0.5]
    assert legend_texts(figure)[-1] == "consensus distance"
