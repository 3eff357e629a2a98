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
from pipeline.commands.status import verify
from pipeline.machine.spark_session import SparkProvider
from pipeline.runner import State
from pipeline.runs.outputs import suspected_files

#: The kernels run again, and read the events.
OTHER_KERNELS: dict[str, Any] = {"features": {"min_jet_pt": 25.0}}
#: Only the mixing is done again, from the kernels' outputs.
OTHER_MIXING: dict[str, Any] = {"features": {"rows_per_group": 7}}


def with_files(analysis: Analysis) -> Analysis:
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
    return with_files(Analysis(tmp_path))


@pytest.fixture
def good_content(analysis: Analysis) -> bytes:
    """Of the first file of events, which is damaged from then on."""
    return damage_page(first_events(analysis), "met")


def first_events(analysis: Analysis) -> Path:
    return min((analysis.folder_of("ingest") / "events").iterdir())


def states(analysis: Analysis) -> dict[str, tuple[State, list[str]]]:
    return {plan.stage.name: (plan.state, plan.reasons) for plan in analysis.runner().plan()[:2]}


def test_a_run_reads_the_file_of_damaged_events_again_and_continues(
    analysis: Analysis, good_content: bytes
) -> None:
    damaged_events = first_events(analysis)
    displayed = analysis.run(**OTHER_KERNELS)
    assert f"note: {damaged_events} is not what was written" in displayed
    assert f"ingest: output is gone or damaged: events/{damaged_events.name}" in displayed
    assert "1 files read, 2 reused" in displayed
    repeated = analysis.folder_of("ingest") / "events" / damaged_events.name
    assert repeated.read_bytes() == good_content
    features = analysis.dataset()
    assert analysis.run(**OTHER_KERNELS).splitlines()[:2] == [
        "ingest: up to date",
        "features: up to date",
    ]
    analysis.run(force=True, **OTHER_KERNELS)
    assert analysis.dataset() == features


def test_damaged_events_are_stale_once_a_reader_has_found_it_and_fresh_when_they_are_back(
    analysis: Analysis, good_content: bytes
) -> None:
    damaged_events = first_events(analysis)
    assert states(analysis)["ingest"] == (State.FRESH, [])
    message = (
        rf"{damaged_events.name} is not what was written.*python -m pipeline ingest.*stage ingest"
    )
    with pytest.raises(DamagedOutputError, match=message):
        analysis.run("features", **OTHER_KERNELS)
    state, reasons = states(analysis)["ingest"]
    assert (state, reasons) == (
        State.STALE,
        [f"output is gone or damaged: events/{damaged_events.name}"],
    )
    replace_file(damaged_events, good_content, damaged_events.stat().st_mtime_ns)
    assert states(analysis)["ingest"] == (State.FRESH, [])
    assert "features: config features.min_jet_pt changed" in analysis.run(
        "features", **OTHER_KERNELS
    )


@pytest.mark.usefixtures("good_content")
def test_what_status_finds_is_remembered(analysis: Analysis) -> None:
    damaged_events = first_events(analysis)
    run_folder = analysis.runner().run_folder
    assert verify(run_folder) == [str(damaged_events)]
    assert suspected_files(analysis.folder_of("ingest")) == {f"events/{damaged_events.name}"}
    assert states(analysis)["ingest"][0] is State.STALE
    assert "ingest: output is gone or damaged" in analysis.run("ingest")
    assert verify(run_folder) == []


def test_a_file_that_is_damaged_again_after_its_repair_ends_the_run(
    analysis: Analysis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a disk that fails."""
    name = first_events(analysis).name

    def failing(*_: Any) -> None:
        raise DamagedOutputError(
            analysis.folder_of("ingest") / "events" / name, "a page is damaged"
        )

    monkeypatch.setattr("pipeline.stages.features.Features.run", failing)
    with pytest.raises(DamagedOutputError, match=name):
        analysis.run(**OTHER_KERNELS)


def test_a_damaged_kernel_output_is_computed_again(analysis: Analysis) -> None:
    name, path = min(analysis.kernel_files().items())
    damage(path, flipped)
    assert verify(analysis.runner().run_folder) == [str(path)]
    displayed = analysis.run(**OTHER_MIXING)
    assert "kernels of 2 of 3 parts reused" in displayed
    assert f"note: kernel outputs were damaged and are computed again: {name}" in displayed
    dataset = analysis.dataset()
    analysis.run(force=True, **OTHER_MIXING)
    assert analysis.dataset() == dataset
    assert verify(analysis.runner().run_folder) == []


@pytest.mark.spark
def test_damage_that_a_task_of_spark_finds_is_named_and_remembered(
    tmp_path: Path, provider: SparkProvider
) -> None:
    analysis = with_files(Analysis(tmp_path, provider))
    path = first_events(analysis)
    damage_page(path, "met")
    with pytest.raises(
        DamagedOutputError, match=rf"{path.name} is not what was written.*stage ingest"
    ):
        analysis.run("features", **OTHER_KERNELS)
    assert suspected_files(analysis.folder_of("ingest")) == {f"events/{path.name}"}
