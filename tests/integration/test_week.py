"""A week of nights over files that arrive, with a bad file, a killed run and a model that is worse.

At the end the state is what a week without any of these gives. `pytest -s` shows the log of the nights.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from command_line import SAMPLES, small_config, versions
from lent_spark import command
from ranks import wait_until

from pipeline.machine.spark_session import SparkProvider
from pipeline.runs.model_registry import Registry, model_digest
from pipeline.runs.store import StageStore

pytestmark = [pytest.mark.minutes, pytest.mark.end_to_end, pytest.mark.timeout(900)]

FIRST = [f"{name}_13TeV_PU20_0.root" for name in ("qcd", "ttbar", "wjets")]
LATER = {"ttbar": "ttbar_13TeV_PU20_1.root", "qcd": "qcd_13TeV_PU20_1.root", "wjets": "wjets_13TeV_PU20_1.root"}
YESTERDAY = 86400.0


class Week:
    """Nights over one folder of incoming files."""

    def __init__(self, folder: Path, provider: SparkProvider) -> None:
        self.incoming = folder / "incoming"
        self.incoming.mkdir(parents=True)
        self.run_dir = folder / "run"
        self.provider = provider
        self.night = 0
        self.log: list[str] = []
        self.config = small_config(
            folder,
            self.incoming,
            ingest={"on_bad_file": "skip", "settle_seconds": 600},
            train={"workers": 1, "algorithm": "sgd", "epochs": 4, "batch_size": 16, "learning_rate": 0.005},
            evaluate={"reference": False},
        )

    def arrives(self, *names: str, share: float = 1.0, age: float = YESTERDAY) -> None:
        """Files come in, whole or the first part of them, written so long ago."""
        for name in names:
            content = (SAMPLES / name).read_bytes()
            path = self.incoming / name
            path.write_bytes(content[: int(share * len(content))])
            then = time.time() - age
            os.utime(path, (then, then))
            self._note(f"{name} arrives" + ("" if share == 1 else f", {share:.0%} of it"))

    def runs(self, *options: str) -> str:
        """One night: all stages, promotion, and old versions removed; returns what it said."""
        self.night += 1
        said = ""
        for words in (["run", *options], ["promote", *options], ["clean", "--keep", "2"]):
            done = command(self.provider, *words, "--config", self.config)
            assert done.exit_code == 0, done.stderr
            said += done.stderr + done.stdout
        for line in said.splitlines():
            if line.strip() and not line.startswith(("┏", "┃", "┡", "│", "└")):
                self._note(line.rstrip())
        return said

    def is_killed_while_training(self) -> None:
        """Like the start of a night, up to a `kill -9` of the process group in the middle of `train`."""
        for stage in ("ingest", "features"):
            assert command(self.provider, stage, "--config", self.config).exit_code == 0
        # Many epochs, so that there is time; the next run has other settings and does not continue from there.
        arguments = ["train", "--config", str(self.config), "--set", "train.epochs=2000"]
        process = subprocess.Popen(
            [sys.executable, "-m", "pipeline", *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        wait_until(
            lambda: any(self.run_dir.glob("train/*/hlf/checkpoints/*/complete.json")),
            what="an epoch is done",
        )
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=30)
        self._note("train is killed")

    def in_use(self) -> tuple[bytes, str]:
        """Weights of the model in use, and when in the week it was trained: names of versions differ between weeks."""
        current = Registry(self.run_dir, "hlf").current()
        assert current is not None
        return (current.folder / "model" / "weights.pt").read_bytes(), model_digest(current.files)

    def state(self) -> dict[str, Any]:
        """Everything in use but times and names of versions."""
        now = {stage: self.run_dir / stage / str(version) for stage, version in versions(self.run_dir).items()}
        events = pq.read_table(now["ingest"] / "events").sort_by([("file_uuid", "ascending"), ("entry", "ascending")])
        metrics = json.loads((now["evaluate"] / "metrics.json").read_text())
        return {
            "events": events.drop_columns(["weight"]).num_rows,
            "identities": events.select(["file_uuid", "entry"]),
            "features": [pq.read_table(path) for path in sorted(now["features"].glob("*/part-*.parquet"))],
            "trained": (now["train"] / "hlf" / "model" / "weights.pt").read_bytes(),
            "metrics": metrics,
            "exported": (now["export"] / "hlf" / "model.onnx").stat().st_size,
            "in use": self.in_use(),
        }

    def manifest(self, stage: str) -> dict[str, Any]:
        """Of the version in use."""
        current = StageStore(self.run_dir, stage).current()
        assert current is not None
        return current.manifest

    def _note(self, words: str) -> None:
        self.log.append(f"night {self.night}: {words}")


class GoodWeek(Week):
    """One without any trouble.

    Attributes:
        said: What the third night said, in which nothing was to be done.
        events: What was logged until then.
    """

    def __init__(self, folder: Path, provider: SparkProvider) -> None:
        super().__init__(folder, provider)
        for names in (FIRST, [LATER["ttbar"]], [], [LATER["qcd"]], [], [], [LATER["wjets"]]):
            self.arrives(*names)
            said = self.runs()
            if self.night == 3:
                self.said = said
                logs = sorted(self.run_dir.glob("logs/*.jsonl"))
                self.events = {json.loads(line)["event"] for path in logs for line in path.read_text().splitlines()}


@pytest.fixture(scope="module")
def good(provider: SparkProvider, tmp_path_factory: pytest.TempPathFactory) -> GoodWeek:
    return GoodWeek(tmp_path_factory.mktemp("good"), provider)


def disturbed(folder: Path, provider: SparkProvider) -> Week:
    week = Week(folder, provider)
    week.arrives(*FIRST)
    assert "hlf: promoted: there was none in use" in week.runs()

    week.arrives(LATER["ttbar"])
    said = week.runs()
    assert "1 files read, 3 reused" in said

    week.arrives(LATER["qcd"], share=0.5)
    assert "1 bad files skipped" in week.runs()
    assert [Path(each["path"]).name for each in week.manifest("ingest")["counters"]["bad_files"]] == [LATER["qcd"]]

    week.arrives(LATER["qcd"])
    week.is_killed_while_training()
    week.runs()
    assert week.manifest("ingest")["counters"]["bad_files"] == []

    before = week.in_use()
    said = week.runs("--set", "train.learning_rate=1e-9")
    assert "hlf: not promoted: its mean cross-entropy" in said
    assert week.in_use() == before

    week.arrives(LATER["wjets"], share=0.5, age=1.0)
    said = week.runs()
    assert "left for another run" in said
    assert "may still be being written" in said

    week.arrives(LATER["wjets"])
    assert "1 files read, 5 reused" in week.runs()
    return week


def test_after_a_bad_week_the_state_is_that_of_a_good_one(
    tmp_path: Path, provider: SparkProvider, good: GoodWeek
) -> None:
    bad = disturbed(tmp_path / "bad", provider)
    print("\n".join(bad.log))  # noqa: T201 - for those who want to read it
    assert bad.night == good.night == 7
    found, expected = bad.state(), good.state()
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert found[key] == value, key
    for week in (bad, good):
        leftovers = [path for path in week.run_dir.rglob("*") if path.name.startswith(".") and path.name != ".lock"]
        assert leftovers == []
        assert len(list(week.run_dir.glob("train/0*"))) <= 4


def test_the_log_names_what_happened_each_night(good: GoodWeek) -> None:
    assert [line for line in good.said.splitlines() if "up to date" in line] == [
        f"{stage}: up to date" for stage in ("ingest", "features", "train", "evaluate", "export", "report")
    ]
    assert good.events == {
        "run started", "stage started", "stage finished", "stage up to date", "run finished",
        "network promoted", "network not promoted",
    }  # fmt: skip
