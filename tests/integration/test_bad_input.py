"""What the command line says about bad files, bad config and bugs, and that it writes nothing
then."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import SAMPLES, invoke, small_config, version_folders
from delphes_files import write_delphes
from event_rows import distinct, event_row, lepton
from lent_spark import command

from pipeline.machine.spark_session import SparkProvider
from pipeline.terminal.exit_codes import Exit

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(900)]

GOOD = event_row(electrons=[lepton(40.0, 0, 0)])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with files of two samples."""
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("ttbar", "wjets"):
        write_delphes(folder / f"{name}.root", distinct([GOOD]))
    return folder


def nothing(path: Path) -> None:
    assert not path.exists()


def truncated(path: Path) -> None:
    file_bytes = (SAMPLES / "qcd_13TeV_PU20_0.root").read_bytes()
    path.write_bytes(file_bytes[: len(file_bytes) // 2])


def without_branch(path: Path) -> None:
    write_delphes(path, [GOOD], rename={"Electron.PT": "Electrons.PT"})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (nothing, "no file matches"),
        (truncated, "is truncated"),
        (without_branch, "Nearest: Electrons.PT"),
    ],
)
@pytest.mark.parametrize("stage_or_check", ["ingest", "validate"])
def test_bad_files_get_a_clear_error_and_nothing_is_written(
    tmp_path: Path, data: Path, make: Callable[[Path], None], message: str, stage_or_check: str
) -> None:
    make(data / "qcd.root")
    result = invoke(stage_or_check, "--config", small_config(tmp_path, data))
    assert result.exit_code == (Exit.NOT_THERE_YET if make is nothing else Exit.USER_ERROR)
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert version_folders(tmp_path / "run") == []


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting it is a bug."""
    monkeypatch.setattr(
        "pipeline.machine.spark_session.SparkProvider.context",
        lambda _: pytest.fail("Spark was started"),
    )


@pytest.mark.usefixtures("no_spark")
def test_a_sample_that_waits_as_a_whole_ends_the_night_before_spark_starts(
    tmp_path: Path, data: Path
) -> None:
    for path in data.iterdir():
        os.utime(path, (10**9, 10**9))
    truncated(data / "qcd.root")
    overrides, message = ("--set", "ingest.settle_seconds=600"), "it may still be being written"
    result = invoke("ingest", "--config", small_config(tmp_path, data), *overrides)
    assert result.exit_code == Exit.NOT_THERE_YET
    waits = "sample 'qcd': nothing to do yet (files left for another run: 1, skipped as bad: 0). The first: "
    assert f"left for another run: {data / 'qcd.root'}: {message}" in result.stderr
    assert waits + message in result.stderr
    assert version_folders(tmp_path / "run") == []
    validated = invoke("validate", "--config", small_config(tmp_path, data), *overrides)
    assert validated.exit_code == Exit.NOT_THERE_YET
    assert f"left for another run: {data / 'qcd.root'}: {message}" in validated.stdout
    assert waits + message in validated.stderr


@pytest.mark.usefixtures("no_spark")
def test_validate_says_which_bad_files_would_be_skipped(tmp_path: Path, data: Path) -> None:
    write_delphes(data / "qcd.root", distinct([GOOD]))
    truncated(data / "qcd-2.root")
    config = small_config(tmp_path, data, ingest={"on_bad_file": "skip"})
    result = invoke("validate", "--config", config)
    assert result.exit_code == Exit.OK, result.stderr
    assert f"would be skipped: {data / 'qcd-2.root'}" in result.stdout
    assert "qcd: 1 files, 1 entries, class QCD" in result.stdout
    # Nothing of the sample is left: ingest would fail.
    (data / "qcd.root").unlink()
    leftovers = invoke("validate", "--config", config)
    assert leftovers.exit_code == Exit.USER_ERROR
    assert "sample 'qcd': its files hold no entries" in leftovers.stderr


def test_a_sample_without_survivors_shows_its_cutflow_and_leaves_nothing(
    provider: SparkProvider, tmp_path: Path, data: Path
) -> None:
    write_delphes(data / "qcd.root", distinct([GOOD]))
    write_delphes(data / "wjets.root", distinct([event_row()] * 4))
    result = command(provider, "run", "--config", small_config(tmp_path, data))
    assert result.exit_code == Exit.USER_ERROR
    assert "sample 'wjets': none of its events passes" in result.stderr
    assert "rejected_no_lepton" in result.stderr
    assert "Traceback" not in result.stderr
    assert version_folders(tmp_path / "run") == []


def test_an_unwritable_run_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file is in the way")
    result = invoke("run", "--config", small_config(tmp_path, SAMPLES))
    assert result.exit_code == Exit.USER_ERROR
    assert "cannot be written" in result.stderr


def test_a_bug_is_called_a_bug_and_debug_shows_the_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("pipeline.command_line.load_config", broken)
    result = invoke("validate", "--config", small_config(tmp_path, SAMPLES))
    assert result.exit_code == Exit.BUG
    assert "bug of the pipeline" in result.stderr
    debugged = invoke("validate", "--debug", "--config", small_config(tmp_path, SAMPLES))
    assert debugged.exit_code == Exit.BUG
    assert "Traceback" in debugged.stderr
    assert "ZeroDivisionError: oops" in debugged.stderr
