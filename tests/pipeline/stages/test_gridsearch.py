"""What the stage `gridsearch` makes of the outcome of a search."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from minimal_configs import MINIMAL
from rich.console import Console

from pipeline.config import Config
from pipeline.stages import gridsearch
from training.gridsearch import results
from training.gridsearch.results import Cost, Score
from training.gridsearch.settings import GridSearchSettings, Trial
from training.gridsearch.spark_job import SearchOutcome
from training.gridsearch.trainings import Search
from training.settings import TrainSettings


@pytest.mark.parametrize("one_standard_error", [False, True])
def test_best_json_holds_the_winner_of_the_last_round_of_halving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_standard_error: bool
) -> None:
    lucky = Score(Trial((4,), 64, 0.1, 2), 40, [0.95, 0.95], 0.2, 2)
    winner = Score(Trial((8,), 64, 0.01, 6), 90, [0.9, 0.9], 0.4, 6, rung=1)
    monkeypatch.setattr(
        results, "latencies", lambda hidden, *_, **__: dict.fromkeys(hidden, Cost(5.0, 0.1))
    )
    monkeypatch.setattr("models.evaluation.style.save_figure", lambda *_: None)
    settings = GridSearchSettings(
        search="halving", epochs=[6], one_standard_error=one_standard_error
    )
    context: Any = SimpleNamespace(out_dir=tmp_path, console=Console(quiet=True))
    dataset = SimpleNamespace(num_rows=lambda _: 100)
    outcome = SearchOutcome([lucky, winner], {}, [1.0], 0)
    gridsearch._finish(
        context, Search(tmp_path, settings, TrainSettings()), outcome, dataset, 1.0, 2
    )
    best, found = (
        json.loads((tmp_path / f"{name}.json").read_text()) for name in ("best", "search")
    )
    assert best == {"hidden": [8], "batch_size": 64, "learning_rate": 0.01, "epochs": 6}
    assert found["scores"][found["chosen"]]["trial"] == best


@pytest.mark.parametrize(
    ("chosen", "is_another"),
    [
        ({"train": {"optimizer": "sgd"}}, True),
        ({"train": {"weight_decay": 0.1}}, True),
        ({"train": {"seed": 7}}, True),
        ({"train": {"schedule": {"warmup_epochs": 2}}}, True),
        ({"gridsearch": {"folds": 3}}, True),
        # Those of the trials, and those of how the chosen one is trained.
        ({"train": {"batch_size": 7}}, False),
        ({"train": {"epochs": 9}}, False),
        ({"train": {"workers": 3}}, False),
        ({"train": {"reader": "arrow"}}, False),
    ],
    ids=str,
)
def test_trainings_are_repeated_for_another_grid_optimiser_or_seed_alone(
    chosen: dict[str, Any], is_another: bool
) -> None:
    before, after = (
        gridsearch.GridSearch().parts(Config.model_validate({**MINIMAL, **changes}))
        for changes in ({}, chosen)
    )
    assert (before != after) is is_another
