"""Data beside simulation: what the histograms hold, and what they hide."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.patches import StepPatch

from features.columns import hlf_names
from models.evaluation.data_comparison import (
    DataEvents,
    ScoreAxis,
    chi_square,
    data_labels,
    overlays,
    plot_overlays,
)
from models.evaluation.measurements import EvaluationTask
from models.evaluation.scored_events import ScoredEvents
from models.evaluation.style import NO_LABELS, PlotLabels

EXPECTED = {0: 300.0, 1: 100.0}


def made(num: int, seed: int, share: float = 0.5) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels, probabilities and features."""
    rng = np.random.default_rng(seed)
    labels = (rng.random(num) < share).astype(np.int64)
    ours = 1 / (1 + np.exp(-rng.normal(3.0 * labels - 1.5, 1.0)))
    hlf = rng.normal(60 + 30 * labels[:, None], 20, (num, len(hlf_names()))).astype(np.float32)
    return labels, np.stack([1 - ours, ours], axis=1), hlf


def simulated() -> ScoredEvents:
    labels, scores, hlf = made(4000, 1)
    return ScoredEvents(labels, scores, np.ones(4000), hlf, labels.astype(str))


def task(**changes: object) -> EvaluationTask:
    return EvaluationTask(["bkg", "sig"], [1], [0.5], None, NO_LABELS, 1)._replace(**changes)


def compared(num: int = 400, *, shift: float = 0.0, **changes: object) -> tuple:
    _, of_data, hlf = made(num, 2, share=0.25)
    return *overlays(
        simulated(), DataEvents(hlf + np.float32(shift), of_data), task(**changes)
    ), of_data


def test_data_of_the_expected_mixture_agree_and_all_events_are_in_the_histograms() -> None:
    actual, numbers, _ = compared(expected=EXPECTED)
    assert actual.keys() == numbers["chi_square"].keys() >= {"score", "met", "lepton_pt"}
    assert numbers["blind_above"] is None
    for name, figure_numbers in actual.items():
        assert figure_numbers.data.sum() == 400, name
        assert [chunk.sum().value for chunk in figure_numbers.classes] == pytest.approx(
            list(EXPECTED.values())
        )
        assert numbers["chi_square"][name]["p_value"] > 1e-3
    assert compared(expected=EXPECTED, shift=20)[1]["chi_square"]["met"]["p_value"] < 1e-6


def test_without_cross_sections_the_simulation_has_as_many_events_as_the_data() -> None:
    actual, numbers, _ = compared()
    assert sum(chunk.sum().value for chunk in actual["score"].classes) == pytest.approx(400)
    assert numbers["chi_square"]["num_bjets"]["degrees"] < len(actual["num_bjets"].data.values())
    data, model = actual["met"].data, actual["met"].model
    square = chi_square(data.values(), model.values(), model.variances(), is_normalised=True)
    assert numbers["chi_square"]["met"] == square


def test_numbers_of_the_data_say_what_is_shown_and_how_the_simulation_is_scaled() -> None:
    _, numbers, _ = compared(expected=EXPECTED)
    assert (numbers["num_events"], numbers["scale"]) == (400, None)
    assert numbers["num_expected"] == pytest.approx(400)
    _, numbers, _ = compared(blind_above=0.5)
    assert numbers["num_expected"] == pytest.approx(numbers["num_events"])
    # 4000 simulated events, half of which are signal, and 400 events of data.
    assert 0.1 < numbers["scale"] < 0.2


def test_a_figure_of_blinded_data_says_so_with_luminosity_and_energy() -> None:
    actual, numbers, _ = compared(expected=EXPECTED, blind_above=0.5)
    labels = data_labels(PlotLabels("", "Simulation", 13.6, "hlf", "36 fb⁻¹"), numbers)
    figure = plot_overlays({"score": actual["score"]}, numbers, task(), labels)
    main = figure.axes[0]
    assert "blinded" in [text.get_text() for text in main.texts]
    assert main.get_title(loc="left") == "Data and simulation, blinded above a score of 0.5"
    assert main.get_title(loc="right") == "hlf, 36 fb⁻¹ (13.6 TeV)"
    _, scaled, _ = compared()
    assert data_labels(NO_LABELS, scaled).sample_note.startswith("Data and simulation × 0.1")  # noqa: RUF001


def test_above_the_score_no_data_are_shown_also_not_in_the_features() -> None:
    actual, numbers, of_data = compared(expected=EXPECTED, blind_above=0.5)
    assert numbers["blind_above"] == 0.5
    score = actual["score"]
    # Only whole bins below the cut.
    assert score.blind_from <= 1e-9
    below = int((of_data[:, 1] / of_data[:, 0] < 10**score.blind_from).sum())
    assert 0 < below < 400
    assert score.data.sum() == below
    assert score.data.values()[score.data.axes[0].edges[:-1] >= score.blind_from].sum() == 0
    assert {actual[name].data.sum() for name in hlf_names() if name in actual} == {below}
    inputs = {name: distribution for name, distribution in actual.items() if name != "score"}
    for some in ({"score": score}, dict(list(inputs.items())[:2])):
        figure = plot_overlays(some, numbers, task(blind_above=0.5), NO_LABELS)
        # Ratios are below their histograms.
        assert [bool(axes.get_xlabel()) for axes in figure.axes] == [False] * len(some) + [
            True
        ] * len(some)
        figure.canvas.draw()


def test_the_simulation_vanished_with_the_blinded_data() -> None:
    actual, numbers, _ = compared(expected=EXPECTED, blind_above=0.5)
    score = actual["score"]
    main = plot_overlays({"score": score}, numbers, task(blind_above=0.5), NO_LABELS).axes[0]
    (points,) = (line.get_xydata() for line in main.lines if line.get_marker() not in {"None", ""})
    assert np.nanmax(points[:, 0][np.isfinite(points[:, 1])]) < score.blind_from
    signal = score.classes[1].values()[score.data.axes[0].edges[:-1] >= score.blind_from]
    drawn = [patch.get_data() for patch in main.patches if isinstance(patch, StepPatch)]
    assert any(
        np.allclose(values[-len(signal) :] - base[-len(signal) :], signal)
        for values, _, base in drawn
    )


@pytest.mark.parametrize("threshold", [0.5, 0.9, 0.999999, 1e-6])
@pytest.mark.parametrize("expected", [None, EXPECTED])
def test_no_number_tells_how_many_events_are_blinded(
    threshold: float, expected: dict[int, float] | None
) -> None:
    _, of_data, hlf = made(400, 2)
    above = of_data[:, 1] > threshold
    selected = task(expected=expected, blind_above=threshold)
    complete, without = (
        overlays(simulated(), DataEvents(hlf[rows], of_data[rows]), selected)
        for rows in (np.ones(400, bool), ~above)
    )
    assert complete[1] == without[1]
    for name, distribution in complete[0].items():
        assert (distribution.data.values() == without[0][name].data.values()).all()
        assert [chunk.sum() for chunk in distribution.classes] == [
            chunk.sum() for chunk in without[0][name].classes
        ]
    if expected is None and complete[1]["num_events"]:
        displayed = complete[0]["met"]
        assert sum(chunk.sum().value for chunk in displayed.classes) == pytest.approx(
            displayed.data.sum()
        )


@pytest.mark.parametrize("expected", [None, EXPECTED])
def test_a_model_that_finds_nothing_showed_what_another_blinds(
    expected: dict[int, float] | None,
) -> None:
    _, of_data, of_hlf = made(400, 2)
    selected = task(expected=expected, blind_above=0.5)
    test, data = simulated(), DataEvents(of_hlf, of_data)
    flat = [
        np.random.default_rng(3).uniform(0.01, 0.2, len(each)) for each in (test.labels, of_data)
    ]
    of_test, of_other = (np.stack([1 - ours, ours], axis=1) for ours in flat)
    idle_test, idle = test._replace(probabilities=of_test), data._replace(probabilities=of_other)
    pair = [ScoreAxis.of(test, data, selected), ScoreAxis.of(idle_test, idle, selected)]
    actual, numbers = overlays(test, data, selected, pair[1:])
    remaining, of_others = overlays(idle_test, idle, selected, pair[:1])
    alone = overlays(idle_test, idle, selected)[1]["num_events"]
    assert numbers["num_events"] == of_others["num_events"] < alone - 100
    for name in actual.keys() & remaining.keys() - {"score"}:
        assert (actual[name].data.values() == remaining[name].data.values()).all()
        assert [chunk.sum() for chunk in actual[name].classes] == [
            chunk.sum() for chunk in remaining[name].classes
        ]
    assert actual["score"].data.sum() == remaining["score"].data.sum() == numbers["num_events"]
    # What is cut from the data is cut from the simulation.
    if expected is None:
        displayed = remaining["score"].data.axes[0].edges[:-1] < remaining["score"].blind_from
        assert sum(
            chunk.values()[displayed].sum() for chunk in remaining["score"].classes
        ) == pytest.approx(numbers["num_events"])


@pytest.mark.parametrize(
    ("per_event", "is_normalised"), [(10, False), (10, True), (1, False), (1, True), (0.3, False)]
)
def test_probabilities_of_data_like_the_simulation_are_uniform(
    per_event: float, is_normalised: bool
) -> None:
    rng, truth, results = (
        np.random.default_rng(1),
        np.array([40, 80, 60, 30, 12, 5, 2, 0.7, 0.2, 0]),
        [],
    )
    for _ in range(1000):
        counts, model = rng.poisson(truth).astype(float), rng.poisson(truth * per_event) / per_event
        factor = counts.sum() / model.sum() if is_normalised else 1.0
        square = factor**2 * model / per_event
        results.append(
            chi_square(counts, factor * model, square, is_normalised=is_normalised)["p_value"]
        )
    assert abs(np.mean(results) - 0.5) < 0.04
    assert abs(np.mean(np.array(results) < 0.1) - 0.1) < 0.035
    assert np.mean(np.array(results) < 0.01) < 0.03


def test_few_events_share_a_bin_and_errors_of_both_count() -> None:
    counts = np.array([12.0, 3.0, 1.0])
    expected, variances = np.array([10.0, 4.0, 3.0]), np.array([2.0, 1.0, 1.0])
    actual = chi_square(counts, expected, variances, is_normalised=False)
    assert actual["value"] == pytest.approx((12 - 10) ** 2 / 12 + (4 - 7) ** 2 / 9)
    assert actual["degrees"] == 2
    assert chi_square(counts, expected, variances, is_normalised=True)["degrees"] == 1


def test_negative_weights_of_a_whole_bin_leave_its_data_and_no_ratio() -> None:
    actual, numbers, _ = compared(expected=EXPECTED)
    met = actual["met"]
    full = int(np.argmax(met.data.values()))
    for simulated in met.classes:
        simulated.view().value[full] = -5.0
        simulated.view().value[-1] = 0.0
    met.data.view()[-1] = 0
    figure = plot_overlays({"met": met}, numbers, task(), NO_LABELS)
    main, below = (
        [
            (x, y)
            for line in axes.lines
            for x, y in zip(*line.get_data(), strict=True)
            if np.isfinite(y)
        ]
        for axes in figure.axes
    )
    point = met.data.axes[0].centers[full], met.data.values()[full]
    assert any(point == pytest.approx(ratio) for ratio in main)
    assert not any(x == pytest.approx(point[0]) for x, _ in below)
    # Where nothing is, there is no point at 0 either.
    assert not any(x == pytest.approx(met.data.axes[0].centers[-1]) for x, _ in main)


def test_ratios_far_from_one_stay_in_their_panel() -> None:
    actual, numbers, _ = compared(expected={0: 30.0, 1: 10.0})
    below = plot_overlays({"met": actual["met"]}, numbers, task(), NO_LABELS).axes[1]
    ratios = [y for line in below.lines for y in line.get_ydata() if np.isfinite(y)]
    assert below.get_ylim()[1] > np.median(ratios) > 5
