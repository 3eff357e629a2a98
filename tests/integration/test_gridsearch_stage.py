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

#: 32 settings, of which half cannot work; those that differ in epochs only are one training.
GRID: dict[str, Any] = {
    "hidden": [[6, 3], [4]],
    "depths": [1, 2],
    "batch_size": [16, 32],
    "learning_rate": [0.01, 1e30],
    "epochs": [2, 4],
    "folds": 3,
}
USE_BEST = ("--set", "model.hlf.from_gridsearch=true")


class Analysis:
    """A run folder with published features, and a config for it."""

    def __init__(self, provider: SparkProvider, folder: Path, **config: Any) -> None:
        folder.mkdir(exist_ok=True)
        self.provider = provider
        self.run_dir = folder / "run"
        rows = {"train": [50, 50], "val": [20], "test": [20]}
        publish_features(self.run_dir, rows=rows, max_particles=5)
        self.config = write_config(folder, run_dir=str(self.run_dir), gridsearch=GRID, **config)

    def run(self, stage: str, *options: str, figures: bool = False) -> str:
        """Run a stage to its good end; returns what it printed."""
        result = command(self.provider, stage, "--config", self.config, *options, figures=figures)
        assert result.exit_code == 0, result.stderr
        return str(result.stderr)

    def current(self, stage: str) -> Path:
        return version_of(self.run_dir, stage)

    def read_json(self, stage: str, name: str) -> dict[str, Any]:
        """JSON of a stage as the standard has it."""
        document: dict[str, Any] = strict_json(self.current(stage) / name)
        return document

    def search_result(self) -> dict[str, Any]:
        return self.read_json("gridsearch", "search.json")

    def scores_without_times(self) -> list[dict[str, Any]]:
        """Scores of the search without the measured latency, sorted by setting."""
        scores = self.search_result()["scores"]
        for score in scores:
            del score["latency"]
        return sorted(scores, key=lambda score: str(score["trial"]))


@pytest.fixture(scope="module")
def analysis(provider: SparkProvider, tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    train = {"algorithm": "ar-sgd", "workers": 2, "batch_size": 9, "epochs": 9}
    return Analysis(provider, tmp_path_factory.mktemp("searched"), train=train)


@pytest.fixture(scope="module")
def search_output(analysis: Analysis) -> str:
    """The printed lines of the search, which is finished."""
    return analysis.run("gridsearch", figures=True)


@pytest.mark.usefixtures("search_output")
def test_a_search_leaves_its_result_in_files(analysis: Analysis) -> None:
    folder = analysis.current("gridsearch")
    search = analysis.search_result()
    scores = search["scores"]

    assert analysis.read_json("gridsearch", "best.json") == scores[0]["trial"]
    assert scores[0]["accuracy"] == max(score["accuracy"] for score in scores) > 0.6
    assert len(scores) == len(search["failed"]) == search["trainings"] == 16
    assert len(list((folder / "trainings").glob("*.json"))) == 16
    plots = {path.name for path in (folder / "plots").iterdir() if path.stat().st_size > 0}
    assert plots == {"pareto.png", "pareto.pdf", "speed_up.png", "speed_up.pdf"}
    assert analysis.read_json("gridsearch", "manifest.json")["counters"] == search
    assert search["slots"] == 2
    assert search["trainings_taken_over"] == 0
    assert search["train_events"] == 100
    assert search["speed_up"] == pytest.approx(search["training_seconds"] / search["seconds"])
    # Settings of one network share its measured latency.
    latencies: dict[str, set[float]] = {}
    for score in scores:
        layers = str(score["trial"]["hidden"])
        latencies.setdefault(layers, set()).add(score["latency"]["value"])
    assert [len(values) for values in latencies.values()] == [1] * 4


def test_settings_that_fail_are_listed_with_the_reason_and_printed(
    analysis: Analysis, search_output: str
) -> None:
    failures = analysis.search_result()["failed"]

    reason = "validation loss of a fold was never finite; lower the learning rate"
    for failure in failures:
        assert failure["trial"]["learning_rate"] == 1e30
        assert reason in failure["reason"]
    assert search_output.count("failed: ") == len(failures)
    assert "failed: 6-4_batch-16_rate-1e+30_epochs-4: the validation loss" in search_output
    assert "best of 32 settings" in search_output
    assert "16 failed" in search_output


@pytest.mark.usefixtures("search_output")
def test_a_finished_search_is_up_to_date(analysis: Analysis) -> None:
    assert "gridsearch: up to date" in analysis.run("gridsearch")


@pytest.mark.usefixtures("search_output")
def test_a_search_reads_no_event_of_the_other_splits(
    analysis: Analysis, tmp_path: Path, provider: SparkProvider
) -> None:
    train_only = Analysis(provider, tmp_path / "train only")
    # Readers look into the footers of all files for hostile metadata, so there must be some.
    empty_table = pa.table({"nothing": pa.array([], pa.int64())})
    for split in ("test", "val"):
        for path in (train_only.current("features") / split).iterdir():
            pq.write_table(empty_table, path)

    train_only.run("gridsearch")

    assert train_only.scores_without_times() == analysis.scores_without_times()


@pytest.mark.usefixtures("search_output")
def test_training_takes_over_the_best_setting_and_is_stale_when_it_changes(
    analysis: Analysis,
) -> None:
    best = analysis.read_json("gridsearch", "best.json")
    layers = "-".join(map(str, best["hidden"]))
    scores = analysis.search_result()["scores"]
    num_parameters = next(score["num_parameters"] for score in scores if score["trial"] == best)

    output = analysis.run("train", *USE_BEST)

    assert f"from the grid search: layers {layers}, learning rate 0.01" in output
    run = analysis.read_json("train", "hlf/run.json")
    assert run["model"]["hidden"] == best["hidden"]
    expected_settings = {
        # The batch of all workers is that of the search.
        "batch_size": best["batch_size"] // 2,
        "learning_rate": best["learning_rate"],
        "epochs": best["epochs"],
        "workers": 2,
        "algorithm": {"name": "ar-sgd"},
    }
    assert expected_settings.items() <= run["train"].items()
    summary = analysis.read_json("train", "hlf/summary.json")
    assert summary["epochs"] == best["epochs"]
    assert summary["num_parameters"] == num_parameters
    weights_file = analysis.current("train") / "hlf" / "model" / "weights.pt"
    weights = torch.load(weights_file, weights_only=True)
    sizes = [tensor.numel() for name, tensor in weights.items() if not name.startswith("scale")]
    assert sum(sizes) >= num_parameters
    assert "train: up to date" in analysis.run("train", *USE_BEST)

    # One worker now: ranks take seconds to start.
    small_grid = ("gridsearch.hidden=[[5]]", "gridsearch.depths=[1]", "gridsearch.epochs=[3]")
    options = [option for setting in small_grid for option in ("--set", setting)]
    analysis.run("gridsearch", *options)
    output = analysis.run("train", *USE_BEST, *options, "--set", "train.workers=1")

    assert "output of gridsearch" in output
    run = analysis.read_json("train", "hlf/run.json")
    assert run["model"]["hidden"] == [5]
    assert run["train"]["epochs"] == 3
