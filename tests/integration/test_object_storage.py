"""A run whose Parquet lies on object storage, on Spark and MPI: what it gives is what a run on disk
gives."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from command_line import SAMPLES, in_use, small_config, version_of
from lent_spark import command
from numpy.typing import NDArray
from s3_server import lead_to, s3_server
from training_runs import flat_weights

from pipeline.machine.spark_session import SparkProvider

pytestmark = [
    pytest.mark.minutes,
    pytest.mark.end_to_end,
    pytest.mark.spark,
    pytest.mark.timeout(600),
]

SETTINGS = {
    "model": {"names": ["hlf"]},
    "train": {"workers": 1, "epochs": 1, "batch_size": 16},
    # Systematics read the events.
    "evaluate": {"reference": False, "systematics": {"jet_scale": 0.02}},
}
TWO_RANKS = ("--set", "train.workers=2", "--set", "train.algorithm=ar-sgd")
#: A ROOT file has a UUID and times; Parquet has the same predictions.
FILES_THAT_DIFFER = ("dataset.json", "hlf/predictions.root")


class RunResult(NamedTuple):
    """What a run has written."""

    content_digests: dict[str, str]
    """By stage and path, of the files that later stages or users read."""
    weights: dict[str, NDArray[Any]]
    """By reader of the training, and those of two ranks."""
    run_dir: Path


def run_to_evaluate(
    provider: SparkProvider, folder: Path, data: Path, readers: Sequence[str], **changes: Any
) -> RunResult:
    """A run to `evaluate` with the first reader; it trains again with each further reader."""
    folder.mkdir()
    config = small_config(folder, data, **SETTINGS, **changes)
    run_dir = folder / "run"

    def run(*arguments: str) -> None:
        result = command(provider, *arguments, "--config", config)
        assert result.exit_code == 0, result.stderr

    for stage in ("ingest", "features", "train", "evaluate"):
        run(stage, "--set", f"train.reader={readers[0]}")
    weights = {readers[0]: flat_weights(version_of(run_dir, "train") / "hlf")}
    for reader in readers[1:]:
        run("train", "--set", f"train.reader={reader}", "--force")
        weights[reader] = flat_weights(version_of(run_dir, "train") / "hlf")
    run("train", *TWO_RANKS, "--force")
    weights["ranks"] = flat_weights(version_of(run_dir, "train") / "hlf")
    run("status", "--verify")

    digests = {}
    for stage in ("ingest", "features", "evaluate"):
        for file in in_use(run_dir, stage).files:
            if file.path not in FILES_THAT_DIFFER:
                digests[f"{stage}/{file.path}"] = file.content
    return RunResult(digests, weights, run_dir)


@pytest.fixture(scope="module")
def runs(
    provider: SparkProvider, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RunResult, RunResult]]:
    """A run on disk and a run on a server."""
    folder = tmp_path_factory.mktemp("object-storage")
    data = folder / "data"
    data.mkdir()
    for name in ("qcd", "ttbar", "wjets"):
        shutil.copy2(SAMPLES / f"{name}_13TeV_PU20_0.root", data / f"{name}_0.root")
    with s3_server() as server, pytest.MonkeyPatch.context() as patch:
        lead_to(server.url, patch)
        for name, value in os.environ.items():
            # Spark may have been started with another environment.
            if name.startswith("AWS_"):
                patch.setitem(provider.context().environment, name, value)
        bucket = "s3://bucket/tests/run"
        on_disk = run_to_evaluate(provider, folder / "disk", data, ["arrow"])
        on_server = run_to_evaluate(
            provider, folder / "server", data, ["petastorm", "arrow"], storage=bucket
        )
        yield on_disk, on_server


def test_object_storage_gives_the_same_files_and_keeps_parquet_off_the_disk(
    runs: tuple[RunResult, RunResult],
) -> None:
    on_disk, on_server = runs

    assert on_server.content_digests == on_disk.content_digests
    assert {"features/scaler.json", "evaluate/metrics.json"} < on_disk.content_digests.keys()
    assert list(on_disk.run_dir.rglob("part-*.parquet"))
    assert not list(on_server.run_dir.rglob("part-*.parquet"))
    assert not list(on_server.run_dir.rglob("*.arrow"))


@pytest.mark.parametrize("reader", ["petastorm", "arrow"])
def test_object_storage_gives_the_same_weights_with_either_reader(
    runs: tuple[RunResult, RunResult], reader: str
) -> None:
    on_disk, on_server = runs

    np.testing.assert_array_equal(on_server.weights[reader], on_disk.weights["arrow"])


def test_ranks_that_read_object_storage_keep_the_network(
    runs: tuple[RunResult, RunResult],
) -> None:
    """All ranks of one host, whose mpirun otherwise has nothing but loopback."""
    on_disk, on_server = runs

    np.testing.assert_array_equal(on_server.weights["ranks"], on_disk.weights["ranks"])
