"""Messages of errors, also on terminals with few characters, and files without colours."""

from __future__ import annotations

import errno
import io
import logging
import signal
import sys
from collections.abc import Iterator
from typing import NoReturn

import pytest
import typer

from pipeline.errors import ConfigError, FolderInUseError, NoOutputYetError, RunFolderError
from pipeline.terminal.exit_codes import Exit, err, guard, out, with_exit_code


@pytest.fixture(autouse=True)
def what_a_command_sets_for_its_process() -> Iterator[None]:
    """Is put back."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("name", ["Ünïcode ± 運", "\udcff"])
def test_an_ascii_terminal_shows_other_letters_escaped(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    streams = {each: io.TextIOWrapper(io.BytesIO(), encoding="ascii") for each in ("stdout", "stderr")}
    for each, stream in streams.items():
        monkeypatch.setattr(sys, each, stream)

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
    shown = {each: stream.buffer.getvalue().decode("ascii") for each, stream in streams.items()}  # type: ignore[attr-defined]
    escaped = name.encode("ascii", "backslashreplace").decode()
    assert shown == {"stdout": f"report: {escaped}\n", "stderr": f"note: {escaped}\nerror: {escaped} is damaged\n"}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(errno.ENAMETOOLONG, "File name too long", "x" * 300), Exit.USER_ERROR),
        (PermissionError(errno.EACCES, "Permission denied", "locked"), Exit.USER_ERROR),
        (RunFolderError("it is damaged"), Exit.USER_ERROR),
        (ConfigError("unknown key"), Exit.USAGE),
        (FolderInUseError("held"), Exit.IN_USE),
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


@pytest.mark.parametrize(
    ("module", "extra"),
    [("mlflow.entities", "mlflow"), ("hls4ml", "hls"), ("da4ml.trace", "hls"), ("pythia8mc", "simulate")],
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
