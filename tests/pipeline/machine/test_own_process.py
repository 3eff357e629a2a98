"""Work in a process of its own."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from hep_core.integrity import DamagedOutputError
from pipeline.errors import LackOfMemoryError, SparkJobError
from pipeline.machine.own_process import run_in_own_process


class TextlessError(Exception):
    """Like those of Spark whose JVM has ended: no text, and not to be sent to another process."""

    def __init__(self) -> None:
        super().__init__(threading.Lock())

    def __str__(self) -> str:
        raise ConnectionRefusedError


def test_work_is_done_in_another_process(tmp_path: Path) -> None:
    path = tmp_path / "process"

    def write_process() -> None:
        path.write_text(str(os.getpid()))

    run_in_own_process(write_process)

    assert int(path.read_text()) != os.getpid()


def test_an_error_keeps_type_content_and_cause() -> None:
    def fail() -> None:
        raise DamagedOutputError("part-0", "another digest", "features") from OSError(5, "disk")

    with pytest.raises(DamagedOutputError) as caught:
        run_in_own_process(fail)

    assert (caught.value.path, caught.value.stage) == ("part-0", "features")
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == 5
    # A traceback of this process would not show where it failed.
    assert "in fail" in caught.value.__notes__[0]


def test_a_cause_that_cannot_be_sent_does_not_hide_the_error() -> None:
    def fail() -> None:
        raise SparkJobError("a Spark job failed") from TextlessError()

    with pytest.raises(SparkJobError, match="a Spark job failed") as caught:
        run_in_own_process(fail)

    assert "TextlessError" in str(caught.value.__cause__)


def test_the_error_of_a_killed_process_names_the_limit_of_memory() -> None:
    with pytest.raises(LackOfMemoryError, match=r"ended by signal 9.* allows [\d,]+ MiB"):
        run_in_own_process(lambda: os.kill(os.getpid(), signal.SIGKILL))


def test_an_interrupt_interrupts_the_work(tmp_path: Path) -> None:
    def work() -> None:
        (tmp_path / "begun").touch()
        try:
            time.sleep(60)
        finally:
            (tmp_path / "cleaned up").touch()

    def interrupt_when_begun() -> None:
        while not (tmp_path / "begun").exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    interrupter = threading.Thread(target=interrupt_when_begun)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        run_in_own_process(work)
    interrupter.join()

    assert (tmp_path / "cleaned up").exists()
