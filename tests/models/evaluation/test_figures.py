"""Figures of one model: what is on their axes, read back from them; the style of all figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn_figures import data_outside_axes, style_faults
from example_curves import CURVES, POINTS, WORDS
from matplotlib.axes import Axes
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import StepPatch

from features.columns import Feature, hlf_names
from models.evaluation import figures, style
from models.evaluation.bootstrap import Replicas
from models.evaluation.curves import KINEMATIC_EDGES, EfficiencyCurve
from models.evaluation.figures import plot_curves
from models.evaluation.measurements import EvaluationTask, measure
from models.evaluation.scored_events import ScoredEvents
from models.evaluation.style import DPI, WIDTH, PlotLabels, save_figure, saving_in_processes

LABELS = PlotLabels("", "technical sample", 13, "hlf")
#: Names that matplotlib could take for formulas.
NAMES = [r"$t\bar{t}$", "a_b", "100% {x}"]
HISTORY = [
    {"epoch": epoch, "train_loss": 1 / (epoch + 1), "val_loss": abs(epoch - 2) + 0.5}
    for epoch in range(5)
]


def made_events(count: int = 90, *, seed: int = 1, lightest: float = 1.0) -> ScoredEvents:
    """Events of three classes, none of which was given a probability from 0.4 to 0.5 of the first."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    raw = rng.exponential(1.0, (count, 3)) + 2 * np.eye(3)[labels]
    scores = raw / raw.sum(axis=1, keepdims=True)
    first = np.where((scores[:, 0] > 0.4) & (scores[:, 0] < 0.5), 0.55, scores[:, 0])
    scores = np.stack(
        [first, *((1 - first) * scores[:, k] / (1 - scores[:, 0]) for k in (1, 2))], axis=1
    )
    weights = np.where(rng.random(count) < 0.3, lightest, 1.0)
    hlf = rng.normal(60, 60, (count, len(hlf_names()))).astype(np.float32)
    return ScoredEvents(labels, scores, weights, hlf, labels.astype(str))


@cache
def made_numbers(lightest: float = 1.0) -> tuple[ScoredEvents, ScoredEvents, dict[str, Any]]:
    """Test events, training events and the numbers of them."""
    test, train = made_events(180, lightest=lightest), made_events(60, seed=2, lightest=lightest)
    task = EvaluationTask(NAMES, [1], [0.4], None, LABELS, 1)
    replicas = Replicas(test.labels, test.samples, test.weights, seed=1, num=50)
    return test, train, measure(test, train, replicas, task).numbers


def made_figure(name: str, lightest: float = 1.0) -> Figure:
    """One of each kind."""
    test, train, numbers = made_numbers(lightest)
    row = {
        name: {"value": float(position), "error": 0.1} for position, name in enumerate(hlf_names())
    }
    history = [{**record, "consensus_distance": 0.1} for record in HISTORY]
    kinds: dict[str, Callable[[], Figure]] = {
        "background_efficiency": lambda: plot_curves(
            CURVES, "t_t", WORDS, POINTS, 0.95, LABELS, rejection=False
        ),
        "rejection": lambda: plot_curves(
            CURVES, "t_t", WORDS, POINTS, 0.95, LABELS, rejection=True
        ),
        "confusion": lambda: figures.plot_confusion(numbers["confusion"], LABELS),
        "scores": lambda: figures.plot_scores(
            test, train, numbers["train_against_test"], NAMES, range(3), LABELS
        ),
        "discriminant": lambda: figures.plot_discriminant(
            test,
            test.probabilities[:, 1],
            {0: 50.0, 1: 5.0, 2: 20.0},
            [1],
            NAMES,
            numbers["significance"],
            LABELS,
        ),
        "calibration": lambda: figures.plot_calibration(numbers["calibration"], LABELS),
        "efficiencies": lambda: figures.plot_efficiencies(
            numbers["efficiency_against"], NAMES[1], 0.5, LABELS
        ),
        "importance": lambda: figures.plot_importance(dict.fromkeys(NAMES, row), NAMES[1], LABELS),
        "learning_curve": lambda: figures.plot_learning_curve(history, LABELS),
    }
    return kinds[name]()


OF_MODEL = (
    "confusion",
    "scores",
    "discriminant",
    "calibration",
    "efficiencies",
    "importance",
    "learning_curve",
)
every_figure = pytest.mark.parametrize("name", ["background_efficiency", "rejection", *OF_MODEL])


def words_of(figure: Figure) -> list[str]:
    """Words of the legends as they are drawn."""
    legends = [*figure.legends, *(axis.get_legend() for axis in figure.axes)]
    return [
        text.get_text().replace(r"\$", "$")
        for legend in legends
        if legend
        for text in legend.get_texts()
    ]


def errorbars_of(axes: Axes) -> list[ErrorbarContainer]:
    return [each for each in axes.containers if isinstance(each, ErrorbarContainer)]


def points_and_bars(container: ErrorbarContainer) -> tuple[np.ndarray, np.ndarray]:
    """Heights of the points, and the ends of their bars."""
    ends = np.array([segment[:, 1] for segment in container[2][0].get_segments()])
    return np.asarray(container[0].get_ydata(), dtype=float), ends


@pytest.mark.slow
@every_figure
def test_figures_keep_within_their_axes_and_style_and_say_what_they_are_of(name: str) -> None:
    assert style_faults(lambda: made_figure(name)) == []
    figure = made_figure(name)
    assert data_outside_axes(figure) == []
    assert figure.get_size_inches()[0] == WIDTH
    axes = figure.axes
    assert axes[0].get_title(loc="left") == "technical sample"
    assert any(axis.get_title(loc="right") == "hlf, 13 TeV" for axis in axes)
    panels = [axis for axis in axes if axis.axison]
    is_twin = name == "learning_curve"
    has_ratios = name in {"background_efficiency", "rejection", "discriminant"}
    assert all(
        panel.get_xlabel()
        for panel in panels[len(panels) // 2 * has_ratios : 1 if is_twin else None]
    )
    # Panels of a row have their common label on the left; feature names need none.
    lefts = (
        panels if is_twin else [panel for panel in panels if panel.get_subplotspec().is_first_col()]
    )
    if name != "importance":
        assert all(axis.get_ylabel() for axis in lefts)


def test_a_feature_of_a_plugin_has_the_label_that_it_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    feature = Feature("share", "GeV", "a share", label="$p_T / H_T$")
    monkeypatch.setattr(style, "HIGH_LEVEL", [*style.HIGH_LEVEL, feature])
    assert style.axis_label(feature) == "$p_T / H_T$ [GeV]"
    assert style.symbol_of("share") == "$p_T / H_T$"
    assert style.axis_label(feature._replace(name="own_share", label="")) == "Own share [GeV]"


def test_the_experiment_and_the_kind_of_events_stand_as_they_are_given() -> None:
    axes = figures.plot_learning_curve(HISTORY, PlotLabels("ALEPH", "collision data", 0.2)).axes[0]
    assert axes.get_title(loc="left") == "ALEPH"
    assert [text.get_text() for text in axes.texts] == ["collision data"]


@pytest.mark.parametrize("name", OF_MODEL)
@pytest.mark.slow
def test_figures_can_be_made_with_negative_weights(tmp_path: Path, name: str) -> None:
    figure = made_figure(name, lightest=-0.5)
    save_figure(figure, tmp_path / name)
    assert (tmp_path / f"{name}.pdf").stat().st_size > 1000


@pytest.mark.slow
def test_figures_are_saved_with_the_same_bytes_here_and_by_another_process(tmp_path: Path) -> None:
    save_figure(made_figure("background_efficiency"), tmp_path / "first")
    with saving_in_processes() as save:
        save(made_figure("background_efficiency"), tmp_path / "second")
    written = [
        [(tmp_path / f"{name}.{suffix}").read_bytes() for suffix in ("png", "pdf")]
        for name in ("first", "second")
    ]
    assert written[0] == written[1]
    assert written[0][0].startswith(b"\x89PNG")
    assert int.from_bytes(written[0][0][16:20]) == WIDTH * DPI
    assert written[0][1].startswith(b"%PDF")


@pytest.mark.slow
def test_a_figure_that_another_process_cannot_write_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"), saving_in_processes() as save:
        save(made_figure("confusion"), tmp_path / "nowhere" / "plot")


@pytest.mark.parametrize(
    "message", ["50%", "MC #3", "run_", "10^", r"C:\\data", "$5 $6", "a_b", "<script>", r"$\frac$"]
)
@pytest.mark.slow
def test_any_words_can_stand_on_plots(tmp_path: Path, message: str) -> None:
    actual = {"classes": [message, "b"], "by_truth": np.eye(2).tolist(), "events": [[1, 0], [0, 1]]}
    save_figure(
        figures.plot_confusion(actual, PlotLabels(message, message, 13, message)), tmp_path / "plot"
    )
    assert (tmp_path / "plot.png").exists()


def test_confusion_plots_have_the_truth_down_as_shares_and_as_events() -> None:
    actual = {
        "classes": ["a", "b"],
        "by_truth": [[0.9, 0.1], [0.3, 0.7]],
        "events": [[1800, 200], [3, 7]],
    }
    shares, events = figures.plot_confusion(actual, LABELS).axes
    assert shares.get_xlabel() == "Predicted class (shares of a row)"
    assert events.get_xlabel() == "Predicted class (events)"
    texts = [
        {(text.get_position()): text.get_text() for text in axes.texts[-4:]}
        for axes in (shares, events)
    ]
    assert texts[0] == {(0, 0): "0.900", (1, 0): "0.100", (0, 1): "0.300", (1, 1): "0.700"}
    assert texts[1] == {(0, 0): "1,800", (1, 0): "200", (0, 1): "3", (1, 1): "7"}
    for ticks in (shares.get_xticklabels(), shares.get_yticklabels()):
        assert [text.get_text() for text in ticks] == ["a", "b"]


@pytest.mark.parametrize("lightest", [1.0, -0.5])
def test_score_plots_have_shares_of_both_splits_with_errors_of_the_test_split(
    lightest: float,
) -> None:
    test, train, numbers = made_numbers(lightest)
    figure = figures.plot_scores(
        test, train, numbers["train_against_test"], NAMES, range(3), LABELS
    )
    places = set()
    for output, axes in enumerate(figure.axes):
        assert (axes.get_yscale(), axes.get_xlim()) == ("log", (0, 1))
        steps = [patch for patch in axes.patches if isinstance(patch, StepPatch)]
        p_values = [text for text in axes.texts if ": p = " in text.get_text()]
        message = [text.get_text().replace(r"\$", "$") for text in p_values]
        # The colours of lines are too light for words.
        assert {text.get_color() for text in p_values} == {"black"}
        for truth, (step, points) in enumerate(zip(steps, errorbars_of(axes), strict=True)):
            shares = [slow_share(test, output, truth, position) for position in range(20)]
            reference = [(position, *each) for position, each in enumerate(shares) if each[0] > 0]
            heights, ends = points_and_bars(points)
            assert heights == pytest.approx([share for _, share, _ in reference])
            assert ends[:, 1] == pytest.approx([share + error for _, share, error in reference])
            assert ends[:, 0] == pytest.approx(
                [share - min(error, 0.6 * share) for _, share, error in reference]
            )
            # Classes stand beside each other in a bin.
            across = np.asarray(points[0].get_xdata()) * 20
            assert [int(each) for each in across] == [position for position, _, _ in reference]
            places.add(round(float(across[0] % 1), 6))
            expected = [slow_share(train, output, truth, position)[0] for position in range(20)]
            assert step.get_data()[0] == pytest.approx(expected)
            p_value = numbers["train_against_test"][NAMES[output]][NAMES[truth]]["p_value"]
            assert message[truth] == f"{NAMES[truth]}: p = {p_value:.2g}"
        assert axes.get_xlabel().replace(r"\$", "$") == f"Probability of {NAMES[output]}"
    assert len(places) == 3
    # A column for each class.
    assert words_of(figure) == [
        f"true {name}, {split}" for name in NAMES for split in ("training", "test")
    ]


def slow_share(events: ScoredEvents, output: int, truth: int, position: int) -> tuple[float, float]:
    """Share of a class in a bin of 20, and its error."""
    total = inside = squares = 0.0
    for label, scores, weight in zip(
        events.labels, events.probabilities, events.weights, strict=True
    ):
        if label == truth:
            total += weight
            if position <= 20 * scores[output] < position + 1:
                inside, squares = inside + weight, squares + weight**2
    return inside / total, squares**0.5 / total


def test_score_plots_without_training_events_have_points_only() -> None:
    figure = figures.plot_scores(made_events(), None, {}, NAMES, range(3), LABELS)
    assert words_of(figure) == [f"true {name}, test" for name in NAMES]
    assert not any(isinstance(patch, StepPatch) for patch in figure.axes[0].patches)


@pytest.mark.parametrize("lightest", [1.0, -0.5])
def test_calibration_plots_have_observed_shares_against_mean_predictions(lightest: float) -> None:
    actual = made_numbers(lightest)[2]["calibration"]
    figure = figures.plot_calibration(actual, LABELS)
    for axes, (name, document) in zip(figure.axes, actual.items(), strict=True):
        (points,) = errorbars_of(axes)
        assert list(points[0].get_xdata()) == [bin_["mean_predicted"] for bin_ in document["bins"]]
        check_intervals(*points_and_bars(points), [bin_["observed"] for bin_ in document["bins"]])
        assert (list(axes.lines[0].get_xdata()), list(axes.lines[0].get_ydata())) == (
            [0, 1],
            [0, 1],
        )
        assert axes.get_xlabel().replace(r"\$", "$") == f"Probability of {name}"
        distance, expected, p_value = (document[key] for key in ("error", "expected", "p_value"))
        message = f"distance {distance:.3f}\nof a perfect model {expected:.3f}\np = {p_value:.2g}"
        assert axes.texts[-1].get_text() == message
        # Room for the text above the points, and for points at the ends.
        assert (axes.get_xlim(), axes.get_ylim()) == ((-0.04, 1.04), (-0.05, 1.3))


def check_intervals(
    heights: Sequence[float], ends: np.ndarray, expected: Sequence[dict[str, float]]
) -> None:
    """Bars end where the interval does; a value outside it has a bar to one side only."""
    assert list(heights) == [interval["value"] for interval in expected]
    for (low, high), interval in zip(ends, expected, strict=True):
        assert low == pytest.approx(min(interval["low"], interval["value"]))
        assert high == pytest.approx(max(interval["high"], interval["value"]))


@pytest.mark.slow
@pytest.mark.parametrize("lightest", [1.0, -0.5])
def test_efficiencies_are_drawn_bin_by_bin_with_units_and_without_empty_bins(
    lightest: float,
) -> None:
    actual = made_numbers(lightest)[2]["efficiency_against"]
    figure = figures.plot_efficiencies(actual, NAMES[1], 0.995, LABELS)
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
    empty = 0
    for axes, (variable, document) in zip(panels, actual.items(), strict=True):
        edges = np.array(KINEMATIC_EDGES[variable])
        # Most events are in the narrow ones of uneven bins, whose points hid each other.
        if variable in ("lepton_pt", "ht", "met"):
            assert [text.get_text() for text in axes.get_xticklabels()] == [
                f"{edge:g}" for edge in edges
            ]
            edges = np.arange(len(edges))
            assert list(axes.get_xticks()) == list(edges)
        assert axes.get_xlim() == (edges[0], edges[-1])
        assert list(axes.lines[0].get_ydata()) == [0.995, 0.995]
        for position, (container, bins) in enumerate(
            zip(errorbars_of(axes), document["classes"].values(), strict=True), start=1
        ):
            measured = [index for index, bin_ in enumerate(bins) if bin_ is not None]
            empty += len(bins) - len(measured)
            beside = (edges[:-1] + position / 4 * np.diff(edges))[measured]
            np.testing.assert_allclose(container[0].get_xdata(), beside)
            check_intervals(*points_and_bars(container), [bins[index] for index in measured])
    assert empty > 0
    assert words_of(figure) == NAMES


def test_importance_is_sorted_by_the_first_model_and_has_bars_and_errors_of_each() -> None:
    actual = {
        "hlf_$1$": {"met": {"value": 0.1, "error": 0.01}, "ht": {"value": 0.3, "error": 0.02}},
        "trees": {"met": {"value": 0.25, "error": 0.03}, "ht": {"value": -0.01, "error": 0.005}},
    }
    figure = figures.plot_importance(actual, "ttbar", LABELS)
    axes = figure.axes[0]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["$E_T^{miss}$", "$H_T$"]
    assert axes.get_xlabel() == "AUC of ttbar lost when shuffled"
    bars = [each for each in axes.containers if isinstance(each, BarContainer)]
    assert [[bar.get_width() for bar in each] for each in bars] == [[0.1, 0.3], [0.25, -0.01]]
    for each, values in zip(bars, actual.values(), strict=True):
        ends = [list(segment[:, 0]) for segment in each.errorbar[2][0].get_segments()]
        assert ends == [
            pytest.approx([first["value"] - first["error"], first["value"] + first["error"]])
            for first in (values["met"], values["ht"])
        ]
    # The bars of a feature lie side by side around its tick.
    assert [[round(bar.get_y(), 6) for bar in each] for each in bars] == [[0.0, 1.0], [-0.4, 0.6]]
    assert [bar.get_height() for each in bars for bar in each] == pytest.approx([0.4] * 4)
    assert bars[0][0].get_facecolor() != bars[1][0].get_facecolor()
    assert words_of(figure) == ["hlf_$1$", "trees"]


def test_the_learning_curve_marks_the_epoch_that_was_kept() -> None:
    figure = figures.plot_learning_curve(HISTORY, LABELS)
    (axes,) = figure.axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("Epoch", "Weighted cross-entropy")
    training, validation, retained = axes.lines
    for line, key in ((training, "train_loss"), (validation, "val_loss")):
        assert list(line.get_xdata()) == [1, 2, 3, 4, 5]
        assert list(line.get_ydata()) == [record[key] for record in HISTORY]
    assert (list(retained.get_xdata()), list(retained.get_ydata())) == ([3], [0.5])
    assert words_of(figure) == ["training", "validation", "kept: epoch 3"]


def test_the_learning_curve_of_several_workers_says_how_far_they_differ() -> None:
    figure = figures.plot_learning_curve(
        [{**record, "consensus_distance": record["epoch"] / 8} for record in HISTORY], LABELS
    )
    _, second = figure.axes
    assert second.get_ylabel() == "Consensus distance"
    assert list(second.lines[0].get_ydata()) == [0, 0.125, 0.25, 0.375, 0.5]
    assert words_of(figure)[-1] == "consensus distance"


def test_without_a_measurable_cut_the_panel_of_significances_was_empty_and_did_not_say_why() -> (
    None
):
    test, _, numbers = made_numbers()
    none = {
        name: [] if isinstance(curve, list) else curve
        for name, curve in numbers["significance"].items()
    }
    figure = figures.plot_discriminant(
        test,
        test.probabilities[:, 1],
        dict.fromkeys(range(3), 5.0),
        [1],
        NAMES,
        none | {"best": None},
        LABELS,
    )
    assert "behind every cut effectively fewer than 10 background events" in words_of(figure)
    assert data_outside_axes(figure) == []


def test_the_outer_bins_of_the_discriminant_hold_all_beyond_and_the_bins_are_expected_events() -> (
    None
):
    test, _, numbers = made_numbers()
    score = np.linspace(0, 1, len(test.labels))
    expected = {0: 50.0, 1: 5.0, 2: 20.0}
    main, below = figures.plot_discriminant(
        test, score, expected, [1], NAMES, numbers["significance"], LABELS
    ).axes
    steps = [patch for patch in main.patches if isinstance(patch, StepPatch)]
    # Backgrounds first, then the signal.
    assert [float(np.nansum(step.get_data()[0])) for step in steps] == pytest.approx(
        [50.0, 20.0, 5.0]
    )
    assert main.get_yscale() == "log"
    line = below.get_legend_handles_labels()[0][0]
    assert isinstance(line, Line2D)
    assert len(np.asarray(line.get_xdata())) == len(numbers["significance"]["simple"]) > 1


def test_axes_begin_where_all_curves_have_a_low_background() -> None:
    across = np.linspace(0.02, 1.0, 50)

    def curve(reached: float) -> EfficiencyCurve:
        background = np.select([across < 0.1, across < reached + 0.01], [0.0, 5e-4], 0.1)
        return EfficiencyCurve(across, background, background, background, background[:, None])

    # Where nothing passes there is no logarithm.
    early, late, never = curve(0.42), curve(0.62), curve(0.0)
    assert figures._reach(
        {"QCD": {"a": late, "b": never}, "W+jets": {"a": early}}
    ) == pytest.approx(0.35)
    assert figures._reach({"QCD": {"a": late}}) == pytest.approx(0.55)
    assert figures._reach({"QCD": {"a": never}}) == pytest.approx(0.95)
