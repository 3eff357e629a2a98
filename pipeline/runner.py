"""Decides which stages must run, and runs them as transactions."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

from rich.console import Console

from ingestion.secrets import redact_all
from pipeline.config import Config
from pipeline.doctor import refuse_unfit_machine
from pipeline.errors import CheckFailedError, MissingInputError, RunFolderError
from pipeline.fingerprint import Fingerprint, Input, code_digests, reasons_to_run
from pipeline.interrupts import stop_if_requested
from pipeline.lock import locked
from pipeline.provenance import code_version, now, package_versions
from pipeline.registry import Registry
from pipeline.run_log import RunLog
from pipeline.space import out_of_room, refuse_full_disk
from pipeline.spark import SparkProvider
from pipeline.stages.base import Context, Found, Result, Stage
from pipeline.stages.evaluate import Evaluate
from pipeline.stages.export import Export
from pipeline.stages.features import Features
from pipeline.stages.gridsearch import GridSearch
from pipeline.stages.ingest import Ingest
from pipeline.stages.report import Report
from pipeline.stages.train import Train
from pipeline.store import StageStore, Version

#: All stages, each after those it reads from.
STAGES: Final[tuple[Stage, ...]] = (
    Ingest(),
    Features(),
    GridSearch(),
    Train(),
    Evaluate(),
    Export(),
    Report(),
)


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
        self.log = RunLog(config.run_dir)
        self._spark = SparkProvider(config.spark)

    def plan(self) -> list[StagePlan]:
        """How every stage stands; a stage is stale too when one that it reads from will run."""
        plans: list[StagePlan] = []
        will_run: set[str] = set()
        for stage in self.wanted():
            current = self.store(stage).current()
            waits_for = [
                name for name in (*stage.upstream_of(self.config), *stage.optional_upstream) if name in will_run
            ]
            if current is None:
                plans.append(StagePlan(stage, State.MISSING, [], None))
            else:
                reasons = self._reasons(stage, current, ignore=waits_for)
                reasons += [f"{name} will have a new version" for name in waits_for]
                plans.append(StagePlan(stage, State.STALE if reasons else State.FRESH, reasons, current))
            if plans[-1].state is not State.FRESH:
                will_run.add(stage.name)
        return plans

    def wanted(self) -> list[Stage]:
        """The stages that `run` includes, in order."""
        return [stage for stage in STAGES if stage.is_wanted(self.config)]

    def run(self, names: Sequence[str], *, force: bool = False) -> None:
        """Run the named stages in order, skipping those that are up to date.

        Args:
            names: Names of stages.
            force: Run them even if they are up to date.
        """
        with self._locked():
            running: Stage | None = None
            self.log.event("run started", command=sys.argv, stages=list(names))
            try:
                for stage in STAGES:
                    if stage.name in names:
                        running = stage
                        self._run_stage(stage, force=force)
            except BaseException as error:
                try:
                    self._log_end(running, error)
                except RunFolderError as second:
                    # That there is no room for the log either is not what stopped the run.
                    self.console.print(f"warning: {_escaped(str(second))}", highlight=False)
                raise
            else:
                self._log_end(None, None)
            finally:
                self._spark.stop()

    def _log_end(self, running: Stage | None, error: BaseException | None) -> None:
        where = None if running is None else running.name
        if error is None:
            self.log.event("run finished")
        else:
            self.log.event("run failed", stage=where, error=type(error).__name__, message=str(error))
        self.write_metrics(failed=where)

    def write_metrics(self, *, failed: str | None) -> None:
        """Replace `metrics.prom`; see `RunLog.write_metrics`."""
        in_use = {each.stage: _manifest_in_use(each) for each in Registry.all_of(self.config.run_dir)}
        stages = {stage.name: _manifest_in_use(self.store(stage)) for stage in STAGES}
        self.log.write_metrics(stages, in_use, failed=failed)

    def accept(self) -> list[str]:
        """Declare every existing version up to date as it is; returns the stages that were stale."""
        with self._locked():
            stale = [(plan, plan.current) for plan in self.plan() if plan.state is State.STALE and plan.current]
            # All are made before the first is written: an error leaves everything as it was.
            manifests = []
            for plan, current in stale:
                found = plan.stage.find_inputs(self.config, current, self.console)
                fingerprint = self._fingerprint(plan.stage, found, self._upstream(plan.stage, mixed=True))
                accepted = {"when": now(), "reasons": plan.reasons}
                # What may be taken over into later versions hangs on how this one was made, not on what was accepted.
                changes = {"fingerprint": fingerprint.to_json(), "accepted": accepted, "made_from": current.made_from}
                manifests.append(current.manifest | changes)
            for (plan, current), manifest in zip(stale, manifests, strict=True):
                self.store(plan.stage).rewrite_manifest(current, manifest)
                self.log.event("stage accepted", stage=plan.stage.name, version=current.name, reasons=plan.reasons)
        return [plan.stage.name for plan, _ in stale]

    def store(self, stage: Stage) -> StageStore:
        """The versions of a stage."""
        return StageStore(self.config.run_dir, stage.name)

    def _run_stage(self, stage: Stage, *, force: bool) -> None:
        current = self.store(stage).current()
        upstream = self._upstream(stage)
        # Forced, nothing is believed of a version that may be damaged, and nothing is taken over from it.
        believed = None if force else current
        found = stage.find_inputs(self.config, believed, self.console)
        # Taken before the work: what changes meanwhile makes the stage stale again.
        fingerprint = self._fingerprint(stage, found, upstream)
        reasons = ["first run"]
        if current:
            reasons = reasons_to_run(Fingerprint.from_json(current.manifest["fingerprint"]), fingerprint)
        if force:
            reasons = reasons or ["--force"]
        if not reasons:
            self.console.print(f"[bold]{stage.name}[/]: up to date", highlight=False)
            self.log.event("stage up to date", stage=stage.name)
            self._remember(stage, current, found)
            return
        shown = "; ".join(reasons[:3]) + (f"; and {len(reasons) - 3} more" if len(reasons) > 3 else "")
        self.console.print(f"[bold]{stage.name}[/]: {_escaped(shown)}", highlight=False)
        self.log.event("stage started", stage=stage.name, reasons=reasons)
        self._say_what_is_stale(stage, upstream)
        self._look_at_machine(stage)
        context = self._context(stage, believed, upstream, found, fingerprint)
        before = None if current is None else current.folder
        refuse_full_disk(self.config.run_dir, stage.name, before, stage.taken_over(context))
        self._make_version(stage, context, fingerprint, afresh=force)

    def _remember(self, stage: Stage, current: Version | None, found: Found) -> None:
        """Keep what was learnt of unchanged inputs, such as the new time of a file whose content had to be compared."""
        inputs = stage.remembered(found)
        if current and inputs is not None and json.loads(json.dumps(inputs)) != current.manifest["inputs"]:
            self.store(stage).rewrite_manifest(current, current.manifest | {"inputs": inputs})

    def _say_what_is_stale(self, stage: Stage, upstream: dict[str, Version]) -> None:
        """A stage run on its own takes what is there, stale or not; the user should know."""
        for each in STAGES:
            if each.name in upstream and (reasons := self._reasons(each, upstream[each.name])):
                self.console.print(
                    f"  note: {each.name} is stale ({_escaped(reasons[0])}); "
                    f"{stage.name} uses the version that is there",
                    highlight=False,
                )

    def _context(
        self,
        stage: Stage,
        current: Version | None,
        upstream: dict[str, Version],
        found: Found,
        fingerprint: Fingerprint,
    ) -> Context:
        return Context(
            config=self.config,
            upstream=upstream,
            current=current,
            code_changes=_code_changes(current, fingerprint),
            found=found,
            out_dir=self.store(stage).next_folder(fingerprint.digest),
            spark=self._spark,
            console=self.console,
        )

    def _make_version(self, stage: Stage, context: Context, fingerprint: Fingerprint, *, afresh: bool = False) -> None:
        """The transaction: a new folder, the work, its checks, the manifest, the pointer."""
        store = self.store(stage)
        folder = context.out_dir
        upstream = dict(context.upstream)
        started = time.monotonic()
        try:
            store.begin(folder, is_worth_keeping=lambda unfinished: not afresh and stage.can_go_on(unfinished))
            result = stage.run(context)
            _refuse_failed_checks(stage, result)
            if result.own_inputs is not None:
                fingerprint = self._fingerprint(stage, Found(result.own_inputs), upstream)
            seconds = time.monotonic() - started
            stop_if_requested()
            store.commit(folder, self._manifest(stage, fingerprint, upstream, result, seconds))
        except BaseException as error:
            # Ctrl-C too: only a kill leaves an unfinished folder, and the next run removes that, unless it can go on
            # from there. Once the pointer names it, the version is published, and stays.
            if not (store.names(folder) or stage.can_go_on(folder)):
                shutil.rmtree(folder, ignore_errors=True)
            no_room = out_of_room(error)
            if no_room or isinstance(error, OSError) or type(error).__module__.startswith("pyarrow"):
                raise RunFolderError(_about_files(stage, folder, no_room or error)) from error
            raise
        self.log.event(
            "stage finished", stage=stage.name, version=folder.name, seconds=round(seconds, 3), summary=result.summary
        )
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

    def _upstream(self, stage: Stage, *, mixed: bool = False) -> dict[str, Version]:
        """Current versions of what a stage reads from; unless `mixed`, they must have been made from each other."""
        versions = {}
        for name in stage.upstream_of(self.config):
            version = StageStore(self.config.run_dir, name).current()
            if version is None:
                raise MissingInputError(
                    f"{stage.name} needs the output of {name}, which is not in {self.config.run_dir} yet. "
                    f"Run `python -m pipeline {name}` first, or `python -m pipeline run` for all."
                )
            versions[name] = version
        if not mixed:
            _refuse_mixed_versions(stage, versions)
        for name in stage.optional_upstream:
            version = StageStore(self.config.run_dir, name).current()
            if version is not None and not _made_from_others(version, versions):
                versions[name] = version
        return versions

    def _fingerprint(self, stage: Stage, found: Found, upstream: dict[str, Version]) -> Fingerprint:
        inputs = dict(found.inputs)
        for name, version in upstream.items():
            inputs[name] = Input(f"output of {name}", version.name)
        code = code_digests([*stage.code, f"pipeline/stages/{stage.name}.py"])
        # As it will stand in the manifest, or a title that looks like a secret would make the stage stale for ever.
        config = redact_all(stage.config_items(self.config), keep_numbers=True)
        return Fingerprint(inputs, config, code)

    def _reasons(self, stage: Stage, current: Version, *, ignore: Sequence[str] = ()) -> list[str]:
        before = Fingerprint.from_json(current.manifest["fingerprint"])
        if any(StageStore(self.config.run_dir, name).current() is None for name in stage.upstream_of(self.config)):
            return ["the output of a stage it reads from is gone"]
        found = stage.find_inputs(self.config, current, self.console)
        after = self._fingerprint(stage, found, self._upstream(stage, mixed=True))
        for name in ignore:
            before.inputs.pop(name, None)
            after.inputs.pop(name, None)
        return reasons_to_run(before, after)

    def _look_at_machine(self, stage: Stage) -> None:
        refuse_unfit_machine(
            self.config.run_dir,
            stage.needs,
            workers=self.config.train.workers,
            spark_master=self.config.spark.master,
            launcher=self.config.train.launcher,
            what=f"{stage.name} cannot run",
        )

    def _locked(self) -> AbstractContextManager[None]:
        return locked(self.config.run_dir)


def _manifest_in_use(store: StageStore) -> dict[str, Any] | None:
    """None too where it is damaged: the command that needs it says so."""
    try:
        current = store.current()
    except RunFolderError:
        return None
    return current.manifest if current else None


def _code_changes(current: Version | None, fingerprint: Fingerprint) -> frozenset[str]:
    before = current.made_from["code"] if current else {}
    return frozenset(name for name, digest in fingerprint.code.items() if before.get(name) != digest)


def _refuse_failed_checks(stage: Stage, result: Result) -> None:
    failed = [f"  {check.name}: {check.detail}" for check in result.checks if not check.passed]
    if failed:
        raise CheckFailedError(
            f"the output of {stage.name} failed its own checks and was not published:\n" + "\n".join(failed) + "\n"
            "This is a bug or a damaged disk; run again, and report it if it stays."
        )


def _refuse_mixed_versions(stage: Stage, versions: dict[str, Version]) -> None:
    """Refuse inputs that do not belong together: a model trained on one split and evaluated on another, say.

    A test event of new features may have been a training event of the old.
    """
    for name, version in versions.items():
        for source, used in _made_from_others(version, versions).items():
            raise MissingInputError(
                f"{stage.name} cannot use {name} {version.name}: that was made from {source} {used}, and "
                f"{source} now is {versions[source].name}. Run `python -m pipeline {name}` first, or "
                f"`python -m pipeline run` for all."
            )


def _made_from_others(version: Version, versions: dict[str, Version]) -> dict[str, str]:
    """Stages of which a version was made from another version than the given one, and from which."""
    inputs = version.manifest["fingerprint"]["inputs"]
    return {
        source: used["digest"]
        for source, used in inputs.items()
        if source in versions and used["digest"] != versions[source].name
    }


def _about_files(stage: Stage, folder: Path, error: BaseException) -> str:
    """What to say of an error that came from reading or writing a file."""
    name = getattr(error, "filename", None)
    if out_of_room(error) or (name is not None and Path(name).is_relative_to(folder)):
        return f"{stage.name} could not write its output ({error}). Check space and permissions of {folder.parent}."
    return (
        f"{stage.name} failed on a file ({type(error).__name__}: {str(error).strip()}). If it belongs to an earlier "
        f"stage, that output is damaged: run the stage again with --force."
    )


def _escaped(text: str) -> str:
    """Text that may hold square brackets, which rich would read as markup."""
    return text.replace("[", r"\[")
