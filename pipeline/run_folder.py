"""The run folder of a config, with the console for messages: every command gets one."""

from __future__ import annotations

import glob
import json
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import tenacity
from rich.console import Console

from hep_core.integrity import DamagedOutputError
from hep_core.secrets import redact_all
from hep_core.storage import as_path
from pipeline.config import Config
from pipeline.configuration.contradictions import simulated_processes
from pipeline.configuration.credentials import hide_credentials
from pipeline.errors import (
    MISSING_INPUT_ERRORS,
    FolderInUseError,
    MachineError,
    MissingInputError,
    NoOutputYetError,
    RunFolderError,
)
from pipeline.machine.doctor import Finding, Need, examine, render
from pipeline.machine.spark_session import SparkProvider
from pipeline.runs.fingerprint import Fingerprint
from pipeline.runs.lock import locked
from pipeline.runs.log import RunLog
from pipeline.runs.model_registry import Registry
from pipeline.runs.outcome import CommandResults
from pipeline.runs.outputs import suspect_files
from pipeline.runs.own_folders import claimed
from pipeline.runs.provenance import now
from pipeline.runs.store import StageStore, Version
from pipeline.stages.base import Stage
from pipeline.stages.table import STAGE_OF, STAGES
from pipeline.terminal.exit_codes import stop_requested

_SECONDS_TO_NOTIFY: Final = 60.0
_SECONDS_BETWEEN_TRIES: Final = 0.5


class RunFolder:
    """The run folder of a config; making this object writes nothing."""

    def __init__(self, config: Config, console: Console, *, wait: float = 0.0) -> None:
        self._written = config
        self.config = with_simulated_samples(config)
        self.console = console
        self._wait = wait
        self.log = RunLog(config.run_dir)
        self.results = CommandResults()
        """What the command that holds the run folder made or used."""
        self.spark = SparkProvider(config.spark, self._log_jvm_noise)
        self._verified: set[Path] | None = None
        """Files that were what was written when the command that holds the run folder looked."""

    def refresh(self) -> None:
        """Take paths and cross-sections of simulated samples from the version of `simulate` in use."""
        self.config = with_simulated_samples(self._written)

    @contextmanager
    def locked(self, job: str = "") -> Iterator[None]:
        """Hold the run folder; see `pipeline.runs.lock`.

        In a file, a line of time, run, outcome and `results` comes last. The command of `notify` gets the same as JSON.

        A `job` only reads versions and has a folder of its own, of that name: it locks this folder, and runs beside
        all other commands.
        `clean` keeps the versions that were in use when the job began.
        """
        ended: BaseException | None = None
        self.results = CommandResults()
        self._verified = set()
        try:
            with self._held(job):
                yield
        except DamagedOutputError as error:
            ended = self.suspect(error)
            raise ended from error
        except BaseException as error:
            ended = error
            raise
        finally:
            self._verified = None
            self._tell_the_outcome(ended, notify=not job)

    def _tell_the_outcome(self, ended: BaseException | None, *, notify: bool) -> None:
        outcome, when = _outcome(ended), now()
        if not self.console.is_terminal:
            self.say(f"{when} run {self.log.run_id}: {', '.join([outcome, *self.results.words])}")
        if notify and self.config.notify:
            message = "" if ended is None else str(ended)
            about = {
                "time": when,
                "run": self.log.run_id,
                "run_dir": str(self.config.run_dir.absolute()),
            }
            about |= {
                "command": " ".join(map(hide_credentials, sys.argv[1:])),
                "outcome": outcome,
                "message": message,
            }
            self._notify({**about, "log": str(self.log.path.absolute()), **self.results.values})

    def _notify(self, about: Mapping[str, Any]) -> None:
        """Give the outcome to the command of `notify`; its failure is said and changes nothing."""
        try:
            done = subprocess.run(
                self.config.notify, input=json.dumps(redact_all(about)), text=True, capture_output=True,
                timeout=_SECONDS_TO_NOTIFY, check=False,
            )  # fmt: skip
            problem = (
                f"it ended with code {done.returncode}: {done.stderr.strip()[-200:]}"
                if done.returncode
                else ""
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            problem = str(error)
        if problem:
            self.say(f"warning: the command of `notify` failed: {problem}")

    @contextmanager
    def _held(self, job: str) -> Iterator[None]:
        tries = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(FolderInUseError),
            stop=tenacity.stop_after_delay(self._wait),
            wait=tenacity.wait_fixed(_SECONDS_BETWEEN_TRIES),
            before_sleep=lambda state: (
                self._say_that_it_waits() if state.attempt_number == 1 else None
            ),
            reraise=True,
        )
        with ExitStack() as held:
            # Without a job, that is the run folder.
            tries(lambda: held.enter_context(locked(self.config.run_dir / job)))
            if job:
                held.enter_context(
                    claimed(each.folder for each in map(in_use, self.stores()) if each)
                )
            yield

    def _say_that_it_waits(self) -> None:
        self.say(
            f"{self.config.run_dir} is in use by another run; waiting up to {self._wait:g} s for its end"
        )

    def store(self, stage: str) -> StageStore:
        """The versions of a stage."""
        storage = self.config.storage if STAGE_OF[stage].uses_storage else None
        return StageStore(self.config.run_dir, stage, storage=as_path(storage) if storage else None)

    def stores(self) -> list[StageStore]:
        """The versions of all stages, and the models of each network that were promoted."""
        return [
            *(self.store(stage.name) for stage in STAGES),
            *Registry.all_of(self.config.run_dir),
        ]

    def upstream(
        self,
        stage: Stage,
        *,
        mixed: bool = False,
        command: str = "",
        instead: Mapping[str, Version] | None = None,
    ) -> dict[str, Version]:
        """Current versions of the stages that a stage reads.

        They may be `mixed`: made from other versions than these, and damaged. `instead` has versions with other
        manifests than those on disk. A damaged one that the stage can do without is left out.

        Raises:
            DamagedOutputError: A file that the stage reads is not what was written.
        """
        self.refuse_missing_upstream([stage], command=command)
        needed, replaced = stage.upstream_of(self.config), instead or {}
        names = (*needed, *stage.optional_upstream)
        found = {
            name: version
            for name in names
            if (version := replaced.get(name) or self.store(name).current())
        }
        versions = {name: version for name, version in found.items() if name in needed}
        for name, version in versions.items():
            # A test event of new features may have been a training event of the old.
            for source in () if mixed else _made_from_others(STAGE_OF[name], version, versions):
                raise MissingInputError(
                    f"{stage.name} cannot use {name} {version.name}: it was made from other {source} than "
                    f"{versions[source].name}, which is current. Run `python -m pipeline {name}` first, or "
                    f"`python -m pipeline run` for all, with the same options."
                )
        if not mixed:
            for name, version in versions.items():
                self._refuse_damage(version, stage.reads[name])
        for name, version in found.items():
            if name in needed or _made_from_others(STAGE_OF[name], version, versions):
                continue
            try:
                self._refuse_damage(version, stage.reads[name])
            except DamagedOutputError as damage:
                if not mixed:
                    self.say(f"  note: {self.suspect(damage)} {stage.name} runs without {name}.")
            else:
                versions[name] = version
        return versions

    def _refuse_damage(self, version: Version, patterns: Collection[str]) -> None:
        """Refuse a version with damaged files of some patterns; a command reads each file once for that."""
        verified = self._verified if self._verified is not None else set()
        files = {file.place(version.folder): file for file in version.files_like(patterns)}
        version.refuse_damage([file for path, file in files.items() if path not in verified])
        verified.update(files)

    def suspect(self, error: DamagedOutputError) -> DamagedOutputError:
        """Remember a damaged file with the version in use that names it; returns the error with the stage of that.

        The file is then read whole to see whether that version is up to date.
        """
        if self._verified:
            self._verified.clear()
        for store in self.stores():
            version = in_use(store)
            for file in version.files if version else ():
                if version and store.holds(error.path, file):
                    suspect_files(version.folder, [file.path])
                    return DamagedOutputError(error.path, error.damage, version.writer)
        return error

    def refuse_missing_upstream(self, stages: Iterable[Stage], *, command: str = "") -> None:
        """Refuse stages whose input neither exists nor is made by an earlier stage of the list."""
        made: set[str] = set()
        for stage in stages:
            for name in stage.upstream_of(self.config):
                if name not in made and self.store(name).current() is None:
                    who = command or stage.name
                    raise NoOutputYetError(
                        f"{who} needs the output of {name}, which is not in {self.config.run_dir.absolute()} yet. "
                        f"Run `python -m pipeline {name}` first, or `python -m pipeline run` for all, with the same "
                        f"options."
                    )
            made.add(stage.name)

    def write_metrics(self, *, failed: str | None) -> None:
        """Replace `metrics.prom`; see `RunLog.write_metrics`."""
        stages = _manifests_in_use(map(self.store, STAGE_OF))
        self.log.write_metrics(
            stages, _manifests_in_use(Registry.all_of(self.config.run_dir)), failed=failed
        )

    def examine(self, needs: Collection[Need], *, workers: int | None = None) -> list[Finding]:
        """Problems of this machine.

        Without `workers`, those of the training count.
        """
        train = self.config.train
        if Need.MPI in needs and train.launcher.startswith("spark"):
            needs = {*needs, Need.SPARK}
        is_here = train.launcher == "mpirun" and not train.launcher_args
        return examine(
            needs,
            run_dir=self.config.run_dir,
            workers=(workers or train.workers) if is_here else 1,
            threads=train.threads,
        )

    def refuse_unfit_machine(
        self, needs: Collection[Need], what: str, *, workers: int | None = None
    ) -> None:
        """Raise if `examine` finds an error; warnings are for `doctor`."""
        findings = self.examine(needs, workers=workers)
        errors = [each for each in findings if each.severity == "error"]
        if errors:
            raise MachineError(f"{what} on this machine:\n{render(errors)}")

    def _log_jvm_noise(self, line: str) -> None:
        # A command that only looks at a run folder writes no log.
        if self.log.path.exists():
            with suppress(RunFolderError):
                self.log.event("message of the JVM", message=line)

    def say(self, words: str) -> None:
        """Print a line without markup."""
        self.console.print(words, highlight=False, markup=False)


def with_simulated_samples(config: Config) -> Config:
    """The config with paths instead of `simulate://` names, and with the cross-sections of the simulation.

    A cross-section, or its error, of the config prevails. Without an output of `simulate` nothing changes.
    """
    if not any(map(simulated_processes, config.samples)):
        return config
    # A damaged version is named by the command that needs it.
    version = in_use(StageStore(config.run_dir, "simulate"))
    if version is None:
        return config
    made: dict[str, Any] = version.manifest["counters"]["processes"]
    samples = []
    for sample in config.samples:
        names = simulated_processes(sample)
        if names and names[0] in made:
            changes: dict[str, Any] = {
                "files": [f"{glob.escape(str(version.folder))}/{names[0]}/*.root"]
            }
            if sample.cross_section_pb is None:
                known = made[names[0]]
                changes["cross_section_pb"] = known["cross_section_pb"]
                changes["cross_section_error_pb"] = (
                    sample.cross_section_error_pb or known["cross_section_error_pb"]
                )
            sample = sample.model_copy(update=changes)  # noqa: PLW2901
        samples.append(sample)
    return config.model_copy(update={"samples": samples})


def _outcome(error: BaseException | None) -> str:
    """How a command ended; a night that waits is no failure."""
    if error is None:
        return "done"
    if isinstance(error, FolderInUseError):
        return "waits for another run"
    # After Ctrl-C, which also ends the JVM, Spark may fail first.
    if isinstance(error, KeyboardInterrupt) or stop_requested.is_set():
        return "interrupted"
    return (
        "waits for its input"
        if isinstance(error, MISSING_INPUT_ERRORS)
        else f"failed ({type(error).__name__})"
    )


def _manifests_in_use(stores: Iterable[StageStore]) -> dict[str, dict[str, Any] | None]:
    found = {store.stage: in_use(store) for store in stores}
    return {name: None if version is None else version.manifest for name, version in found.items()}


def in_use(store: StageStore) -> Version | None:
    """The version in use; None if it is damaged: the command that needs it says so."""
    try:
        return store.current()
    except RunFolderError:
        return None


def _made_from_others(stage: Stage, version: Version, versions: dict[str, Version]) -> list[str]:
    """Stages whose content in the given versions differs from the content that a version was made from."""
    whole = Fingerprint.from_json(version.manifest["fingerprint"])
    used = [item for each in (whole, *whole.parts.values()) for item in each.inputs.items()]
    return [
        source
        for source, read in used
        if source in versions and read.digest != stage.content_read(versions[source])
    ]
