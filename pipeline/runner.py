"""Decides which stages must run, and runs them as transactions."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, Final, NamedTuple

from rich.console import Console

from pipeline.config import Config
from pipeline.doctor import Severity, examine, read_machine, render
from pipeline.errors import CheckFailedError, MachineError, MissingInputError, RunFolderError
from pipeline.fingerprint import Fingerprint, Input, code_digests, reasons_to_run
from pipeline.provenance import code_version, now, package_versions
from pipeline.spark import SparkProvider
from pipeline.stages.base import Context, Result, Stage
from pipeline.stages.evaluate import Evaluate
from pipeline.stages.features import Features
from pipeline.stages.ingest import Ingest
from pipeline.stages.report import Report
from pipeline.stages.train import Train
from pipeline.store import StageStore, Version

#: All stages, each after those it reads from.
STAGES: Final[tuple[Stage, ...]] = (Ingest(), Features(), Train(), Evaluate(), Report())
STAGE_NAMES: Final = tuple(stage.name for stage in STAGES)

_MANIFEST_VERSION: Final = 1


class State(StrEnum):
    """How a stage stands."""

    FRESH = "up to date"
    STALE = "stale"
    MISSING = "not there yet"


class StagePlan(NamedTuple):
    """What would happen to a stage, and why."""

    stage: Stage
    state: State
    reasons: list[str]
    current: Version | None


class Runner:
    """Runs the stages of one config.

    Args:
        config: The config.
        console: Where progress and results are shown.
    """

    def __init__(self, config: Config, console: Console) -> None:
        self.config = config
        self.console = console
        self._spark = SparkProvider(config.spark)

    def plan(self) -> list[StagePlan]:
        """How every stage stands; a stage is stale too when one that it reads from will run."""
        plans: list[StagePlan] = []
        will_run: set[str] = set()
        for stage in STAGES:
            current = self.store(stage).current()
            waits_for = [name for name in stage.upstream if name in will_run]
            if current is None:
                plans.append(StagePlan(stage, State.MISSING, [], None))
            else:
                reasons = self._reasons(stage, current, ignore=waits_for)
                reasons += [f"{name} will have a new version" for name in waits_for]
                plans.append(StagePlan(stage, State.STALE if reasons else State.FRESH, reasons, current))
            if plans[-1].state is not State.FRESH:
                will_run.add(stage.name)
        return plans

    def run(self, names: Sequence[str], *, force: bool = False) -> None:
        """Run the named stages in order, skipping those that are up to date.

        Args:
            names: Names of stages.
            force: Run them even if they are up to date.
        """
        with self._locked():
            try:
                for stage in STAGES:
                    if stage.name in names:
                        self._run_stage(stage, force=force)
            finally:
                self._spark.stop()

    def accept(self) -> list[str]:
        """Declare every existing version up to date as it is; returns the stages that were stale."""
        accepted = []
        with self._locked():
            for plan in self.plan():
                if plan.current is None or plan.state is State.FRESH:
                    continue
                fingerprint = self._fingerprint(plan.stage, plan.current)
                manifest = plan.current.manifest | {
                    "fingerprint": fingerprint.to_json(),
                    "accepted": {"when": now(), "reasons": plan.reasons},
                }
                self.store(plan.stage).rewrite_manifest(plan.current, manifest)
                accepted.append(plan.stage.name)
        return accepted

    def store(self, stage: Stage) -> StageStore:
        """The versions of a stage."""
        return StageStore(self.config.run_dir, stage.name)

    def _run_stage(self, stage: Stage, *, force: bool) -> None:
        current = self.store(stage).current()
        upstream = self._upstream(stage)
        reasons = self._reasons(stage, current) if current else ["first run"]
        if force:
            reasons = reasons or ["--force"]
        if not reasons:
            self.console.print(f"[bold]{stage.name}[/]: up to date", highlight=False)
            return
        shown = "; ".join(reasons[:3]) + (f"; and {len(reasons) - 3} more" if len(reasons) > 3 else "")
        self.console.print(f"[bold]{stage.name}[/]: {_escaped(shown)}", highlight=False)
        self._say_what_is_stale(stage, upstream)
        self._look_at_machine(stage)
        self._make_version(stage, current, upstream)

    def _say_what_is_stale(self, stage: Stage, upstream: dict[str, Version]) -> None:
        """A stage run on its own takes what is there, stale or not; the user should know."""
        for each in STAGES:
            if each.name in upstream and (reasons := self._reasons(each, upstream[each.name])):
                self.console.print(
                    f"  note: {each.name} is stale ({_escaped(reasons[0])}); "
                    f"{stage.name} uses the version that is there",
                    highlight=False,
                )

    def _make_version(self, stage: Stage, current: Version | None, upstream: dict[str, Version]) -> None:
        """The transaction: a new folder, the work, its checks, the manifest, the pointer."""
        store = self.store(stage)
        # Taken before the work: what changes meanwhile makes the stage stale again.
        fingerprint = self._fingerprint(stage, current)
        folder = store.begin(fingerprint.digest)
        started = time.monotonic()
        try:
            context = Context(
                config=self.config, upstream=upstream, out_dir=folder, spark=self._spark, console=self.console
            )
            result = stage.run(context)
            _refuse_failed_checks(stage, result)
            seconds = time.monotonic() - started
            store.commit(folder, self._manifest(stage, fingerprint, upstream, result, seconds))
        except BaseException as error:
            # Ctrl-C too: only a kill leaves an unfinished folder, and the next run removes that.
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, OSError):
                raise RunFolderError(
                    f"{stage.name} could not write its output ({error}). Check space and permissions of {store.folder}."
                ) from error
            raise
        self.console.print(f"  {_escaped(result.summary)}  [dim]({seconds:.1f} s)[/]", highlight=False)

    def _manifest(
        self,
        stage: Stage,
        fingerprint: Fingerprint,
        upstream: dict[str, Version],
        result: Result,
        seconds: float,
    ) -> dict[str, Any]:
        return {
            "manifest_version": _MANIFEST_VERSION,
            "stage": stage.name,
            "created": now(),
            "seconds": round(seconds, 3),
            "command": sys.argv,
            "fingerprint": fingerprint.to_json(),
            "upstream": {name: version.name for name, version in upstream.items()},
            "config": self.config.model_dump(mode="json"),
            "code_version": code_version(),
            "packages": package_versions(),
            "inputs": result.inputs,
            "counters": result.counters,
            "checks": [check._asdict() for check in result.checks],
        }

    def _upstream(self, stage: Stage) -> dict[str, Version]:
        versions = {}
        for name in stage.upstream:
            version = StageStore(self.config.run_dir, name).current()
            if version is None:
                raise MissingInputError(
                    f"{stage.name} needs the output of {name}, which is not in {self.config.run_dir} yet. "
                    f"Run `python -m pipeline {name}` first, or `python -m pipeline run` for all."
                )
            versions[name] = version
        return versions

    def _fingerprint(self, stage: Stage, current: Version | None) -> Fingerprint:
        inputs = stage.own_inputs(self.config, current)
        for name, version in self._upstream(stage).items():
            inputs[name] = Input(f"output of {name}", version.name)
        code = code_digests([*stage.code, f"pipeline/stages/{stage.name}.py"])
        return Fingerprint(inputs, stage.config_items(self.config), code)

    def _reasons(self, stage: Stage, current: Version, *, ignore: Sequence[str] = ()) -> list[str]:
        before = Fingerprint.from_json(current.manifest["fingerprint"])
        if any(StageStore(self.config.run_dir, name).current() is None for name in stage.upstream):
            return ["the output of a stage it reads from is gone"]
        after = self._fingerprint(stage, current)
        for name in ignore:
            before.inputs.pop(name, None)
            after.inputs.pop(name, None)
        return reasons_to_run(before, after)

    def _look_at_machine(self, stage: Stage) -> None:
        findings = examine(
            read_machine(run_dir=self.config.run_dir),
            stage.needs,
            workers=self.config.train.workers,
            spark_master=self.config.spark.master,
        )
        errors = [finding for finding in findings if finding.severity is Severity.ERROR]
        if errors:
            raise MachineError(f"{stage.name} cannot run on this machine:\n{render(errors)}")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the run folder; a second run refuses. The lock ends with the process, however it ends."""
        path = self.config.run_dir / ".lock"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("a+")
        except OSError as cause:
            raise RunFolderError(
                f"{self.config.run_dir} cannot be written ({cause}). Choose another run_dir, or mend its permissions."
            ) from cause
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise RunFolderError(
                    f"{self.config.run_dir} is in use by another run (process {file.read().strip() or 'unknown'}). "
                    f"Wait for it, end it, or choose another run_dir."
                ) from None
            file.seek(0)
            file.truncate()
            file.write(str(os.getpid()))
            file.flush()
            yield


def _refuse_failed_checks(stage: Stage, result: Result) -> None:
    failed = [f"  {check.name}: {check.detail}" for check in result.checks if not check.passed]
    if failed:
        raise CheckFailedError(
            f"the output of {stage.name} failed its own checks and was not published:\n" + "\n".join(failed) + "\n"
            "This is a bug or a damaged disk; run again, and report it if it stays."
        )


def _escaped(text: str) -> str:
    """Text that may hold square brackets, which rich would read as markup."""
    return text.replace("[", r"\[")
