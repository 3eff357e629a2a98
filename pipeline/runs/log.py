"""The log of runs: one line of JSON per event, and a textfile for the node exporter of Prometheus.

<run_dir>/logs/<run id>.jsonl       events of one command
<run_dir>/metrics.prom              state of the stages after the last command
"""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hep_core.secrets import redact_all
from hep_core.storage import file_sizes
from pipeline.errors import RunFolderError, cannot_write
from pipeline.runs.counters import EvaluateCounters, IngestCounters
from pipeline.runs.version import PromotedModel, Version

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Gauge

METRICS: Final = "metrics.prom"
_LOGS: Final = "logs"
#: Description and label of the gauge of each group of `results`.
_RESULT_GAUGES: Final = {
    "files": ("Files that were read, skipped as damaged, or left for a later run", "state"),
    "events": ("Events of a sample after ingest", "sample"),
    "accuracy": ("Accuracy on the test split", "network"),
}


class RunLog:
    """Writes the events of one command to its log; the first event makes the file."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        start_time = dt.datetime.now(dt.UTC).strftime("%Y%m%dT%H%M%SZ")
        self.run_id = f"{start_time}-{os.getpid()}"
        """Start time in UTC and process id, such as `20260131T174500Z-4711`."""
        self.path = run_dir / _LOGS / f"{self.run_id}.jsonl"

    def event(self, name: str, **details: Any) -> None:
        """Append an event as one line of JSON, without secrets.

        Each line is written at once, so the last line of a killed run shows its last event.

        Raises:
            RunFolderError: The log cannot be written.
        """
        time = dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")
        entry = {"time": time, "run": self.run_id, "event": name, **redact_all(details)}
        line = json.dumps(entry, default=str)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as cause:
            raise cannot_write(self.path, cause) from cause

    def write_metrics(
        self,
        stages: Mapping[str, Version | None],
        models: Mapping[str, PromotedModel | None],
        *,
        failed: str | None,
    ) -> None:
        """Replace `metrics.prom`, which the node exporter of Prometheus reads.

        It holds times, durations, failures and results of the versions in use, and the disk space.
        Each value names its run folder, so that several run folders do not collide.

        Args:
            stages: The versions in use by stage.
            models: The models in use by network.
            failed: The stage that failed in this run, or `promote`; None without a failure.

        Raises:
            RunFolderError: The disk space cannot be measured, or the file cannot be written.
        """
        from prometheus_client import write_to_textfile  # noqa: PLC0415 - slow to load

        gauges = _Gauges(self._run_dir)
        gauges.add_stages(stages, failed)
        gauges.add_models(models)
        gauges.add("last_run_timestamp_seconds", "When the last run ended").set_to_current_time()
        for group, values in results(stages).items():
            description, label = _RESULT_GAUGES[group]
            gauges.add_values(group, description, label, values)
        path = self._run_dir / METRICS
        try:
            gauges.add_space()
            write_to_textfile(str(path), gauges.registry)
        except OSError as cause:
            raise cannot_write(path, cause) from cause


class _Gauges:
    """Collects the gauges of a run folder; a gauge is a number with labels, in Prometheus' words.

    The path of the run folder is the first label of each.
    """

    def __init__(self, run_dir: Path) -> None:
        from prometheus_client import CollectorRegistry  # noqa: PLC0415 - as above

        self.registry: CollectorRegistry = CollectorRegistry()
        self._run_dir = str(run_dir.absolute())

    def add(self, name: str, description: str) -> Gauge:
        """Add a gauge without labels beside the run folder, and return it to be set."""
        return self._gauge(name, description).labels(self._run_dir)

    def add_values(
        self, name: str, description: str, label: str, values: Mapping[str, float]
    ) -> None:
        """Add a gauge with a value for each value of a label."""
        gauge = self._gauge(name, description, label)
        for label_value, value in values.items():
            gauge.labels(self._run_dir, label_value).set(value)

    def _gauge(self, name: str, description: str, *labels: str) -> Gauge:
        """Register a gauge, whose labels after the run folder are `labels`, and return it."""
        from prometheus_client import Gauge  # noqa: PLC0415 - as above

        names = ["run_dir", *labels]
        return Gauge(f"hep_pipeline_{name}", description, names, registry=self.registry)

    def add_stages(self, stages: Mapping[str, Version | None], failed: str | None) -> None:
        """Add a gauge for when each version in use was made, how long that took, and failures.

        The gauge of failures is 1 for the stage that failed and 0 for all others.
        """
        versions = {name: version for name, version in stages.items() if version is not None}
        created = {name: version.manifest.created.timestamp() for name, version in versions.items()}
        seconds = {name: version.manifest.seconds for name, version in versions.items()}
        failures = {name: float(name == failed) for name in (*stages, "promote")}
        self.add_values(
            "stage_made_timestamp_seconds", "When the version in use was made", "stage", created
        )
        self.add_values("stage_duration_seconds", "How long that took", "stage", seconds)
        self.add_values("stage_failed", "1 if the last run failed in this stage", "stage", failures)

    def add_space(self) -> None:
        """Add gauges for the free space of the disk and the size of the run folder [bytes]."""
        free_bytes = shutil.disk_usage(self._run_dir).free
        self.add("free_bytes", "Free space on the disk of the run folder").set(free_bytes)
        used_bytes = sum(file_sizes(Path(self._run_dir)).values())
        self.add("used_bytes", "Size of all files in the run folder").set(used_bytes)

    def add_models(self, models: Mapping[str, PromotedModel | None]) -> None:
        """Add a gauge for when each model in use was promoted; 0 without a readable model."""
        promoted = {
            network: 0.0 if model is None else model.manifest.promoted.timestamp()
            for network, model in models.items()
        }
        description = "When the model in use was promoted; 0 if there is none that can be read"
        self.add_values("model_promoted_timestamp_seconds", description, "network", promoted)


def results(stages: Mapping[str, Version | None]) -> dict[str, dict[str, float]]:
    """Return the numbers of files and events and the accuracies that the versions in use record.

    Args:
        stages: The versions in use by stage; None where there is none.

    Returns:
        Three groups: `files` by state (read, skipped, waiting), `events` by sample, and `accuracy`
        on the test split by network. A group is empty if its stage has no readable output.
    """
    values: dict[str, dict[str, float]] = {"files": {}, "events": {}, "accuracy": {}}
    ingested, evaluated = stages.get("ingest"), stages.get("evaluate")
    if ingested is not None:
        with suppress(RunFolderError):
            counters = ingested.counters(IngestCounters)
            values["events"] = {name: steps["events"] for name, steps in counters.samples.items()}
            values["files"] = {
                "read": len(ingested.manifest.inputs),
                "skipped": len(counters.bad_files),
                "waiting": len(counters.waiting_files),
            }
    if evaluated is not None:
        with suppress(RunFolderError):
            models = evaluated.counters(EvaluateCounters).runs
            values["accuracy"] = {name: model.accuracy.value for name, model in models.items()}
    return values


def timestamp(when: str) -> float:
    """A time of a manifest [s since 1970]."""
    return dt.datetime.fromisoformat(when).timestamp()
