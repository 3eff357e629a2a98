"""A week of nights over files that arrive, with a bad file, a killed run and a model that is worse."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from command_line import SAMPLES, small_config
from lent_spark import command
from ranks import wait_until
from undisturbed_run import assert_same, version_of

from pipeline.machine.spark_session import SparkProvider
from pipeline.runs.model_registry import Registry
from pipeline.runs.store import Version

pytestmark = [pytest.mark.minutes, pytest.mark.end_to_end, pytest.mark.timeout(900)]

FIRST = [f"{name}_13TeV_PU20_0.root" for name in ("qcd", "ttbar", "wjets")]
LATER = {name: f"{name}_13TeV_PU20_1.root" for name in ("qcd", "ttbar", "wjets")}
YESTERDAY = 86400.0


class Week:
    """Nights over one folder of incoming files."""

    def __init__(self, folder: Path, provider: SparkProvider) -> None:
        self.incoming = folder / "incoming"
        self.incoming.mkdir()
        self.run_dir = folder / "run"
        self.provider = provider
        self.config = small_config(
            folder,
            self.incoming,
            ingest={"on_bad_file": "skip", "settle_seconds": 600},
            train={"workers": 1, "algorithm": "sgd", "epochs": 4, "batch_size": 16, "learning_rate": 0.005},
        )

    def arrives(self, *names: str, share: float = 1.0, age: float = YESTERDAY) -> None:
        """Files come in, whole or the first part of them, written some time ago [s]."""
        for name in names:
            content = (SAMPLES / name).read_bytes()
            path = self.incoming / name
            path.write_bytes(content[: int(share * len(content))])
            then = time.time() - age
            os.utime(path, (then, then))

    def does(self, *words: str) -> str:
        """A command that works; what it said."""
        done = command(self.provider, *words, "--config", self.config)
        assert done.exit_code == 0, done.stderr
        return str(done.stderr + done.stdout)

    def night(self, *options: str) -> str:
        """All stages, promotion, and old versions removed."""
        return "".join(
            self.does(*words) for words in (["run", *options], ["promote", *options], ["clean", "--keep", "2"])
        )

    def is_killed_while_training(self) -> None:
        """Like the start of a night, up to a `kill -9` of the process group in the middle of `train`."""
        for stage in ("ingest", "features"):
            self.does(stage)
        # Many epochs, so that there is time; the next run has other settings and does not continue from there.
        arguments = ["train", "--config", str(self.config), "--set", "train.epochs=2000"]
        process = subprocess.Popen(
            [sys.executable, "-m", "pipeline", *arguments],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        checkpoints = "train/*/hlf/checkpoints/*/complete.json"
        wait_until(lambda: any(self.run_dir.glob(checkpoints)), what="an epoch is done")
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=30)

    def in_use(self) -> Version:
        """The promoted model."""
        current = Registry(self.run_dir, "hlf").current()
        assert current is not None
        return current

    def bad_files(self) -> list[str]:
        """Names of the files that ingest skipped."""
        manifest: dict[str, Any] = json.loads((version_of(self.run_dir, "ingest") / "manifest.json").read_text())
        return [Path(each["path"]).name for each in manifest["counters"]["bad_files"]]


def test_after_a_bad_week_the_state_is_that_of_one_run_over_all_files(tmp_path: Path, provider: SparkProvider) -> None:
    (tmp_path / "week").mkdir()
    week = Week(tmp_path / "week", provider)
    week.arrives(*FIRST)
    assert "hlf: promoted: there was none in use" in week.night()

    week.arrives(LATER["ttbar"])
    assert "1 files read, 3 reused" in week.night()

    week.arrives(LATER["qcd"], share=0.5)
    assert "1 bad files skipped" in week.night()
    assert week.bad_files() == [LATER["qcd"]]

    week.arrives(LATER["qcd"])
    week.is_killed_while_training()
    week.night()
    assert week.bad_files() == []

    before = week.in_use()
    assert "hlf: not promoted: its mean cross-entropy" in week.night("--set", "train.learning_rate=1e-9")
    assert week.in_use() == before

    week.arrives(LATER["wjets"], share=0.5, age=1.0)
    assert "may still be being written" in week.night()

    week.arrives(LATER["wjets"])
    assert "1 files read, 5 reused" in week.night()
    assert "ingest: up to date" in week.night()

    leftovers = [path for path in week.run_dir.rglob("*") if path.name.startswith(".") and path.name != ".lock"]
    assert leftovers == []
    assert len(list(week.run_dir.glob("train/0*"))) <= 4
    (tmp_path / "at once").mkdir()
    at_once = Week(tmp_path / "at once", provider)
    at_once.arrives(*FIRST, *LATER.values())
    at_once.does("run", "--until", "train")
    for stage in ("features", "train"):
        assert_same(version_of(week.run_dir, stage), version_of(at_once.run_dir, stage), stage, tests=[])
