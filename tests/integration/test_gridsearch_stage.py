"""The stage `gridsearch` and what training takes over from it; several networks in one run
folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from command_line import version_of
from lent_spark import command
from minimal_configs import write_config
from prediction_trees import strict_json
from published_by_hand import publish_features

from pipeline.machine.spark_session import SparkProvider

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(900)]

GRID: dict[str, Any] = {
    "hidden": [[6, 3], [4]],
    "depths": [1, 2],
    "batch_size": [16, 32],
    "learning_rate": [0.01, 1e30],
    "epochs": [2, 4],
    "folds": 3,
}


class Analysis:
    """A run folder with made features, and a config for it."""

    def __init__(self, provider: SparkProvider, folder: Path, **config: Any) -> None:
        folder.mkdir(exist_ok=True)
        self.provider, self.said = provider, ""
        self.run_dir = folder / "run"
        publish_features(
            self.run_dir, rows={"train": [50, 50], "val": [20], "test": [20]}, max_particles=5
        )
        self.config = write_config(folder, run_dir=str(self.run_dir), gridsearch=GRID, **config)

    def done(self, stage: str, *options: str, figures: bool = False) -> str:
        result = command(self.provider, stage, "--config", self.config, *options, figures=figures)
        assert result.exit_code == 0, result.stderr
        return str(result.stderr)

    def current(self, stage: str) -> Path:
        return version_of(self.run_dir, stage)

    def found(self) -> dict[str, Any]:
        """Result of the search; JSON as the standard has it."""
        return strict_json(self.current("gridsearch") / "search.json")

    def scores(self) -> list[dict[str, Any]]:
        """Of the search, but for the measured times, by setting."""
        retained = [
            {key: value for key, value in score.items() if key != "latency"}
            for score in self.found()["scores"]
        ]
        return sorted(retained, key=lambda score: str(score["trial"]))


@pytest.fixture(scope="module")
def searched(provider: SparkProvider, tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    """With a finished search, and what it said."""
    train = {"algorithm": "ar-sgd", "workers": 2, "batch_size": 9, "epochs": 9}
    analysis = Analysis(provider, tmp_path_factory.mktemp("searched"), train=train)
    analysis.said = analysis.done("gridsearch", figures=True)
    return analysis


def test_a_search_leaves_its_result_in_files(searched: Analysis) -> None:
    folder, actual = searched.current("gridsearch"), searched.found()
    best, scores = strict_json(folder / "best.json"), actual["scores"]
    assert best == scores[0]["trial"]
    assert scores[0]["accuracy"] == max(score["accuracy"] for score in scores) > 0.6
    # Half of the settings cannot work; those that differ in epochs only are one training.
    assert (len(scores), len(actual["failed"]), actual["trainings"]) == (16, 16, 16)
    assert len(list((folder / "trainings").glob("*.json"))) == 16
    assert {path.name for path in (folder / "plots").iterdir() if path.stat().st_size} == {
        f"{name}.{suffix}" for name in ("pareto", "speed_up") for suffix in ("png", "pdf")
    }
    assert strict_json(folder / "manifest.json")["counters"] == actual
    assert (actual["slots"], actual["trainings_taken_over"], actual["train_events"]) == (2, 0, 100)
    assert actual["speed_up"] == pytest.approx(actual["training_seconds"] / actual["seconds"])
    times = {(tuple(score["trial"]["hidden"]), score["latency"]["value"]) for score in scores}
    assert len(times) == len({hidden for hidden, _ in times}) == 4


def test_settings_that_fail_are_listed_with_the_reason_and_printed(searched: Analysis) -> None:
    failed = searched.found()["failed"]
    assert {trial["trial"]["learning_rate"] for trial in failed} == {1e30}
    assert all(
        "validation loss of a fold was never finite; lower the learning rate" in x["reason"]
        for x in failed
    )
    assert searched.said.count("failed: ") == len(failed)
    assert "failed: 6-4_batch-16_rate-1e+30_epochs-4: the validation loss" in searched.said
    assert "best of 32 settings" in searched.said
    assert "16 failed" in searched.said


def test_the_second_time_there_is_nothing_to_do(searched: Analysis) -> None:
    assert "gridsearch: up to date" in searched.done("gridsearch")


def test_a_search_never_reads_an_event_of_the_other_splits(
    searched: Analysis, tmp_path: Path, provider: SparkProvider
) -> None:
    analysis = Analysis(provider, tmp_path / "other")
    for split in ("test", "val"):
        for path in (analysis.current("features") / split).iterdir():
            # Readers look into the footers of all files for hostile metadata, so there must be
            # some.
            pq.write_table(pa.table({"nothing": pa.array([], pa.int64())}), path)
    analysis.done("gridsearch")
    assert analysis.scores() == searched.scores()


def test_training_takes_over_what_was_found_and_is_stale_when_that_changes(
    searched: Analysis,
) -> None:
    taken = ("--set", "model.hlf.from_gridsearch=true")
    best = strict_json(searched.current("gridsearch") / "best.json")
    output = searched.done("train", *taken)
    assert (
        f"from the grid search: layers {'-'.join(map(str, best['hidden']))}, learning rate 0.01"
        in output
    )
    run = strict_json(searched.current("train") / "hlf" / "run.json")
    assert run["model"]["hidden"] == best["hidden"]
    retained = {
        key: run["train"][key]
        for key in ("batch_size", "learning_rate", "epochs", "workers", "algorithm")
    }
    assert retained == {
        "batch_size": best["batch_size"] // 2,
        "learning_rate": best["learning_rate"],
        "epochs": best["epochs"],
        "workers": 2,
        "algorithm": {"name": "ar-sgd"},
    }
    summary = strict_json(searched.current("train") / "hlf" / "summary.json")
    (size,) = {
        score["num_parameters"] for score in searched.found()["scores"] if score["trial"] == best
    }
    assert (summary["epochs"], summary["num_parameters"]) == (best["epochs"], size)
    state = torch.load(
        searched.current("train") / "hlf" / "model" / "weights.pt", weights_only=True
    )
    assert (
        sum(score.numel() for name, score in state.items() if not name.startswith("scale")) >= size
    )
    assert "train: up to date" in searched.done("train", *taken)
    # One worker now: ranks take seconds to start.
    second = (
        "--set",
        "gridsearch.hidden=[[5]]",
        "--set",
        "gridsearch.depths=[1]",
        "--set",
        "gridsearch.epochs=[3]",
    )
    searched.done("gridsearch", *second)
    output = searched.done("train", *taken, *second, "--set", "train.workers=1")
    assert "output of gridsearch" in output
    run = strict_json(searched.current("train") / "hlf" / "run.json")
    assert (run["model"]["hidden"], run["train"]["epochs"]) == ([5], 3)
