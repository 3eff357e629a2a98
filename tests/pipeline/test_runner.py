"""A run of stages: what it starts, leaves and says, also of interrupted work."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any, ClassVar

import pytest
from command_line import SAMPLES, small_config
from published_by_hand import publish
from rich.console import Console

from pipeline.config import load_config
from pipeline.errors import MissingInputError, RunFolderError
from pipeline.machine.doctor import Need
from pipeline.run_folder import RunFolder
from pipeline.runner import Runner, State
from pipeline.runs import own_folders
from pipeline.runs.log import METRICS
from pipeline.runs.version import Version
from pipeline.stages.base import Context, Result, Stage
from pipeline.stages.evaluate import Evaluate
from pipeline.stages.export import Export

#: Counters of `ingest` without any sample.
NO_EVENTS: dict[str, Any] = {"samples": {}, "weights": {}}


@pytest.fixture
def run_folder(tmp_path: Path) -> RunFolder:
    return RunFolder(load_config(str(small_config(tmp_path, SAMPLES))), Console(quiet=True))


def current(run_folder: RunFolder, stage: str) -> Version:
    """The version in use of a stage."""
    version = run_folder.store(stage).current()
    assert version is not None
    return version


def use_stages(monkeypatch: pytest.MonkeyPatch, *stages: Stage) -> None:
    """Make these the stages of the pipeline."""
    monkeypatch.setattr("pipeline.runner.STAGES", stages)


@pytest.mark.parametrize(
    ("stages", "missing"), [(["features"], "ingest"), (["ingest", "train"], "features")]
)
def test_a_run_without_its_input_leaves_no_run_folder(
    run_folder: RunFolder, stages: list[str], missing: str
) -> None:
    with pytest.raises(MissingInputError, match=f"{stages[-1]} needs the output of {missing}"):
        Runner(run_folder).run(stages)

    assert not run_folder.config.run_dir.exists()


class SparkWatcher(Stage):
    """Notes whether Spark was stopped before it ran."""

    def __init__(self, name: str, needs: tuple[Need, ...], stops: list[str]) -> None:
        self.name, self.needs, self._stops = name, needs, stops  # type: ignore[misc]
        self.spark_was_stopped: bool | None = None

    def run(self, context: Context) -> Result:  # noqa: ARG002
        self.spark_was_stopped = bool(self._stops)
        return Result(summary="done", counters=NO_EVENTS)


def test_spark_stops_before_the_first_stage_after_which_none_needs_it(
    run_folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    stops: list[str] = []
    monkeypatch.setattr(run_folder.spark, "stop", lambda: stops.append("stop"))
    monkeypatch.setattr(run_folder, "check_machine", lambda *_, **__: None)
    ingest = SparkWatcher("ingest", (Need.SPARK,), stops)
    simulate = SparkWatcher("simulate", (), stops)
    use_stages(monkeypatch, ingest, simulate)

    Runner(run_folder).run(["ingest", "simulate"])

    assert ingest.spark_was_stopped is False
    assert simulate.spark_was_stopped is True


class QuickSimulation(Stage):
    """Says that it has simulated each process."""

    name: ClassVar[str] = "simulate"

    def run(self, context: Context) -> Result:  # noqa: ARG002
        cross_section = {"cross_section_pb": 1.0, "cross_section_error_pb": 0.1}
        processes = dict.fromkeys(("qcd", "ttbar", "wjets"), cross_section)
        return Result(summary="done", counters={"processes": processes})


class PatternReader(Stage):
    """Keeps the patterns of the files of the first sample."""

    name: ClassVar[str] = "ingest"

    def __init__(self) -> None:
        self.patterns: list[str] = []

    def run(self, context: Context) -> Result:
        self.patterns = list(context.config.samples[0].files)
        return Result(summary="done", counters=NO_EVENTS)


def test_ingest_reads_a_simulation_that_a_kill_left_without_its_pointer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config("simulated", [f"run_dir={tmp_path}"])
    ingest = PatternReader()
    use_stages(monkeypatch, QuickSimulation(), ingest)
    Runner(RunFolder(config, Console(quiet=True))).run(["simulate"])
    (tmp_path / "simulate" / "current.json").unlink()

    ran = Runner(RunFolder(config, Console(quiet=True))).run(["simulate", "ingest"])

    assert ran == ["ingest"]
    (pattern,) = ingest.patterns
    assert Path(pattern).is_relative_to(tmp_path / "simulate")


class EventsWriter(Stage):
    """Writes a file."""

    name: ClassVar[str] = "ingest"

    def run(self, context: Context) -> Result:
        (context.out_dir / "events").write_text("some")
        return Result(summary="done", counters=NO_EVENTS)


def test_a_version_that_lacks_a_file_is_not_accepted(
    run_folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = Runner(run_folder)
    use_stages(monkeypatch, EventsWriter())
    monkeypatch.setattr(runner.planner, "wanted_stages", lambda: [EventsWriter()])
    runner.run(["ingest"])
    (current(run_folder, "ingest").folder / "events").unlink()

    message = r"ingest cannot be accepted: .*events is gone.*nothing was accepted"
    with pytest.raises(RunFolderError, match=message):
        runner.accept()

    assert current(run_folder, "ingest").manifest.accepted is None


def test_accept_includes_an_export_whose_evaluation_is_of_another_training(
    run_folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for stage in ("ingest", "features", "train", "evaluate"):
        publish(run_folder.config.run_dir, stage, text="first")
    for stage in ("train", "export"):
        publish(run_folder.config.run_dir, stage, text="second")
    runner = Runner(run_folder)
    monkeypatch.setattr(runner.planner, "wanted_stages", lambda: [Evaluate(), Export()])

    accepted = runner.accept()

    assert accepted == ["evaluate", "export"]
    assert [plan.reasons for plan in runner.plan()] == [[], []]
    assert current(run_folder, "evaluate").manifest.accepted is not None


class HalfTraining(Stage):
    """Can be continued if half of the work is done."""

    name: ClassVar[str] = "train"

    def can_continue(self, folder: Path) -> bool:
        return (folder / "half").exists()

    def run(self, context: Context) -> Result:  # noqa: ARG002
        return Result(summary="done", counters={"networks": {}})


def test_force_keeps_interrupted_work_of_other_settings(
    run_folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_stages(monkeypatch, HalfTraining())
    runner, store = Runner(run_folder), run_folder.store("train")
    runner.run(["train"])
    digest = current(run_folder, "train").manifest.fingerprint.digest
    same_settings, other_settings = store.folder / "0002-0123abcd", store.folder / "0003-0123abcd"
    for folder, note in ((same_settings, digest), (other_settings, "another digest")):
        own_folders.make(folder, note)
        (folder / "half").touch()

    runner.run(["train"], force=True)

    assert (other_settings / "half").exists()
    assert not same_settings.exists()
    assert not (current(run_folder, "train").folder / "half").exists()


class InterruptedTraining(HalfTraining):
    """Writes a file and is interrupted."""

    def __init__(self, file_name: str) -> None:
        self.file_name = file_name

    def run(self, context: Context) -> Result:
        (context.out_dir / self.file_name).touch()
        raise KeyboardInterrupt


@pytest.mark.parametrize(("file_name", "num_folders"), [("nothing", 0), ("half", 1)])
def test_interrupted_work_stays_if_it_can_be_continued(
    run_folder: RunFolder, monkeypatch: pytest.MonkeyPatch, file_name: str, num_folders: int
) -> None:
    use_stages(monkeypatch, InterruptedTraining(file_name))

    with pytest.raises(KeyboardInterrupt):
        Runner(run_folder).run(["train"])

    assert len(run_folder.store("train").unfinished()) == num_folders


def test_a_stage_whose_input_is_gone_is_stale(
    run_folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(run_folder.config.run_dir, "evaluate")
    runner = Runner(run_folder)
    monkeypatch.setattr(runner.planner, "wanted_stages", lambda: [Evaluate()])

    (plan,) = runner.plan()

    assert plan.state is State.STALE
    assert plan.reasons == ["the output of a stage that it reads is gone"]


def test_the_outcome_is_the_last_line_of_a_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = io.StringIO()
    config = load_config(str(small_config(tmp_path, SAMPLES)))
    use_stages(monkeypatch, SparkWatcher("report", (), []))

    Runner(RunFolder(config, Console(file=log, width=500))).run(["report"])

    page, outcome = log.getvalue().splitlines()[-2:]
    assert re.fullmatch(rf"report: {re.escape(str(config.run_dir))}/report/.*/report\.html", page)
    assert re.search(r"run \S+: done", outcome)


class FailingIngest(Stage):
    """Finds no input."""

    name: ClassVar[str] = "ingest"

    def run(self, context: Context) -> Result:
        raise MissingInputError(f"{context.out_dir.name} has no input")


def test_a_failed_run_says_so_in_the_log_and_in_the_metrics_that_alerts_watch(
    run_folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_stages(monkeypatch, FailingIngest())

    with pytest.raises(MissingInputError, match="no input"):
        Runner(run_folder).run(["ingest"])

    event = json.loads(run_folder.log.path.read_text().splitlines()[-1])
    assert event["event"] == "run failed"
    assert event["stage"] == "ingest"
    assert event["error"] == "MissingInputError"
    assert event["message"].endswith("has no input")
    metrics = (run_folder.config.run_dir / METRICS).read_text()
    failed_stage = r'^hep_pipeline_stage_failed\{.*stage="ingest".*\} 1\.0$'
    assert re.search(failed_stage, metrics, re.MULTILINE)


class EmptyIngest(Stage):
    """Writes a version without files."""

    name: ClassVar[str] = "ingest"

    def run(self, context: Context) -> Result:
        return Result(summary=f"{context.out_dir.name} is empty", counters=NO_EVENTS)


def test_metrics_that_cannot_be_written_are_a_warning_of_a_run_that_did_its_work(
    run_folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_stages(monkeypatch, EmptyIngest())
    metrics = run_folder.config.run_dir / METRICS
    metrics.mkdir(parents=True)
    output = io.StringIO()
    run_folder.console.file = output
    run_folder.console.quiet = False

    assert Runner(run_folder).run(["ingest"]) == ["ingest"]

    # A long path may be broken anywhere.
    message = "".join(output.getvalue().split())
    assert f"warning:{metrics}cannotbewritten" in message
    assert "done,0files" in message
