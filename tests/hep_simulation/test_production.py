"""Simulated files: equal events for any number of tasks and after a kill, as ingest reads them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uproot
from pyspark import SparkContext
from ranks import wait_until
from spark_in_process import InProcessSpark

from hep_core.input_errors import InputFileError
from hep_simulation import production, pythia_setup
from hep_simulation.generator import Tally
from hep_simulation.production import (
    make_file,
    make_pool_file,
    pool_files,
    process_files,
)
from hep_simulation.pythia_setup import GenerationError, require_packages
from ingestion.files import expand, inventory
from ingestion.reader import read_events
from ingestion.selection import select_events
from ingestion.settings import IngestSettings, SampleSettings
from pipeline.configuration.simulate_section import (
    HeavyFlavourSettings,
    PileUpSettings,
    ProcessSettings,
    SimulateSettings,
)

_MISSING = [name for name in ("pythia8mc", "fastjet") if pythia_setup.find_spec(name) is None]
needs_generator = pytest.mark.skipif(
    bool(_MISSING), reason=f"{_MISSING} of the extra `simulate` are not installed"
)


def small(events: int = 6, **changes: Any) -> SimulateSettings:
    """Some W bosons with a little pile-up."""
    content = {
        "processes": [ProcessSettings(name="wjets", events=events)],
        "events_per_file": 3,
        "pile_up": PileUpSettings(mean=2, pool=20),
        "seed": 7,
    }
    return SimulateSettings(**{**content, **changes})


def make_all(settings: SimulateSettings, folder: Path) -> list[dict[str, Any]]:
    """Make all files in this process, the last one first; returns their records in order."""
    files = process_files(settings)
    for file in (*pool_files(settings), *files):
        (folder / file.name).parent.mkdir(parents=True, exist_ok=True)
    for pool_file in pool_files(settings):
        make_pool_file(pool_file, settings, folder)
    records = [make_file(file, settings, folder) for file in reversed(files)]
    records.reverse()
    return records


def without_size(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records without the size of the ROOT file, which holds a compressed date."""
    return [{key: value for key, value in record.items() if key != "bytes"} for record in records]


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """Folder and records of the files of `small`."""
    folder = tmp_path_factory.mktemp("simulated")
    return folder, make_all(small(), folder)


def test_a_missing_extra_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        pythia_setup, "find_spec", lambda name: None if name == "pythia8mc" else object()
    )
    with pytest.raises(ModuleNotFoundError, match="pythia8mc"):
        require_packages()


def test_a_process_without_settings_of_its_own_is_refused() -> None:
    with pytest.raises(ValueError, match="'higgs' is none of ttbar, wjets, qcd"):
        SimulateSettings(processes=[ProcessSettings(name="higgs")])


def test_a_process_with_the_name_of_the_pool_is_refused() -> None:
    """Its files would lie among those of the pool."""
    with pytest.raises(
        ValueError, match="'pile-up' is the pool of minimum-bias events; choose another name"
    ):
        SimulateSettings(processes=[ProcessSettings(name="pile-up", pythia=["HardQCD:all = on"])])


def test_settings_of_a_file_replace_those_of_the_name(tmp_path: Path) -> None:
    file = tmp_path / "mine.cmnd"
    file.write_text("! a comment\nHiggsSM:gg2H = on\n\n# another\n")
    process = ProcessSettings(name="ttbar", file=file, pythia=["25:m0 = 125"])
    assert process.lines() == ["HiggsSM:gg2H = on", "25:m0 = 125"]


@needs_generator
@pytest.mark.slow
class TestWithTheGenerator:
    """Tests that generate events."""

    def test_ingest_reads_the_files_as_they_are(
        self, simulated: tuple[Path, list[dict[str, Any]]]
    ) -> None:
        folder, records = simulated
        settings = IngestSettings()
        pattern = str(folder / "wjets" / "*.root")
        sample = SampleSettings(name="wjets", label=0, files=[pattern])

        infos = inventory(expand([sample]), settings).infos

        for info, record in zip(infos, records, strict=True):
            assert info.entries == record["events"]
            assert info.uuid == record["uuid"]
            assert info.missing_optional == ()
            for raw in read_events(info, settings, start=0, stop=info.entries):
                counts = select_events(raw, info, settings).tally().counts
                assert counts["entries"] == 3
                assert counts["rejected_nonfinite"] == 0
                assert counts["events_with_wrapped_azimuths"] == 0

    def test_the_branches_have_the_types_of_delphes(
        self, simulated: tuple[Path, list[dict[str, Any]]]
    ) -> None:
        folder, _ = simulated
        file = process_files(small())[0]
        bundled = Path(__file__).resolve().parents[2] / "samples" / "wjets_13TeV_PU20_0.root"
        with uproot.open(bundled) as delphes_file:
            delphes_types = {}
            for name, branch in delphes_file["Delphes"].items():
                branch_name = name.split("/")[-1]
                delphes_types[branch_name] = branch.typename
        with uproot.open(folder / file.name) as simulated_file:
            types = simulated_file["Delphes"].typenames()
        for name, typename in types.items():
            if "." in name:
                assert typename == delphes_types[name], name

    @pytest.mark.parametrize("max_tasks", [1, 2])
    def test_any_number_of_tasks_gives_the_same_events(
        self,
        simulated: tuple[Path, list[dict[str, Any]]],
        spark: SparkContext,
        tmp_path: Path,
        max_tasks: int,
    ) -> None:
        from hep_simulation.spark_job import produce

        counters = {"pile-up": spark.accumulator(0), "simulate": spark.accumulator(0)}
        totals = {}

        def counted(label: str, num_events: int) -> Any:
            totals[label] = num_events
            return nullcontext(counters[label])

        records = produce(
            spark,
            small(),
            tmp_path,
            counted=counted,
            num_tasks=lambda num_files: min(num_files, max_tasks),
        )

        assert without_size(records) == without_size(simulated[1])
        assert totals == {"pile-up": 20, "simulate": 6}
        assert {label: counter.value for label, counter in counters.items()} == totals

    def test_more_events_keep_finished_files(
        self, simulated: tuple[Path, list[dict[str, Any]]], spark: SparkContext, tmp_path: Path
    ) -> None:
        from hep_simulation.spark_job import produce

        def produce_records(num_events: int) -> list[dict[str, Any]]:
            counter = nullcontext(spark.accumulator(0))
            records = produce(spark, small(num_events), tmp_path, counted=lambda *_: counter)
            return without_size(records)

        produce_records(3)
        first_file = tmp_path / process_files(small())[0].name
        time = first_file.stat().st_mtime_ns
        (tmp_path / "wjets" / ".half.root.123").write_bytes(b"half")

        assert produce_records(6) == without_size(simulated[1])
        assert first_file.stat().st_mtime_ns == time
        suffixes = sorted(path.suffix for path in (tmp_path / "wjets").iterdir())
        assert suffixes == [".json", ".json", ".root", ".root"]
        assert produce_records(3) == without_size(simulated[1][:1])
        assert len(list((tmp_path / "wjets").iterdir())) == 2

    def test_missing_files_are_made_after_a_kill(
        self, simulated: tuple[Path, list[dict[str, Any]]], tmp_path: Path
    ) -> None:
        program = (
            "import sys; from pathlib import Path; import test_production as test\n"
            "test.make_all(test.small(), Path(sys.argv[1]))"
        )
        test_folder = str(Path(__file__).parent)
        import_folders = [folder for folder in sys.path if folder]
        python_path = os.pathsep.join([test_folder, *import_folders])
        environment = {**os.environ, "PYTHONPATH": python_path}
        command = [sys.executable, "-c", program, str(tmp_path)]
        process = subprocess.Popen(command, env=environment)
        files = process_files(small())
        last_record = (tmp_path / files[-1].name).with_suffix(".json")
        wait_until(last_record.exists, label="the first file has been made")

        os.kill(process.pid, signal.SIGKILL)
        process.wait()

        assert production.read_record(tmp_path, files[1]) is not None
        _, expected_records = simulated
        records = []
        for file in files:
            record = production.read_record(tmp_path, file)
            if record is None:
                record = make_file(file, small(), tmp_path)
            records.append(record)
        assert without_size(records) == without_size(expected_records)

    def test_a_file_of_another_size_is_made_again(
        self, simulated: tuple[Path, list[dict[str, Any]]], tmp_path: Path
    ) -> None:
        folder, records = simulated
        file = process_files(small())[0]
        path = tmp_path / file.name
        path.parent.mkdir()
        intact_bytes = (folder / file.name).read_bytes()
        path.write_bytes(intact_bytes[:-1])
        path.with_suffix(".json").write_text(json.dumps(records[0]))

        assert production.read_record(folder, file) == records[0]
        assert production.read_record(tmp_path, file) is None

    def test_enriched_events_have_weights_and_a_lepton(self, tmp_path: Path) -> None:
        enrichment = HeavyFlavourSettings(hadronisations=4, decays=20)
        process = ProcessSettings(
            name="qcd", events=2, heavy_flavour=enrichment, pythia=["PhaseSpace:pTHatMin = 120"]
        )
        settings = small(processes=[process], pile_up=PileUpSettings(mean=0), events_per_file=2)

        (record,) = make_all(settings, tmp_path)

        (simulated_file,) = process_files(settings)
        with uproot.open(tmp_path / simulated_file.name) as file:
            weights = file["Delphes/Event.Weight"].array().to_numpy().ravel()
        assert (weights > 0).all()
        assert (weights <= 1).all()
        # A weight counts the passing ones of 4 hadronisations with 20 decays each.
        num_passing = weights * 80
        np.testing.assert_allclose(num_passing, np.round(num_passing), atol=1e-4)
        assert record["passed_weight"] == pytest.approx(weights.sum(), abs=1e-6)

    def test_a_filter_that_nothing_passes_is_an_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(production, "_MAX_GENERATED_PER_EVENT", 10)
        content = {"lepton_filter": {"min_pt": 5000}, "pile_up": PileUpSettings(mean=0)}
        with pytest.raises(
            GenerationError, match=r"0 of .* generated events pass the lepton filter"
        ):
            make_all(small(**content), tmp_path)

    def test_a_setting_that_pythia_does_not_know_is_named(self, tmp_path: Path) -> None:
        process = ProcessSettings(name="ttbar", pythia=["Top:gg2tbar = on"])
        with pytest.raises(GenerationError, match="does not know the setting 'Top:gg2tbar = on'"):
            make_all(small(processes=[process], pile_up=PileUpSettings(mean=0)), tmp_path)


def test_a_file_of_an_earlier_generator_is_made_again(tmp_path: Path) -> None:
    """Its record lacks a number that the sums over all files need."""
    file = process_files(small())[0]
    path = tmp_path / file.name
    path.parent.mkdir()
    path.write_bytes(b"root")
    record = {"bytes": 4, "events": file.events, **Tally(9, 3.0, 3.0, 1.0, 0.1)._asdict()}
    path.with_suffix(".json").write_text(json.dumps(record))
    assert production.read_record(tmp_path, file) == record
    del record["passed_weight_squared"]
    path.with_suffix(".json").write_text(json.dumps(record))
    assert production.read_record(tmp_path, file) is None


@pytest.mark.parametrize("record", ["", "[]", "null", "{}", "[" * 100_000])
def test_a_file_with_a_damaged_record_is_made_again(tmp_path: Path, record: str) -> None:
    file = process_files(small())[0]
    path = tmp_path / file.name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    path.with_suffix(".json").write_text(record)
    assert production.read_record(tmp_path, file) is None


def test_a_failed_run_removes_no_finished_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Files of a larger number of events are removed only after all others are made."""
    from hep_simulation import spark_job

    def fail(*_: object) -> None:
        raise InputFileError("not now")

    monkeypatch.setattr(spark_job, "make_pool_file", lambda *_: None)
    monkeypatch.setattr(spark_job, "make_file", fail)
    surplus_files = [tmp_path / "wjets" / name for name in ("wjets_00009.root", "wjets_00009.json")]
    surplus_files[0].parent.mkdir()
    for path in surplus_files:
        path.write_bytes(b"made")
    spark: Any = InProcessSpark()

    with pytest.raises(InputFileError, match="not now"):
        spark_job.produce(spark, small(3), tmp_path, counted=lambda *_: nullcontext(spark))

    assert all(path.exists() for path in surplus_files)
