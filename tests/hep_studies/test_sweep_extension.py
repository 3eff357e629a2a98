"""Sweeps are extended until each best value is inside, with at most `extend` values a side."""

from __future__ import annotations

import json
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from example_study import EQUAL_ACCURACY, example_run, example_study
from trained_nights import TrainedNights

from hep_studies import claims, study_runs
from hep_studies.run_result import RunResult
from hep_studies.study import StudySettings
from hep_studies.study_files import Study
from hep_studies.study_result import RESULT_FILE, StudyResult, read_study_result
from hep_studies.sweep_extension import extended_sweeps, tuning_measures

RATE = "train.learning_rate"
METHOD = "ad-psgd"


def swept_study(rates: list[Any], **changes: Any) -> StudySettings:
    """A study of AD-PSGD at some rates, to each side of which two may be added."""
    example = example_study()
    methods = {METHOD: example.methods[METHOD].model_dump()}
    settings = {"vary": {RATE: rates}, "best_of": [RATE], "extend": 2, "reference": METHOD}
    return example_study(methods=methods, **settings, **changes)


def run_with_loss(rate: float, loss: float, **curves: list[float]) -> RunResult:
    """A run with a lowest validation loss; it diverged if that is infinite."""
    run = example_run(METHOD, 1, values={RATE: rate})
    if not math.isfinite(loss):
        return replace(run, curves={}, counts=None)
    return replace(run, curves={**run.curves, "val_loss": [loss] * 6, **curves})


@pytest.mark.parametrize(
    ("losses", "added"),
    [
        ({0.01: 0.3, 0.03: 0.2, 0.1: 0.3}, []),
        ({0.01: 0.3, 0.03: 0.2}, [0.09]),
        ({0.01: 0.2, 0.03: 0.3}, [0.00333]),
        # The rate beyond is known to diverge; and where all diverge, a lower one may not.
        ({0.01: 0.3, 0.03: 0.2, 0.1: math.inf}, []),
        ({0.01: math.inf, 0.03: math.inf}, [0.00333]),
        # Neither a single value nor one that is not positive has a next one.
        ({0.01: 0.3}, []),
        ({0.0: 0.1, 0.03: 0.3}, []),
    ],
    ids=str,
)
def test_a_value_is_added_beyond_the_edge_by_the_ratio_of_the_last_two(
    losses: dict[float, float], added: list[float]
) -> None:
    study = swept_study(sorted(losses))
    runs = [run_with_loss(rate, loss) for rate, loss in losses.items()]

    extended = extended_sweeps(study, {}, runs)

    assert extended == ({METHOD: {RATE: added}} if added else {})


def test_a_side_gets_no_more_values_than_asked_for() -> None:
    study = swept_study([0.01, 0.03])
    added: dict[str, dict[str, list[Any]]] = {}
    for _ in range(5):
        rates = study.with_added(added).values_of(METHOD, RATE)
        # The higher the rate, the lower the loss.
        runs = [run_with_loss(rate, 1 - rate) for rate in rates]
        added = extended_sweeps(study, added, runs)

    extended_study = study.with_added(added)
    assert added == {METHOD: {RATE: [0.09, 0.27]}}
    assert extended_study.values_of(METHOD, RATE) == [0.01, 0.03, 0.09, 0.27]


# The best accuracy is 0.9, so that both goals are reached in the same epoch.
@pytest.mark.parametrize("measure", ["seconds_to=0.8", "seconds_to_best=0.01"])
def test_a_sweep_is_extended_for_what_claims_are_tuned_by(measure: str) -> None:
    """The lowest loss is inside; the time to the goal is the shortest at the highest rate."""
    claim = {
        "says": "x",
        "better": METHOD,
        "control": METHOD,
        **EQUAL_ACCURACY,
        "at": {RATE: 0.03},
        "also": [{"protocol": "each at its best", "measure": measure}],
    }
    study = swept_study([0.01, 0.03, 0.1], claims=[claim])
    runs = []
    for rate, loss, epochs in ((0.01, 0.3, 4), (0.03, 0.2, 3), (0.1, 0.3, 2)):
        accuracy = [0.5] * epochs + [0.9] * (6 - epochs)
        runs.append(run_with_loss(rate, loss, val_accuracy=accuracy))

    assert tuning_measures(study) == ["val_loss", measure]
    assert extended_sweeps(study, {}, runs) == {METHOD: {RATE: [0.333]}}


def test_a_goal_that_no_run_reaches_extends_nothing() -> None:
    best = {"protocol": "each at its best", "measure": "seconds_to=0.99"}
    claim = {"says": "x", "better": METHOD, "control": METHOD, **best}
    study = swept_study([0.01, 0.03, 0.1], claims=[claim])
    losses = {0.01: 0.3, 0.03: 0.2, 0.1: 0.3}

    runs = [run_with_loss(rate, loss) for rate, loss in losses.items()]

    assert extended_sweeps(study, {}, runs) == {}


def test_a_value_that_the_settings_forbid_is_not_added() -> None:
    key = "train.momentum"
    study = swept_study([0.01]).model_copy(update={"vary": {key: [0.5, 0.9]}, "best_of": [key]})
    losses = {0.5: 0.3, 0.9: 0.2}
    runs = [
        replace(run_with_loss(1.0, loss), values={key: momentum})
        for momentum, loss in losses.items()
    ]

    assert extended_sweeps(study, {}, runs) == {}


#: SGD on a surface of two parameters: at these rates the highest is the best.
SURFACE: dict[str, Any] = {
    "title": "A surface",
    "source": "Nobody",
    "minutes": 1,
    "workload": {"name": "surface"},
    "cluster": {"step_seconds": 1e-3, "event_seconds": 0.0},
    "train": {"workers": 2, "batch_size": 1, "epochs": 3, "optimizer": "sgd"},
    "methods": {"ar-sgd": {"train": {"algorithm": {"name": "ar-sgd"}}}},
    "vary": {RATE: [1e-6, 1e-4]},
    "best_of": [RATE],
    "reference": "ar-sgd",
    "compared": ["val_loss"],
    "seeds": 2,
    "extend": 1,
}


@pytest.fixture
def nights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainedNights:
    """A run folder in which studies are simulated in this process, without checks of times."""
    monkeypatch.setattr(
        "hep_studies.run_in_simulator.ProcessPoolExecutor", lambda *_: ThreadPoolExecutor(1)
    )
    monkeypatch.setattr(study_runs, "busy_cores", lambda *_: 0.0)
    monkeypatch.setattr(study_runs, "measure_checks", lambda *_: [])
    return TrainedNights(tmp_path)


def make_surface(nights: TrainedNights, folder: Path, **changes: Any) -> StudyResult:
    """The result of the study of the surface, made in a folder."""
    settings = StudySettings.model_validate({**SURFACE, **changes})
    return study_runs.run_study(
        nights.run_folder, Study("surface", "small", settings), folder, "compare"
    )


def rates_of(result: StudyResult) -> set[float]:
    return {run.values[RATE] for run in result.runs}


def test_a_study_whose_best_rate_is_at_the_edge_makes_runs_beyond_it(
    nights: TrainedNights, tmp_path: Path
) -> None:
    result = make_surface(nights, tmp_path / "study")

    assert result.added == {"ar-sgd": {RATE: [0.01]}}
    assert rates_of(result) == {1e-6, 1e-4, 0.01}
    assert result.study.values_of("ar-sgd", RATE) == [1e-6, 1e-4, 0.01]
    stored = read_study_result(tmp_path / "study" / RESULT_FILE)
    assert (stored.added, stored.digest) == (result.added, result.digest)


def test_a_study_whose_best_rate_is_inside_stays_as_it_is(
    nights: TrainedNights, tmp_path: Path
) -> None:
    inside = {RATE: [1e-6, 1e-3, 100.0]}

    result = make_surface(nights, tmp_path / "study", vary=inside)

    assert result.added == {}
    assert rates_of(result) == set(inside[RATE])


def test_the_same_command_again_makes_no_run(
    nights: TrainedNights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make_surface(nights, tmp_path / "study")

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a run was made again")

    monkeypatch.setattr(study_runs, "simulate_all", refuse)

    assert make_surface(nights, tmp_path / "study") == first


def test_an_interrupted_extension_continues(
    nights: TrainedNights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate_all = study_runs.simulate_all
    num_made = []

    def stop_before_extension(runs: Any, **options: Any) -> None:
        if num_made:
            raise KeyboardInterrupt
        num_made.append(len(runs))
        simulate_all(runs, **options)

    monkeypatch.setattr(study_runs, "simulate_all", stop_before_extension)
    with pytest.raises(KeyboardInterrupt):
        make_surface(nights, tmp_path / "study")

    def count(runs: Any, **options: Any) -> None:
        num_made.append(len(runs))
        simulate_all(runs, **options)

    monkeypatch.setattr(study_runs, "simulate_all", count)
    result = make_surface(nights, tmp_path / "study")

    # Two rates of two seeds, then the added one.
    assert num_made == [4, 2]
    assert rates_of(result) == {1e-6, 1e-4, 0.01}


def test_a_higher_limit_extends_a_finished_study_further(
    nights: TrainedNights, tmp_path: Path
) -> None:
    make_surface(nights, tmp_path / "study", extend=0)

    result = make_surface(nights, tmp_path / "study", extend=1)

    assert result.added == {"ar-sgd": {RATE: [0.01]}}


def test_a_stored_result_with_added_values_belongs_to_its_file(
    nights: TrainedNights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = make_surface(nights, tmp_path / "study")
    monkeypatch.setattr(claims, "FOLDER", tmp_path)
    file = {**SURFACE, "title": "A better title", "extend": 3}
    (tmp_path / "surface.yaml").write_text(json.dumps(file))

    current = claims._with_current_presentation(result)

    assert current.study.title == "A better title"
    assert current.study.values_of("ar-sgd", RATE) == [1e-6, 1e-4, 0.01]
