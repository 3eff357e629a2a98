"""The last line of a command, and the results that `notify` gets."""

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
from pipeline.runs.version import Version

#: Writes its input to the file that is its argument.
WRITE_INPUT = "import sys; open(sys.argv[1], 'w').write(sys.stdin.read())"
EVALUATED = {"runs": {"hlf": {"accuracy": {"value": 0.931, "error": 0.01}}}}
TRAINED = {
    "networks": {"hlf": TRAINING_SUMMARY | {"best_val_accuracy": 0.912}},
    "further": {},
}


def ingest_counters(*, num_skipped: int) -> dict[str, Any]:
    """Counters of an ingest that skipped some files, and waits for one."""
    return {
        "samples": {"qcd": {"events": 7}},
        "weights": {"qcd": {"events": [7.0, 7.0]}},
        "bad_files": [{"path": f"/data/{index}.root"} for index in range(num_skipped)],
        "waiting_files": [{"path": "/data/late.root"}],
    }


def results_of(version: Version, *, is_new: bool = False) -> CommandResults:
    results = CommandResults()
    results.add_stage(version, is_new=is_new)
    return results


def test_ingest_adds_its_files_and_events(tmp_path: Path) -> None:
    counters = ingest_counters(num_skipped=2)
    version = publish(tmp_path, "ingest", counters=counters, inputs=[{}, {}, {}])

    results = results_of(version)

    assert results.phrases == [
        "3 files in use",
        "2 files skipped (/data/0.root, /data/1.root)",
        "1 files waiting (/data/late.root)",
    ]
    assert results.values["files"] == {"read": 3, "skipped": 2, "waiting": 1}
    assert results.values["events"] == {"qcd": 7}
    assert results.values["skipped_files"] == ["/data/0.root", "/data/1.root"]


def test_training_and_evaluation_add_their_accuracy(tmp_path: Path) -> None:
    trained = results_of(publish(tmp_path, "train", counters=TRAINED), is_new=True)
    evaluated = results_of(publish(tmp_path, "evaluate", counters=EVALUATED))

    assert trained.phrases == ["validation accuracy of hlf 0.912"]
    assert trained.values == {
        "made": {"train": "2026-01-01T00:00:00+00:00"},
        "validation_accuracy": {"hlf": 0.912},
    }
    assert evaluated.phrases == ["test accuracy of hlf 0.931"]
    assert evaluated.values == {"accuracy": {"hlf": 0.931}}


def test_the_first_of_many_skipped_files_are_named(tmp_path: Path) -> None:
    version = publish(tmp_path, "ingest", counters=ingest_counters(num_skipped=1234))

    results = results_of(version)

    assert (
        "1,234 files skipped (/data/0.root, /data/1.root, /data/2.root and 1,231 more)"
        in results.phrases
    )
    assert len(results.values["skipped_files"]) == 1234


class WatchedRunFolder:
    """A run folder with the last line of its console and the JSON that `notify` gets."""

    def __init__(self, folder: Path, run_dir: Path | None = None) -> None:
        self._console = io.StringIO()
        self._notification = folder / "notification.json"
        notify = [sys.executable, "-c", WRITE_INPUT, str(self._notification)]
        overrides = [f"notify={json.dumps(notify)}"]
        if run_dir is not None:
            overrides.append(f"run_dir={run_dir}")
        config = load_config(str(small_config(folder, SAMPLES)), overrides)
        self.run_folder = RunFolder(config, Console(file=self._console, width=1000))

    @property
    def last_line(self) -> str:
        return self._console.getvalue().splitlines()[-1]

    @property
    def notification(self) -> dict[str, Any]:
        notification: dict[str, Any] = json.loads(self._notification.read_text())
        return notification


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
    watched = WatchedRunFolder(tmp_path)
    run_dir = watched.run_folder.config.run_dir
    publish(run_dir, "ingest", counters=ingest_counters(num_skipped=1))
    publish(run_dir, "features")
    publish(run_dir, "train", counters=TRAINED)
    publish(run_dir, "evaluate", counters=EVALUATED)
    monkeypatch.setattr(Runner, "_run_stage", lambda *_, **__: False)

    Runner(watched.run_folder).run([stage])

    assert watched.last_line.endswith(ending)
    result_keys = {"validation_accuracy", "accuracy", "files", "events", "made"}
    assert result_keys & watched.notification.keys() == {key}


def test_promote_says_whether_it_promoted_and_why(tmp_path: Path) -> None:
    nights = TrainedNights(tmp_path)
    watched = WatchedRunFolder(tmp_path, nights.run_dir)
    nights.run_folder = watched.run_folder

    nights.train_and_promote(5)
    assert watched.last_line.endswith("done, hlf promoted: there was none in use")

    nights.train_and_promote(1)
    assert (
        "done, hlf not promoted: its mean cross-entropy on 300 test events is higher"
        in watched.last_line
    )
    outcome = watched.notification["promoted"]["hlf"]
    assert outcome["promoted"] is False
    assert outcome["reason"].startswith("its mean cross-entropy")
    assert "accuracy" not in watched.notification


def test_rollback_and_clean_say_what_they_changed(tmp_path: Path) -> None:
    nights = TrainedNights(tmp_path)
    watched = WatchedRunFolder(tmp_path, nights.run_dir)
    nights.train_and_promote(5, 200)

    rollback(watched.run_folder, "hlf")
    assert "done, hlf: 0001-" in watched.last_line
    assert watched.notification["rolled_back"]["hlf"]["in_use"].startswith("0001-")

    clean(watched.run_folder, 1)
    assert "versions removed" in watched.last_line
    assert "promoted" not in watched.notification


def test_a_stage_that_runs_again_in_a_command_is_named_once(tmp_path: Path) -> None:
    first = publish(tmp_path, "ingest", counters=ingest_counters(num_skipped=0))
    second = publish(tmp_path, "ingest", counters=ingest_counters(num_skipped=1))
    results = CommandResults()
    results.add("before", before=1)

    results.add_stage(first, is_new=True)
    results.add_stage(second, is_new=True)

    assert results.phrases == ["before", *results_of(second, is_new=True).phrases]
