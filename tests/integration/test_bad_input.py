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

SELECTED = event_row(electrons=[lepton(40.0, 0, 0)])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with files of two samples; that of QCD is missing."""
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("ttbar", "wjets"):
        write_delphes(folder / f"{name}.root", distinct([SELECTED]))
    return folder


def write_nothing(path: Path) -> None:
    assert not path.exists()


def write_truncated(path: Path) -> None:
    file_bytes = (SAMPLES / "qcd_13TeV_PU20_0.root").read_bytes()
    path.write_bytes(file_bytes[: len(file_bytes) // 2])


def write_without_branch(path: Path) -> None:
    write_delphes(path, [SELECTED], rename={"Electron.PT": "Electrons.PT"})


@pytest.mark.parametrize(
    ("write", "code", "message"),
    [
        (write_nothing, Exit.NOT_THERE_YET, "no file matches"),
        (write_truncated, Exit.USER_ERROR, "is truncated"),
        (write_without_branch, Exit.USER_ERROR, "Nearest: Electrons.PT"),
    ],
)
@pytest.mark.parametrize("command_name", ["ingest", "validate"])
def test_bad_files_get_a_clear_error_and_nothing_is_written(
    tmp_path: Path,
    data: Path,
    write: Callable[[Path], None],
    code: Exit,
    message: str,
    command_name: str,
) -> None:
    write(data / "qcd.root")

    result = invoke(command_name, "--config", small_config(tmp_path, data))

    assert result.exit_code == code
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert version_folders(tmp_path / "run") == []


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start of Spark fails the test."""
    monkeypatch.setattr(
        "pipeline.machine.spark_session.SparkProvider.context",
        lambda _: pytest.fail("Spark was started"),
    )


@pytest.mark.usefixtures("no_spark")
def test_a_sample_whose_files_all_wait_ends_the_run_before_spark_starts(
    tmp_path: Path, data: Path
) -> None:
    for path in data.iterdir():
        os.utime(path, (10**9, 10**9))
    write_truncated(data / "qcd.root")
    arguments = ("--config", small_config(tmp_path, data), "--set", "ingest.settle_seconds=600")

    ingested = invoke("ingest", *arguments)
    validated = invoke("validate", *arguments)

    reason = "it may still be being written"
    waiting_file = f"left for another run: {data / 'qcd.root'}: {reason}"
    waiting_sample = (
        "sample 'qcd': nothing to do yet (files left for another run: 1, skipped as bad: 0). "
        f"The first: {reason}"
    )
    assert ingested.exit_code == validated.exit_code == Exit.NOT_THERE_YET
    assert waiting_file in ingested.stderr
    assert waiting_sample in ingested.stderr
    assert waiting_file in validated.stdout
    assert waiting_sample in validated.stderr
    assert version_folders(tmp_path / "run") == []


@pytest.mark.usefixtures("no_spark")
def test_validate_says_which_bad_files_would_be_skipped(tmp_path: Path, data: Path) -> None:
    write_delphes(data / "qcd.root", distinct([SELECTED]))
    write_truncated(data / "qcd-2.root")
    config = small_config(tmp_path, data, ingest={"on_bad_file": "skip"})

    result = invoke("validate", "--config", config)
    (data / "qcd.root").unlink()
    without_good_file = invoke("validate", "--config", config)

    assert result.exit_code == Exit.OK, result.stderr
    assert f"would be skipped: {data / 'qcd-2.root'}" in result.stdout
    assert "qcd: 1 files, 1 entries, class QCD" in result.stdout
    assert without_good_file.exit_code == Exit.USER_ERROR
    assert "sample 'qcd': its files hold no entries" in without_good_file.stderr


def test_a_sample_without_survivors_shows_its_cutflow_and_leaves_nothing(
    provider: SparkProvider, tmp_path: Path, data: Path
) -> None:
    write_delphes(data / "qcd.root", distinct([SELECTED]))
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
    def fail(*_: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("pipeline.command_line.load_config", fail)
    config = small_config(tmp_path, SAMPLES)

    result = invoke("validate", "--config", config)
    debugged = invoke("validate", "--debug", "--config", config)

    assert result.exit_code == debugged.exit_code == Exit.BUG
    assert "bug of the pipeline" in result.stderr
    assert "Traceback" in debugged.stderr
    assert "ZeroDivisionError: oops" in debugged.stderr
