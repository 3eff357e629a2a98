"""The settings that a search tries, and how the best one reaches a training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from models.networks.hlf_settings import HlfSettings
from training.errors import TrainingError
from training.gridsearch.settings import GridSearchSettings, Trial, all_trials, draw_trials
from training.settings import TrainSettings

BEST = Trial((9, 5), 64, 0.02, 7)
SMALL_GRID: dict[str, Any] = {"hidden": [[4, 8], [2, 3]], "batch_size": [16, 32]}


def test_the_default_grid_is_the_one_of_cern() -> None:
    trials = all_trials(GridSearchSettings())

    assert len(trials) == len(set(trials)) == 81
    assert len({trial.hidden for trial in trials}) == 27
    assert Trial((50, 20, 10), 64, 1e-3, 20) in trials


@pytest.mark.parametrize(
    ("repeated", "unique"),
    [
        ({"hidden": [[4, 8, 4], [2, 3]]}, {}),
        ({"depths": [2, 1, 2]}, {"depths": [2, 1]}),
        ({"batch_size": [16, 32, 16]}, {}),
        ({"learning_rate": [1e-3, 0.001]}, {}),
        ({"epochs": [20, 20]}, {}),
    ],
    ids=str,
)
def test_a_value_that_is_listed_twice_is_tried_once(
    repeated: dict[str, Any], unique: dict[str, Any]
) -> None:
    with_repetition = GridSearchSettings.model_validate(SMALL_GRID | repeated)
    without_repetition = GridSearchSettings.model_validate(SMALL_GRID | unique)

    assert all_trials(with_repetition) == all_trials(without_repetition)
    assert with_repetition.num_settings == len(all_trials(with_repetition))


def test_a_random_search_draws_without_replacement_and_by_the_seed() -> None:
    settings = GridSearchSettings(search="random", num_trials=30)

    trials = draw_trials(settings, seed=1)

    assert len(set(trials)) == 30
    assert set(trials) <= set(all_trials(settings))
    assert trials == draw_trials(settings, seed=1) != draw_trials(settings, seed=2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden": [[0]]}, "greater than 0"),
        ({"depths": [4]}, "4 layers, but hidden has widths for 3"),
        ({"search": "random"}, "needs num_trials"),
        ({"num_trials": 4}, "num_trials: .* has no effect: it needs search: random"),
    ],
)
def test_an_impossible_grid_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        GridSearchSettings.model_validate(settings)


def test_rates_that_differ_in_a_late_digit_have_files_of_their_own() -> None:
    rates = (0.00123456, 0.001234561, 0.1, 1 / 3, 1e-300, 1e30)

    keys = {Trial((5,), 16, rate, 1).key for rate in rates}

    assert len(keys) == len(rates)


def test_a_trial_survives_its_file(tmp_path: Path) -> None:
    BEST.save(tmp_path / "best.json")

    assert Trial.load(tmp_path / "best.json") == BEST


@pytest.mark.parametrize(
    "text", ['{"hidden": [9', '{"hidden": [9], "batch_size": 64, "learning_rate": 0.1}']
)
def test_a_damaged_file_is_named_with_the_command_that_helps(tmp_path: Path, text: str) -> None:
    path = tmp_path / "best.json"
    path.write_text(text)

    with pytest.raises(TrainingError, match=r"best\.json holds no result .* gridsearch --force"):
        Trial.load(path)


@pytest.mark.parametrize(
    ("algorithm", "workers", "batch_size"),
    [("ar-sgd", 3, 21), ("ar-sgd", 100, 1), ("local-sgd", 4, 64)],
)
def test_workers_share_the_batch_only_if_they_average_gradients(
    algorithm: str, workers: int, batch_size: int
) -> None:
    train = TrainSettings.model_validate({"algorithm": algorithm, "workers": workers})

    _, settings = BEST.applied_to(HlfSettings(), train)

    assert settings.batch_size == batch_size


def test_a_trial_changes_only_the_values_that_were_searched() -> None:
    train = TrainSettings.model_validate(
        {
            "algorithm": {"name": "ad-psgd", "topology": "ring"},
            "workers": 2,
            "seed": 5,
            "epochs": 99,
            "weight_decay": 0.1,
        }
    )

    network, settings = BEST.applied_to(HlfSettings(from_gridsearch=True), train)

    assert network == HlfSettings(hidden=[9, 5])
    searched = {"batch_size": 64, "learning_rate": 0.02, "epochs": 7}
    assert settings == train.model_copy(update={**searched, "scale_learning_rate": False})
