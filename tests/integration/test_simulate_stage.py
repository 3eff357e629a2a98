"""The stage `simulate`: its files and cross-sections reach the samples, and it runs only for what
changed."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from command_line import in_use, version_of
from lent_spark import command
from rich.console import Console

from hep_simulation.simulate_stage import Simulate
from pipeline.commands.validate import validate
from pipeline.config import load_config
from pipeline.configuration.yaml_text import write_yaml
from pipeline.errors import ConfigError
from pipeline.machine.spark_session import SparkProvider
from pipeline.simulated_samples import with_simulated_samples
from pipeline.stages.base import Part

_MISSING = [name for name in ("pythia8mc", "fastjet") if find_spec(name) is None]
needs_generator = pytest.mark.skipif(
    bool(_MISSING), reason=f"{_MISSING} of the extra `simulate` are not installed"
)


def config_of(folder: Path, **changes: Any) -> Path:
    """Two simulated samples of a few events."""
    document = {
        "run_dir": str(folder / "run"),
        "classes": ["W+jets", "ttbar"],
        "samples": [
            {"name": "wjets", "label": 0, "files": ["simulate://wjets"]},
            {"name": "top", "label": 1, "files": ["simulate://ttbar"]},
        ],
        "simulate": {
            "processes": [{"name": "wjets", "events": 4}, {"name": "ttbar", "events": 4}],
            "events_per_file": 2,
            "pile_up": {"mean": 1, "pool": 10},
        },
    }
    path = folder / "config.yaml"
    path.write_text(write_yaml({**document, **changes}))
    return path


def test_a_sample_of_an_unknown_process_is_refused(tmp_path: Path) -> None:
    samples = [
        {"name": "a", "label": 0, "files": ["simulate://wjet"]},
        {"name": "b", "label": 1, "files": ["b.root"]},
    ]
    with pytest.raises(ConfigError, match=r"simulate.processes has no 'wjet'.*wjets"):
        load_config(str(config_of(tmp_path, samples=samples)))


@pytest.mark.parametrize("second", ["simulate://ttbar", "more.root"])
def test_a_sample_of_different_luminosities_is_refused(tmp_path: Path, second: str) -> None:
    samples = [
        {"name": "a", "label": 0, "files": ["simulate://wjets", second]},
        {"name": "b", "label": 1, "files": ["b.root"]},
    ]
    with pytest.raises(
        ConfigError, match=r"'a' reads simulate://wjets and files of another luminosity"
    ):
        load_config(str(config_of(tmp_path, samples=samples)))


def test_before_simulate_has_run_the_samples_stay_names(tmp_path: Path) -> None:
    config = load_config(str(config_of(tmp_path)))
    assert with_simulated_samples(config) is config


def test_validate_says_what_simulate_will_make(tmp_path: Path) -> None:
    lines = list(validate(load_config(str(config_of(tmp_path))), Console(quiet=True)))
    assert lines[:2] == [
        "wjets: made by simulate, class W+jets",
        "top: made by simulate, class ttbar",
    ]


def test_files_with_settings_start_at_the_folder_of_the_config(tmp_path: Path) -> None:
    (tmp_path / "my.cmnd").write_text("Top:gg2ttbar = on\n")
    processes = [{"name": "wjets"}, {"name": "ttbar", "file": "my.cmnd"}]
    config = load_config(str(config_of(tmp_path, simulate={"processes": processes})))
    assert config.simulate.process("ttbar").lines() == ["Top:gg2ttbar = on"]


def test_other_events_in_a_file_of_the_same_name_are_simulated(tmp_path: Path) -> None:
    (tmp_path / "hard.lhe").write_text("some events")
    lines = ["Beams:frameType = 4", f"Beams:LHEF = {tmp_path / 'hard.lhe'}"]
    document = {"processes": [{"name": "wjets", "pythia": lines}, {"name": "ttbar"}]}
    path = config_of(tmp_path, simulate=document)

    def parts() -> dict[str, Part]:
        return Simulate().parts(load_config(str(path)))

    parts_before = parts()
    assert parts() == parts_before
    (tmp_path / "hard.lhe").write_text("other events")
    now = parts()
    assert [name for name in now if now[name] != parts_before[name]] == ["wjets"]
    (tmp_path / "hard.lhe").unlink()
    assert parts() != now


@needs_generator
@pytest.mark.minutes
@pytest.mark.spark
def test_files_and_cross_sections_reach_the_samples(
    provider: SparkProvider, tmp_path: Path
) -> None:
    path = config_of(tmp_path)

    def run(*message: str) -> str:
        result = command(provider, *message, "--config", path)
        assert result.exit_code == 0, result.output
        return str(result.output)

    refused = command(provider, "ingest", "--config", path)
    assert refused.exit_code != 0
    assert "ingest needs the output of simulate" in refused.output
    assert "8 events in 4 files" in run("simulate")
    assert "simulate: up to date" in run("simulate")
    config = with_simulated_samples(load_config(str(path)))
    created = in_use(tmp_path / "run", "simulate").manifest.counters["processes"]
    assert [sample.cross_section_pb for sample in config.samples] == [
        pytest.approx(
            created[name]["cross_section_before_filter_pb"] * created[name]["filter_efficiency"]
        )
        for name in ("wjets", "ttbar")
    ]
    errors = [sample.cross_section_error_pb for sample in config.samples]
    assert errors == [created[name]["cross_section_error_pb"] for name in ("wjets", "ttbar")]
    assert min(errors) > 0
    assert "4 files, 8 entries" in run("ingest")
    run("simulate", "--force")
    # The same events again, in new files.
    plans = {load["stage"]: load for load in json.loads(run("plan", "--json"))}
    assert not plans["simulate"]["would_run"]
    assert [
        reason for reason in plans["ingest"]["reasons"] if "code" in reason or "output" in reason
    ] == []
    # Another setting of one process leaves the files of the other.
    retained = {file.name: file.stat().st_ino for file in _files(tmp_path, "ttbar")}
    more = [{"name": "wjets", "events": 6}, {"name": "ttbar", "events": 4}]
    document = load_config(str(path)).model_dump(mode="json", include={"simulate"})["simulate"]
    config_of(tmp_path, simulate={**document, "processes": more})
    assert "10 events in 5 files" in run("simulate")
    assert {file.name: file.stat().st_ino for file in _files(tmp_path, "ttbar")} == retained
    assert "5 files, 10 entries" in run("ingest")


def _files(folder: Path, process: str) -> list[Path]:
    return sorted((version_of(folder / "run", "simulate") / process).glob("*.root"))
