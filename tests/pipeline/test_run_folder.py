"""The run folder: versions upstream that belong together, and the check of the machine."""

from __future__ import annotations

import datetime as dt
import io
import json
import sys
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import pytest
from command_line import SAMPLES, small_config
from published_by_hand import publish
from rich.console import Console

from hep_core.integrity import DamagedOutputError
from ingestion.errors import FilesToComeError
from pipeline import run_folder as module
from pipeline.config import load_config
from pipeline.errors import FolderInUseError, MachineError, MissingInputError, NoOutputYetError
from pipeline.machine.doctor import Finding, Need
from pipeline.run_folder import RunFolder
from pipeline.runs import version as version_module
from pipeline.runs.outputs import OutputFile
from pipeline.stages.evaluate import Evaluate
from pipeline.stages.report import Report
from pipeline.terminal.exit_codes import stop_requested


@pytest.fixture
def run_folder(tmp_path: Path) -> RunFolder:
    return RunFolder(load_config(str(small_config(tmp_path, SAMPLES))), Console(quiet=True))


def chain(run_folder: RunFolder) -> dict[str, str]:
    """A version of each stage up to the export, each made from those before it."""
    stages = ("ingest", "features", "train", "evaluate", "export")
    return {stage: publish(run_folder.config.run_dir, stage, text="first").name for stage in stages}


def test_versions_upstream_are_those_in_use(run_folder: RunFolder) -> None:
    created = chain(run_folder)
    found = run_folder.upstream(Evaluate())
    assert {name: version.name for name, version in found.items()} == {
        name: created[name] for name in ("ingest", "features", "train")
    }


def test_a_missing_input_is_named_with_its_command(run_folder: RunFolder) -> None:
    publish(run_folder.config.run_dir, "ingest")
    output = "evaluate needs the output of features, .* Run `python -m pipeline features` first"
    with pytest.raises(MissingInputError, match=output):
        run_folder.upstream(Evaluate())


def test_versions_that_do_not_belong_together_are_refused_unless_asked_for(
    run_folder: RunFolder,
) -> None:
    created = chain(run_folder)
    new = publish(run_folder.config.run_dir, "features", text="other").name
    message = (
        rf"evaluate cannot use train {created['train']}: it was made from other features than {new}"
    )
    with pytest.raises(MissingInputError, match=message):
        run_folder.upstream(Evaluate())
    assert run_folder.upstream(Evaluate(), allow_mixed=True)["features"].name == new


def test_versions_of_the_same_content_belong_together(run_folder: RunFolder) -> None:
    chain(run_folder)
    repeated = publish(run_folder.config.run_dir, "features", text="first").name
    assert run_folder.upstream(Evaluate())["features"].name == repeated


def test_an_optional_version_made_from_other_versions_is_left_out(run_folder: RunFolder) -> None:
    chain(run_folder)
    assert "export" in run_folder.upstream(Report())
    for stage in ("train", "evaluate"):
        publish(run_folder.config.run_dir, stage, text="other")
    assert "export" not in run_folder.upstream(Report())


def test_a_machine_with_an_error_is_refused_and_one_with_a_warning_is_not(
    run_folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    findings = [Finding("java", "warning", "Java is old.", "Take a new one.")]

    def examine(_: list[Need], *, workers: int, **__: object) -> list[Finding]:
        asked.append(workers)
        return findings

    monkeypatch.setattr(module, "examine", examine)
    run_folder.check_machine([Need.SPARK], "ingest cannot run")
    findings.append(Finding("disk", "error", "The disk is full.", "Make room."))
    with pytest.raises(
        MachineError, match=r"^ingest cannot run on this machine:\n(?s:.*)Make room"
    ) as refused:
        run_folder.check_machine([Need.SPARK], "ingest cannot run", workers=5)
    assert "Java is old" not in str(refused.value)
    assert asked == [2, 5]


@pytest.mark.parametrize(
    ("launcher", "needs", "examined"),
    [
        ("mpirun", {Need.MPI}, {Need.MPI}),
        ("srun", {Need.MPI}, {Need.MPI}),
        ("spark", {Need.MPI}, {Need.MPI, Need.SPARK}),
        ("spark", set(), set()),
        ("mpirun", set(), set()),
    ],
)
def test_trainings_need_spark_only_where_its_executors_start_the_ranks(
    run_folder: RunFolder,
    monkeypatch: pytest.MonkeyPatch,
    launcher: str,
    needs: set[Need],
    examined: set[Need],
) -> None:
    train = run_folder.config.train.model_copy(update={"launcher": launcher, "workers": 3})
    run_folder.config = run_folder.config.model_copy(update={"train": train})
    asked: list[tuple[set[Need], int]] = []

    def examine(kinds: set[Need], *, workers: int, **_: object) -> list[Finding]:
        asked.append((kinds, workers))
        return []

    monkeypatch.setattr(module, "examine", examine)
    assert run_folder.examine(needs) == []
    assert asked == [(examined, 3 if launcher == "mpirun" else 1)]


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
    file = io.StringIO()
    actual = RunFolder(
        load_config(str(small_config(tmp_path, SAMPLES))), Console(file=file, width=200)
    )
    with suppress(Exception, KeyboardInterrupt), actual.locked():
        if error is not None:
            raise error
    time, message = file.getvalue().splitlines()[-1].split(" ", 1)
    assert dt.datetime.fromisoformat(time).tzinfo is not None
    assert message == f"run {actual.log.run_id}: {outcome}"


def test_a_night_refused_by_another_run_says_so_on_a_line(tmp_path: Path) -> None:
    file = io.StringIO()
    config = load_config(str(small_config(tmp_path, SAMPLES)))
    second = RunFolder(config, Console(file=file, width=200))
    with (
        RunFolder(config, Console(quiet=True)).locked(),
        pytest.raises(FolderInUseError),
        second.locked(),
    ):
        pass
    assert file.getvalue().endswith(f" run {second.log.run_id}: waits for another run\n")


def test_an_interrupt_that_ends_spark_first_is_an_interrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = io.StringIO()
    night = RunFolder(
        load_config(str(small_config(tmp_path, SAMPLES))), Console(file=file, width=200)
    )
    monkeypatch.setattr(stop_requested, "is_set", lambda: True)
    with suppress(MachineError), night.locked():
        raise MachineError("the JVM has ended")
    assert file.getvalue().endswith(f" run {night.log.run_id}: interrupted\n")


#: Writes its input to the file that is its argument.
KEEPS = "import sys; open(sys.argv[1], 'w').write(sys.stdin.read()); sys.exit('no network' if sys.argv[2:] else 0)"


@pytest.mark.parametrize("error", [None, MachineError("no Java, s3://key:secret@bucket")])
def test_a_night_told_nobody_how_it_ended(tmp_path: Path, error: Exception | None) -> None:
    message, file = tmp_path / "told.json", io.StringIO()
    chosen = load_config(
        str(small_config(tmp_path, SAMPLES)),
        [f"notify={json.dumps([sys.executable, '-c', KEEPS, str(message)])}"],
    )
    run_folder = RunFolder(chosen, Console(file=file, width=200))
    with suppress(MachineError), run_folder.locked():
        run_folder.results.add("hlf promoted: it is better", promoted={"hlf": {"promoted": True}})
        if error is not None:
            raise error
    about = json.loads(message.read_text(encoding="utf-8"))
    assert about["outcome"] == ("done" if error is None else "failed (MachineError)")
    assert "no Java" in about["message"] if error else about["message"] == ""
    assert "secret" not in message.read_text(encoding="utf-8")
    assert (about["run_dir"], about["run"]) == (
        str(chosen.run_dir.absolute()),
        run_folder.log.run_id,
    )
    assert about["promoted"] == {"hlf": {"promoted": True}}
    assert file.getvalue().endswith(f"{about['outcome']}, hlf promoted: it is better\n")
    assert "warning" not in file.getvalue()


@pytest.mark.parametrize(
    "command", [["/not/there"], [sys.executable, "-c", KEEPS, "/dev/null", "fail"]]
)
def test_a_failed_notification_is_printed_and_changes_nothing(
    tmp_path: Path, command: list[str]
) -> None:
    file = io.StringIO()
    chosen = load_config(str(small_config(tmp_path, SAMPLES)), [f"notify={json.dumps(command)}"])
    with RunFolder(chosen, Console(file=file, width=200)).locked():
        pass
    assert "warning: the command of `notify` failed" in file.getvalue()
    assert ("no network" in file.getvalue()) == (command[-1] == "fail")


def damage(path: Path) -> Path:
    """Change a byte of a file, not its size."""
    file_bytes = bytearray(path.read_bytes())
    file_bytes[0] ^= 1
    path.write_bytes(file_bytes)
    return path


def test_damage_of_a_file_that_a_stage_does_not_read_does_not_stop_it(
    run_folder: RunFolder,
) -> None:
    chain(run_folder)
    features = run_folder.store("features").current()
    assert features is not None
    damage(features.folder / "metrics.json")
    assert "features" in run_folder.upstream(Evaluate())
    path = damage(features.folder / "dataset.json")
    with pytest.raises(
        DamagedOutputError, match=r"dataset\.json is not what was written"
    ) as raised:
        run_folder.upstream(Evaluate())
    assert raised.value.path == str(path)


def test_a_damaged_version_that_a_stage_can_do_without_is_left_out_with_a_note(
    tmp_path: Path,
) -> None:
    printed = io.StringIO()
    run_folder = RunFolder(
        load_config(str(small_config(tmp_path, SAMPLES))), Console(file=printed, width=1000)
    )
    chain(run_folder)
    store = run_folder.store("export")
    folder = store.next_folder("11" * 8)
    store.create(folder)
    (folder / "export.json").write_text("{}")
    publish(run_folder.config.run_dir, "export", folder)
    assert "export" in run_folder.upstream(Report())
    path = damage(folder / "export.json")
    assert "export" not in run_folder.upstream(Report())
    assert f"note: {path} is not what was written" in printed.getvalue()
    assert "report runs without export" in printed.getvalue()
    assert "export" not in run_folder.upstream(Report(), allow_mixed=True)


def test_a_command_reads_each_file_of_an_upstream_once_to_check_it(
    run_folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain(run_folder)
    read: list[str] = []
    damaged_files = version_module.damaged_files

    def counting(folder: Path, files: Collection[OutputFile]) -> list[OutputFile]:
        read.extend(str(file.location(folder)) for file in files)
        return damaged_files(folder, files)

    monkeypatch.setattr(version_module, "damaged_files", counting)
    with run_folder.locked():
        for _ in range(2):
            run_folder.upstream(Evaluate())
            run_folder.upstream(Report())
    assert read
    assert len(read) == len(set(read))
    once = len(read)
    with run_folder.locked():
        run_folder.upstream(Evaluate())
    assert len(read) > once
