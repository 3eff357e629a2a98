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
SIMULATE: dict[str, Any] = {
    "processes": [{"name": "wjets", "events": 4}, {"name": "ttbar", "events": 4}],
    "events_per_file": 2,
    "pile_up": {"mean": 1, "pool": 10},
}


def write_config(folder: Path, **changes: Any) -> Path:
    """A config of two simulated samples of a few events."""
    document = {
        "run_dir": str(folder / "run"),
        "classes": ["W+jets", "ttbar"],
        "samples": [
            {"name": "wjets", "label": 0, "files": ["simulate://wjets"]},
            {"name": "top", "label": 1, "files": ["simulate://ttbar"]},
        ],
        "simulate": SIMULATE,
    }
    path = folder / "config.yaml"
    path.write_text(write_yaml({**document, **changes}))
    return path


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["simulate://wjet"], r"simulate.processes has no 'wjet'.*wjets"),
        (
            ["simulate://wjets", "simulate://ttbar"],
            r"'a' reads simulate://wjets and files of another luminosity",
        ),
        (
            ["simulate://wjets", "more.root"],
            r"'a' reads simulate://wjets and files of another luminosity",
        ),
    ],
)
def test_samples_of_unknown_processes_or_of_different_luminosities_are_refused(
    tmp_path: Path, files: list[str], message: str
) -> None:
    samples = [
        {"name": "a", "label": 0, "files": files},
        {"name": "b", "label": 1, "files": ["b.root"]},
    ]
    path = write_config(tmp_path, samples=samples)

    with pytest.raises(ConfigError, match=message):
        load_config(str(path))


def test_before_simulate_has_run_the_samples_stay_names(tmp_path: Path) -> None:
    config = load_config(str(write_config(tmp_path)))

    assert with_simulated_samples(config) is config


def test_validate_says_what_simulate_will_make(tmp_path: Path) -> None:
    config = load_config(str(write_config(tmp_path)))

    lines = list(validate(config, Console(quiet=True)))

    assert lines[:2] == [
        "wjets: made by simulate, class W+jets",
        "top: made by simulate, class ttbar",
    ]


def test_paths_of_generator_settings_start_at_the_folder_of_the_config(tmp_path: Path) -> None:
    (tmp_path / "my.cmnd").write_text("Top:gg2ttbar = on\n")
    processes = [{"name": "wjets"}, {"name": "ttbar", "file": "my.cmnd"}]

    config = load_config(str(write_config(tmp_path, simulate={"processes": processes})))

    assert config.simulate.process("ttbar").lines() == ["Top:gg2ttbar = on"]


def test_other_events_in_an_input_file_of_the_same_name_are_simulated(tmp_path: Path) -> None:
    events = tmp_path / "hard.lhe"
    pythia = ["Beams:frameType = 4", f"Beams:LHEF = {events}"]
    processes = [{"name": "wjets", "pythia": pythia}, {"name": "ttbar"}]
    path = write_config(tmp_path, simulate={"processes": processes})

    def parts() -> dict[str, Part]:
        return Simulate().parts(load_config(str(path)))

    events.write_text("some events")
    first_parts = parts()
    repeated_parts = parts()
    events.write_text("other events")
    changed_parts = parts()
    events.unlink()
    parts_without_file = parts()

    assert repeated_parts == first_parts
    assert changed_parts["wjets"] != first_parts["wjets"]
    assert changed_parts["ttbar"] == first_parts["ttbar"]
    assert parts_without_file != changed_parts


def simulated_files(folder: Path, process: str) -> dict[str, int]:
    """Name and inode of each file of a process."""
    files = (version_of(folder / "run", "simulate") / process).glob("*.root")
    return {path.name: path.stat().st_ino for path in files}


@needs_generator
@pytest.mark.minutes
@pytest.mark.spark
def test_files_and_cross_sections_reach_the_samples(
    provider: SparkProvider, tmp_path: Path
) -> None:
    path = write_config(tmp_path)

    def run(*arguments: str) -> str:
        result = command(provider, *arguments, "--config", path)
        assert result.exit_code == 0, result.output
        return str(result.output)

    too_early = command(provider, "ingest", "--config", path)
    assert too_early.exit_code != 0
    assert "ingest needs the output of simulate" in too_early.output
    assert "8 events in 4 files" in run("simulate")
    assert "simulate: up to date" in run("simulate")

    counters = in_use(tmp_path / "run", "simulate").manifest.counters["processes"]
    samples = with_simulated_samples(load_config(str(path))).samples
    for sample, process in zip(samples, ("wjets", "ttbar"), strict=True):
        generated = counters[process]
        cross_section = generated["cross_section_before_filter_pb"] * generated["filter_efficiency"]
        assert sample.cross_section_pb == pytest.approx(cross_section)
        assert sample.cross_section_error_pb == generated["cross_section_error_pb"] > 0
    assert "4 files, 8 entries" in run("ingest")

    # The same events again, in new files.
    run("simulate", "--force")
    plans = {plan["stage"]: plan for plan in json.loads(run("plan", "--json"))}
    assert not plans["simulate"]["would_run"]
    ingest_reasons = " ".join(plans["ingest"]["reasons"])
    assert "code" not in ingest_reasons
    assert "output" not in ingest_reasons

    # Another setting of one process leaves the files of the other.
    files_of_ttbar = simulated_files(tmp_path, "ttbar")
    processes = [{"name": "wjets", "events": 6}, {"name": "ttbar", "events": 4}]
    write_config(tmp_path, simulate=SIMULATE | {"processes": processes})
    assert "10 events in 5 files" in run("simulate")
    assert simulated_files(tmp_path, "ttbar") == files_of_ttbar
    assert "5 files, 10 entries" in run("ingest")
