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
from models.evaluation.rates import Rates
from pipeline.config import Config, load_config
from pipeline.machine.spark_session import SparkProvider
from pipeline.run_folder import RunFolder
from pipeline.runner import Runner, State
from pipeline.runs.version import Version
from pipeline.stages.evaluation_task import rates_of_run

NAMES = ("qcd", "ttbar", "wjets")
SHARES = {"train": 0.4, "val": 0.3, "test": 0.3}


def write_sample_file(path: Path, rows: list[Row]) -> Path:
    """Write an uncompressed file whose bytes are always the same: its UUID depends on its name."""
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
        self.samples = []
        for label, name in enumerate(NAMES):
            pattern = str(self.data / f"{name}*.root")
            self.samples.append({"name": name, "label": label, "files": [pattern]})

    def config(self, **changes: Any) -> Config:
        """Write and load `small_config` with changed sections and added features."""
        features = {"feed_workers": 1, "split": SHARES, **changes.pop("features", {})}
        common = {"run_dir": str(self.run_dir), "samples": self.samples, "features": features}
        return load_config(str(small_config(self.folder, self.data, **{**common, **changes})))

    def run(self, *stages: str, force: bool = False, **changes: Any) -> str:
        """Run `ingest` and `features`, or the named stages; returns their output in long lines."""
        self.config(**changes)
        names = stages or ("ingest", "features")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("pipeline.run_folder.SparkProvider", lambda *_: LentSpark(self.provider))
            return run_stages(self.folder / "config.yaml", *names, force=force)

    def runner(self) -> Runner:
        """A runner with the config of the last run."""
        config = load_config(str(self.folder / "config.yaml"))
        return Runner(RunFolder(config, Console(quiet=True)))

    def states(self) -> list[State]:
        """The states of `ingest` and `features` in a plan."""
        return [planned_stage.state for planned_stage in self.runner().plan()[:2]]

    def rates(self) -> Rates:
        """The rates of the versions in use."""
        upstream = {stage: self.version(stage) for stage in ("ingest", "features")}
        rates = rates_of_run(self.runner().run_folder.config, upstream).known
        assert rates is not None
        return rates

    def version(self, stage: str) -> Version:
        return in_use(self.run_dir, stage)

    def folder_of(self, stage: str) -> Path:
        return self.version(stage).folder

    def counters(self, stage: str) -> dict[str, Any]:
        counters: dict[str, Any] = self.version(stage).manifest.counters
        return counters

    def parts(self) -> dict[str, bytes]:
        """Bytes of the events parts by name."""
        folder = self.folder_of("ingest") / "events"
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    def inodes(self, stage: str, subfolder: str) -> dict[str, int]:
        """Inodes of the files of a folder by name."""
        folder = self.folder_of(stage) / subfolder
        return {path.name: path.stat().st_ino for path in folder.iterdir()}

    def kernel_files(self) -> dict[str, Path]:
        """The kernel outputs of the features in use, by name of the events part."""
        outputs = self.counters("features")["kernel_outputs"]
        folder = self.run_dir / "features" / "kernels"
        files = {}
        for output in outputs:
            name = output["name"]
            file_name = Path(name).with_suffix(".arrow")
            files[name] = folder / output["lies_in"] / file_name
        return files

    def dataset(self) -> dict[str, list[dict[str, Any]]]:
        """All rows of the features, in their order, by row group."""
        folder = self.folder_of("features")
        paths = [path for split in SPLITS for path in sorted((folder / split).iterdir())]
        return {str(path.relative_to(folder)): pq.read_table(path).to_pylist() for path in paths}

    def splits(self) -> dict[tuple[str, int], str]:
        """The split of each event, by file UUID and entry."""
        splits: dict[tuple[str, int], str] = {}
        for name, rows in self.dataset().items():
            split = name.split("/")[0]
            splits |= {(row["file_uuid"], row["entry"]): split for row in rows}
        return splits

    def fresh(self, *stages: str, **changes: Any) -> Analysis:
        """The same files (in the same place) into a new run folder."""
        analysis = Analysis(self.folder, self.provider)
        analysis.run_dir = self.folder / "fresh"
        analysis.run(*stages, **changes)
        return analysis
