"""Which settings a search tries, and that what it decides reaches a training whole, and nothing else of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from models.networks.hlf_settings import HlfSettings
from training.errors import TrainingError
from training.gridsearch.settings import (
    GridSearchSettings,
    Trial,
    all_trials,
    first_trials,
    promoted,
)
from training.settings import TrainSettings

BEST = Trial((9, 5), 64, 0.02, 7)
SMALL: dict[str, Any] = {"hidden": [[4, 8], [2, 3]], "batch_size": [16, 32]}


def test_the_default_grid_is_the_one_of_cern() -> None:
    trials = all_trials(GridSearchSettings())
    assert len(trials) == len(set(trials)) == 81
    assert len({trial.hidden for trial in trials}) == 27
    assert Trial((50, 20, 10), 64, 1e-3, 20) in trials


@pytest.mark.parametrize(
    ("doubled", "once"),
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
    doubled: dict[str, Any], once: dict[str, Any]
) -> None:
    repeated, plain = (GridSearchSettings.model_validate(SMALL | keys) for keys in (doubled, once))
    assert all_trials(repeated) == all_trials(plain)
    assert repeated.num_settings == len(all_trials(repeated))


def test_a_random_search_draws_without_replacement_and_by_the_seed() -> None:
    settings = GridSearchSettings(search="random", num_trials=30)
    trials = first_trials(settings, seed=1)
    assert len(set(trials)) == 30
    assert set(trials) <= set(all_trials(settings))
    assert trials == first_trials(settings, seed=1) != first_trials(settings, seed=2)


def test_the_best_continue() -> None:
    trials = all_trials(GridSearchSettings.model_validate(SMALL))
    scores = [(trial, float(place % 5)) for place, trial in enumerate(trials)]
    going = promoted(scores, 9, 3)
    assert len(going) == len(trials) // 3
    assert {trial.epochs for trial in going} == {9}
    worst = min(dict(scores)[trial._replace(epochs=20)] for trial in going)
    left = [value for trial, value in scores if trial._replace(epochs=9) not in going]
    assert worst >= max(left)
    assert promoted(scores[:2], 9, 3) == [scores[1][0]._replace(epochs=9)]


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"hidden": [[0]]}, "greater than 0"),
        ({"depths": [4]}, "4 layers, but hidden has widths for 3"),
        ({"search": "random"}, "needs num_trials"),
        ({"num_trials": 4}, "num_trials: .* has no effect: it needs search: random or halving"),
        ({"search": "halving", "epochs": [5, 10]}, "to one number, the highest"),
    ],
)
def test_an_impossible_grid_is_refused(chosen: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        GridSearchSettings.model_validate(chosen)


def test_rates_that_differ_in_a_late_digit_have_files_of_their_own() -> None:
    rates = (0.00123456, 0.001234561, 0.1, 1 / 3, 1e-300, 1e30)
    assert len({Trial((5,), 16, rate, 1).key for rate in rates}) == len(rates)


def test_a_choice_survives_its_file_and_a_damaged_one_is_named_with_what_to_do(
    tmp_path: Path,
) -> None:
    path = tmp_path / "best.json"
    BEST.save(path)
    assert Trial.load(path) == BEST
    for content in ('{"hidden": [9', '{"hidden": [9], "batch_size": 64, "learning_rate": 0.1}'):
        path.write_text(content)
        with pytest.raises(
            TrainingError, match=r"best\.json holds no result .* gridsearch --force"
        ):
            Trial.load(path)


def test_workers_share_the_batch_only_where_they_average_gradients() -> None:
    for algorithm, workers, batch_size in (
        ("ar-sgd", 3, 21),
        ("ar-sgd", 100, 1),
        ("local-sgd", 4, 64),
    ):
        train = TrainSettings(algorithm=algorithm, workers=workers)
        assert BEST.applied_to(HlfSettings(), train)[1].batch_size == batch_size


def test_everything_else_stays() -> None:
    train = TrainSettings.model_validate(
        {
            "algorithm": {"name": "ad-psgd", "topology": "ring"},
            "workers": 2,
            "seed": 5,
            "epochs": 99,
            "weight_decay": 0.1,
        }
    )
    applied, settings = BEST.applied_to(HlfSettings(from_gridsearch=True), train)
    assert applied == HlfSettings(hidden=[9, 5])
    assert settings == train.model_copy(
        update={"batch_size": 64, "learning_rate": 0.02, "epochs": 7, "scale_learning_rate": False}
    )
