"""Figures of the scores of one model, read back from their axes, and the style of all figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn_figures import data_outside_axes, legend_texts, style_faults
from example_curves import CURVES, POINTS, WORDS
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch
from scored_examples import events_with, example_task

from features.columns import Feature, hlf_names
from models.evaluation import figures, style
from models.evaluation.curve_figures import plot_curves
from models.evaluation.curves import KINEMATIC_EDGES
from models.evaluation.discriminant_figure import plot_discriminant
from models.evaluation.measurements import measure, replicas_of
from models.evaluation.scored_events import ScoredEvents
from models.evaluation.style import DPI, WIDTH, PlotLabels, save_figure, saving_in_processes

LABELS = PlotLabels("", "technical sample", 13, "hlf")
#: Names that matplotlib could take for formulas.
NAMES = [r"$t\bar{t}$", "a_b", "100% {x}"]
HISTORY = [
    {"epoch": epoch, "train_loss": 1 / (epoch + 1), "val_loss": abs(epoch - 2) + 0.5}
    for epoch in range(5)
]
EXPECTED = {0: 50.0, 1: 5.0, 2: 20.0}


def example_events(num_events: int, *, seed: int = 1, lightest: float = 1.0) -> ScoredEvents:
    """Events of three classes; no probability of the first is from 0.4 to 0.5."""
    rng = np.random.default_rng(seed)
    labels = np.arange(num_events) % 3
    outputs = rng.exponential(1.0, (num_events, 3)) + 2 * np.eye(3)[labels]
    first = outputs[:, 0] / outputs.sum(axis=1)
    is_in_gap = (first > 0.4) & (first < 0.5)
    first = np.where(is_in_gap, 0.55, first)
    shares = outputs[:, 1:] / outputs[:, 1:].sum(axis=1, keepdims=True)
    probabilities = np.column_stack([first, (1 - first)[:, None] * shares])
    weights = np.where(rng.random(num_events) < 0.3, lightest, 1.0)
    hlf = rng.normal(60, 60, (num_events, len(hlf_names()))).astype(np.float32)
    return events_with(labels, probabilities, weights)._replace(hlf=hlf)


@cache
def example_numbers(lightest: float = 1.0) -> tuple[ScoredEvents, ScoredEvents, dict[str, Any]]:
    """Test events, training events and their numbers."""
    test = example_events(180, lightest=lightest)
    train = example_events(60, seed=2, lightest=lightest)
    task = example_task(classes=NAMES, working_points=[0.4], labels=LABELS)
    replicas = replicas_of(test, task, num=50)
    return test, train, measure(test, train, replicas, task).numbers


def draw_scores(lightest: float) -> Figure:
    test, train, numbers = example_numbers(lightest)
    tests = numbers["train_against_test"]
    return figures.plot_scores(test, train, tests, NAMES, range(3), LABELS)


def draw_discriminant(lightest: float) -> Figure:
    test, _, numbers = example_numbers(lightest)
    score, significance = test.probabilities[:, 1], numbers["significance"]
    return plot_discriminant(test, score, EXPECTED, [1], NAMES, significance, LABELS)


def draw_importance(_: float) -> Figure:
    losses = {name: {"value": float(index), "error": 0.1} for index, name in enumerate(hlf_names())}
    return figures.plot_importance(dict.fromkeys(NAMES, losses), NAMES[1], LABELS)


def draw_learning_curve(_: float) -> Figure:
    history = [{**record, "consensus_distance": 0.1} for record in HISTORY]
    return figures.plot_learning_curve(history, LABELS)


def draw_curves(*, rejection: bool) -> Figure:
    return plot_curves(CURVES, "t_t", WORDS, POINTS, 0.95, LABELS, rejection=rejection)


#: Functions that draw the figures of a model; the lightest event has the given weight.
MODEL_FIGURES: dict[str, Callable[[float], Figure]] = {
    "confusion": lambda lightest: figures.plot_confusion(
        example_numbers(lightest)[2]["confusion"], LABELS
    ),
    "scores": draw_scores,
    "discriminant": draw_discriminant,
    "calibration": lambda lightest: figures.plot_calibration(
        example_numbers(lightest)[2]["calibration"], LABELS
    ),
    "efficiencies": lambda lightest: figures.plot_efficiencies(
        example_numbers(lightest)[2]["efficiency_against"], NAMES[1], 0.5, LABELS
    ),
    "importance": draw_importance,
    "learning_curve": draw_learning_curve,
}
ALL_FIGURES: dict[str, Callable[[float], Figure]] = {
    "background_efficiency": lambda _: draw_curves(rejection=False),
    "rejection": lambda _: draw_curves(rejection=True),
    **MODEL_FIGURES,
}
weights_of_both_signs = pytest.mark.parametrize("lightest", [1.0, -0.5])


def errorbars_of(axes: Axes) -> list[ErrorbarContainer]:
    return [bars for bars in axes.containers if isinstance(bars, ErrorbarContainer)]


def points_and_bars(container: ErrorbarContainer) -> tuple[np.ndarray, np.ndarray]:
    """Heights of the points, and the ends of their bars."""
    ends = np.array([segment[:, 1] for segment in container[2][0].get_segments()])
    return np.asarray(container[0].get_ydata(), dtype=float), ends


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

    assert (tmp_path / f"{name}.pdf").stat().st_size > 1000


@pytest.mark.slow
def test_figures_are_saved_with_the_same_bytes_by_another_process(tmp_path: Path) -> None:
    save_figure(draw_curves(rejection=False), tmp_path / "here")
    with saving_in_processes() as save:
        save(draw_curves(rejection=False), tmp_path / "other")

    png, pdf = (tmp_path / "here.png").read_bytes(), (tmp_path / "here.pdf").read_bytes()
    assert (tmp_path / "other.png").read_bytes() == png
    assert (tmp_path / "other.pdf").read_bytes() == pdf
    assert png.startswith(b"\x89PNG")
    assert int.from_bytes(png[16:20]) == WIDTH * DPI
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
    matrix = {"classes": [text, "b"], "by_truth": np.eye(2).tolist(), "events": [[1, 0], [0, 1]]}

    save_figure(figures.plot_confusion(matrix, PlotLabels(text, text, 13, text)), tmp_path / "plot")

    assert (tmp_path / "plot.png").exists()


def shares_in_bins(events: ScoredEvents, output: int, label: int) -> tuple[np.ndarray, np.ndarray]:
    """Share of a class in each of 20 bins of an output, and its error."""
    in_class = events.labels == label
    weights = events.weights[in_class]
    bins = (20 * events.probabilities[in_class, output]).astype(int)
    sums, squares = np.bincount(bins, weights, 20), np.bincount(bins, weights**2, 20)
    return sums / weights.sum(), np.sqrt(squares) / weights.sum()


@weights_of_both_signs
def test_score_plots_have_test_events_as_points_and_training_events_as_lines(
    lightest: float,
) -> None:
    test, train, numbers = example_numbers(lightest)

    figure = draw_scores(lightest)

    positions_in_bin = set()
    for output, axes in enumerate(figure.axes):
        assert (axes.get_yscale(), axes.get_xlim()) == ("log", (0, 1))
        assert axes.get_xlabel().replace(r"\$", "$") == f"Probability of {NAMES[output]}"
        steps = [patch for patch in axes.patches if isinstance(patch, StepPatch)]
        p_values = [text for text in axes.texts if ": p = " in text.get_text()]
        # The colours of lines are too light for text.
        assert {text.get_color() for text in p_values} == {"black"}
        for label, points in enumerate(errorbars_of(axes)):
            shares, errors = shares_in_bins(test, output, label)
            (filled,) = np.nonzero(shares > 0)
            heights, ends = points_and_bars(points)
            assert heights == pytest.approx(shares[filled])
            assert ends[:, 1] == pytest.approx(shares[filled] + errors[filled])
            down = np.minimum(errors, 0.6 * shares)[filled]
            assert ends[:, 0] == pytest.approx(shares[filled] - down)
            positions = np.asarray(points[0].get_xdata()) * 20
            assert positions.astype(int).tolist() == filled.tolist()
            positions_in_bin.add(round(float(positions[0] % 1), 6))
            assert steps[label].get_data()[0] == pytest.approx(
                shares_in_bins(train, output, label)[0]
            )
            p_value = numbers["train_against_test"][NAMES[output]][NAMES[label]]["p_value"]
            text = p_values[label].get_text().replace(r"\$", "$")
            assert text == f"{NAMES[label]}: p = {p_value:.2g}"
    # Classes stand beside each other in a bin, and in a column of the legend each.
    assert len(positions_in_bin) == 3
    expected = [f"true {name}, {split}" for name in NAMES for split in ("training", "test")]
    assert legend_texts(figure) == expected


def test_score_plots_without_training_events_have_points_only() -> None:
    figure = figures.plot_scores(example_events(90), None, {}, NAMES, range(3), LABELS)

    assert legend_texts(figure) == [f"true {name}, test" for name in NAMES]
    assert not any(isinstance(patch, StepPatch) for patch in figure.axes[0].patches)


@weights_of_both_signs
def test_calibration_plots_have_observed_shares_against_mean_predictions(lightest: float) -> None:
    calibration = example_numbers(lightest)[2]["calibration"]

    figure = figures.plot_calibration(calibration, LABELS)

    for axes, (name, output) in zip(figure.axes, calibration.items(), strict=True):
        (points,) = errorbars_of(axes)
        predicted = [bin_["mean_predicted"] for bin_ in output["bins"]]
        assert list(points[0].get_xdata()) == predicted
        check_intervals(points, [bin_["observed"] for bin_ in output["bins"]])
        diagonal = axes.lines[0]
        assert list(diagonal.get_xdata()) == list(diagonal.get_ydata()) == [0, 1]
        assert axes.get_xlabel().replace(r"\$", "$") == f"Probability of {name}"
        text = "distance {error:.3f}\nof a perfect model {expected:.3f}\np = {p_value:.2g}"
        assert axes.texts[-1].get_text() == text.format_map(output)
        # There is room for the text above the points, and for points at the ends.
        assert (axes.get_xlim(), axes.get_ylim()) == ((-0.04, 1.04), (-0.05, 1.3))


@pytest.mark.slow
@weights_of_both_signs
def test_efficiencies_are_drawn_bin_by_bin_without_empty_bins(lightest: float) -> None:
    efficiencies = example_numbers(lightest)[2]["efficiency_against"]

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
            positions = edges[:-1] + (label + 1) / 4 * np.diff(edges)
            np.testing.assert_allclose(points[0].get_xdata(), positions[filled])
            check_intervals(points, [bins[index] for index in filled])
    assert num_empty > 0


def test_without_a_measurable_cut_the_panel_of_significances_says_why() -> None:
    test, _, numbers = example_numbers()
    empty = {**numbers["significance"], "best": None}
    for name in ("threshold", "simple", "asimov", "low", "high"):
        empty[name] = []

    figure = plot_discriminant(test, test.probabilities[:, 1], EXPECTED, [1], NAMES, empty, LABELS)

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
