"""The command that makes a load-test sample, and the stages that refuse one."""

from __future__ import annotations

import os
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from candidate_events import drawn_events
from delphes_files import write_delphes
from rich.console import Console

from ingestion.files import expand, found_files, inventory
from ingestion.reader import read_events
from ingestion.schema import COLLECTIONS, PARTICLE_COLLECTIONS
from ingestion.settings import SampleSettings
from pipeline.commands.load_test import load_test
from pipeline.config import Config, load_config
from pipeline.configuration.shell_sections import SparkSettings
from pipeline.errors import LoadTestError, RunFolderError
from pipeline.machine.spark_session import SparkProvider
from pipeline.run_folder import RunFolder
from pipeline.runs.store import Version
from pipeline.stages.base import Context, Stage, StageInputs
from pipeline.stages.evaluate import Evaluate
from pipeline.stages.train import Train


def config_of(folder: Path, **changes: Any) -> Config:
    """Two classes of a made file each."""
    samples = []
    for label, name in enumerate(("qcd", "ttbar")):
        path = write_delphes(folder / f"{name}.root", drawn_events(4, seed=label))
        samples.append(SampleSettings(name=name, label=label, files=[str(path)]))
    return Config(run_dir=folder / "run", classes=["QCD", "ttbar"], samples=samples, **changes)


def test_the_command_writes_files_and_a_config_that_reads_them(tmp_path: Path) -> None:
    folder = tmp_path / "sample"
    conf = {"spark.hadoop.fs.s3a.secret.key": "hush-1b2c", "spark.executor.cores": "4"}
    asked = config_of(tmp_path, spark={"conf": conf})
    said = load_test(RunFolder(asked, Console(quiet=True)), folder, 9, seed=1)
    assert said.startswith("2 files")
    assert str(folder / "load_test.yaml") in said
    # It may be moved.
    folder = folder.rename(tmp_path / "moved")
    config = load_config(str(folder / "load_test.yaml"))
    assert config.run_dir == folder / "run"
    assert (config.classes, config.allow_load_test) == (["QCD", "ttbar"], False)
    # What is secret stands in no file.
    assert config.spark.conf == {"spark.executor.cores": "4"}
    infos = inventory(expand(config.samples), config.ingest).infos
    assert [(info.sample, info.label, info.entries) for info in infos] == [("qcd", 0, 9), ("ttbar", 1, 9)]
    assert all(info.is_load_test for info in infos)


def test_the_config_kept_the_storage_and_the_processes_of_the_original(tmp_path: Path) -> None:
    processes = {"processes": [{"name": "ttbar", "events": 5, "pythia": ["Top:all = on"]}]}
    asked = config_of(tmp_path, storage="s3://bucket/night", simulate=processes)
    load_test(RunFolder(asked, Console(quiet=True)), tmp_path / "sample", 2, seed=1)
    config = load_config(str(tmp_path / "sample" / "load_test.yaml"))
    # A storage belongs to one run folder, and the events are there: nothing has to be simulated.
    assert config.storage is None
    assert not config.simulate.processes


def test_copies_of_files_without_particles_and_with_a_discriminant_have_their_jets(tmp_path: Path) -> None:
    """The command asked for the particles of such files, and compared their bits with the threshold once more."""
    particles = [field.branch for name in PARTICLE_COLLECTIONS for field in COLLECTIONS[name].values()]
    asked = config_of(tmp_path, ingest={"min_btag": -5}, features={"particles": False}, model={"names": ["hlf"]})
    for sample in asked.samples:
        btag = {"Jet.BTag": ("float32", -7.0)}
        write_delphes(Path(sample.files[0]), drawn_events(4, seed=sample.label), without=particles, as_type=btag)
    load_test(RunFolder(asked, Console(quiet=True)), tmp_path / "sample", 4, seed=1)
    config = load_config(str(tmp_path / "sample" / "load_test.yaml"))
    for info in inventory(expand(config.samples), config.ingest, needs_particles=False).infos:
        (raw,) = read_events(info, config.ingest, start=0, stop=4)
        assert set(raw.collections["jets"].fields["btag"].tolist()) == {0}


def test_files_that_are_not_copied_were_left_out_without_a_word_and_the_copies_were_too_late_for_a_run(
    tmp_path: Path,
) -> None:
    asked = config_of(tmp_path, ingest={"until": "2026-01-01T00:00:00Z", "on_bad_file": "skip"})
    for sample in asked.samples:
        os.utime(sample.files[0], (10**9, 10**9))
    late, bad = write_delphes(tmp_path / "qcd_late.root", drawn_events(4, seed=7)), tmp_path / "qcd_bad.root"
    bad.write_text("this is text, not ROOT, and long enough")
    os.utime(bad, (10**9, 10**9))
    samples = [asked.samples[0].model_copy(update={"files": [str(tmp_path / "qcd*.root")]}), asked.samples[1]]
    shown = StringIO()
    run_folder = RunFolder(asked.model_copy(update={"samples": samples}), Console(file=shown, width=1000))
    load_test(run_folder, tmp_path / "sample", 2, seed=1)
    assert f"left for another run: {late}: it was modified at or after ingest.until" in shown.getvalue()
    assert f"skipped: {bad} is not a ROOT file" in shown.getvalue()
    config = load_config(str(tmp_path / "sample" / "load_test.yaml"))
    assert [info.entries for info in found_files(config.samples, config.ingest, print, strict=True).infos] == [2, 2]


def test_the_command_takes_an_empty_folder(tmp_path: Path) -> None:
    folder = tmp_path / "sample"
    folder.mkdir()
    load_test(RunFolder(config_of(tmp_path), Console(quiet=True)), folder, 2, seed=1)
    assert (folder / "load_test.yaml").is_file()


@pytest.mark.parametrize("name", ["load_test.yaml", ".hidden"])
def test_the_command_refuses_a_folder_that_is_not_empty(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "sample"
    folder.mkdir()
    (folder / name).write_text("mine")
    with pytest.raises(RunFolderError, match=r"sample is not empty\. Choose a new folder"):
        load_test(RunFolder(config_of(tmp_path), Console(quiet=True)), folder, 2, seed=1)
    assert [(path.name, path.read_text()) for path in folder.iterdir()] == [(name, "mine")]


def test_the_command_refuses_a_file_in_place_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "sample").write_text("mine")
    with pytest.raises(RunFolderError, match=r"sample cannot be written .*choose another folder"):
        load_test(RunFolder(config_of(tmp_path), Console(quiet=True)), tmp_path / "sample", 2, seed=1)


def context_of(folder: Path, *, load_test: bool, allowed: bool) -> Context:
    """A context whose features are, or are not, of a load-test sample; there are no files behind it."""
    version = Version("0001-abcdef01", folder, {"counters": {"load_test": load_test}})
    return Context(
        config=config_of(folder, allow_load_test=allowed),
        upstream={"features": version, "train": version},
        current=None,
        missing=frozenset(),
        taken_over_parts=frozenset(),
        found=StageInputs({}),
        out_dir=folder,
        data_dir=folder,
        spark=SparkProvider(SparkSettings()),
        console=Console(quiet=True),
    )


@pytest.mark.parametrize("stage", [Train(), Evaluate()], ids=lambda stage: stage.name)
def test_stages_refuse_features_of_a_load_test_sample(tmp_path: Path, stage: Stage) -> None:
    with pytest.raises(LoadTestError, match=r"load-test sample.*means nothing.*allow_load_test: true"):
        stage.run(context_of(tmp_path, load_test=True, allowed=False))


@pytest.mark.parametrize(("load_test", "allowed"), [(False, False), (False, True), (True, True)])
@pytest.mark.parametrize("stage", [Train(), Evaluate()], ids=lambda stage: stage.name)
def test_stages_take_real_features_and_copies_that_are_asked_for(
    tmp_path: Path, stage: Stage, load_test: bool, allowed: bool
) -> None:
    context = context_of(tmp_path, load_test=load_test, allowed=allowed)
    context.refuse_load_test()
    # It gets as far as looking for the dataset, which is not there.
    with pytest.raises(Exception, match=str(tmp_path)) as caught:
        stage.run(context)
    assert not isinstance(caught.value, LoadTestError)
