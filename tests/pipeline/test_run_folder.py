"""The run folder: versions upstream that belong together, and the check of the machine."""

from __future__ import annotations

import fcntl
import io
from collections.abc import Collection
from pathlib import Path
from unittest.mock import Mock

import pytest
from command_line import SAMPLES, small_config
from disks import read_only
from published_by_hand import publish
from rich.console import Console

from hep_core.integrity import DamagedOutputError
from pipeline import run_folder as module
from pipeline.config import load_config
from pipeline.errors import MachineError, MissingInputError, RunFolderError
from pipeline.machine.doctor import Finding, Need
from pipeline.run_folder import RunFolder
from pipeline.runs import version as version_module
from pipeline.runs.counters import IngestCounters
from pipeline.runs.outputs import OutputFile
from pipeline.runs.own_folders import MARKER
from pipeline.stages.evaluate import Evaluate
from pipeline.stages.report import Report


@pytest.fixture
def run_folder(tmp_path: Path) -> RunFolder:
    return RunFolder(load_config(str(small_config(tmp_path, SAMPLES))), Console(quiet=True))


def publish_all_stages(run_folder: RunFolder) -> dict[str, str]:
    """Publish a version of each stage up to the export; returns their names."""
    stages = ("ingest", "features", "train", "evaluate", "export")
    return {stage: publish(run_folder.config.run_dir, stage, text="first").name for stage in stages}


def test_versions_upstream_are_those_in_use(run_folder: RunFolder) -> None:
    names = publish_all_stages(run_folder)

    upstream = run_folder.upstream(Evaluate())

    assert {stage: version.name for stage, version in upstream.items()} == {
        stage: names[stage] for stage in ("ingest", "features", "train")
    }


def test_a_missing_input_is_named_with_its_command(run_folder: RunFolder) -> None:
    publish(run_folder.config.run_dir, "ingest")

    output = "evaluate needs the output of features, .* Run `python -m pipeline features` first"
    with pytest.raises(MissingInputError, match=output):
        run_folder.upstream(Evaluate())


def test_versions_that_do_not_belong_together_are_refused_unless_asked_for(
    run_folder: RunFolder,
) -> None:
    names = publish_all_stages(run_folder)
    new = publish(run_folder.config.run_dir, "features", text="other").name

    message = (
        rf"evaluate cannot use train {names['train']}: it was made from other features than {new}"
    )
    with pytest.raises(MissingInputError, match=message):
        run_folder.upstream(Evaluate())

    assert run_folder.upstream(Evaluate(), allow_mixed=True)["features"].name == new


def test_versions_of_the_same_content_belong_together(run_folder: RunFolder) -> None:
    publish_all_stages(run_folder)

    repeated = publish(run_folder.config.run_dir, "features", text="first").name

    assert run_folder.upstream(Evaluate())["features"].name == repeated


def test_an_optional_version_made_from_other_versions_is_left_out(run_folder: RunFolder) -> None:
    publish_all_stages(run_folder)
    assert "export" in run_folder.upstream(Report())
    for stage in ("train", "evaluate"):
        publish(run_folder.config.run_dir, stage, text="other")
    assert "export" not in run_folder.upstream(Report())


def test_a_job_that_only_reads_needs_no_right_to_write(tmp_path: Path) -> None:
    """As a colleague's run folder is evaluated; a job with results there is refused."""
    text = io.StringIO()
    run_folder = RunFolder(load_config(str(small_config(tmp_path, SAMPLES))), Console(file=text))
    version = publish(run_folder.config.run_dir, "features", text="first")

    with read_only(run_folder.config.run_dir):
        with (
            run_folder.locked("evaluations", only_reads=True),
            (version.folder / MARKER).open() as marker,
            # The version is still safe from a `clean` of its owner.
            pytest.raises(BlockingIOError),
        ):
            fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with (
            pytest.raises(RunFolderError, match="cannot be written"),
            run_folder.locked("compare"),
        ):
            pytest.fail("it was not refused")

    assert text.getvalue().count("note: ") == 1


def test_a_machine_with_an_error_is_refused_and_one_with_a_warning_is_not(
    run_folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    findings = [Finding("java", "warning", "Java is old.", "Take a new one.")]
    examine = Mock(return_value=findings)
    monkeypatch.setattr(module, "examine", examine)

    run_folder.check_machine([Need.SPARK], "ingest cannot run")

    findings.append(Finding("disk", "error", "The disk is full.", "Make room."))
    message = r"^ingest cannot run on this machine:\n(?s:.*)Make room"
    with pytest.raises(MachineError, match=message) as caught:
        run_folder.check_machine([Need.SPARK], "ingest cannot run", workers=5)
    assert "Java is old" not in str(caught.value)
    assert [call.kwargs["workers"] for call in examine.call_args_list] == [2, 5]


def test_a_warning_about_the_machine_is_a_note_once_in_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = io.StringIO()
    config = load_config(str(small_config(tmp_path, SAMPLES)))
    run_folder = RunFolder(config, Console(file=text, width=200))
    warning = Finding("memory", "warning", "2 workers need 1 GiB, a job allows 600 MiB.", "Ask.")
    monkeypatch.setattr(module, "examine", Mock(return_value=[warning]))

    for _ in range(2):
        run_folder.check_machine([Need.MPI], "train cannot run")

    assert text.getvalue().count("note: 2 workers need 1 GiB, a job allows 600 MiB. Ask.") == 1


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
    examine = Mock(return_value=[])
    monkeypatch.setattr(module, "examine", examine)

    findings = run_folder.examine(needs)

    assert findings == []
    examine.assert_called_once()
    assert examine.call_args.args == (examined,)
    # Other launchers start the ranks on other machines.
    assert examine.call_args.kwargs["workers"] == (3 if launcher == "mpirun" else 1)


@pytest.mark.parametrize(("num_nodes", "workers_here"), [("1", 32), ("2", 1)])
def test_ranks_of_a_slurm_job_of_several_nodes_are_not_held_against_this_one(
    run_folder: RunFolder, monkeypatch: pytest.MonkeyPatch, num_nodes: str, workers_here: int
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", num_nodes)
    examine = Mock(return_value=[])
    monkeypatch.setattr(module, "examine", examine)

    run_folder.examine([Need.MPI], workers=32)

    assert examine.call_args.kwargs["workers"] == workers_here


@pytest.mark.parametrize(
    ("cores_of_nodes", "threads", "launcher_args", "checks"),
    [
        ("4(x2),8", 4, [], []),
        ("4(x2),8", 8, [], ["srun-cores"]),
        ("4(x2)", 1, [], []),
        ("4(x2)", 4, [], ["srun-cores"]),
        # They may say otherwise.
        ("4(x2)", 4, ["--overcommit"], []),
    ],
)
def test_ranks_that_srun_has_no_cpus_for_are_a_finding(
    run_folder: RunFolder,
    monkeypatch: pytest.MonkeyPatch,
    cores_of_nodes: str,
    threads: int,
    launcher_args: list[str],
    checks: list[str],
) -> None:
    settings = {"launcher": "srun", "launcher_args": launcher_args, "threads": threads}
    train = run_folder.config.train.model_copy(update={**settings, "workers": 4})
    run_folder.config = run_folder.config.model_copy(update={"train": train})
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_CPUS_PER_NODE", cores_of_nodes)
    monkeypatch.setattr(module, "examine", Mock(return_value=[]))

    findings = run_folder.examine([Need.MPI])

    assert [finding.check for finding in findings] == checks
    assert run_folder.examine([Need.SPARK]) == []


def damage(path: Path) -> Path:
    """Change a byte of a file, not its size."""
    file_bytes = bytearray(path.read_bytes())
    file_bytes[0] ^= 1
    path.write_bytes(file_bytes)
    return path


def test_damage_of_a_file_that_a_stage_does_not_read_does_not_stop_it(
    run_folder: RunFolder,
) -> None:
    publish_all_stages(run_folder)
    features = run_folder.store("features").current()
    assert features is not None

    damage(features.folder / "metrics.json")
    assert "features" in run_folder.upstream(Evaluate())

    path = damage(features.folder / "dataset.json")
    message = r"dataset\.json is not what was written"
    with pytest.raises(DamagedOutputError, match=message) as caught:
        run_folder.upstream(Evaluate())
    assert caught.value.path == str(path)


def test_a_damaged_version_that_a_stage_can_do_without_is_left_out_with_a_note(
    tmp_path: Path,
) -> None:
    output = io.StringIO()
    config = load_config(str(small_config(tmp_path, SAMPLES)))
    run_folder = RunFolder(config, Console(file=output, width=1000))
    publish_all_stages(run_folder)
    store = run_folder.store("export")
    folder = store.next_folder("11" * 8)
    store.create(folder)
    (folder / "export.json").write_text("{}")
    publish(run_folder.config.run_dir, "export", folder)
    assert "export" in run_folder.upstream(Report())

    path = damage(folder / "export.json")

    assert "export" not in run_folder.upstream(Report())
    assert f"note: {path} is not what was written" in output.getvalue()
    assert "report runs without export" in output.getvalue()
    assert "export" not in run_folder.upstream(Report(), allow_mixed=True)


def test_a_command_checks_each_file_of_an_upstream_once(
    run_folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_all_stages(run_folder)
    checked: list[str] = []
    damaged_files = version_module.damaged_files

    def record_and_check(folder: Path, files: Collection[OutputFile]) -> list[OutputFile]:
        checked.extend(str(file.location(folder)) for file in files)
        return damaged_files(folder, files)

    monkeypatch.setattr(version_module, "damaged_files", record_and_check)
    with run_folder.locked():
        for _ in range(2):
            run_folder.upstream(Evaluate())
            run_folder.upstream(Report())

    assert checked
    assert len(checked) == len(set(checked))

    num_checked = len(checked)
    with run_folder.locked():
        run_folder.upstream(Evaluate())

    assert len(checked) > num_checked


def test_a_manifest_without_counters_is_damaged(run_folder: RunFolder) -> None:
    version = publish(run_folder.config.run_dir, "ingest", counters={"samples": {}})

    message = r"manifest\.json is damaged: the key 'counters\.weights' is missing\. `python -m"
    with pytest.raises(RunFolderError, match=message):
        version.counters(IngestCounters)
    with pytest.raises(RunFolderError, match=r"the key 'config\.classes' is missing"):
        _ = version.config
