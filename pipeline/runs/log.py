"""The log of runs: one line of JSON per event, and a textfile for the node exporter of Prometheus.

<run_dir>/logs/<run id>.jsonl       events of one command
<run_dir>/metrics.prom              state of the stages after the last command
"""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hep_core.secrets import redact_all
from pipeline.errors import cannot_write

if TYPE_CHECKING:
    from prometheus_client import Gauge

METRICS: Final = "metrics.prom"
_LOGS: Final = "logs"
#: Words and label of the gauge of each kind of `results`.
_RESULTS: Final = {
    "files": ("Files that were read, skipped as damaged, or left for a later run", "state"),
    "events": ("Events of a sample after ingest", "sample"),
    "accuracy": ("Accuracy on the test split", "network"),
}


class RunLog:
    """The events of one command."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        started = dt.datetime.now(dt.UTC).strftime("%Y%m%dT%H%M%SZ")
        self.run_id = f"{started}-{os.getpid()}"
        self.path = run_dir / _LOGS / f"{self.run_id}.jsonl"

    def event(self, name: str, **details: Any) -> None:
        """Append an event; the last line of a killed run shows its last event."""
        time = dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")
        line = json.dumps(
            {"time": time, "run": self.run_id, "event": name, **redact_all(details)}, default=str
        )
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as cause:
            raise cannot_write(self.path, cause) from cause

    def write_metrics(
        self,
        stages: dict[str, dict[str, Any] | None],
        in_use: dict[str, dict[str, Any] | None],
        *,
        failed: str | None,
    ) -> None:
        """Replace `metrics.prom`; each value names its run folder, so that several run folders do not collide.

        `failed` is the stage that failed in this run, or `promote`.
        """
        from prometheus_client import CollectorRegistry, Gauge, write_to_textfile  # noqa: PLC0415 - `status` starts without it

        registry = CollectorRegistry()
        run_dir = str(self._run_dir.absolute())

        def gauge(name: str, words: str, *labels: str) -> Callable[..., Gauge]:
            made = Gauge(f"hep_pipeline_{name}", words, ["run_dir", *labels], registry=registry)
            return lambda *values: made.labels(run_dir, *values)

        made = gauge("stage_made_timestamp_seconds", "When the version in use was made", "stage")
        seconds = gauge("stage_duration_seconds", "How long that took", "stage")
        failures = gauge("stage_failed", "1 if the last run failed in this stage", "stage")
        for name, manifest in stages.items():
            failures(name).set(float(name == failed))
            if manifest is not None:
                made(name).set(timestamp(manifest["created"]))
                seconds(name).set(manifest["seconds"])
        failures("promote").set(float(failed == "promote"))
        words = "When the model in use was promoted; 0 if there is none that can be read"
        promoted = gauge("model_promoted_timestamp_seconds", words, "network")
        for network, manifest in in_use.items():
            promoted(network).set(timestamp(manifest["promoted"]) if manifest else 0.0)
        gauge("last_run_timestamp_seconds", "When the last run ended")().set_to_current_time()
        for kind, values in results(stages).items():
            measured = gauge(kind, *_RESULTS[kind])
            for label, value in values.items():
                measured(label).set(value)
        gauge("free_bytes", "Free space on the disk of the run folder")().set(
            shutil.disk_usage(self._run_dir).free
        )
        gauge("used_bytes", "Size of all files in the run folder")().set(
            size_of(self._run_dir.rglob("*"))
        )
        path = self._run_dir / METRICS
        try:
            write_to_textfile(str(path), registry)
        except OSError as cause:
            raise cannot_write(path, cause) from cause


def results(stages: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Numbers of files by what became of them, of events by sample, and accuracies by network."""
    ingest, evaluate = (stages.get(name) or {} for name in ("ingest", "evaluate"))
    counters, runs = ingest.get("counters", {}), evaluate.get("counters", {}).get("runs", {})
    files = {
        "read": ingest.get("inputs"), "skipped": counters.get("bad_files"), "waiting": counters.get("waiting_files")
    }  # fmt: skip
    return {
        "files": {state: len(those) for state, those in files.items() if those is not None},
        "events": {
            sample: counts["events"] for sample, counts in counters.get("samples", {}).items()
        },
        "accuracy": {network: run["accuracy"]["value"] for network, run in runs.items()},
    }


def timestamp(when: str) -> float:
    """A time of a manifest [s since 1970]."""
    return dt.datetime.fromisoformat(when).timestamp()


def size_of(paths: Iterable[Path]) -> int:
    """Bytes of all files, including those that other versions share; folders and missing files count 0."""
    return sum(path.stat().st_size for path in paths if path.is_file())
