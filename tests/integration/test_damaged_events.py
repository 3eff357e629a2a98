"""Events and kernel outputs that are damaged after they were written: they are made again, or
refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from analyses import NAMES, Analysis, write_sample_file
from damage import damage, damage_page, flipped, replace_file
from event_rows import event_row, jet, lepton, track

from hep_core.integrity import DamagedOutputError
from pipeline.commands.status import changed_cache, verify
from pipeline.machine.spark_session import SparkProvider
from pipeline.runner import State
from pipeline.runs.outputs import suspected_files

#: With these settings the kernels run again, and read the events.
OTHER_KERNELS: dict[str, Any] = {"features": {"min_jet_pt": 25.0}}
#: With these settings only the mixing is done again, from the kernels' outputs.
OTHER_MIXING: dict[str, Any] = {"features": {"rows_per_group": 7}}


def write_and_run(analysis: Analysis) -> Analysis:
    """Write the files of an analysis, and make its events and features."""
    analysis.data.mkdir()
    for index, name in enumerate(NAMES):
        rows = [
            event_row(
                met=20.0 + 50 * index + event,
                electrons=[lepton(30.0 + event, 0.1, 0.2)],
                tracks=[track(2.0, 1.0, -1.0 - 0.01 * event)],
                jets=[jet(40.0 + event, 0.5, 1.0)],
            )
            for event in range(30)
        ]
        write_sample_file(analysis.data / f"{name}.root", rows)
    analysis.run()
    return analysis


@pytest.fixture
def analysis(tmp_path: Path) -> Analysis:
    return write_and_run(Analysis(tmp_path))


def first_events_file(analysis: Analysis) -> Path:
    return min((analysis.folder_of("ingest") / "events").iterdir())


@pytest.fixture
def damaged_file(analysis: Analysis) -> Path:
    """A file of events with a damaged page."""
    path = first_events_file(analysis)
    damage_page(path, "met")
    return path


def state_of_ingest(analysis: Analysis) -> tuple[State, list[str]]:
    """State and reasons in the plan."""
    plan = analysis.runner().plan()[0]
    return plan.state, plan.reasons


def test_a_run_reads_the_file_of_damaged_events_again_and_continues(
    analysis: Analysis,
) -> None:
    path = first_events_file(analysis)
    intact_bytes = damage_page(path, "met")

    output = analysis.run(**OTHER_KERNELS)

    assert f"note: {path} is not what was written" in output
    assert f"ingest: output is gone or damaged: events/{path.name}" in output
    assert "1 files read, 2 reused" in output
    assert analysis.parts()[path.name] == intact_bytes
    repeated_output = analysis.run(**OTHER_KERNELS)
    assert repeated_output.splitlines()[:2] == ["ingest: up to date", "features: up to date"]
    dataset = analysis.dataset()
    analysis.run(force=True, **OTHER_KERNELS)
    assert analysis.dataset() == dataset


def test_events_are_stale_from_a_reader_finding_damage_until_the_file_is_back(
    analysis: Analysis,
) -> None:
    path = first_events_file(analysis)
    intact_bytes = damage_page(path, "met")
    assert state_of_ingest(analysis) == (State.FRESH, [])

    message = rf"{path.name} is not what was written.*python -m pipeline ingest.*stage ingest"
    with pytest.raises(DamagedOutputError, match=message):
        analysis.run("features", **OTHER_KERNELS)

    reason = f"output is gone or damaged: events/{path.name}"
    assert state_of_ingest(analysis) == (State.STALE, [reason])

    replace_file(path, intact_bytes, path.stat().st_mtime_ns)
    assert state_of_ingest(analysis) == (State.FRESH, [])
    output = analysis.run("features", **OTHER_KERNELS)
    assert "features: config features.min_jet_pt changed" in output


def test_damage_that_status_finds_is_remembered(analysis: Analysis, damaged_file: Path) -> None:
    run_folder = analysis.runner().run_folder

    assert verify(run_folder) == [str(damaged_file)]

    suspected = suspected_files(analysis.folder_of("ingest"))
    state, _ = state_of_ingest(analysis)
    assert suspected == {f"events/{damaged_file.name}"}
    assert state is State.STALE
    assert "ingest: output is gone or damaged" in analysis.run("ingest")
    assert verify(run_folder) == []


def test_a_file_that_is_damaged_again_after_its_repair_ends_the_run(
    analysis: Analysis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a disk that fails."""
    path = first_events_file(analysis)

    def find_damage(*_: Any) -> None:
        current = analysis.folder_of("ingest") / "events" / path.name
        raise DamagedOutputError(current, "a page is damaged")

    monkeypatch.setattr("pipeline.stages.features.Features.run", find_damage)

    with pytest.raises(DamagedOutputError, match=path.name):
        analysis.run(**OTHER_KERNELS)


def test_a_damaged_kernel_output_is_computed_again(analysis: Analysis) -> None:
    name, path = min(analysis.kernel_files().items())
    damage(path, flipped)
    run_folder = analysis.runner().run_folder
    assert str(path) in changed_cache(run_folder)
    assert verify(run_folder) == []

    output = analysis.run(**OTHER_MIXING)

    assert "kernels of 2 of 3 parts reused" in output
    assert f"note: kernel outputs were damaged and are computed again: {name}" in output
    dataset = analysis.dataset()
    analysis.run(force=True, **OTHER_MIXING)
    assert analysis.dataset() == dataset
    assert changed_cache(run_folder) == ""


@pytest.mark.spark
def test_damage_that_a_task_of_spark_finds_is_named_and_remembered(
    tmp_path: Path, provider: SparkProvider
) -> None:
    analysis = write_and_run(Analysis(tmp_path, provider))
    path = first_events_file(analysis)
    damage_page(path, "met")

    message = rf"{path.name} is not what was written.*stage ingest"
    with pytest.raises(DamagedOutputError, match=message):
        analysis.run("features", **OTHER_KERNELS)

    assert suspected_files(analysis.folder_of("ingest")) == {f"events/{path.name}"}
