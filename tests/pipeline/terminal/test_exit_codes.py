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
def what_a_command_sets_for_its_process() -> Iterator[None]:
    """Is put back."""
    handlers = {index: signal.getsignal(index) for index in (signal.SIGINT, signal.SIGTERM)}
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)
    for index, handler in handlers.items():
        signal.signal(index, handler)


@pytest.mark.parametrize("name", ["Ünïcode ± 運", "\udcff"])
def test_an_ascii_terminal_shows_other_letters_escaped(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    streams = {
        stream_name: io.TextIOWrapper(io.BytesIO(), encoding="ascii")
        for stream_name in ("stdout", "stderr")
    }
    for stream_name, stream in streams.items():
        monkeypatch.setattr(sys, stream_name, stream)

    def work() -> NoReturn:
        out.print(f"report: {name}")
        err.print(f"note: {name}")
        raise RunFolderError(f"{name} is damaged")

    def command_line() -> None:
        try:
            guard(work, debug=False)
        except typer.Exit as end:
            sys.exit(end.exit_code)

    with pytest.raises(SystemExit) as ended:
        with_exit_code(command_line)
    assert ended.value.code == Exit.USER_ERROR
    displayed = {
        stream_name: stream.buffer.getvalue().decode("ascii")
        for stream_name, stream in streams.items()
    }  # type: ignore[attr-defined]
    escaped = name.encode("ascii", "backslashreplace").decode()
    assert displayed == {
        "stdout": f"report: {escaped}\n",
        "stderr": f"note: {escaped}\nerror: {escaped} is damaged\n",
    }


@pytest.mark.parametrize(
    ("error", "code"),
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
def test_names_and_permissions_are_no_bugs_of_ours(
    capsys: pytest.CaptureFixture[str], error: Exception, code: Exit
) -> None:
    def work() -> NoReturn:
        raise error

    with pytest.raises(typer.Exit) as ended:
        guard(work, debug=False)
    assert ended.value.exit_code == code
    assert str(error) in capsys.readouterr().err


def caused_by(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def ended_by(error: Exception) -> object:
    """Exit code of a command that raises an error."""

    def work() -> NoReturn:
        raise error

    with pytest.raises(typer.Exit) as ended:
        guard(work, debug=False)
    return ended.value.exit_code


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
            "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: 40 bytes"
        ),
        RuntimeError("java.lang.OutOfMemoryError: Java heap space"),
        caused_by(ValueError("a reader failed"), MemoryError()),
    ],
    ids=repr,
)
def test_a_lack_of_memory_names_the_limit_and_is_no_bug(
    capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    assert ended_by(error) == Exit.USER_ERROR
    message = capsys.readouterr().err
    assert message.startswith("error: there is no memory for this command (")
    assert f"): {memory_limit()}. Allow this command more memory" in message


@pytest.mark.parametrize(
    "message", ["CUDA out of memory. Tried to allocate 2.00 GiB", "HIP out of memory"]
)
def test_a_lack_of_memory_of_a_gpu_is_not_called_one_of_the_host(
    capsys: pytest.CaptureFixture[str], message: str
) -> None:
    assert ended_by(torch.OutOfMemoryError(message)) == Exit.USER_ERROR
    output = capsys.readouterr().err
    assert "it is that of the GPU. Lower train.batch_size" in output
    assert str(memory_limit()) not in output


def test_a_killed_helper_process_is_no_bug(capsys: pytest.CaptureFixture[str]) -> None:
    with (
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool,
        pytest.raises(BrokenExecutor) as broken,
    ):
        pool.submit(signal.raise_signal, signal.SIGKILL).result()
    assert ended_by(broken.value) == Exit.USER_ERROR
    assert "a process that this command started was killed" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error", [ValueError("the JVM has ended"), RunFolderError("it is damaged")]
)
def test_a_kill_for_memory_during_the_command_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    counts = iter([4, 6])
    monkeypatch.setattr(exit_codes, "killed_for_memory", lambda: next(counts))
    assert ended_by(error) == Exit.USER_ERROR
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
    def work() -> NoReturn:
        raise ModuleNotFoundError(f"No module named '{module}'", name=module)

    with pytest.raises(typer.Exit) as ended:
        guard(work, debug=False)
    assert ended.value.exit_code == Exit.USER_ERROR
    assert f"Install it: pip install 'hep-pipeline[{extra}]'" in capsys.readouterr().err
