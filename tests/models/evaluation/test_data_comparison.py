"""Data beside simulation: the content of the histograms, and what blinding hides."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.patches import StepPatch
from scipy.special import expit

from features.columns import hlf_names
from models.evaluation.data_comparison import (
    DataEvents,
    Overlay,
    ScoreAxis,
    chi_square,
    overlays,
)
from models.evaluation.data_figures import data_labels, plot_overlays
from models.evaluation.evaluation_task import EvaluationTask
from models.evaluation.scored_events import ScoredEvents
from models.evaluation.style import NO_LABELS, PlotLabels

EXPECTED = {0: 300.0, 1: 100.0}
with_and_without_luminosity = pytest.mark.parametrize("expected", [None, EXPECTED])


class Comparison(NamedTuple):
    """Histograms of 400 data events and 4000 simulated ones."""

    drawn: dict[str, Overlay]
    numbers: dict[str, Any]


def simulated_events() -> ScoredEvents:
    data, labels = sampled_events(4000, seed=1, signal_share=0.5)
    weights = np.ones(4000)
    samples = labels.astype(str)
    return ScoredEvents(labels, data.probabilities, weights, data.hlf, samples)


def two_class_probabilities(signal: np.ndarray) -> np.ndarray:
    return np.stack([1 - signal, signal], axis=1)


def sampled_events(
    num_events: int, *, seed: int, signal_share: float
) -> tuple[DataEvents, np.ndarray]:
    """Events with their labels."""
    rng = np.random.default_rng(seed)
    is_signal = rng.random(num_events) < signal_share
    labels = is_signal.astype(np.int64)
    signal = expit(rng.normal(np.where(is_signal, 1.5, -1.5), 1.0))
    mean_of_features = np.where(is_signal, 90, 60)[:, np.newaxis]
    hlf = rng.normal(mean_of_features, 20, (num_events, len(hlf_names())))
    data = DataEvents(hlf.astype(np.float32), two_class_probabilities(signal))
    return data, labels


def data_events() -> DataEvents:
    """Data with the mixture of `EXPECTED`."""
    data, _ = sampled_events(400, seed=2, signal_share=0.25)
    return data


def example_task(**changes: Any) -> EvaluationTask:
    task = EvaluationTask(["bkg", "sig"], [1], [0.5], None, NO_LABELS, 1)
    return task._replace(**changes)


def compare(data: DataEvents | None = None, **changes: Any) -> Comparison:
    task = example_task(**changes)
    return Comparison(*overlays(simulated_events(), data or data_events(), task))


def class_sums(overlay: Overlay) -> list[float]:
    return [histogram.sum().value for histogram in overlay.classes]


def drawn_points(axes: Axes) -> list[tuple[float, float]]:
    points = []
    for line in axes.lines:
        for x, y in zip(*line.get_data(), strict=True):
            if np.isfinite(y):
                points.append((x, y))
    return points


def counts_at(axes: Axes, center: float) -> list[float]:
    """Heights of the points at the center of a bin."""
    return [y for x, y in drawn_points(axes) if np.isclose(x, center)]


def test_all_events_are_in_histograms_that_agree_with_the_expected_mixture() -> None:
    drawn, numbers = compare(expected=EXPECTED)

    assert drawn.keys() == numbers["chi_square"].keys() >= {"score", "met", "lepton_pt"}
    for name, overlay in drawn.items():
        assert overlay.data.sum() == 400, name
        assert class_sums(overlay) == pytest.approx(list(EXPECTED.values()))
        assert numbers["chi_square"][name]["p_value"] > 1e-3
    assert numbers["num_events"] == 400
    assert numbers["scale"] is None
    assert numbers["blind_above"] is None
    assert numbers["num_expected"] == pytest.approx(400)


def test_shifted_data_have_a_small_probability() -> None:
    data = data_events()
    shifted = data._replace(hlf=data.hlf + np.float32(20))

    numbers = compare(shifted, expected=EXPECTED).numbers

    assert numbers["chi_square"]["met"]["p_value"] < 1e-6


def test_without_cross_sections_the_simulation_has_as_many_events_as_the_data() -> None:
    drawn, numbers = compare()

    assert sum(class_sums(drawn["score"])) == pytest.approx(400)
    num_bins = len(drawn["num_bjets"].data.values())
    assert numbers["chi_square"]["num_bjets"]["degrees"] < num_bins
    counts = drawn["met"].data.values()
    simulation = drawn["met"].simulation
    expected = chi_square(counts, simulation.values(), simulation.variances(), is_normalised=True)
    assert numbers["chi_square"]["met"] == expected


def test_labels_name_blinding_luminosity_and_energy() -> None:
    drawn, numbers = compare(expected=EXPECTED, blind_above=0.5)
    labels = data_labels(PlotLabels("", "Simulation", 13.6, "hlf", "36 fb⁻¹"), numbers)

    main = plot_overlays({"score": drawn["score"]}, numbers, example_task(), labels).axes[0]

    assert "blinded" in [text.get_text() for text in main.texts]
    assert main.get_title(loc="left") == "Data and simulation, blinded above a score of 0.5"
    assert main.get_title(loc="right") == "hlf, 36 fb⁻¹ (13.6 TeV)"


def test_labels_name_the_scale_of_the_simulation() -> None:
    labels = data_labels(NO_LABELS, compare().numbers)

    assert labels.sample_note.startswith("Data and simulation × 0.1")  # noqa: RUF001


def test_no_histogram_has_data_above_the_blinded_score() -> None:
    data = data_events()

    drawn, numbers = compare(data, expected=EXPECTED, blind_above=0.5)

    assert numbers["blind_above"] == 0.5
    score = drawn["score"]
    # Only whole bins below the cut have data.
    assert score.blind_from <= 1e-9
    odds = data.probabilities[:, 1] / data.probabilities[:, 0]
    num_below = int((odds < 10**score.blind_from).sum())
    assert 0 < num_below < 400
    for overlay in drawn.values():
        assert overlay.data.sum() == num_below
    assert score.data.values()[~score.is_visible].sum() == 0


@pytest.mark.parametrize("names", [["score"], ["met", "ht"]])
def test_ratios_are_drawn_below_their_histograms(names: list[str]) -> None:
    drawn, numbers = compare(expected=EXPECTED, blind_above=0.5)
    chosen = {name: drawn[name] for name in names}
    task = example_task(blind_above=0.5)

    figure = plot_overlays(chosen, numbers, task, NO_LABELS)

    has_label = [bool(axes.get_xlabel()) for axes in figure.axes]
    assert has_label == [False] * len(names) + [True] * len(names)


def test_the_simulation_is_drawn_where_data_are_blinded() -> None:
    drawn, numbers = compare(expected=EXPECTED, blind_above=0.5)
    score = drawn["score"]
    task = example_task(blind_above=0.5)

    main, _ = plot_overlays({"score": score}, numbers, task, NO_LABELS).axes

    (points,) = (line for line in main.lines if line.get_marker() not in {"None", ""})
    positions, counts = np.transpose(points.get_xydata())
    assert positions[np.isfinite(counts)].max() < score.blind_from
    blinded_signal = score.classes[1].values()[~score.is_visible]
    blinded_heights = []
    for patch in main.patches:
        if isinstance(patch, StepPatch):
            tops, _, bottoms = patch.get_data()
            blinded_heights.append((tops - bottoms)[-len(blinded_signal) :])
    assert any(np.allclose(heights, blinded_signal) for heights in blinded_heights)


@pytest.mark.parametrize("blind_above", [0.5, 0.9, 0.999999, 1e-6])
@with_and_without_luminosity
def test_no_number_reveals_how_many_events_are_blinded(
    blind_above: float, expected: dict[int, float] | None
) -> None:
    data = data_events()
    is_below = data.probabilities[:, 1] <= blind_above
    data_below = DataEvents(data.hlf[is_below], data.probabilities[is_below])

    drawn, numbers = compare(data, expected=expected, blind_above=blind_above)
    drawn_below, numbers_below = compare(data_below, expected=expected, blind_above=blind_above)

    assert numbers == numbers_below
    for name, overlay in drawn.items():
        assert (overlay.data.values() == drawn_below[name].data.values()).all()
        assert class_sums(overlay) == class_sums(drawn_below[name])
    if expected is None and numbers["num_events"]:
        assert numbers["num_expected"] == pytest.approx(numbers["num_events"])
        assert sum(class_sums(drawn["met"])) == pytest.approx(drawn["met"].data.sum())


@with_and_without_luminosity
def test_a_model_that_finds_nothing_hides_the_events_that_another_blinds(
    expected: dict[int, float] | None,
) -> None:
    task = example_task(expected=expected, blind_above=0.5)
    simulation = simulated_events()
    data = data_events()
    rng = np.random.default_rng(3)

    def flat_probabilities(num_events: int) -> np.ndarray:
        signal = rng.uniform(0.01, 0.2, num_events)
        return two_class_probabilities(signal)

    flat_simulation = simulation._replace(probabilities=flat_probabilities(4000))
    flat_data = data._replace(probabilities=flat_probabilities(400))
    score = ScoreAxis.for_events(simulation, data, task)
    flat_score = ScoreAxis.for_events(flat_simulation, flat_data, task)

    drawn, numbers = overlays(simulation, data, task, [flat_score])
    flat_drawn, flat_numbers = overlays(flat_simulation, flat_data, task, [score])

    _, unblinded = overlays(flat_simulation, flat_data, task)
    num_events = numbers["num_events"]
    assert num_events == flat_numbers["num_events"] < unblinded["num_events"] - 50
    for name in drawn.keys() & flat_drawn.keys() - {"score"}:
        assert (drawn[name].data.values() == flat_drawn[name].data.values()).all()
        assert class_sums(drawn[name]) == class_sums(flat_drawn[name])
    assert drawn["score"].data.sum() == flat_drawn["score"].data.sum() == num_events
    if expected is None:
        # The simulation is cut as the data are.
        score_overlay = flat_drawn["score"]
        visible = score_overlay.simulation.values()[score_overlay.is_visible]
        assert visible.sum() == pytest.approx(num_events)


@pytest.mark.parametrize(
    ("simulated_per_event", "is_normalised"),
    [(10, False), (10, True), (1, False), (1, True), (0.3, False)],
)
def test_probabilities_of_data_like_the_simulation_are_uniform(
    simulated_per_event: float, is_normalised: bool
) -> None:
    rng = np.random.default_rng(1)
    truth = np.array([40, 80, 60, 30, 12, 5, 2, 0.7, 0.2, 0])

    p_values = []
    for _ in range(1000):
        counts = rng.poisson(truth).astype(float)
        simulation = rng.poisson(truth * simulated_per_event) / simulated_per_event
        scale = counts.sum() / simulation.sum() if is_normalised else 1.0
        variances = scale**2 * simulation / simulated_per_event
        comparison = chi_square(counts, scale * simulation, variances, is_normalised=is_normalised)
        p_values.append(comparison["p_value"])

    observed = np.array(p_values)
    share_below_10_percent = (observed < 0.1).mean()
    share_below_1_percent = (observed < 0.01).mean()
    assert abs(observed.mean() - 0.5) < 0.04
    assert abs(share_below_10_percent - 0.1) < 0.035
    assert share_below_1_percent < 0.03


def test_few_events_share_a_bin_and_errors_of_both_count() -> None:
    counts = np.array([12.0, 3.0, 1.0])
    expected = np.array([10.0, 4.0, 3.0])
    variances = np.array([2.0, 1.0, 1.0])

    absolute = chi_square(counts, expected, variances, is_normalised=False)
    normalised = chi_square(counts, expected, variances, is_normalised=True)

    # The variances of simulation and data add up to 2 + 10, and to 1 + 1 + 4 + 3.
    chi_square_of_bins = (12 - 10) ** 2 / 12 + (4 - 7) ** 2 / 9
    assert absolute["value"] == pytest.approx(chi_square_of_bins)
    assert absolute["degrees"] == 2
    assert normalised["degrees"] == 1


def test_negative_weights_of_a_whole_bin_leave_its_data_and_no_ratio() -> None:
    drawn, numbers = compare(expected=EXPECTED)
    met = drawn["met"]
    fullest = int(np.argmax(met.data.values()))
    for histogram in met.classes:
        sums = histogram.view().value
        sums[fullest] = -5.0
        sums[-1] = 0.0
    met.data.view()[-1] = 0

    figure = plot_overlays({"met": met}, numbers, example_task(), NO_LABELS)

    main, below = figure.axes
    centers = met.data.axes[0].centers
    count = met.data.values()[fullest]
    assert counts_at(main, centers[fullest]) == pytest.approx([count])
    assert counts_at(below, centers[fullest]) == []
    # An empty bin has no point at 0 either.
    assert counts_at(main, centers[-1]) == []


def test_ratios_far_from_one_stay_in_their_panel() -> None:
    drawn, numbers = compare(expected={0: 30.0, 1: 10.0})

    figure = plot_overlays({"met": drawn["met"]}, numbers, example_task(), NO_LABELS)

    _, below = figure.axes
    ratios = [y for _, y in drawn_points(below)]
    _, top = below.get_ylim()
    assert top > np.median(ratios) > 5
