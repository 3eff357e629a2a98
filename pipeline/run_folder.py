"""What every command has in hand: a config, its run folder, and where to speak."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import tenacity
from rich.console import Console

from pipeline.config import Config
from pipeline.errors import FolderInUseError, MachineError, MissingInputError, NoOutputYetError, RunFolderError
from pipeline.machine.doctor import Finding, Need, Severity, examine, render
from pipeline.machine.facts import read_machine
from pipeline.machine.spark_session import SparkProvider
from pipeline.runs.fingerprint import Fingerprint
from pipeline.runs.lock import locked
from pipeline.runs.log import RunLog
from pipeline.runs.model_registry import Registry
from pipeline.runs.space import LEAST_BYTES
from pipeline.runs.store import StageStore, Version
from pipeline.stages.base import Stage
from pipeline.stages.table import STAGE_OF, STAGES

_SECONDS_BETWEEN_TRIES: Final = 0.5


class RunFolder:
    """The run folder of one config; nothing is written before a command asks for it.

    Args:
        config: The config.
        console: Where progress and notes are shown.
        wait: Seconds to wait where another command holds it.
    """

    def __init__(self, config: Config, console: Console, *, wait: float = 0.0) -> None:
        self.config = config
        self.console = console
        self._wait = wait
        self.log = RunLog(config.run_dir)
        self.spark = SparkProvider(config.spark)

    @contextmanager
    def locked(self, job: str = "") -> Iterator[None]:
        """Hold it; see `pipeline.runs.lock`.

        Args:
            job: A job that only reads versions and has an output of its own: it holds that, and runs beside all others.

        Raises:
            RunFolderError: It cannot be written, or another command holds it for longer than this one waits.
        """
        tries = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(FolderInUseError),
            stop=tenacity.stop_after_delay(self._wait),
            wait=tenacity.wait_fixed(_SECONDS_BETWEEN_TRIES),
            before_sleep=self._say_that_it_waits,
            reraise=True,
        )
        with ExitStack() as held:
            tries(lambda: held.enter_context(locked(self.config.run_dir, f".{job}.lock" if job else ".lock")))
            yield

    def _say_that_it_waits(self, state: tenacity.RetryCallState) -> None:
        if state.attempt_number == 1:
            self.say(f"{self.config.run_dir} is in use by another run; waiting up to {self._wait:g} s for its end")

    def store(self, stage: str) -> StageStore:
        """The versions of a stage."""
        return StageStore(self.config.run_dir, stage)

    def upstream(self, stage: Stage, *, mixed: bool = False) -> dict[str, Version]:
        """Current versions of what a stage reads from.

        Args:
            stage: The stage.
            mixed: Whether they may have been made from others than each other.

        Raises:
            MissingInputError: One is not there, or they do not belong together.
        """
        self.refuse_missing_upstream([stage])
        found = {name: self.store(name).current() for name in stage.upstream_of(self.config)}
        versions = {name: version for name, version in found.items() if version is not None}
        if not mixed:
            _refuse_mixed_versions(stage, versions)
        for name in stage.optional_upstream:
            version = self.store(name).current()
            if version is not None and not _made_from_others(STAGE_OF[name], version, versions):
                versions[name] = version
        return versions

    def refuse_missing_upstream(self, stages: Iterable[Stage]) -> None:
        """Refuse stages, to be run in this order, that read what is not there and none of them makes.

        Raises:
            NoOutputYetError: One does.
        """
        made: set[str] = set()
        for stage in stages:
            for name in stage.upstream_of(self.config):
                if name not in made and self.store(name).current() is None:
                    raise NoOutputYetError(
                        f"{stage.name} needs the output of {name}, which is not in {self.config.run_dir} yet. "
                        f"Run `python -m pipeline {name}` first, or `python -m pipeline run` for all."
                    )
            made.add(stage.name)

    def write_metrics(self, *, failed: str | None) -> None:
        """Replace `metrics.prom`; see `RunLog.write_metrics`."""
        in_use = {each.stage: _manifest_in_use(each) for each in Registry.all_of(self.config.run_dir)}
        stages = {stage.name: _manifest_in_use(self.store(stage.name)) for stage in STAGES}
        self.log.write_metrics(stages, in_use, failed=failed)

    def examine(
        self, needs: Collection[Need], *, workers: int | None = None, min_free_bytes: int = LEAST_BYTES
    ) -> list[Finding]:
        """What is wrong with this machine.

        Args:
            needs: What is going to run.
            workers: MPI ranks; None: those of the training.
            min_free_bytes: Space for what is going to be written.
        """
        train = self.config.train
        return examine(
            read_machine(run_dir=self.config.run_dir),
            needs,
            workers=workers or train.workers,
            spark_master=self.config.spark.master,
            min_free_bytes=min_free_bytes,
            launcher=train.launcher,
            launcher_args=train.launcher_args,
        )

    def refuse_unfit_machine(
        self,
        needs: Collection[Need],
        what: str,
        *,
        workers: int | None = None,
        min_free_bytes: int = LEAST_BYTES,
    ) -> None:
        """Raise where `examine` finds an error; warnings are for `doctor`.

        Raises:
            MachineError: `what` cannot be done; all errors and their fixes.
        """
        findings = self.examine(needs, workers=workers, min_free_bytes=min_free_bytes)
        errors = [each for each in findings if each.severity is Severity.ERROR]
        if errors:
            raise MachineError(f"{what} on this machine:\n{render(errors)}")

    def say(self, words: str) -> None:
        """Print a line as it is."""
        self.console.print(words, highlight=False, markup=False)


def _manifest_in_use(store: StageStore) -> dict[str, Any] | None:
    """None too where it is damaged: the command that needs it says so."""
    try:
        current = store.current()
    except RunFolderError:
        return None
    return current.manifest if current else None


def _refuse_mixed_versions(stage: Stage, versions: dict[str, Version]) -> None:
    """Refuse inputs that do not belong together: a model trained on one split and evaluated on another, say.

    A test event of new features may have been a training event of the old.
    """
    for name, version in versions.items():
        for source in _made_from_others(STAGE_OF[name], version, versions):
            raise MissingInputError(
                f"{stage.name} cannot use {name} {version.name}: that was made from other {source} than "
                f"{versions[source].name}, which is there now. Run `python -m pipeline {name}` first, or "
                f"`python -m pipeline run` for all."
            )


def _made_from_others(stage: Stage, version: Version, versions: dict[str, Version]) -> list[str]:
    """Stages of which a version was made from other content than the given versions have."""
    whole = Fingerprint.from_json(version.manifest["fingerprint"])
    used = [item for each in (whole, *whole.parts.values()) for item in each.inputs.items()]
    return [
        source for source, read in used if source in versions and read.digest != stage.content_read(versions[source])
    ]
