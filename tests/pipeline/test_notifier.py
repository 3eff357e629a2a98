"""How a command says that it ended: on the last line, and to the command of `notify`."""

from __future__ import annotations

import datetime as dt
import io
import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from command_line import SAMPLES, pipeline, small_config
from rich.console import Console

from ingestion.errors import FilesToComeError
from pipeline.config import load_config
from pipeline.errors import FolderInUseError, MachineError, NoOutputYetError
from pipeline.notifier import Notifier
from pipeline.run_folder import RunFolder
from pipeline.runs.log import RunLog
from pipeline.runs.outcome import CommandResults
from pipeline.terminal.exit_codes import stop_requested

#: Writes its input to the file that is its argument; a second argument makes it fail.
WRITER = (
    "import sys; open(sys.argv[1], 'w').write(sys.stdin.read()); "
    "sys.exit('no network' if sys.argv[2:] else 0)"
)


def printing_run_folder(
    folder: Path, *, notify: list[str] | None = None
) -> tuple[RunFolder, io.StringIO]:
    """A run folder and what it prints; `notify` is the command to notify."""
    printed = io.StringIO()
    options = [f"notify={json.dumps(notify)}"] if notify else []
    config = load_config(str(small_config(folder, SAMPLES)), options)
    return RunFolder(config, Console(file=printed, width=200)), printed


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, "done"),
        (NoOutputYetError("no events"), "waits for its input"),
        (FilesToComeError("no files"), "waits for its input"),
        (MachineError("no Java"), "failed (MachineError)"),
        (KeyboardInterrupt(), "interrupted"),
    ],
)
def test_a_night_that_waits_is_no_failure(
    tmp_path: Path, error: BaseException | None, outcome: str
) -> None:
    """`make` has one exit code for all; the last line of the log tells them apart."""
    run_folder, printed = printing_run_folder(tmp_path)

    with suppress(Exception, KeyboardInterrupt), run_folder.locked():
        if error is not None:
            raise error

    time, line = printed.getvalue().splitlines()[-1].split(" ", 1)
    assert dt.datetime.fromisoformat(time).tzinfo is not None
    assert line == f"run {run_folder.log.run_id}: {outcome}"


def test_a_night_refused_by_another_run_says_so_on_a_line(tmp_path: Path) -> None:
    first, _ = printing_run_folder(tmp_path)
    second, printed = printing_run_folder(tmp_path)

    with first.locked(), pytest.raises(FolderInUseError), second.locked():
        pass

    assert printed.getvalue().endswith(f" run {second.log.run_id}: waits for another run\n")


def test_an_interrupt_that_ends_spark_first_is_an_interrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_folder, printed = printing_run_folder(tmp_path)
    monkeypatch.setattr(stop_requested, "is_set", lambda: True)

    with suppress(MachineError), run_folder.locked():
        raise MachineError("the JVM has ended")

    assert printed.getvalue().endswith(f" run {run_folder.log.run_id}: interrupted\n")


@pytest.mark.parametrize(
    ("error", "outcome", "message"),
    [
        (None, "done", ""),
        (MachineError("no Java, s3://key:secret@bucket"), "failed (MachineError)", "no Java"),
    ],
)
def test_the_command_of_notify_gets_the_outcome_and_the_results(
    tmp_path: Path, error: Exception | None, outcome: str, message: str
) -> None:
    path = tmp_path / "notification.json"
    notify = [sys.executable, "-c", WRITER, str(path)]
    run_folder, printed = printing_run_folder(tmp_path, notify=notify)

    with suppress(MachineError), run_folder.locked():
        run_folder.results.add("hlf promoted: it is better", promoted={"hlf": {"promoted": True}})
        if error is not None:
            raise error

    text = path.read_text(encoding="utf-8")
    notification = json.loads(text)
    assert notification["outcome"] == outcome
    assert notification["message"].startswith(message)
    assert "secret" not in text
    assert notification["run_dir"] == str(run_folder.config.run_dir.absolute())
    assert notification["run"] == run_folder.log.run_id
    assert notification["promoted"] == {"hlf": {"promoted": True}}
    assert printed.getvalue().endswith(f"{outcome}, hlf promoted: it is better\n")
    assert "warning" not in printed.getvalue()


@pytest.mark.parametrize(
    ("notify", "reason"),
    [
        (["/not/there"], "No such file"),
        ([sys.executable, "-c", WRITER, "/dev/null", "fail"], "no network"),
    ],
)
def test_a_failed_notification_is_printed_and_changes_nothing(
    tmp_path: Path, notify: list[str], reason: str
) -> None:
    run_folder, printed = printing_run_folder(tmp_path, notify=notify)

    with run_folder.locked():
        pass

    assert "warning: the command of `notify` failed" in printed.getvalue()
    assert reason in printed.getvalue()


def test_the_error_output_of_notify_may_be_any_bytes(tmp_path: Path) -> None:
    program = r"import os, sys; os.write(2, b'envoy\351'); sys.exit(7)"
    run_folder, printed = printing_run_folder(tmp_path, notify=[sys.executable, "-c", program])

    with pytest.raises(MachineError, match="no Java"), run_folder.locked():
        raise MachineError("no Java")

    assert "it ended with code 7: envoy\N{REPLACEMENT CHARACTER}" in printed.getvalue()


def test_a_process_that_notify_leaves_in_the_background_delays_nothing(tmp_path: Path) -> None:
    child_file = tmp_path / "child"
    program = f"cat > /dev/null; sleep 30 & echo $! > {child_file}"
    run_folder, printed = printing_run_folder(tmp_path, notify=["/bin/sh", "-c", program])
    start = time.monotonic()

    with run_folder.locked():
        pass

    seconds = time.monotonic() - start
    os.kill(int(child_file.read_text()), signal.SIGKILL)
    assert seconds < 20
    assert "warning" not in printed.getvalue()


def test_results_that_are_no_json_are_a_warning(tmp_path: Path) -> None:
    lines: list[str] = []
    log = RunLog(tmp_path)
    results = CommandResults()
    results.add("hlf promoted", promoted={1, 2})

    Notifier(["cat"], tmp_path, log, say=lines.append, prints_outcome=False).report(
        None, results, notifies=True
    )

    assert [line.partition("failed: ")[0] for line in lines] == [
        "warning: the command of `notify` "
    ]


def test_the_command_of_notify_finds_its_own_modules(tmp_path: Path) -> None:
    """It gets PYTHONPATH as the user has set it, and the folder of its script counts."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "receivers.py").touch()
    (tmp_path / "letters.py").touch()
    script = tmp_path / "mail.py"
    script.write_text("import letters, receivers")
    config = small_config(tmp_path, SAMPLES, notify=[sys.executable, str(script)])

    completed = pipeline("clean", "--config", config, env={**os.environ, "PYTHONPATH": str(folder)})

    assert completed.returncode == 0
    assert "warning" not in completed.stderr
