"""The stages `ingest` and `features` over files of our own, without a JVM."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
from command_line import small_config
from delphes_files import write_delphes
from night_files import FIRST, Night, events
from stages_in_process import without_spark

from ingestion.errors import FilesToComeError
from ingestion.schema import COLLECTIONS, PARTICLE_COLLECTIONS
from pipeline.commands.status import verify
from pipeline.runner import State
from pipeline.stages.base import Stage
from pipeline.stages.evaluate import Evaluate
from pipeline.stages.features import Features
from pipeline.stages.ingest import Ingest
from pipeline.stages.report import Report
from pipeline.stages.table import content_read


@pytest.fixture
def night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Night:
    without_spark(monkeypatch, tmp_path)
    return Night(tmp_path)


@pytest.mark.slow
def test_a_file_of_copies_only_leaves_the_events_as_they_are(night: Night) -> None:
    """What the first read had written of it stayed in the folder, and the stage refused its own output."""
    night.run()
    events_before, data = night.events(), night.version("features").folder / "dataset.json"
    counts = json.loads(data.read_text())
    write_delphes(night.data / "qcd_copy.root", events(FIRST["qcd"]))
    output = night.run(ingest={"on_duplicate": "drop"})
    assert "40 copies left out" in output
    assert night.events() == events_before
    assert json.loads((night.version("features").folder / "dataset.json").read_text()) == counts


def test_features_need_no_root_files(
    night: Night,
) -> None:
    """Only a note about `ingest` needs the files: on tape, or with files to come, no later stage ran."""
    night.run()
    for path in night.data.iterdir():
        path.rename(path.with_suffix(".gone"))
    output = night.run("features", classes=["QCD", "ttbar", "W"])
    assert "note: ingest is stale (sample 'qcd': no file matches" in output
    assert "features: config classes changed" in output
    # The stage that reads the files stops without them, and is not called up to date.
    with pytest.raises(FilesToComeError):
        night.run("ingest")
    runner = night.runner()
    assert [planned_stage.state for planned_stage in runner.plan()[:2]] == [
        State.WAITS,
        State.WAITS,
    ]
    with pytest.raises(FilesToComeError):
        runner.accept()


def test_plan_promised_runs_of_inputs_that_cannot_be_read(night: Night) -> None:
    """Neither a first run nor a later one can begin; the stages after it do not run either."""
    small_config(night.folder, night.data)
    damaged = night.data / "qcd_0.root"
    file_bytes = damaged.read_bytes()
    damaged.write_bytes(file_bytes[: len(file_bytes) // 2])
    planned = night.runner().plan()
    assert {planned_stage.state for planned_stage in planned} == {State.FAILS}
    assert str(damaged) in planned[0].reasons[0]
    assert planned[1].reasons == ["ingest would fail"]
    damaged.write_bytes(file_bytes)
    assert [planned_stage.state for planned_stage in night.runner().plan()[:2]] == [
        State.MISSING,
        State.MISSING,
    ]
    night.run()
    damaged.unlink()
    assert [planned_stage.state for planned_stage in night.runner().plan()[:2]] == [
        State.WAITS,
        State.WAITS,
    ]
    write_delphes(night.data / "qcd_2.root", events(500))
    assert [planned_stage.state for planned_stage in night.runner().plan()[:2]] == [
        State.STALE,
        State.STALE,
    ]


def test_damaged_events_of_an_unchanged_file_are_read_again(night: Night) -> None:
    night.run("ingest")
    damaged = min((night.version("ingest").folder / "events").glob("*.parquet"))
    with damaged.open("r+b") as file:
        file.seek(100)
        file.write(b"damaged")
    write_delphes(night.data / "qcd_late.root", events(500))
    assert "1 files read, 3 reused" in night.run("ingest")
    assert verify(night.runner().run_folder) == [
        str(night.version("ingest").folder / "events" / damaged.name)
    ]


def test_all_files_are_checked_once_in_a_run(night: Night) -> None:
    with patch.object(
        Ingest, "find_inputs", autospec=True, side_effect=Ingest.find_inputs
    ) as found:
        night.run()
        assert found.call_count == 1
        night.run("features", classes=["QCD", "ttbar", "W"])
        assert found.call_count == 2


def test_locations_and_unread_files_make_no_features_stale(night: Night) -> None:
    night.run()
    for path in night.data.iterdir():
        os.utime(path.rename(path.with_name(path.name.replace("_0", "_moved"))), (10**9, 10**9))
    (night.data / "qcd_bad.root").write_text("this is text, not ROOT, and long enough")
    os.utime(night.data / "qcd_bad.root", (10**9, 10**9))
    write_delphes(night.data / "qcd_late.root", events(500))
    output = night.run(ingest={"on_bad_file": "skip", "until": "2026-01-01T00:00:00Z"})
    assert "1 bad files skipped" in output
    counters = night.counters("ingest")
    assert [len(counters[name]) for name in ("bad_files", "waiting_files")] == [1, 1]
    assert output.splitlines()[-2] == "features: up to date"


@pytest.mark.parametrize(
    ("counter", "stale"),
    [
        ("samples", ["features", "evaluate", "report"]),
        ("weights", ["features", "evaluate", "report"]),
        ("generated", ["features"]),
        ("bad_files", ["report"]),
        ("waiting_files", []),
        ("files_read", []),
    ],
)
def test_a_stage_depends_on_the_counters_that_it_reads(
    night: Night, counter: str, stale: list[str]
) -> None:
    night.run("ingest")
    version = night.version("ingest")
    counters = {**version.manifest.counters, counter: "another"}
    manifest = version.manifest.model_copy(update={"counters": counters})
    second = replace(version, manifest=manifest)
    stages: list[Stage] = [Features(), Evaluate(), Report()]
    assert [
        stage.name
        for stage in stages
        if content_read(stage, second) != content_read(stage, version)
    ] == stale


def test_a_file_without_entries_may_lack_branches(night: Night) -> None:
    particles = [
        field.branch for name in PARTICLE_COLLECTIONS for field in COLLECTIONS[name].values()
    ]
    write_delphes(night.data / "qcd_empty.root", [], without=[*particles, "Event.Weight"])
    output = night.run("ingest", features={"particles": False}, model={"names": ["hlf"]})
    assert "4 files, 120 entries" in output
    assert "note:" not in output


def test_local_events_are_hashed_once_by_the_one_who_publishes_them(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("ingestion.range_output.file_digest")
    night.run()
    published = {file.path: file.digest for file in night.version("ingest").files}
    outputs = night.counters("features")["kernel_outputs"]
    assert len(outputs) == 3
    assert {
        f"events/{output['name']}": output["digest"] for output in outputs
    }.items() <= published.items()
