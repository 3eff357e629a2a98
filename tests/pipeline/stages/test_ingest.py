"""The stages `ingest` and `features` over small files, without a JVM."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
from command_line import small_config
from delphes_files import write_delphes
from example_versions import example_versions
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
    night.run()
    num_events = night.events()
    dataset_json = (night.folder_of("features") / "dataset.json").read_text()
    write_delphes(night.data / "qcd_copy.root", events(FIRST["qcd"]))

    output = night.run(ingest={"on_duplicate": "drop"})

    assert "40 copies left out" in output
    assert night.events() == num_events
    dataset_with_copies = (night.folder_of("features") / "dataset.json").read_text()
    assert json.loads(dataset_with_copies) == json.loads(dataset_json)


def test_features_need_no_root_files(night: Night) -> None:
    night.run()
    for path in night.data.iterdir():
        path.rename(path.with_suffix(".gone"))

    output = night.run("features", classes=["QCD", "ttbar", "W"])

    assert "note: ingest is stale (sample 'qcd': no file matches" in output
    assert "features: config classes changed" in output
    # The stage that reads the files stops without them, and counts as not up to date.
    with pytest.raises(FilesToComeError):
        night.run("ingest")
    assert night.states() == [State.WAITS, State.WAITS]
    with pytest.raises(FilesToComeError):
        night.runner().accept()


def test_plan_says_whether_the_input_files_can_be_read(night: Night) -> None:
    small_config(night.folder, night.data)
    path = night.data / "qcd_0.root"
    file_bytes = path.read_bytes()

    path.write_bytes(file_bytes[: len(file_bytes) // 2])
    plan = night.runner().plan()
    assert {planned_stage.state for planned_stage in plan} == {State.FAILS}
    assert str(path) in plan[0].reasons[0]
    assert plan[1].reasons == ["ingest would fail"]

    path.write_bytes(file_bytes)
    assert night.states() == [State.MISSING, State.MISSING]

    night.run()
    path.unlink()
    assert night.states() == [State.WAITS, State.WAITS]

    write_delphes(night.data / "qcd_2.root", events(500))
    assert night.states() == [State.STALE, State.STALE]


def test_damaged_events_of_an_unchanged_file_are_read_again(night: Night) -> None:
    night.run("ingest")
    damaged = min((night.folder_of("ingest") / "events").glob("*.parquet"))
    with damaged.open("r+b") as file:
        file.seek(100)
        file.write(b"damaged")
    write_delphes(night.data / "qcd_late.root", events(500))

    output = night.run("ingest")

    assert "1 files read, 3 reused" in output
    unreused_part = night.folder_of("ingest") / "events" / damaged.name
    assert verify(night.runner().run_folder) == [str(unreused_part)]


def test_all_files_are_checked_once_in_a_run(night: Night) -> None:
    with patch.object(
        Ingest, "find_inputs", autospec=True, side_effect=Ingest.find_inputs
    ) as find_inputs:
        night.run()
        assert find_inputs.call_count == 1

        night.run("features", classes=["QCD", "ttbar", "W"])
        assert find_inputs.call_count == 2


def test_locations_and_unread_files_make_no_features_stale(night: Night) -> None:
    night.run()
    for path in night.data.iterdir():
        path.rename(path.with_name(path.name.replace("_0", "_moved")))
    (night.data / "qcd_bad.root").write_text("this is text, not ROOT, and long enough")
    for path in night.data.iterdir():
        os.utime(path, (10**9, 10**9))
    write_delphes(night.data / "qcd_late.root", events(500))

    output = night.run(ingest={"on_bad_file": "skip", "until": "2026-01-01T00:00:00Z"})

    assert "1 bad files skipped" in output
    assert len(night.counters("ingest")["bad_files"]) == 1
    assert len(night.counters("ingest")["waiting_files"]) == 1
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
    tmp_path: Path, counter: str, stale: list[str]
) -> None:
    version = example_versions(tmp_path)["ingest"]
    counters = {**version.manifest.counters, counter: "another"}
    manifest = version.manifest.model_copy(update={"counters": counters})
    changed = replace(version, manifest=manifest)

    stages: list[Stage] = [Features(), Evaluate(), Report()]
    dependent = [
        stage.name
        for stage in stages
        if content_read(stage, changed) != content_read(stage, version)
    ]

    assert dependent == stale


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

    outputs = night.counters("features")["kernel_outputs"]
    kernel_inputs = {f"events/{output['name']}": output["digest"] for output in outputs}
    published = {file.path: file.digest for file in night.version("ingest").files}
    assert len(kernel_inputs) == 3
    assert kernel_inputs.items() <= published.items()
