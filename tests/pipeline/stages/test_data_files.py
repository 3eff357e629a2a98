"""Files of `evaluate.data`: copies among their events, and when they make an evaluation stale."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from command_line import SAMPLES, small_config
from delphes_files import PARTICLE_BRANCHES, write_delphes
from feature_datasets import write_dataset
from night_files import FIRST, Night, events
from published_by_hand import example_version, publish
from rich.console import Console
from stages_in_process import run_stages, without_spark

from hep_core.input_errors import InputFileError
from ingestion.errors import ConflictingFilesError
from ingestion.file_info import FileInfo
from ingestion.files import SourceFile
from ingestion.inspection import inspect_file
from models.evaluation.data_comparison import DataEvents
from models.prediction import Candidate
from pipeline.config import Config, load_config
from pipeline.errors import MissingInputError
from pipeline.planner import Planner
from pipeline.run_folder import RunFolder
from pipeline.runner import Runner, State
from pipeline.runs.code_meaning import code_digests
from pipeline.runs.fingerprint import Fingerprint
from pipeline.runs.version import Version
from pipeline.stages.base import StageInputs
from pipeline.stages.data_events import data_file_records, scored_data
from pipeline.stages.evaluate import Evaluate

ConfigWithData = Callable[..., Config]


@pytest.mark.slow
def test_copies_in_the_data_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_spark(monkeypatch, tmp_path)
    night = Night(tmp_path)
    # Of 40 events 30 are selected; 6 of these are simulated, and 3 are there twice.
    data = [*events(500), *events(FIRST["ttbar"], 8), *events(500, 4)]
    data_file = write_delphes(tmp_path / "data.root", data)
    night.run(
        *("ingest", "features", "train"),
        evaluate={"data": [str(data_file)]},
        train={"workers": 1, "epochs": 1, "batch_size": 16},
        model={"names": ["hlf"]},
    )

    output = run_stages(tmp_path / "config.yaml", "evaluate", "report")

    assert "Data: 52 entries in 1 file" in output
    assert "note: 6 events of evaluate.data are copies of others in the simulation" in output
    assert "note: 3 events of evaluate.data are copies of others in the data" in output
    metrics = night.counters("evaluate")["runs"]["hlf"]
    assert metrics["data"]["copies"] == {"data": 3, "simulation": 6}
    page = (night.folder_of("report") / "report.html").read_text()
    assert "6 events of the data are copies of others in the simulation." in page

    write_delphes(data_file, [event for event in data if not event["electrons"]])
    with pytest.raises(MissingInputError, match=r"evaluate\.data: no event of these files passes"):
        run_stages(tmp_path / "config.yaml", "evaluate")


@pytest.fixture
def config_with_data(tmp_path: Path) -> ConfigWithData:
    """Makes a config whose `evaluate.data` holds the given patterns."""

    def make_config(*patterns: str | Path) -> Config:
        data = [str(pattern) for pattern in patterns]
        return load_config(str(small_config(tmp_path, SAMPLES, evaluate={"data": data})))

    return make_config


def find_inputs(config: Config, current: Version | None = None) -> StageInputs:
    return Evaluate().find_inputs(config, current, Console(quiet=True))


def input_digests(config: Config) -> dict[str, str]:
    inputs = find_inputs(config).inputs
    return {key: data_input.digest for key, data_input in inputs.items()}


def test_data_files_are_known_by_their_content_wherever_they_lie(
    tmp_path: Path, config_with_data: ConfigWithData
) -> None:
    # The name is no pattern, though it looks like one.
    path = write_delphes(tmp_path / "data[1].root", events(500))
    digests = input_digests(config_with_data(path))
    moved_path = tmp_path / "moved" / "a.root"
    moved_path.parent.mkdir()
    path.rename(moved_path)
    moved = config_with_data(tmp_path / "moved" / "*.root")

    assert len(digests) == 1
    assert input_digests(moved) == digests
    elsewhere = config_with_data("/elsewhere/*.root")
    assert Evaluate().config_items(moved) == Evaluate().config_items(elsewhere)

    write_delphes(moved_path, events(600))
    assert input_digests(moved).keys() != digests.keys()


def test_each_data_file_is_an_input(tmp_path: Path, config_with_data: ConfigWithData) -> None:
    write_delphes(tmp_path / "a.root", events(500))
    write_delphes(tmp_path / "b.root", events(600))

    without_data = find_inputs(config_with_data()).inputs
    first = find_inputs(config_with_data(tmp_path / "a.root")).inputs
    second = find_inputs(config_with_data(tmp_path / "b.root")).inputs
    pair = find_inputs(config_with_data(tmp_path / "*.root")).inputs

    assert (len(without_data), len(first), len(second)) == (0, 1, 1)
    assert first.keys() != second.keys()
    assert pair == first | second


def test_a_touched_data_file_is_the_same_and_a_changed_one_is_another(
    tmp_path: Path, config_with_data: ConfigWithData
) -> None:
    path = write_delphes(tmp_path / "data.root", events(500))
    config = config_with_data(path)
    original = find_inputs(config)
    current = example_version("evaluate", tmp_path, inputs=data_file_records(original.details))

    os.utime(path, (1, 1))
    assert find_inputs(config, current).inputs == original.inputs

    # One byte of the events changes, as a job that writes in place leaves it.
    file_bytes = bytearray(path.read_bytes())
    file_bytes[len(file_bytes) // 2] ^= 1
    path.write_bytes(file_bytes)
    changed = find_inputs(config, current).inputs
    assert changed.keys() == original.inputs.keys()
    assert changed != original.inputs


def test_data_files_that_were_read_alike_are_not_opened_again(
    tmp_path: Path, config_with_data: ConfigWithData, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_delphes(tmp_path / "data.root", events(500))
    config = config_with_data(path)
    original = find_inputs(config)
    manifest: dict[str, Any] = {
        "inputs": data_file_records(original.details),
        "config": config.model_dump(mode="json"),
        "fingerprint": asdict(Fingerprint({}, {}, code_digests(Evaluate().entry_points(config)))),
    }
    opened = []

    def record_opening(source: SourceFile, *settings: Any, **stamp: Any) -> FileInfo:
        opened.append(source.path)
        return inspect_file(source, *settings, **stamp)

    monkeypatch.setattr("ingestion.files.inspect_file", record_opening)
    current = example_version("evaluate", tmp_path, **manifest)
    assert find_inputs(config, current).inputs == original.inputs
    assert opened == []

    manifest["config"]["ingest"]["min_btag"] = 0.5
    read_otherwise = example_version("evaluate", tmp_path, **manifest)
    assert find_inputs(config, read_otherwise).inputs == original.inputs
    assert opened == [str(path)]


def test_plan_names_a_broken_link_among_the_data(
    tmp_path: Path, config_with_data: ConfigWithData
) -> None:
    (tmp_path / "data.root").symlink_to(tmp_path / "nothing.root")
    config = config_with_data(tmp_path / "*.root")
    for stage in ("ingest", "features", "train", "evaluate"):
        publish(config.run_dir, stage)
    run_folder = RunFolder(config, Console(quiet=True))
    plan = Runner(run_folder).plan()
    current = next(planned.current for planned in plan if planned.stage.name == "evaluate")

    state, reasons = Planner(run_folder).state(Evaluate(), current)

    assert state is State.FAILS
    assert "data.root" in reasons[0]


def test_code_that_reads_data_counts_only_with_data(config_with_data: ConfigWithData) -> None:
    with_data = code_digests(Evaluate().entry_points(config_with_data("/data/*.root")))
    without_data = code_digests(Evaluate().entry_points(config_with_data()))

    assert {"pipeline.scoring", "ingestion.reader"} <= with_data.keys()
    assert "pipeline.scoring" not in without_data


def score_data(
    config: Config,
    folder: Path,
    *,
    ingested: Mapping[str, Any] | None = None,
    reading: Mapping[str, Any] | None = None,
) -> tuple[DataEvents, list[str]]:
    """Score the data of a config; returns their events, and what is printed.

    Args:
        config: The config.
        folder: Gets the dataset and the versions of earlier stages.
        ingested: The section `ingest` by which the samples were ingested; None for the config's.
        reading: What the dataset states about it; None for the tree of the samples.
    """
    network: Any = SimpleNamespace(
        inputs=("hlf",), probabilities=lambda columns: np.full((len(columns["hlf"]), 3), 1 / 3)
    )
    recorded = config.model_dump(mode="json")
    if ingested is not None:
        recorded["ingest"] = dict(ingested)
    said: list[str] = []
    context: Any = SimpleNamespace(
        config=config,
        upstream={
            stage: example_version(stage, folder / stage, config=recorded)
            for stage in ("ingest", "features")
        },
        inputs=find_inputs(config),
        say=said.append,
    )
    dataset = write_dataset(folder / "set", rows={"train": [4], "val": [5], "test": [6]})
    # By the settings that a dataset states, `predict` would read.
    dataset = dataset._replace(reading=reading or {"tree": config.samples[0].tree})
    scored = scored_data(context, [Candidate("hlf", network)], dataset)
    return scored["hlf"], said


def with_ingest(config: Config, **changes: Any) -> Config:
    return config.model_copy(update={"ingest": config.ingest.model_copy(update=changes)})


def test_data_are_read_with_the_names_of_ingest(
    tmp_path: Path, config_with_data: ConfigWithData
) -> None:
    """The tree of the samples is theirs alone, also if it is the same for all."""
    path = write_delphes(tmp_path / "data.root", events(500, 8), tree="data")
    config = with_ingest(config_with_data(path), tree="data")
    samples = [sample.model_copy(update={"tree": "mc"}) for sample in config.samples]
    config = config.model_copy(update={"samples": samples})

    data, _ = score_data(config, tmp_path)

    assert (data.num_files, data.num_entries) == (1, 8)


def test_data_whose_momenta_look_like_mev_are_named(
    tmp_path: Path, config_with_data: ConfigWithData
) -> None:
    in_mev = [event | {"met": 1000.0 * event["met"]} for event in events(FIRST["qcd"], 8)]
    path = write_delphes(tmp_path / "data.root", in_mev)

    _, said = score_data(config_with_data(path), tmp_path)

    assert (
        "note: Momenta of MET of evaluate.data are very large: are they in MeV? GeV is needed."
        in said
    )


def test_data_are_read_by_the_settings_that_read_the_samples(
    tmp_path: Path, config_with_data: ConfigWithData
) -> None:
    """The stage `evaluate` alone uses the events of an earlier config."""
    path = write_delphes(tmp_path / "data.root", events(500, 8))
    config = config_with_data(path)
    stricter = with_ingest(config, min_lepton_pt=36.0).ingest

    all_leptons, _ = score_data(config, tmp_path / "now")
    hard_leptons, _ = score_data(
        config, tmp_path / "earlier", ingested=stricter.model_dump(mode="json")
    )

    # The leptons have 31, 32, 33, 35, 36 and 37 GeV.
    assert len(all_leptons.hlf) == 6
    assert len(hard_leptons.hlf) == 1
    assert hard_leptons.num_entries == 8


def test_files_that_are_left_for_another_run_are_not_scored(
    tmp_path: Path, config_with_data: ConfigWithData
) -> None:
    write_delphes(tmp_path / "old.root", events(500, 8))
    new = write_delphes(tmp_path / "new.root", events(600, 4))
    os.utime(new, (2e9, 2e9))
    config = with_ingest(
        config_with_data(tmp_path / "*.root"), until=datetime(2030, 1, 1, tzinfo=UTC)
    )

    data, _ = score_data(config, tmp_path)
    other_threshold = with_ingest(config, min_track_pt=0.6).ingest
    read_otherwise, _ = score_data(
        config, tmp_path / "otherwise", ingested=other_threshold.model_dump(mode="json")
    )

    assert (data.num_files, data.num_entries) == (1, 8)
    assert (read_otherwise.num_files, read_otherwise.num_entries) == (1, 8)


def test_data_without_particles_are_refused_beside_simulation_with_them(
    tmp_path: Path, config_with_data: ConfigWithData
) -> None:
    path = write_delphes(tmp_path / "data.root", events(500, 8), without=PARTICLE_BRANCHES)
    config = config_with_data(path)
    selection = config.features.model_copy(update={"particles": False})
    config = config.model_copy(update={"features": selection})

    data, _ = score_data(config, tmp_path / "alike", reading={"has_particles": False})

    assert len(data.hlf) == 6
    with pytest.raises(ConflictingFilesError, match=r"data\.root has no tracks"):
        score_data(config, tmp_path / "other", reading={"has_particles": True})


def test_no_bad_file_of_data_is_skipped(tmp_path: Path, config_with_data: ConfigWithData) -> None:
    write_delphes(tmp_path / "good.root", events(500, 8))
    (tmp_path / "bad.root").write_bytes(b"root" + bytes(200))
    config = with_ingest(config_with_data(tmp_path / "*.root"), on_bad_file="skip")

    with pytest.raises(InputFileError, match=r"bad\.root"):
        find_inputs(config)
