"""Events and metrics of runs, for machines."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from published_by_hand import example_model_manifest, example_version

from pipeline.errors import RunFolderError
from pipeline.runs.log import METRICS, RunLog
from pipeline.runs.model_registry import Registry


def read_metrics(run_dir: Path) -> dict[tuple[str, str], float]:
    """Values by name and by stage, network, sample or state."""
    values = {}
    for family in text_string_to_metric_families((run_dir / METRICS).read_text()):
        for sample in family.samples:
            assert sample.labels.pop("run_dir") == str(run_dir)
            values[sample.name, "".join(sample.labels.values())] = sample.value
    return values


def test_each_event_is_a_line_of_json_with_the_run(tmp_path: Path) -> None:
    log = RunLog(tmp_path)

    log.event("stage started", stage="ingest", reasons=["first run"])
    log.event("run failed", message="a\nb <script>", path=tmp_path)

    started, failed = (json.loads(line) for line in log.path.read_text().splitlines())
    assert (started["event"], failed["event"]) == ("stage started", "run failed")
    assert started["reasons"] == ["first run"]
    for event in (started, failed):
        assert event["run"] == log.run_id
        assert event["time"].endswith("+00:00")


def test_metrics_say_when_each_stage_was_made_and_what_failed(tmp_path: Path) -> None:
    registry = Registry(tmp_path, "hlf")
    folder = registry.next_folder("0" * 8)
    registry.create(folder)
    promoted = "2026-01-02T00:00:00+00:00"
    model = registry.commit(folder, example_model_manifest("hlf", promoted=promoted))

    RunLog(tmp_path).write_metrics(
        {"ingest": example_version("ingest", tmp_path, seconds=2.5), "train": None},
        {"hlf": model, "particles": None},
        failed="train",
    )

    values = read_metrics(tmp_path)
    assert values["hep_pipeline_stage_made_timestamp_seconds", "ingest"] == 1767225600
    assert values["hep_pipeline_stage_duration_seconds", "ingest"] == 2.5
    assert ("hep_pipeline_stage_duration_seconds", "train") not in values
    assert values["hep_pipeline_stage_failed", "ingest"] == 0
    assert values["hep_pipeline_stage_failed", "train"] == 1
    assert values["hep_pipeline_stage_failed", "promote"] == 0
    assert values["hep_pipeline_model_promoted_timestamp_seconds", "hlf"] == 1767312000
    assert values["hep_pipeline_model_promoted_timestamp_seconds", "particles"] == 0
    assert values["hep_pipeline_last_run_timestamp_seconds", ""] > 1767225600


def test_metrics_count_files_events_and_accuracies(tmp_path: Path) -> None:
    steps = {"qcd": {"entries": 90, "events": 70}, "ttbar": {"entries": 9, "events": 7}}
    ingest = {"bad_files": [{}] * 10, "waiting_files": [{}], "samples": steps, "weights": {}}
    metrics = {"runs": {"hlf": {"accuracy": {"value": 0.93, "error": 0.01}}}}
    stages = {
        "ingest": example_version("ingest", tmp_path, inputs=[{}] * 3, counters=ingest),
        "evaluate": example_version("evaluate", tmp_path, counters=metrics),
    }
    (tmp_path / "events").write_bytes(b"12345")

    RunLog(tmp_path).write_metrics(stages, {}, failed=None)

    values = read_metrics(tmp_path)
    for state, num_files in {"read": 3, "skipped": 10, "waiting": 1}.items():
        assert values["hep_pipeline_files", state] == num_files
    assert values["hep_pipeline_events", "qcd"] == 70
    assert values["hep_pipeline_events", "ttbar"] == 7
    assert values["hep_pipeline_accuracy", "hlf"] == 0.93
    assert values["hep_pipeline_used_bytes", ""] == 5
    assert values["hep_pipeline_free_bytes", ""] > 0


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file is in the way")

    with pytest.raises(RunFolderError, match="logs"):
        RunLog(tmp_path).event("run started")


def test_folders_that_vanish_while_sizes_are_measured_count_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "events").write_bytes(b"12345")
    vanishing = tmp_path / "evaluations" / ".174.unfinished"
    vanishing.mkdir(parents=True)
    list_folder = os.scandir

    def remove_then_list(folder: str | Path) -> Iterator[os.DirEntry[str]]:
        """Another command removes the folder after its name was listed."""
        if Path(folder) == vanishing:
            vanishing.rmdir()
        return list_folder(folder)

    monkeypatch.setattr(os, "scandir", remove_then_list)

    RunLog(tmp_path).write_metrics({}, {}, failed=None)

    assert not vanishing.exists()
    assert read_metrics(tmp_path)["hep_pipeline_used_bytes", ""] == 5
