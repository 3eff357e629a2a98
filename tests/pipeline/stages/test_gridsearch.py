"""The stage `gridsearch`: its best network, and when its trainings are repeated."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from minimal_configs import MINIMAL
from rich.console import Console

from pipeline.config import Config
from pipeline.stages import gridsearch
from training.errors import IdleSettingError
from training.gridsearch import latencies
from training.gridsearch.results import Cost, Score
from training.gridsearch.search import Search
from training.gridsearch.settings import GridSearchSettings, Trial
from training.gridsearch.spark_job import SearchOutcome
from training.settings import TrainSettings


def replace_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give all networks the same latency, and draw no figures."""

    def constant_latencies(hidden: list[tuple[int, ...]], *_: Any, **__: Any) -> dict[Any, Cost]:
        return dict.fromkeys(hidden, Cost(5.0, 0.1))

    monkeypatch.setattr(latencies, "measure_latencies", constant_latencies)
    monkeypatch.setattr("models.evaluation.style.save_figure", lambda *_: None)


@pytest.mark.parametrize(
    ("one_standard_error", "widths"), [(False, [8]), (True, [4])], ids=["best", "smallest"]
)
def test_best_json_holds_the_selected_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_standard_error: bool, widths: list[int]
) -> None:
    small = Score(Trial((4,), 64, 0.1, 6), 40, [0.85, 0.95], 0.4, 2)
    best = Score(Trial((8,), 64, 0.1, 6), 90, [0.9, 0.92], 0.4, 6)

    replace_measurements(monkeypatch)
    context: Any = SimpleNamespace(out_dir=tmp_path, console=Console(quiet=True))
    settings = GridSearchSettings(one_standard_error=one_standard_error)
    search = Search(tmp_path, settings, TrainSettings())
    dataset = SimpleNamespace(num_rows=lambda _: 100)

    outcome = SearchOutcome([small, best], {}, [1.0], 0)
    gridsearch._finish(context, search, outcome, dataset, 1.0, 2)

    best_json = json.loads((tmp_path / "best.json").read_text())
    search_json = json.loads((tmp_path / "search.json").read_text())
    assert best_json == {"hidden": widths, "batch_size": 64, "learning_rate": 0.1, "epochs": 6}
    assert search_json["scores"][search_json["chosen"]]["trial"] == best_json


@pytest.mark.parametrize(("num_failed", "passes"), [(0, False), (1, True), (2, False)])
def test_each_setting_of_the_grid_has_a_score_or_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_failed: int, passes: bool
) -> None:
    replace_measurements(monkeypatch)
    context: Any = SimpleNamespace(
        out_dir=tmp_path, console=Console(quiet=True), say=lambda _: None
    )
    grid = GridSearchSettings(hidden=[[4, 8, 9]], batch_size=[64])
    search = Search(tmp_path, grid, TrainSettings())
    dataset: Any = SimpleNamespace(num_rows=lambda _: 100)
    scores = [Score(Trial((width,), 64, 1e-3, 20), 40, [0.8, 0.9], 0.4, 2) for width in (4, 8)]
    failed = {Trial((9,), 64, rate, 20): "no" for rate in (1e-3, 1e-2)[:num_failed]}
    outcome = SearchOutcome(scores, failed, [1.0], 0)

    result = gridsearch._finish(context, search, outcome, dataset, 1.0, 2)

    assert [check.passed for check in result.checks] == [passes]


def refusal_of_schedule(changes: dict[str, Any]) -> str:
    """Return the message with which the stage refuses a schedule for a trial of two epochs."""
    # No network takes its settings from the search, so the config is valid.
    config = Config.model_validate({**MINIMAL, **changes, "gridsearch": {"epochs": [20, 2]}})
    context: Any = SimpleNamespace(config=config)
    with pytest.raises(IdleSettingError) as refused:
        gridsearch.GridSearch().run(context)
    return str(refused.value)


def test_a_schedule_that_needs_more_epochs_than_a_setting_has_is_refused() -> None:
    schedule = {"warmup_epochs": 2, "decay": "cosine"}

    message = refusal_of_schedule({"train": {"schedule": schedule}})

    assert re.fullmatch(
        r"train\.schedule\.decay: .* of 2 epoch.*rate never falls.* raise gridsearch\.epochs",
        message,
    )


def test_each_fault_of_a_schedule_has_its_key() -> None:
    schedule = {"warmup_epochs": 9, "decay": "step", "milestones": [10]}

    message = refusal_of_schedule({"train": {"schedule": schedule}})
    message_of_network = refusal_of_schedule({"train_by_network": {"hlf": {"schedule": schedule}}})

    assert re.findall(r"(\S+): \d+ of 2 epoch", message) == [
        "train.schedule.warmup_epochs",
        "train.schedule.milestones",
    ]
    assert message.count("raise gridsearch.epochs") == 2
    assert "train.epochs" not in message
    assert message_of_network == message.replace("train.", "train_by_network.hlf.")


@pytest.mark.parametrize(
    ("changes", "is_repeated"),
    [
        ({"train": {"optimizer": "sgd"}}, True),
        ({"train": {"weight_decay": 0.1}}, True),
        ({"train": {"seed": 7}}, True),
        ({"train": {"schedule": {"warmup_epochs": 2}}}, True),
        ({"gridsearch": {"folds": 3}}, True),
        # The trials set these, or only the training of the best network reads them.
        ({"train": {"batch_size": 7}}, False),
        ({"train": {"epochs": 9}}, False),
        ({"train": {"workers": 3}}, False),
        ({"train": {"reader": "arrow"}}, False),
    ],
    ids=str,
)
def test_trainings_are_repeated_for_another_grid_optimiser_or_seed_alone(
    changes: dict[str, Any], is_repeated: bool
) -> None:
    stage = gridsearch.GridSearch()

    parts = stage.parts(Config.model_validate(MINIMAL))
    changed_parts = stage.parts(Config.model_validate(MINIMAL | changes))

    assert (changed_parts != parts) is is_repeated
