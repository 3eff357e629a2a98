"""Runs of `ingest` and `features` over files of our own, in this process or on a Spark that
outlives them."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import pyarrow.parquet as pq
import pytest
from command_line import in_use, small_config
from delphes_files import write_delphes
from event_rows import Row
from lent_spark import LentSpark
from rich.console import Console
from spark_in_process import WITHOUT_SPARK
from stages_in_process import run_stages

from features.schema import SPLITS
from pipeline.config import Config, load_config
from pipeline.machine.spark_session import SparkProvider
from pipeline.run_folder import RunFolder
from pipeline.runner import Runner
from pipeline.runs.version import Version

NAMES = ("qcd", "ttbar", "wjets")
SHARES = {"train": 0.4, "val": 0.3, "test": 0.3}


def write_sample_file(path: Path, rows: list[Row]) -> Path:
    """A file that is the same every time (the UUID depends on its name), and not compressed."""
    return write_delphes(
        path, rows, compression=None, uuid_function=lambda: uuid5(NAMESPACE_URL, path.name)
    )


class Analysis:
    """Files of three samples in `folder/data`, and runs over them into `folder/run`."""

    def __init__(self, folder: Path, provider: SparkProvider = WITHOUT_SPARK) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.run_dir = folder / "run"
        self.provider = provider
        self.samples = [
            {"name": name, "label": label, "files": [str(self.data / f"{name}*.root")]}
            for label, name in enumerate(NAMES)
        ]

    def config(self, **changes: Any) -> Config:
        """That of `small_config` with the sections given here; those of features are added to ours."""
        features = {"feed_workers": 1, "split": SHARES, **changes.pop("features", {})}
        common = {"run_dir": str(self.run_dir), "samples": self.samples, "features": features}
        return load_config(str(small_config(self.folder, self.data, **{**common, **changes})))

    def run(self, *stages: str, force: bool = False, **changes: Any) -> str:
        """What is printed, in long lines."""
        self.config(**changes)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("pipeline.run_folder.SparkProvider", lambda *_: LentSpark(self.provider))
            return run_stages(
                self.folder / "config.yaml", *(stages or ("ingest", "features")), force=force
            )

    def runner(self) -> Runner:
        """With the config of the last run."""
        return Runner(RunFolder(load_config(str(self.folder / "config.yaml")), Console(quiet=True)))

    def version(self, stage: str) -> Version:
        return in_use(self.run_dir, stage)

    def folder_of(self, stage: str) -> Path:
        return self.version(stage).folder

    def counters(self, stage: str) -> dict[str, Any]:
        document: dict[str, Any] = self.version(stage).manifest.counters
        return document

    def parts(self) -> dict[str, bytes]:
        """Events parts by name, as they are on disk."""
        return {
            path.name: path.read_bytes() for path in (self.folder_of("ingest") / "events").iterdir()
        }

    def inodes(self, stage: str, folder: str) -> dict[str, int]:
        return {
            path.name: path.stat().st_ino for path in (self.folder_of(stage) / folder).iterdir()
        }

    def kernel_files(self) -> dict[str, Path]:
        """The kernel outputs that the features in use were made from, by name of the events part."""
        outputs = self.counters("features")["kernel_outputs"]
        folder = self.run_dir / "features" / "kernels"
        return {
            output["name"]: folder / output["lies_in"] / Path(output["name"]).with_suffix(".arrow")
            for output in outputs
        }

    def dataset(self) -> dict[str, list[dict[str, Any]]]:
        """All rows of the features, in their order, by row group."""
        found = self.folder_of("features")
        return {
            str(path.relative_to(found)): pq.read_table(path).to_pylist()
            for split in SPLITS
            for path in sorted((found / split).iterdir())
        }

    def splits(self) -> dict[tuple[str, int], str]:
        return {
            (row["file_uuid"], row["entry"]): name.split("/")[0]
            for name, rows in self.dataset().items()
            for row in rows
        }

    def fresh(self, *stages: str, **changes: Any) -> Analysis:
        """The same files (in the same place) into a new run folder."""
        analysis = Analysis(self.folder, self.provider)
        analysis.run_dir = self.folder / "fresh"
        analysis.run(*stages, **changes)
        return analysis
