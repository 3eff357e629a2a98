"""The run folder of a config, with the console for messages: every command gets one."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import tenacity
from rich.console import Console

from hep_core.batch_systems import has_several_hosts
from hep_core.integrity import DamagedOutputError
from hep_core.storage import as_path
from pipeline.config import Config
from pipeline.errors import (
    FolderInUseError,
    MachineError,
    MissingInputError,
    NoOutputYetError,
    RunFolderError,
    is_write_protected,
)
from pipeline.machine.doctor import Finding, Need, check_srun, examine, render
from pipeline.machine.spark_session import SparkProvider
from pipeline.notifier import Notifier
from pipeline.runs.lock import locked
from pipeline.runs.log import RunLog
from pipeline.runs.model_registry import Registry
from pipeline.runs.outcome import CommandResults
from pipeline.runs.outputs import suspect_files
from pipeline.runs.own_folders import claimed, keeping_claims
from pipeline.runs.store import StageStore
from pipeline.runs.version import Version
from pipeline.simulated_samples import with_simulated_samples
from pipeline.stages.base import Stage
from pipeline.stages.table import STAGE_OF, STAGES, content_read
from pipeline.terminal.output_streams import num_lost_writes

_SECONDS_BETWEEN_TRIES: Final = 0.5


class RunFolder:
    """Opens the run folder of a config: its versions, lock, log and Spark.

    Making this object writes nothing.

    Args:
        config: The config of the run.
        console: Gets all messages.
        wait: How long to wait for another run that holds the folder [s].
    """

    def __init__(self, config: Config, console: Console, *, wait: float = 0.0) -> None:
        self._written_config = config
        self.config = with_simulated_samples(config)
        """The config, with files and cross-sections of simulated samples filled in."""
        self.console = console
        self._wait_seconds = wait
        self.log = RunLog(config.run_dir)
        self.results = CommandResults()
        """What the command that holds the run folder made or used."""
        self.spark = SparkProvider(config.spark, self._log_jvm_noise)
        self._notifier = Notifier(
            config.notify,
            config.run_dir,
            self.log,
            say=self.say,
            prints_outcome=not console.is_terminal,
        )
        self._noted_warnings: set[Finding] = set()
        """Warnings about this machine that this command has printed."""
        self._has_lost_events = False
        """Whether a warning has said that the log cannot be written."""
        self._verified: set[Path] | None = None
        """Files that this command has checked and found intact; None unless it holds the lock."""

    def refresh(self) -> None:
        """Update `config` with paths and cross-sections from the present output of `simulate`."""
        self.config = with_simulated_samples(self._written_config)

    @contextmanager
    def locked(self, job: str = "", *, only_reads: bool = False) -> Iterator[None]:
        """Hold the run folder during the block; at its end, say how the command ended.

        Another command that wants to hold it waits or is refused. There are two cases:

        - Without a `job`, the run folder itself is locked.
        - A `job` only reads versions and has a folder of its own, of that name: it locks that one,
          and runs beside all other commands. `clean` keeps the versions that were in use at its
          begin, and those that it resolves. The command of `notify` does not run for a job.

        Args:
            job: The folder of a job; empty for the run folder itself.
            only_reads: Whether a job continues, with a note, where it cannot write its folder.

        Raises:
            FolderInUseError: Another command holds the folder for too long.
        """
        end: BaseException | None = None
        self.results = CommandResults()
        self._verified = set()
        try:
            with self._lock(job, only_reads=only_reads):
                yield
        except DamagedOutputError as error:
            end = self.suspect(error)
            raise end from error
        except BaseException as error:
            end = error
            raise
        finally:
            self._verified = None
            self._log_lost_messages()
            self._notifier.report(end, self.results, notifies=not job)

    @contextmanager
    def _lock(self, job: str, *, only_reads: bool) -> Iterator[None]:
        """Lock the run folder or the folder of a job, trying again until the wait is over."""
        # Only a held folder is worth another attempt; any other error ends the wait.
        attempts = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(FolderInUseError),
            stop=tenacity.stop_after_delay(self._wait_seconds),
            wait=tenacity.wait_fixed(_SECONDS_BETWEEN_TRIES),
            before_sleep=self._say_first_wait,
            reraise=True,
        )
        # The name of a job is empty without one, and then this is the run folder.
        folder = self.config.run_dir / job
        with ExitStack() as stack:
            try:
                attempts(lambda: stack.enter_context(locked(folder)))
            except RunFolderError as error:
                if not (only_reads and is_write_protected(error)):
                    raise
                self.note(f"{folder} cannot be written; nothing stops a second such command")
            if job:
                stack.enter_context(keeping_claims())
                stack.enter_context(claimed(self._folders_in_use()))
            yield

    def _say_first_wait(self, state: tenacity.RetryCallState) -> None:
        """Print that this command waits, after the first failed attempt only."""
        if state.attempt_number == 1:
            self.say(
                f"{self.config.run_dir} is in use by another run; waiting up to "
                f"{self._wait_seconds:g} s for its end"
            )

    def _folders_in_use(self) -> list[Path]:
        versions = [store.readable_current() for store in self.stores()]
        return [version.folder for version in versions if version is not None]

    def store(self, stage: str) -> StageStore:
        """The versions of a stage."""
        storage = self.config.storage if STAGE_OF[stage].uses_storage else None
        return StageStore(self.config.run_dir, stage, storage=as_path(storage) if storage else None)

    def stores(self) -> list[StageStore | Registry]:
        """The versions of all stages, and the models of each network that were promoted."""
        stage_stores = [self.store(stage.name) for stage in STAGES]
        return [*stage_stores, *Registry.of_all_networks(self.config.run_dir)]

    def upstream(
        self,
        stage: Stage,
        *,
        allow_mixed: bool = False,
        command: str = "",
        replacements: Mapping[str, Version] | None = None,
    ) -> dict[str, Version]:
        """Return the versions in use of the stages that a stage reads, by stage.

        They must fit together: each was made from the others among them, by content. An optional
        one that is damaged, or was made from other versions, is left out.

        Args:
            stage: The stage.
            allow_mixed: Whether they may be damaged, and made from other versions than these.
            command: The command for messages, if it is no stage.
            replacements: Versions, by stage, that are taken instead of those on disk.

        Raises:
            NoOutputYetError: The output of a stage is missing.
            MissingInputError: A version was made from another version than the current one.
            DamagedOutputError: A file that the stage reads is not what was written.
        """
        self.check_upstream_exists([stage], command=command)
        needed_names = stage.upstream_of(self.config)
        versions: dict[str, Version] = {}
        optional_versions: dict[str, Version] = {}
        # First the versions are read, then those needed are checked, then the optional ones.
        for name in (*needed_names, *stage.optional_upstream):
            version = (replacements or {}).get(name) or self.store(name).current()
            if version is not None:
                target = versions if name in needed_names else optional_versions
                target[name] = version
        if not allow_mixed:
            for name, version in versions.items():
                _check_sources(stage, name, version, versions)
            for name, version in versions.items():
                self._check_files(version, stage.reads[name])
        for name, version in optional_versions.items():
            if _changed_sources(STAGE_OF[name], version, versions):
                continue
            try:
                self._check_files(version, stage.reads[name])
            except DamagedOutputError as damage:
                if not allow_mixed:
                    self.note(f"{self.suspect(damage)} {stage.name} runs without {name}.")
            else:
                versions[name] = version
        return versions

    def _check_files(self, version: Version, patterns: Collection[str]) -> None:
        """Refuse a version if a file that matches a pattern is damaged.

        Checked files are remembered, so that a command checks each only once.

        Raises:
            DamagedOutputError: There is such a file.
        """
        # Outside a lock nothing is remembered: another run may change the files.
        verified = set() if self._verified is None else self._verified
        files = {file.location(version.folder): file for file in version.files_like(patterns)}
        version.check_files([file for path, file in files.items() if path not in verified])
        verified.update(files)

    def suspect(self, error: DamagedOutputError) -> DamagedOutputError:
        """Find the version in use that names a damaged file, and note the damage beside it.

        From then on, the file is read whole when that version is checked. All files count as
        unchecked again.

        Returns:
            The error with the stage that wrote the file, if a version in use names it; else the
            error as it was given.
        """
        if self._verified:
            self._verified.clear()
        for store in self.stores():
            version = store.readable_current()
            if version is None:
                continue
            for file in version.files:
                if store.holds(error.path, file):
                    suspect_files(version.folder, [file.path])
                    return DamagedOutputError(error.path, error.damage, version.writer)
        return error

    def check_upstream_exists(self, stages: Iterable[Stage], *, command: str = "") -> None:
        """Refuse stages whose input neither exists nor is made by an earlier stage of the list.

        Raises:
            NoOutputYetError: The output of a stage is missing.
        """
        made: set[str] = set()
        for stage in stages:
            for name in stage.upstream_of(self.config):
                if name not in made and self.store(name).current() is None:
                    raise NoOutputYetError(
                        f"{command or stage.name} needs the output of {name}, which is not in "
                        f"{self.config.run_dir.absolute()} yet. Run `python -m pipeline {name}` "
                        f"first, or `python -m pipeline run` for all, with the same options."
                    )
            made.add(stage.name)

    def log_if_possible(self, event: str, **details: Any) -> None:
        """Log an event of a command that works without a log; the first failure is a warning."""
        try:
            self.log.event(event, **details)
        except RunFolderError as error:
            if not self._has_lost_events:
                self.say(f"warning: {error}")
            self._has_lost_events = True

    def write_metrics(self, *, failed: str | None) -> None:
        """Replace `metrics.prom`, from the versions and models in use; see `RunLog.write_metrics`.

        If it cannot be written, a warning says so: the outcome of the command is that of its work.
        `failed` is the stage that failed in this command; None without a failure.
        """
        stages = {name: self.store(name).readable_current() for name in STAGE_OF}
        registries = Registry.of_all_networks(self.config.run_dir)
        models = {registry.name: registry.readable_current() for registry in registries}
        try:
            self.log.write_metrics(stages, models, failed=failed)
        except RunFolderError as error:
            self.say(f"warning: {error}")

    def examine(self, needs: Collection[Need], *, workers: int | None = None) -> list[Finding]:
        """Return the problems of this machine that matter for some needs of stages.

        Args:
            needs: What the stages need, such as Spark or MPI.
            workers: Number of training processes; None for that of the config.
        """
        train = self.config.train
        if Need.MPI in needs and train.launcher.startswith("spark"):
            needs = {*needs, Need.SPARK}
        # Other hosts may run ranks too: those of another launcher, those in the arguments of mpirun,
        # and those that mpirun takes from SLURM.
        hosts_are_stated = bool(train.launcher_args) or has_several_hosts(os.environ)
        ranks_run_here = train.launcher == "mpirun" and not hosts_are_stated
        num_workers = workers or train.workers
        findings = examine(
            needs,
            run_dir=self.config.run_dir,
            spark=self.config.spark,
            workers=num_workers if ranks_run_here else 1,
            threads=train.threads,
        )
        if Need.MPI in needs and train.launcher == "srun" and not train.launcher_args:
            lack_of_cores = check_srun(os.environ, num_workers, train.threads)
            if lack_of_cores is not None:
                findings = [*findings, lack_of_cores]
        return findings

    def check_machine(
        self, needs: Collection[Need], problem: str, *, workers: int | None = None
    ) -> None:
        """Stop if `examine` finds an error; a warning is a note, once in a command.

        Raises:
            MachineError: There is an error; `problem` begins its message.
        """
        findings = self.examine(needs, workers=workers)
        errors = [finding for finding in findings if finding.severity == "error"]
        if errors:
            raise MachineError(f"{problem} on this machine:\n{render(errors)}")
        for warning in findings:
            if warning not in self._noted_warnings:
                self._noted_warnings.add(warning)
                self.note(f"{warning.problem} {warning.fix}")

    def _log_jvm_noise(self, line: str) -> None:
        """Write a line of Spark's Java process to the log, if this command has one."""
        # A command that only reads a run folder writes no log.
        if self.log.path.exists():
            self.log_if_possible("message of the JVM", message=line)

    def _log_lost_messages(self) -> None:
        """Write to the log, if this command has one, that messages could not be printed."""
        num_lost = num_lost_writes()
        if num_lost and self.log.path.exists():
            self.log_if_possible("messages lost", num_writes=num_lost)

    def say(self, line: str) -> None:
        """Print a line without markup."""
        self.console.print(line, highlight=False, markup=False)

    def note(self, text: str) -> None:
        """Print an indented note without markup."""
        self.say(f"  note: {text}")


def _check_sources(
    stage: Stage, name: str, version: Version, versions: Mapping[str, Version]
) -> None:
    """Refuse a version that was made from other versions than those in use.

    Args:
        stage: The stage that wants to read the version, for the message.
        name: The stage that made the version.
        version: The version.
        versions: The versions in use, by stage.

    Raises:
        MissingInputError: The content of a stage in use is not the content that it was made from.
    """
    # A test event of new features may have been a training event of the old.
    for source in _changed_sources(STAGE_OF[name], version, versions):
        raise MissingInputError(
            f"{stage.name} cannot use {name} {version.name}: it was made from other {source} than "
            f"{versions[source].name}, which is current. Run `python -m pipeline {name}` first, or "
            f"`python -m pipeline run` for all, with the same options."
        )


def _changed_sources(stage: Stage, version: Version, versions: Mapping[str, Version]) -> list[str]:
    """Return the stages whose content is no longer the content that a version was made from.

    Only the files and counters that the stage reads are compared, by their recorded digest.

    Args:
        stage: The stage that made the version.
        version: The version.
        versions: The versions in use, by stage; stages that are not among them are passed over.
    """
    fingerprint = version.manifest.fingerprint
    changed = []
    for read in (fingerprint, *fingerprint.parts.values()):
        for source, recorded in read.inputs.items():
            if source in versions:
                digest = content_read(stage, versions[source])
                if digest != recorded.digest:
                    changed.append(source)
    return changed
