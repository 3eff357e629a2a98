"""Messages of errors, also on terminals with few characters, and files without colours."""

from __future__ import annotations

import errno
import io
import logging
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from multiprocessing import get_context
from typing import NoReturn

import pyarrow as pa
import pytest
import torch
import typer

from hep_core.allocation import memory_limit
from pipeline.errors import (
    ConfigError,
    FolderInUseError,
    NoOutputYetError,
    RunFolderError,
    UnreachableSparkError,
)
from pipeline.terminal import exit_codes
from pipeline.terminal.exit_codes import Exit, err, guard, out, with_exit_code


@pytest.fixture(autouse=True)
def restore_process_state() -> Iterator[None]:
    """Puts back what a command sets for its process."""
    handlers = {
        signal_number: signal.getsignal(signal_number)
        for signal_number in (signal.SIGINT, signal.SIGTERM)
    }
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)
    for signal_number, handler in handlers.items():
        signal.signal(signal_number, handler)


def exit_code_after(error: Exception) -> object:
    """Exit code of a command that raises an error."""

    def work() -> NoReturn:
        raise error

    with pytest.raises(typer.Exit) as exit_info:
        guard(work, debug=False)
    return exit_info.value.exit_code


@pytest.mark.parametrize("name", ["Ünïcode ± 運", "\udcff"])
def test_an_ascii_terminal_shows_other_letters_escaped(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    stdout_bytes, stderr_bytes = io.BytesIO(), io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(stdout_bytes, encoding="ascii"))
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(stderr_bytes, encoding="ascii"))

    def command_line() -> None:
        out.print(f"report: {name}")
        err.print(f"note: {name}")
        sys.stdout.flush()
        sys.stderr.flush()

    with_exit_code(command_line)

    escaped = name.encode("ascii", "backslashreplace").decode()
    assert stdout_bytes.getvalue().decode() == f"report: {escaped}\n"
    assert stderr_bytes.getvalue().decode() == f"note: {escaped}\n"


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (OSError(errno.ENAMETOOLONG, "File name too long", "x" * 300), Exit.USER_ERROR),
        (PermissionError(errno.EACCES, "Permission denied", "locked"), Exit.USER_ERROR),
        (RunFolderError("it is damaged"), Exit.USER_ERROR),
        (ConfigError("unknown key"), Exit.USAGE),
        (FolderInUseError("held"), Exit.MAY_PASS),
        (UnreachableSparkError("no master"), Exit.MAY_PASS),
        (NoOutputYetError("later"), Exit.NOT_THERE_YET),
        (ValueError("a bug"), Exit.BUG),
    ],
)
def test_each_kind_of_error_has_its_exit_code(
    capsys: pytest.CaptureFixture[str], error: Exception, exit_code: Exit
) -> None:
    assert exit_code_after(error) == exit_code
    assert str(error) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "file"), "Check this name"),
        (OSError(errno.ENOSPC, "No space left on device"), "`python -m pipeline clean` removes"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "`python -m pipeline clean` removes"),
        (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), "--debug"),
    ],
)
def test_an_error_of_the_system_has_advice_that_fits(
    capsys: pytest.CaptureFixture[str], error: Exception, advice: str
) -> None:
    assert exit_code_after(error) == Exit.USER_ERROR
    message = capsys.readouterr().err
    assert advice in message
    assert ("this name" in message) == ("'file'" in message)


def caused_by(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        MemoryError("Unable to allocate 3.05 GiB for an array with shape (20000, 20000)"),
        pa.ArrowMemoryError("malloc of size 64 failed"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
        RuntimeError("std::bad_alloc"),
        RuntimeError("can't start new thread"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: 40 "
            "bytes"
        ),
        RuntimeError("java.lang.OutOfMemoryError: Java heap space"),
        caused_by(ValueError("a reader failed"), MemoryError()),
    ],
    ids=repr,
)
def test_a_lack_of_memory_names_the_limit_and_is_no_bug(
    capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    assert exit_code_after(error) == Exit.USER_ERROR
    message = capsys.readouterr().err
    assert message.startswith("error: there is no memory for this command (")
    assert f"): {memory_limit()}. Allow this command more memory" in message


@pytest.mark.parametrize(
    "message", ["CUDA out of memory. Tried to allocate 2.00 GiB", "HIP out of memory"]
)
def test_a_lack_of_memory_of_a_gpu_does_not_name_the_host(
    capsys: pytest.CaptureFixture[str], message: str
) -> None:
    assert exit_code_after(torch.OutOfMemoryError(message)) == Exit.USER_ERROR
    output = capsys.readouterr().err
    assert "it is that of the GPU. Lower train.batch_size" in output
    assert str(memory_limit()) not in output


def test_a_killed_helper_process_is_no_bug(capsys: pytest.CaptureFixture[str]) -> None:
    with (
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool,
        pytest.raises(BrokenExecutor) as broken,
    ):
        pool.submit(signal.raise_signal, signal.SIGKILL).result()
    assert exit_code_after(broken.value) == Exit.USER_ERROR
    assert "a process that this command started was killed" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error", [ValueError("the JVM has ended"), RunFolderError("it is damaged")]
)
def test_a_kill_for_memory_during_the_command_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    counts = iter([4, 6])
    monkeypatch.setattr(exit_codes, "killed_for_memory", lambda: next(counts))
    assert exit_code_after(error) == Exit.USER_ERROR
    message = capsys.readouterr().err
    assert "kernel has killed 2 process(es)" in message
    assert str(memory_limit()) in message
    assert ("it is damaged" in message) == isinstance(error, RunFolderError)


@pytest.mark.parametrize(
    ("module", "extra"),
    [
        ("mlflow.entities", "mlflow"),
        ("hls4ml", "hls"),
        ("da4ml.trace", "hls"),
        ("pythia8mc", "simulate"),
    ],
)
def test_a_missing_package_names_the_extra_that_installs_it(
    capsys: pytest.CaptureFixture[str], module: str, extra: str
) -> None:
    error = ModuleNotFoundError(f"No module named '{module}'", name=module)

    assert exit_code_after(error) == Exit.USER_ERROR
    assert f"Install it: pip install 'hep-pipeline[{extra}]'" in capsys.readouterr().err
