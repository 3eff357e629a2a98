"""Generated files: the same events for any number of tasks and after a kill; and what ingest reads of them."""

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
from hep_simulation import generator, production
from hep_simulation.generator import GenerationError, Tally, require_packages
from hep_simulation.production import (
    files_of,
    make_file,
    make_pool_part,
    pool_of,
)
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

_MISSING = [name for name in ("pythia8mc", "fastjet") if generator.find_spec(name) is None]
needs_generator = pytest.mark.skipif(
    bool(_MISSING), reason=f"{_MISSING} of the extra `simulate` are not installed"
)


def small(events: int = 6, **changes: Any) -> SimulateSettings:
    """Some W bosons with a little pile-up."""
    document = {
        "processes": [ProcessSettings(name="wjets", events=events)],
        "events_per_file": 3,
        "pile_up": PileUpSettings(mean=2, pool=20),
        "seed": 7,
    }
    return SimulateSettings(**{**document, **changes})


def make_all(settings: SimulateSettings, folder: Path) -> list[dict[str, Any]]:
    """All files in this process, the last one first."""
    planned_file: Any
    for planned_file in (*pool_of(settings), *files_of(settings)):
        (folder / planned_file.name).parent.mkdir(parents=True, exist_ok=True)
    for chunk in pool_of(settings):
        make_pool_part(chunk, settings, folder)
    return [make_file(file, settings, folder) for file in files_of(settings)[::-1]][::-1]


def essence(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records without the time that they took, and the size of a compressed file with a date in it."""
    return [{key: value for key, value in record.items() if key != "bytes"} for record in records]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """The files of `small`, made one after the other."""
    folder = tmp_path_factory.mktemp("made")
    return folder, make_all(small(), folder)


def test_a_missing_extra_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        generator, "find_spec", lambda name: None if name == "pythia8mc" else object()
    )
    with pytest.raises(ModuleNotFoundError, match="pythia8mc"):
        require_packages()


def test_a_process_without_settings_of_its_own_is_refused() -> None:
    with pytest.raises(ValueError, match="'higgs' is none of ttbar, wjets, qcd"):
        SimulateSettings(processes=[ProcessSettings(name="higgs")])


def test_a_process_with_the_name_of_the_pool_is_refused() -> None:
    """Its files lay among those of the pool, and a change of the pool's settings was not seen."""
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
    """These generate events."""

    def test_ingest_reads_the_files_as_they_are(
        self, made: tuple[Path, list[dict[str, Any]]]
    ) -> None:
        folder, records = made
        sample = SampleSettings(name="wjets", label=0, files=[str(folder / "wjets" / "*.root")])
        infos = inventory(expand([sample]), IngestSettings()).infos
        assert [(info.entries, info.uuid) for info in infos] == [
            (record["events"], record["uuid"]) for record in records
        ]
        assert [info.missing_optional for info in infos] == [(), ()]
        for info in infos:
            for raw in read_events(info, IngestSettings(), start=0, stop=info.entries):
                counts = select_events(raw, info, IngestSettings()).tally().counts
                assert counts["entries"] == 3
                assert counts["rejected_nonfinite"] == counts["events_with_wrapped_azimuths"] == 0

    def test_the_branches_have_the_types_of_delphes(
        self, made: tuple[Path, list[dict[str, Any]]]
    ) -> None:
        folder, _ = made
        bundled = Path(__file__).resolve().parents[2] / "samples" / "wjets_13TeV_PU20_0.root"
        with (
            uproot.open(folder / files_of(small())[0].name) as ours,
            uproot.open(bundled) as theirs,
        ):
            types = {
                name.split("/")[-1]: branch.typename for name, branch in theirs["Delphes"].items()
            }
            for name, branch in ours["Delphes"].items():
                if "." in name:
                    assert branch.typename == types[name], name

    def test_any_number_of_tasks_gives_the_same_events(
        self, made: tuple[Path, list[dict[str, Any]]], spark: SparkContext, tmp_path: Path
    ) -> None:
        from hep_simulation.spark_job import produce

        for tasks in (1, 2):
            folder = tmp_path / str(tasks)
            folder.mkdir()
            counters = {
                ("pile-up", 20): spark.accumulator(0),
                ("simulate", 6): spark.accumulator(0),
            }
            actual = produce(
                spark,
                small(),
                folder,
                counted=lambda *source, counters=counters: nullcontext(counters[source]),
                num_tasks=lambda index, most=tasks: min(index, most),
            )
            assert essence(actual) == essence(made[1])
            assert [counter.value for counter in counters.values()] == [20, 6]

    def test_more_events_keep_those_that_are_there(
        self, made: tuple[Path, list[dict[str, Any]]], spark: SparkContext, tmp_path: Path
    ) -> None:
        from hep_simulation.spark_job import produce

        produce(spark, small(3), tmp_path, counted=lambda *_: nullcontext(spark.accumulator(0)))
        first = tmp_path / files_of(small())[0].name
        time = first.stat().st_mtime_ns
        (tmp_path / "wjets" / ".half.root.123").write_bytes(b"half")
        assert essence(
            produce(spark, small(6), tmp_path, counted=lambda *_: nullcontext(spark.accumulator(0)))
        ) == essence(made[1])
        assert first.stat().st_mtime_ns == time
        assert sorted(path.suffix for path in (tmp_path / "wjets").iterdir()) == [
            ".json",
            ".json",
            ".root",
            ".root",
        ]
        fewer = produce(
            spark, small(3), tmp_path, counted=lambda *_: nullcontext(spark.accumulator(0))
        )
        assert essence(fewer) == essence(made[1][:1])
        assert len(list((tmp_path / "wjets").iterdir())) == 2

    def test_after_a_kill_the_rest_is_made_and_all_is_the_same(
        self, made: tuple[Path, list[dict[str, Any]]], tmp_path: Path
    ) -> None:
        program = (
            "import sys; from pathlib import Path; import test_production as test\n"
            "test.make_all(test.small(), Path(sys.argv[1]))"
        )
        current = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path)],
            env={**os.environ, "PYTHONPATH": current},
        )
        last = (tmp_path / files_of(small())[-1].name).with_suffix(".json")
        wait_until(last.exists, label="the first file has been made")
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        reference = [production.finished(tmp_path, file) for file in files_of(small())]
        assert reference[1] is not None
        for file, record in zip(files_of(small()), reference, strict=True):
            record = record or make_file(file, small(), tmp_path)  # noqa: PLW2901
            assert essence([record]) == essence([made[1][file.number]])

    def test_a_file_of_another_size_is_made_again(
        self, made: tuple[Path, list[dict[str, Any]]], tmp_path: Path
    ) -> None:
        folder, records = made
        file = files_of(small())[0]
        path = tmp_path / file.name
        path.parent.mkdir()
        path.write_bytes((folder / file.name).read_bytes()[:-1])
        path.with_suffix(".json").write_text(json.dumps(records[0]))
        assert production.finished(folder, file) == records[0]
        assert production.finished(tmp_path, file) is None

    def test_enriched_events_have_weights_and_a_lepton(self, tmp_path: Path) -> None:
        enrichment = HeavyFlavourSettings(hadronisations=4, decays=20)
        process = ProcessSettings(
            name="qcd", events=2, heavy_flavour=enrichment, pythia=["PhaseSpace:pTHatMin = 120"]
        )
        settings = small(processes=[process], pile_up=PileUpSettings(mean=0), events_per_file=2)
        (record,) = make_all(settings, tmp_path)
        with uproot.open(tmp_path / files_of(settings)[0].name) as file:
            weights = file["Delphes/Event.Weight"].array().to_numpy().ravel()
        assert ((weights > 0) & (weights <= 1)).all()
        np.testing.assert_allclose(weights * 80, np.round(weights * 80), atol=1e-4)
        assert record["passed_weight"] == pytest.approx(weights.sum(), abs=1e-6)

    def test_a_filter_that_nothing_passes_is_an_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(production, "_MAX_PER_EVENT", 10)
        document = {"lepton_filter": {"min_pt": 5000}, "pile_up": PileUpSettings(mean=0)}
        with pytest.raises(
            GenerationError, match=r"0 of .* generated events pass the lepton filter"
        ):
            make_all(small(**document), tmp_path)

    def test_a_setting_that_pythia_does_not_know_is_named(self, tmp_path: Path) -> None:
        process = ProcessSettings(name="ttbar", pythia=["Top:gg2tbar = on"])
        with pytest.raises(GenerationError, match="does not know the setting 'Top:gg2tbar = on'"):
            make_all(small(processes=[process], pile_up=PileUpSettings(mean=0)), tmp_path)


def test_a_file_of_an_earlier_generator_is_made_again(tmp_path: Path) -> None:
    """Its record lacked a number, and the sums over all files ended with a bare KeyError."""
    (file, *_) = files_of(small())
    path = tmp_path / file.name
    path.parent.mkdir()
    path.write_bytes(b"root")
    record = {"bytes": 4, "events": file.events, **Tally(9, 3.0, 3.0, 1.0, 0.1)._asdict()}
    path.with_suffix(".json").write_text(json.dumps(record))
    assert production.finished(tmp_path, file) == record
    del record["passed_weight_squared"]
    path.with_suffix(".json").write_text(json.dumps(record))
    assert production.finished(tmp_path, file) is None


@pytest.mark.parametrize("record", ["", "[]", "null", "{}", "[" * 100_000])
def test_a_file_with_a_damaged_record_is_made_again(tmp_path: Path, record: str) -> None:
    file = files_of(small())[0]
    path = tmp_path / file.name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    path.with_suffix(".json").write_text(record)
    assert production.finished(tmp_path, file) is None


def test_fewer_events_remove_finished_files_only_once_the_others_are_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from hep_simulation import spark_job

    def fails(*_: object) -> None:
        raise InputFileError("not now")

    monkeypatch.setattr(spark_job, "make_pool_part", lambda *_: None)
    monkeypatch.setattr(spark_job, "make_file", fails)
    reference = [tmp_path / "wjets" / name for name in ("wjets_00009.root", "wjets_00009.json")]
    reference[0].parent.mkdir()
    for path in reference:
        path.write_bytes(b"made")
    in_process_spark: Any = InProcessSpark()
    with pytest.raises(InputFileError, match="not now"):
        spark_job.produce(
            in_process_spark, small(3), tmp_path, counted=lambda *_: nullcontext(in_process_spark)
        )
    assert [path.exists() for path in reference] == [True, True]
