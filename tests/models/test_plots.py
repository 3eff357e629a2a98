"""Figures of an evaluation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from models.metrics import RocCurve
from models.plots import plot_confusion, plot_learning_curve, plot_roc
from models.style import PlotLabels, save_figure

LABELS = PlotLabels("", "technical sample", 13)


@pytest.mark.parametrize("words", ["50%", "MC #3", "run_", "10^", r"C:\\data", "$5 $6", "a_b", "<script>"])
def test_any_words_can_stand_on_plots(tmp_path: Path, words: str) -> None:
    figure = plot_confusion(np.eye(2), [words, "b"], PlotLabels(words, words, 13))
    save_figure(figure, tmp_path / "plot")


def test_roc_plots_have_signal_across_and_background_up_on_a_log_axis() -> None:
    curve = RocCurve(np.array([0, 0.5, 1.0]), np.array([0, 0.01, 1.0]))
    axes = plot_roc({"ttbar vs rest": curve}, LABELS).axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("Signal efficiency", "Background efficiency")
    assert axes.get_yscale() == "log"
    drawn = axes.lines[0]
    assert (list(drawn.get_xdata()), list(drawn.get_ydata())) == ([0.5, 1.0], [0.01, 1.0])


def test_confusion_plots_have_the_truth_down() -> None:
    axes = plot_confusion(np.array([[0.9, 0.1], [0.3, 0.7]]), ["a", "b"], LABELS).axes[0]
    assert axes.get_xlabel() == "Predicted class"
    assert axes.get_ylabel().startswith("True class")
    texts = {(text.get_position()): text.get_text() for text in axes.texts}
    assert texts[1, 0] == "0.100"


def test_the_learning_curve_marks_the_epoch_that_was_kept() -> None:
    history = [{"epoch": epoch, "train_loss": 1 / (epoch + 1), "val_loss": abs(epoch - 2) + 0.5} for epoch in range(5)]
    axes = plot_learning_curve(history, LABELS).axes[0]
    assert list(axes.lines[-1].get_xdata()) == [3]
