"""Figures of a comparison: what is drawn, on which axes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_comparison import EPOCHS, made_comparison, made_timing

from models.evaluation.style import PlotLabels
from training.studies.drawing import _figures, draw
from training.studies.figures import (
    Convergence,
    Times,
    plot_consensus,
    plot_convergence,
    plot_epoch_times,
    plot_scaling,
    plot_slowmo,
)
from training.studies.variants import BEST, METHODS, PLAIN, Variant

LABELS = PlotLabels("", "technical sample", 13)
COMPARISON = made_comparison()


def test_epoch_times_have_a_box_for_each_method_and_seconds_on_the_axes() -> None:
    times = {each.algorithm: Times(np.array([0.1, 0.2]), np.array([1.0, 2.0])) for each in PLAIN}
    figure = plot_epoch_times(times, LABELS)
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert names == ["AR-SGD", "AD-PSGD", "SwarmSGD"]
    assert [axes.get_xlabel() for axes in figure.axes] == [
        "Time per epoch, communicating [s]",
        "Time per epoch, in all [s]",
    ]


def test_scaling_says_what_is_measured_and_what_simulated() -> None:
    timing = COMPARISON.timing["hlf"]
    figure = plot_scaling(timing.measured, timing.scaling, LABELS)
    speed_up, batch, *_ = figure.axes
    lines = {str(line.get_label()): line for line in speed_up.lines}
    assert list(lines["AD-PSGD, simulated"].get_ydata()) == [2, 4, 8]
    # Twice the rate of one worker with the same batches, not of the one with larger ones.
    assert list(lines["AD-PSGD, measured"].get_ydata()) == [2]
    assert batch.get_ylabel() == "Time per batch [ms]"
    words = [text.get_text() for text in figure.legends[0].get_texts()]
    assert {"AR-SGD, simulated", "AR-SGD, measured", "ideal"} <= set(words)


def test_convergence_is_drawn_against_epochs_and_against_time() -> None:
    def of(variant: Variant) -> Convergence:
        accuracy, seconds = (COMPARISON.curves("hlf", variant, name) for name in ("val_accuracy", "seconds"))
        return Convergence(accuracy, np.cumsum(seconds, axis=1))

    figure = plot_convergence({each: of(each) for each in BEST}, "Measured wall time [s]", LABELS)
    over_epochs, over_time = figure.axes
    assert list(over_epochs.lines[0].get_xdata()) == list(range(1, EPOCHS + 1))
    # Seeds 1 and 2 take 0.21 and 0.22 s an epoch.
    np.testing.assert_allclose(over_time.lines[0].get_xdata(), 0.215 * np.arange(1, EPOCHS + 1))
    names = [str(line.get_label()) for line in over_epochs.lines]
    assert names == ["AR-SGD", "AD-PSGD + SlowMo no avg.", "SwarmSGD + SlowMo no avg."]
    assert over_time.get_xlabel() == "Measured wall time [s]"


def simulated(*errors: float) -> dict[str, Any]:
    """The simulated figure 4.8 and its words, after a check with these ratios of predicted to measured time."""
    checks = [
        {"method": str(method), "workers": 2, "measured": 2e-3, "predicted": 2e-3 * error}
        for method, error in zip(METHODS, errors, strict=False)
    ]
    timing = {"hlf": COMPARISON.timing["hlf"]._replace(checks=checks)}
    found = made_comparison(models=["hlf"])._replace(timing=timing)
    about, make = next(each for each in _figures(found, LABELS) if each[0].stem == "fig_4_8_hlf_simulated")
    return {"about": about, "figure": make()}


def test_accuracy_and_time_of_a_simulated_figure_come_from_the_simulated_runs() -> None:
    figure = simulated(1.0)["figure"]
    over_epochs, over_time = figure.axes
    expected = COMPARISON.timing["hlf"].convergence["ar-sgd"][0]["val_accuracy"]
    for axes in (over_epochs, over_time):
        np.testing.assert_allclose(axes.lines[0].get_ydata(), expected)
    np.testing.assert_allclose(over_time.lines[0].get_xdata(), 0.5 * np.arange(1, EPOCHS + 1))


@pytest.mark.parametrize(
    ("errors", "words"),
    [
        ((0.8, 1.2, 1.0), ""),
        ((0.7, 1.0, 1.0), "check misses by 30 %"),
        ((1.0, 1.5), "check misses by 50 %"),
        ((), "not checked"),
    ],
)
def test_a_simulated_figure_shows_its_check_and_says_in_its_title_that_it_misses(
    errors: tuple[float, ...], words: str
) -> None:
    found = simulated(*errors)
    assert found["about"].title.endswith(words or "(thesis, figure 4.8)")
    above = [text.get_text() for text in found["figure"].axes[0].texts]
    assert (f"technical sample; {words}" if words else "technical sample") in above
    if errors:
        assert f"AR-SGD on 2 workers {2 * errors[0]:.3g} for 2" in found["about"].caption


def test_the_band_is_the_spread_over_seeds() -> None:
    figure = plot_slowmo(COMPARISON, "hlf", LABELS)
    values = COMPARISON.curves("hlf", Variant.of("ad-psgd"), "val_accuracy")
    corners = figure.axes[0].collections[0].get_paths()[0].vertices
    top = (values.mean(axis=0) + values.std(axis=0, ddof=1))[-1]
    assert np.isclose(np.asarray(corners)[:, 1], top).any()


def test_consensus_leaves_out_who_always_agrees() -> None:
    figure = plot_consensus(COMPARISON, LABELS)
    words = [text.get_text() for text in figure.legends[0].get_texts()]
    assert len(words) == 6
    assert "AR-SGD" not in words
    assert figure.axes[0].get_yscale() == "log"


@pytest.mark.slow
def test_all_figures_are_written_twice_and_explained(tmp_path: Path) -> None:
    drawn = draw(COMPARISON, LABELS, tmp_path / "figures")
    stems = [each.stem for each in drawn]
    assert len(stems) == len(set(stems)) == 12
    for stem in stems:
        assert {path.suffix for path in (tmp_path / "figures").glob(f"{stem}.*")} == {".png", ".pdf"}
    measured = next(each for each in drawn if each.stem == "fig_4_8_hlf_measured")
    assert "2 ranks on 2 core(s) of this machine; it says little of a cluster" in measured.caption
    scaling = next(each for each in drawn if each.stem == "fig_4_2_hlf")
    assert "Points: measured" in scaling.caption
    assert "Lines: simulated" in scaling.caption


@pytest.mark.slow
def test_runs_of_one_epoch_can_be_drawn(tmp_path: Path) -> None:
    runs = [run._replace(curves={name: values[:1] for name, values in run.curves.items()}) for run in COMPARISON.runs]
    timing = {"hlf": made_timing(epochs=1), "particles": made_timing(epochs=1)}
    drawn = draw(COMPARISON._replace(runs=runs, timing=timing), LABELS, tmp_path / "figures")
    # The first epoch of a run does not count for timing, and there is no other.
    assert "fig_4_1_hlf_measured" not in [each.stem for each in drawn]
