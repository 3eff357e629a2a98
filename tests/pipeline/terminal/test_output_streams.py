"""Output that cannot be written fails no work."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import typer
from command_line import SAMPLES, small_config

from pipeline.config import load_config
from pipeline.errors import MachineError
from pipeline.run_folder import RunFolder
from pipeline.terminal.exit_codes import Exit, err, out, outcomes
from pipeline.terminal.output_streams import drop_lost_output, num_lost_writes


@contextmanager
def output_on_full_disk() -> Iterator[None]:
    """Let the output of this process go to a full disk."""
    streams = (sys.stdout, sys.stderr)
    with Path("/dev/full").open("w") as stdout, Path("/dev/full").open("w") as stderr:
        sys.stdout, sys.stderr = stdout, stderr
        try:
            drop_lost_output()
            yield
        finally:
            sys.stdout, sys.stderr = streams


def test_messages_on_a_full_disk_are_counted_and_no_error() -> None:
    with output_on_full_disk():
        err.print("progress")
        outcomes.print("a network was promoted")

        assert num_lost_writes() == 2


def test_a_result_on_a_full_disk_is_an_error() -> None:
    with (
        output_on_full_disk(),
        pytest.raises(MachineError, match=r"standard output .* No space left on device"),
    ):
        out.print("the value of a key")


def test_the_log_of_a_run_says_that_messages_are_lost(tmp_path: Path) -> None:
    run_folder = RunFolder(load_config(str(small_config(tmp_path, SAMPLES))), err)

    with output_on_full_disk(), run_folder.locked():
        run_folder.log.event("run started")
        run_folder.say("progress")

    assert '"event": "messages lost", "num_writes": 1}' in run_folder.log.path.read_text()


def test_a_result_that_nobody_reads_any_more_ends_without_a_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with open(write_end, "w") as stdout:  # noqa: PTH123 - a descriptor has no path
        monkeypatch.setattr(sys, "stdout", stdout)
        drop_lost_output()

        with pytest.raises(typer.Exit) as exit_info:
            out.print("the value of a key")

        monkeypatch.undo()

    assert exit_info.value.exit_code == Exit.USER_ERROR


@pytest.mark.parametrize(
    ("arguments", "exit_code"),
    [(["config", "--json"], 1), (["status", "--json"], 1), (["clean"], 0)],
)
def test_only_commands_whose_result_is_text_fail_with_their_output(
    tmp_path: Path, arguments: list[str], exit_code: int
) -> None:
    config = small_config(tmp_path, SAMPLES)
    command = [sys.executable, "-m", "pipeline", *arguments, "--config", str(config)]

    with Path("/dev/full").open("w") as full_disk:
        completed = subprocess.run(command, stdout=full_disk, stderr=full_disk, check=False)

    assert completed.returncode == exit_code
