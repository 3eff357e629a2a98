"""Files of `evaluate.data`: which of their events are there already, and what is said of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from command_line import SAMPLES, small_config
from delphes_files import write_delphes
from night_files import FIRST, Night, events
from published_by_hand import example_version, publish
from rich.console import Console
from stages_in_process import run_stages, without_spark

from ingestion.file_info import FileInfo
from ingestion.files import SourceFile
from ingestion.inspection import inspect_file
from pipeline.config import Config, load_config
from pipeline.errors import MissingInputError
from pipeline.planner import Planner
from pipeline.run_folder import RunFolder
from pipeline.runner import Runner, State
from pipeline.runs.code_meaning import code_digests
from pipeline.runs.fingerprint import Fingerprint
from pipeline.runs.version import Version
from pipeline.stages.base import StageInputs
from pipeline.stages.data_events import data_file_records
from pipeline.stages.evaluate import Evaluate


@pytest.mark.slow
def test_copies_in_the_data_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_spark(monkeypatch, tmp_path)
    night = Night(tmp_path)
    # Of 40 events 30 are selected; 6 of these are simulated, and 3 are there twice.
    data = [*events(500), *events(FIRST["ttbar"], 8), *events(500, 4)]
    write_delphes(tmp_path / "data.root", data)
    tail = {"train": {"workers": 1, "epochs": 1, "batch_size": 16}, "model": {"names": ["hlf"]}}
    night.run(
        "ingest", "features", "train", evaluate={"data": [str(tmp_path / "data.root")]}, **tail
    )
    said = run_stages(tmp_path / "config.yaml", "evaluate", "report")
    assert "Data: 52 entries in 1 file" in said
    assert "note: 6 events of evaluate.data are copies of others in the simulation" in said
    assert "note: 3 events of evaluate.data are copies of others in the data" in said
    actual = night.version("evaluate").manifest.counters["runs"]["hlf"]["data"]
    assert actual["copies"] == {"data": 3, "simulation": 6}
    page = (night.version("report").folder / "report.html").read_text()
    assert "6 events of the data are copies of others in the simulation." in page

    write_delphes(tmp_path / "data.root", [event for event in data if not event["electrons"]])
    with pytest.raises(MissingInputError, match=r"evaluate\.data: no event of these files passes"):
        run_stages(tmp_path / "config.yaml", "evaluate")


@pytest.fixture
def chosen(tmp_path: Path) -> Callable[..., Config]:
    """Makes a config whose `evaluate.data` is what is given."""

    def with_data(*patterns: str) -> Config:
        path = small_config(tmp_path, SAMPLES, evaluate={"data": list(patterns)})
        return load_config(str(path))

    return with_data


def inputs_of(config: Config, current: Version | None = None) -> StageInputs:
    return Evaluate().find_inputs(config, current, Console(quiet=True))


def test_data_files_are_known_by_their_content_wherever_they_lie(
    tmp_path: Path, chosen: Callable[..., Config]
) -> None:
    # The name is no pattern, though it looks like one.
    write_delphes(tmp_path / "data[1].root", events(500))
    first = inputs_of(chosen(str(tmp_path / "data[1].root"))).inputs
    assert len(first) == 1
    (tmp_path / "moved").mkdir()
    (tmp_path / "data[1].root").rename(tmp_path / "moved" / "a.root")
    moved = chosen(str(tmp_path / "moved" / "*.root"))
    assert {key: file_input.digest for key, file_input in inputs_of(moved).inputs.items()} == {
        key: file_input.digest for key, file_input in first.items()
    }
    assert Evaluate().config_items(moved) == Evaluate().config_items(chosen("/elsewhere/*.root"))
    write_delphes(tmp_path / "moved" / "a.root", events(600))
    assert inputs_of(moved).inputs.keys() != first.keys()


def test_other_files_of_data_are_other_inputs(
    tmp_path: Path, chosen: Callable[..., Config]
) -> None:
    write_delphes(tmp_path / "a.root", events(500))
    write_delphes(tmp_path / "b.root", events(600))
    none, first, second, pair = (
        inputs_of(chosen(*(str(tmp_path / name) for name in names))).inputs
        for names in ([], ["a.root"], ["b.root"], ["*.root"])
    )
    assert (len(none), len(first), len(second)) == (0, 1, 1)
    assert first.keys() != second.keys()
    assert pair == first | second


def test_a_touched_data_file_is_the_same_and_a_changed_one_is_another(
    tmp_path: Path, chosen: Callable[..., Config]
) -> None:
    path = tmp_path / "data.root"
    write_delphes(path, events(500))
    config = chosen(str(path))
    actual = inputs_of(config)
    current = example_version("evaluate", tmp_path, inputs=data_file_records(actual.details))
    os.utime(path, (1, 1))
    assert inputs_of(config, current).inputs == actual.inputs
    # One byte of the events, as a job that writes in place leaves it.
    file_bytes = bytearray(path.read_bytes())
    file_bytes[len(file_bytes) // 2] ^= 1
    path.write_bytes(file_bytes)
    changed = inputs_of(config, current).inputs
    assert changed.keys() == actual.inputs.keys()
    assert changed != actual.inputs


def test_data_files_that_were_read_alike_are_not_opened_again(
    tmp_path: Path, chosen: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_delphes(tmp_path / "data.root", events(500))
    config = chosen(str(tmp_path / "data.root"))
    actual = inputs_of(config)
    manifest: dict[str, Any] = {
        "inputs": data_file_records(actual.details),
        "config": config.model_dump(mode="json"),
        "fingerprint": asdict(Fingerprint({}, {}, code_digests(Evaluate().entry_points(config)))),
    }
    opened = []

    def noted(source: SourceFile, *settings: Any, **stamp: Any) -> FileInfo:
        opened.append(source.path)
        return inspect_file(source, *settings, **stamp)

    monkeypatch.setattr("ingestion.files.inspect_file", noted)
    assert (
        inputs_of(config, example_version("evaluate", tmp_path, **manifest)).inputs == actual.inputs
    )
    assert opened == []
    manifest["config"]["ingest"]["min_btag"] = 0.5
    assert (
        inputs_of(config, example_version("evaluate", tmp_path, **manifest)).inputs == actual.inputs
    )
    assert opened == [str(tmp_path / "data.root")]


def test_a_broken_link_among_the_data_is_named_by_plan(
    tmp_path: Path, chosen: Callable[..., Config]
) -> None:
    (tmp_path / "data.root").symlink_to(tmp_path / "nothing.root")
    config = chosen(str(tmp_path / "*.root"))
    for stage in ("ingest", "features", "train", "evaluate"):
        publish(config.run_dir, stage)
    plans = {
        planned_stage.stage.name: planned_stage
        for planned_stage in Runner(RunFolder(config, Console(quiet=True))).plan()
    }
    state, reasons = Planner(RunFolder(config, Console(quiet=True))).state(
        Evaluate(), plans["evaluate"].current
    )
    assert state is State.FAILS
    assert "data.root" in reasons[0]


def test_what_reads_data_counts_where_there_are_data(chosen: Callable[..., Config]) -> None:
    with_data, without = (
        code_digests(Evaluate().entry_points(chosen(*data))) for data in (["/data/*.root"], [])
    )
    assert {"pipeline.scoring", "ingestion.reader"} <= with_data.keys()
    assert "pipeline.scoring" not in without
