"""What a run leaves if it cannot begin, and what it leaves of interrupted work."""

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
from pipeline.stages.base import Context, Result, Stage
from pipeline.stages.evaluate import Evaluate
from pipeline.stages.export import Export


@pytest.mark.parametrize(
    ("stages", "missing"), [(["features"], "ingest"), (["ingest", "train"], "features")]
)
def test_a_run_without_its_input_leaves_no_run_folder(
    tmp_path: Path, stages: list[str], missing: str
) -> None:
    run_folder = RunFolder(load_config(str(small_config(tmp_path, SAMPLES))), Console(quiet=True))
    with pytest.raises(MissingInputError, match=f"{stages[-1]} needs the output of {missing}"):
        Runner(run_folder).run(stages)
    assert not run_folder.config.run_dir.exists()


#: Counters of `ingest` without any sample.
NO_EVENTS: dict[str, Any] = {"samples": {}, "weights": {}}


class Watched(Stage):
    """Says whether Spark was stopped before it ran."""

    def __init__(
        self, name: str, needs: tuple[Need, ...], stops: list[str], seen: dict[str, bool]
    ) -> None:
        self.name, self.needs, self._stops, self._seen = name, needs, stops, seen  # type: ignore[misc]

    def run(self, context: Context) -> Result:  # noqa: ARG002
        self._seen[self.name] = bool(self._stops)
        return Result(summary="done", counters=NO_EVENTS)


def test_spark_stops_before_the_first_stage_after_which_none_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_folder = RunFolder(load_config(str(small_config(tmp_path, SAMPLES))), Console(quiet=True))
    stops: list[str] = []
    seen: dict[str, bool] = {}
    monkeypatch.setattr(run_folder.spark, "stop", lambda: stops.append("stop"))
    monkeypatch.setattr(run_folder, "check_machine", lambda *_, **__: None)
    stages = [Watched("ingest", (Need.SPARK,), stops, seen), Watched("simulate", (), stops, seen)]
    monkeypatch.setattr("pipeline.runner.STAGES", stages)
    Runner(run_folder).run(["ingest", "simulate"])
    assert seen == {"ingest": False, "simulate": True}


class Simulated(Stage):
    """Says that it has simulated each process."""

    name: ClassVar[str] = "simulate"

    def run(self, context: Context) -> Result:  # noqa: ARG002
        cross_section = {"cross_section_pb": 1.0, "cross_section_error_pb": 0.1}
        return Result(
            summary="done",
            counters={"processes": dict.fromkeys(("qcd", "ttbar", "wjets"), cross_section)},
        )


class Files(Stage):
    """Remembers the files of the first sample."""

    name: ClassVar[str] = "ingest"

    def __init__(self) -> None:
        self.files: list[str] = []

    def run(self, context: Context) -> Result:
        self.files = list(context.config.samples[0].files)
        return Result(summary="done", counters=NO_EVENTS)


def test_ingest_reads_a_simulation_that_a_kill_left_without_its_pointer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config("simulated", [f"run_dir={tmp_path}"])
    ingest = Files()
    monkeypatch.setattr("pipeline.runner.STAGES", [Simulated(), ingest])
    Runner(RunFolder(config, Console(quiet=True))).run(["simulate"])
    (tmp_path / "simulate" / "current.json").unlink()
    assert Runner(RunFolder(config, Console(quiet=True))).run(["simulate", "ingest"]) == ["ingest"]
    (pattern,) = ingest.files
    assert Path(pattern).is_relative_to(tmp_path / "simulate")


class Halves(Stage):
    """Continues work of which half is done."""

    name: ClassVar[str] = "train"

    def can_continue(self, folder: Path) -> bool:
        return (folder / "half").exists()

    def run(self, context: Context) -> Result:
        return Result(
            summary="continued" if (context.out_dir / "half").exists() else "from scratch",
            counters={"networks": {}},
        )


class Whole(Stage):
    """Writes a file."""

    name: ClassVar[str] = "ingest"

    def run(self, context: Context) -> Result:
        (context.out_dir / "events").write_text("some")
        return Result(summary="done", counters=NO_EVENTS)


def test_a_version_that_lacks_a_file_is_not_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_folder = RunFolder(load_config(str(small_config(tmp_path, SAMPLES))), Console(quiet=True))
    runner, stage = Runner(run_folder), Whole()
    monkeypatch.setattr(runner.planner, "wanted_stages", lambda: [stage])
    assert runner._run_stage(stage, force=False)
    current = run_folder.store("ingest").current()
    assert current is not None
    (current.folder / "events").unlink()
    with pytest.raises(
        RunFolderError, match=r"ingest cannot be accepted: .*events is gone.*nothing was accepted"
    ):
        runner.accept()
    assert "accepted" not in current.manifest


def test_accept_includes_an_export_whose_evaluation_is_of_another_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_folder = RunFolder(load_config(str(small_config(tmp_path, SAMPLES))), Console(quiet=True))
    for stage in ("ingest", "features", "train", "evaluate"):
        publish(run_folder.config.run_dir, stage, text="first")
    for stage in ("train", "export"):
        publish(run_folder.config.run_dir, stage, text="second")
    runner = Runner(run_folder)
    monkeypatch.setattr(runner.planner, "wanted_stages", lambda: [Evaluate(), Export()])
    assert runner.accept() == ["evaluate", "export"]
    assert [planned_stage.reasons for planned_stage in runner.plan()] == [[], []]


@pytest.mark.parametrize("index", ["0002", "10001"])
def test_force_keeps_interrupted_work_of_other_settings(tmp_path: Path, index: str) -> None:
    run_folder = RunFolder(load_config(str(small_config(tmp_path, SAMPLES))), Console(quiet=True))
    runner, store = Runner(run_folder), run_folder.store("train")
    assert runner._run_stage(Halves(), force=False)
    current = store.current()
    assert current is not None
    same, remaining = (
        store.folder / name for name in (f"{index}{current.name[4:]}", "0003-0123abcd")
    )
    digest = current.manifest.fingerprint.digest
    for folder, note in ((same, digest), (remaining, "digest of others")):
        own_folders.make(folder, note)
        (folder / "half").touch()
    assert runner._run_stage(Halves(), force=True)
    assert (remaining / "half").exists()
    assert not same.exists()
    created = store.current()
    assert created is not None
    assert not (created.folder / "half").exists()


class Interrupted(Halves):
    """Does half of its work."""

    def __init__(self, half: str) -> None:
        self.half = half

    def run(self, context: Context) -> Result:
        (context.out_dir / self.half).touch()
        raise KeyboardInterrupt


def test_interrupted_work_stays_if_it_can_be_continued(tmp_path: Path) -> None:
    run_folder = RunFolder(load_config(str(small_config(tmp_path, SAMPLES))), Console(quiet=True))
    for half, leftovers in (("nothing", 0), ("half", 1)):
        with pytest.raises(KeyboardInterrupt):
            Runner(run_folder)._run_stage(Interrupted(half), force=False)
        assert len(run_folder.store("train").unfinished()) == leftovers


def test_a_stage_whose_input_is_gone_is_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_folder = RunFolder(load_config(str(small_config(tmp_path, SAMPLES))), Console(quiet=True))
    publish(run_folder.config.run_dir, "evaluate")
    runner = Runner(run_folder)
    monkeypatch.setattr(runner.planner, "wanted_stages", lambda: [Evaluate()])
    (planned,) = runner.plan()
    assert (planned.state, planned.reasons) == (
        State.STALE,
        ["the output of a stage that it reads is gone"],
    )


def test_the_outcome_is_the_last_line_of_a_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = io.StringIO()
    run_folder = RunFolder(
        load_config(str(small_config(tmp_path, SAMPLES))), Console(file=log, width=500)
    )
    monkeypatch.setattr("pipeline.runner.STAGES", [Watched("report", (), [], {})])
    Runner(run_folder).run(["report"])
    page, outcome = log.getvalue().splitlines()[-2:]
    assert re.fullmatch(
        rf"report: {re.escape(str(run_folder.config.run_dir))}/report/0001-\w+/report.html", page
    )
    assert re.search(r"run \S+: done", outcome)


class Fails(Stage):
    """Finds no input."""

    name: ClassVar[str] = "ingest"

    def run(self, context: Context) -> Result:
        raise MissingInputError(f"{context.out_dir.name} has no input")


def test_a_failed_run_says_so_in_the_log_and_in_the_metrics_that_alerts_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_folder = RunFolder(load_config(str(small_config(tmp_path, SAMPLES))), Console(quiet=True))
    monkeypatch.setattr("pipeline.runner.STAGES", [Fails()])
    with pytest.raises(MissingInputError, match="no input"):
        Runner(run_folder).run(["ingest"])
    last = json.loads(run_folder.log.path.read_text().splitlines()[-1])
    assert (last["event"], last["stage"], last["error"]) == (
        "run failed",
        "ingest",
        "MissingInputError",
    )
    assert last["message"].endswith("has no input")
    metrics = (run_folder.config.run_dir / METRICS).read_text()
    assert re.search(
        r'^hep_pipeline_stage_failed\{.*stage="ingest".*\} 1\.0$', metrics, re.MULTILINE
    )
