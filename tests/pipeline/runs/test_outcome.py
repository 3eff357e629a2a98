"""What a command says at its end: results of what it made or used, and of nothing else."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import SAMPLES, small_config
from published_by_hand import TRAINING_SUMMARY, publish
from rich.console import Console
from trained_nights import TrainedNights

from pipeline.commands.clean import clean
from pipeline.commands.promote import rollback
from pipeline.config import load_config
from pipeline.run_folder import RunFolder
from pipeline.runner import Runner
from pipeline.runs.outcome import CommandResults

#: Writes its input to the file that is its argument.
KEEPS = "import sys; open(sys.argv[1], 'w').write(sys.stdin.read())"
EVALUATED = {"runs": {"hlf": {"accuracy": {"value": 0.931, "error": 0.01}}}}
TRAINED = {
    "networks": {"hlf": TRAINING_SUMMARY | {"best_val_accuracy": 0.912}},
    "further": {},
}


def ingested(*, skipped: int) -> dict[str, Any]:
    bad_files = [{"path": f"/data/{index}.root"} for index in range(skipped)]
    waiting_files = [{"path": "/data/late.root"}]
    return {
        "samples": {"qcd": {"events": 7}},
        "weights": {"qcd": {"events": [7.0, 7.0]}},
        "bad_files": bad_files,
        "waiting_files": waiting_files,
    }


def test_each_stage_adds_its_own_numbers(tmp_path: Path) -> None:
    created = {
        "ingest": publish(tmp_path, "ingest", counters=ingested(skipped=2), inputs=[{}, {}, {}]),
        "train": publish(tmp_path, "train", counters=TRAINED),
        "evaluate": publish(tmp_path, "evaluate", counters=EVALUATED),
    }
    message, values = {}, {}
    for stage, version in created.items():
        results = CommandResults()
        results.add_stage(version, is_new=stage == "train")
        message[stage], values[stage] = ", ".join(results.phrases), results.values
    assert message == {
        "ingest": "3 files in use, 2 files skipped (/data/0.root, /data/1.root), 1 files waiting (/data/late.root)",
        "train": "validation accuracy of hlf 0.912",
        "evaluate": "test accuracy of hlf 0.931",
    }
    assert values["train"] == {
        "made": {"train": "2026-01-01T00:00:00+00:00"},
        "validation_accuracy": {"hlf": 0.912},
    }
    assert values["evaluate"] == {"accuracy": {"hlf": 0.931}}
    assert values["ingest"]["files"] == {"read": 3, "skipped": 2, "waiting": 1}
    assert values["ingest"]["events"] == {"qcd": 7}
    assert values["ingest"]["skipped_files"] == ["/data/0.root", "/data/1.root"]


def test_the_first_of_many_skipped_files_are_named(tmp_path: Path) -> None:
    results = CommandResults()
    results.add_stage(publish(tmp_path, "ingest", counters=ingested(skipped=1234)), is_new=True)
    assert (
        "1,234 files skipped (/data/0.root, /data/1.root, /data/2.root and 1,231 more)"
        in results.phrases
    )
    assert len(results.values["skipped_files"]) == 1234


class Watched:
    """A run folder whose last line and `notify` JSON are kept."""

    def __init__(self, folder: Path, run_dir: Path | None = None) -> None:
        self.console = io.StringIO()
        self._told = folder / "told.json"
        notify = json.dumps([sys.executable, "-c", KEEPS, str(self._told)])
        changes = [f"notify={notify}", *([f"run_dir={run_dir}"] if run_dir else [])]
        config = load_config(str(small_config(folder, SAMPLES)), changes)
        self.run_folder = RunFolder(config, Console(file=self.console, width=1000))

    @property
    def last_line(self) -> str:
        return self.console.getvalue().splitlines()[-1]

    @property
    def told(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self._told.read_text())
        return document


@pytest.mark.parametrize(
    ("stage", "ending", "key"),
    [
        ("train", "done, validation accuracy of hlf 0.912", "validation_accuracy"),
        ("evaluate", "done, test accuracy of hlf 0.931", "accuracy"),
    ],
)
def test_the_last_line_of_a_stage_gives_its_own_accuracy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str, ending: str, key: str
) -> None:
    watched = Watched(tmp_path)
    run_dir = watched.run_folder.config.run_dir
    publish(run_dir, "ingest", counters=ingested(skipped=1))
    publish(run_dir, "features")
    publish(run_dir, "train", counters=TRAINED)
    publish(run_dir, "evaluate", counters=EVALUATED)
    monkeypatch.setattr(Runner, "_run_stage", lambda *_, **__: False)
    Runner(watched.run_folder).run([stage])
    assert watched.last_line.endswith(ending)
    assert key in watched.told
    assert (
        not {"validation_accuracy", "accuracy", "files", "events", "made"} - {key}
        & watched.told.keys()
    )


def test_promote_says_whether_it_promoted_and_why(tmp_path: Path) -> None:
    nights = TrainedNights(tmp_path)
    watched = Watched(tmp_path, nights.run_dir)
    nights.run_folder = watched.run_folder
    nights.promoted(5)
    assert watched.last_line.endswith("done, hlf promoted: there was none in use")
    nights.promoted(1)
    assert (
        "done, hlf not promoted: its mean cross-entropy on 300 test events is higher"
        in watched.last_line
    )
    message = watched.told["promoted"]["hlf"]
    assert message["promoted"] is False
    assert message["reason"].startswith("its mean cross-entropy")
    assert "accuracy" not in watched.told
    nights.promoted(200)
    rollback(watched.run_folder, "hlf")
    assert "done, hlf: 0001-" in watched.last_line
    assert watched.told["rolled_back"]["hlf"]["in_use"].startswith("0001-")
    clean(watched.run_folder, 1)
    assert "versions removed" in watched.last_line
    assert "promoted" not in watched.told


def test_a_stage_that_runs_again_in_a_command_is_named_once(tmp_path: Path) -> None:
    results = CommandResults()
    results.add("before", before=1)
    for skipped in (0, 1):
        version = publish(tmp_path, "ingest", counters=ingested(skipped=skipped))
        results.add_stage(version, is_new=True)
    once = CommandResults()
    once.add_stage(version, is_new=True)
    assert results.phrases == ["before", *once.phrases]
