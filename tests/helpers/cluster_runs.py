"""Results of one machine, and runs of the pipeline on a host, which the tests on clusters compare
with them."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from command_line import SAMPLES, small_config, version_of
from lent_spark import command
from network_hosts import Network
from page_commands import CHECKOUT
from ranks import wait_until

from pipeline.config import load_config
from pipeline.machine.spark_session import SparkProvider
from pipeline.terminal.exit_codes import Exit
from training.launching.launcher import launch_all
from training.launching.run_spec import RunSpec
from training.workloads.hep_settings import HepSettings

#: Notes a row of the table: the cluster, what ran there, and how it compares with the local result.
AddRow = Callable[[str, str, str], None]
#: Many small pieces, so that there is work left when a part of the cluster dies.
CHANGES: Final[dict[str, Any]] = {
    "ingest": {"entries_per_task": 15},
    "features": {"feed_workers": 4},
    "gridsearch": {"hidden": [[4, 8], [6]], "batch_size": [64], "epochs": [2], "folds": 2},
    "train": {"workers": 2, "epochs": 3, "batch_size": 16},
}
#: Overrides of a training that takes long enough to lose a part of the cluster.
LONG: Final = ("train.epochs=200", "train.batch_size=8", "train.checkpoint_steps=5")


class LocalResults:
    """The undisturbed results of one machine; each is made when a test asks for it."""

    def __init__(self, provider: SparkProvider, folder: Path) -> None:
        self._provider, self._folder = provider, folder
        self.config = small_config(folder, SAMPLES, **CHANGES)
        self._trained: dict[tuple[str, ...], Path] = {}
        self._folder_numbers = itertools.count()

    def version(self, stage: str) -> Path:
        """The output of a stage: `ingest`, `features` or `gridsearch`."""
        if not (self._folder / "run" / stage / "current.json").exists():
            if stage != "ingest":
                self.version("ingest" if stage == "features" else "features")
            result = command(self._provider, stage, "--config", self.config)
            assert result.exit_code == 0, result.stderr
        return version_of(self._folder / "run", stage)

    def train(self, all_overrides: Sequence[tuple[str, ...]]) -> None:
        """Train with some overrides each, in ranks that start only once."""
        missing = [override for override in all_overrides if override not in self._trained]
        specs = []
        trained: dict[tuple[str, ...], Path] = {}
        for overrides in missing:
            config = load_config(str(self.config), list(overrides))
            out = self._folder / f"trained-{next(self._folder_numbers)}"
            out.mkdir()
            features = HepSettings(folder=self.version("features"), network=config.model.of("hlf"))
            specs.append(RunSpec(features, config.training_of("hlf"), out))
            trained[overrides] = out
        if specs:
            job = self._folder / f"launch-{next(self._folder_numbers)}"
            launch_all(specs, job, on_progress=lambda *_: None)
        # After a failure, the next test that needs these results trains again.
        self._trained |= trained

    def trained(self, *overrides: str) -> Path:
        """Folder of a training with these overrides."""
        self.train([overrides])
        return self._trained[overrides]

    def lend(self, run_dir: Path, *stages: str) -> None:
        """Give a run folder the output of some stages."""
        for stage in stages:
            self.version(stage)
            shutil.copytree(self._folder / "run" / stage, run_dir / stage)


class HostRuns:
    """Runs of the pipeline on the first host, with a config and a run folder of their own."""

    def __init__(
        self,
        hosts: Network,
        folder: Path,
        *,
        env: Mapping[str, str] | None = None,
        samples: str | Path = SAMPLES,
        **changes: Any,
    ) -> None:
        sections = {key: {**section, **changes.get(key, {})} for key, section in CHANGES.items()}
        self.config = small_config(folder, samples, **{**changes, **sections})
        self.run_dir = folder / "run"
        self._hosts = hosts
        self._environment = {**os.environ, **(env or {})}

    def command(self, *arguments: str, sets: Sequence[str] = ()) -> list[str]:
        """The command line of a user."""
        overrides = [chunk for override in sets for chunk in ("--set", override)]
        return [
            sys.executable,
            "-m",
            "pipeline",
            *arguments,
            "--config",
            str(self.config),
            *overrides,
        ]

    def start(self, *arguments: str, sets: Sequence[str] = ()) -> subprocess.Popen[str]:
        """Start a command."""
        return self._start(self.command(*arguments, sets=sets))

    def use_as_checkout(self, config_name: str) -> Path:
        """Make the folder of the config look like a checkout, for the commands of a page.

        Args:
            config_name: The name of the config on the page.
        """
        folder = self.config.parent
        (folder / ".venv").symlink_to(sys.prefix)
        (folder / "docs").symlink_to(CHECKOUT / "docs")
        shutil.copyfile(self.config, folder / config_name)
        return folder

    def run_line(self, line: str) -> str:
        """Run a line of a shell to its good end; returns what it said."""
        return finished_output(self._start(["bash", "-c", line]))

    def _start(self, command: Sequence[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self._hosts.on_host(0, *command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self._environment,
            cwd=self.config.parent,
        )

    def run(self, *arguments: str, sets: Sequence[str] = (), fails: bool = False) -> str:
        """Run a command to its end; returns what it said."""
        return finished_output(self.start(*arguments, sets=sets), fails=fails)

    def await_checkpoint(self) -> None:
        """Wait until a training has left its first checkpoint."""
        train = self.run_dir / "train"
        wait_until(
            lambda: bool(list(train.glob("*/hlf/checkpoints/*/complete.json"))),
            label="a checkpoint",
            seconds=400,
        )

    def version(self, stage: str) -> Path:
        """The output of a stage."""
        return version_of(self.run_dir, stage)


def finished_output(
    process: subprocess.Popen[str], *, fails: bool = False, seconds: float = 600
) -> str:
    """The output of a command, which must fail or not; a failure is never a bug or a signal."""
    message, _ = process.communicate(timeout=seconds)
    assert bool(process.returncode) == fails, message
    assert process.returncode >= 0, message
    assert process.returncode != Exit.BUG, message
    return message
