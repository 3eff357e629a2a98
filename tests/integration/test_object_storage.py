"""A run whose Parquet lies on object storage, on Spark and MPI: what it gives is what a run on disk
gives."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
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
    # It reads the events.
    "evaluate": {"reference": False, "systematics": {"jet_scale": 0.02}},
}


class Finished(NamedTuple):
    """What a run has written."""

    contents: dict[str, str]
    """Digest of the content of each file that later stages or users read."""
    weights: dict[str, NDArray[Any]]
    """By reader of the training."""
    run_dir: Path


def finished(
    provider: SparkProvider, folder: Path, data: Path, readers: tuple[str, ...], **changes: Any
) -> Finished:
    """A run to `evaluate`, trained again for each further reader."""
    config = small_config(folder, data, **SETTINGS, **changes)
    weights = {}
    for reader in readers:
        for stage in ("train",) if weights else ("ingest", "features", "train", "evaluate"):
            message = [
                stage,
                "--config",
                config,
                "--set",
                f"train.reader={reader}",
                *(["--force"] if weights else []),
            ]
            result = command(provider, *message)
            assert result.exit_code == 0, result.stderr
        weights[reader] = flat_weights(version_of(folder / "run", "train") / "hlf")
    assert command(provider, "status", "--verify", "--config", config).exit_code == 0
    contents = {}
    # A ROOT file has a UUID and times; Parquet has the same predictions.
    left_out = ("dataset.json", "hlf/predictions.root")
    for stage in ("ingest", "features", "evaluate"):
        files = in_use(folder / "run", stage).files
        contents |= {
            f"{stage}/{file.path}": file.content for file in files if file.path not in left_out
        }
    return Finished(contents, weights, folder / "run")


@pytest.fixture(scope="module")
def runs(
    provider: SparkProvider, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Finished]]:
    """On disk and on a server."""
    folder = tmp_path_factory.mktemp("object-storage")
    for name in ("data", "disk", "server"):
        (folder / name).mkdir()
    for name in ("qcd", "ttbar", "wjets"):
        shutil.copy2(SAMPLES / f"{name}_13TeV_PU20_0.root", folder / "data" / f"{name}_0.root")
    with s3_server() as server, pytest.MonkeyPatch.context() as patch:
        lead_to(server.url, patch)
        for name in (name for name in os.environ if name.startswith("AWS_")):
            # Spark may have been started with another environment.
            patch.setitem(provider.context().environment, name, os.environ[name])
        yield [
            finished(provider, folder / "disk", folder / "data", ("arrow",)),
            finished(
                provider,
                folder / "server",
                folder / "data",
                ("petastorm", "arrow"),
                storage="s3://bucket/tests/run",
            ),
        ]


def test_the_same_files_and_the_same_results(runs: list[Finished]) -> None:
    disk, server = runs
    assert server.contents == disk.contents
    assert {"features/scaler.json", "evaluate/metrics.json"} < server.contents.keys()
    assert [*disk.run_dir.rglob("part-*.parquet")]
    assert not [*server.run_dir.rglob("part-*.parquet"), *server.run_dir.rglob("*.arrow")]


@pytest.mark.parametrize("reader", ["petastorm", "arrow"])
def test_the_same_weights_with_either_reader(runs: list[Finished], reader: str) -> None:
    disk, server = runs
    np.testing.assert_array_equal(server.weights[reader], disk.weights["arrow"])
