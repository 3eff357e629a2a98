"""Decides which stages must run, and runs them as transactions."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from rich.markup import escape

from hep_core.allocation import lack_of_memory
from hep_core.input_errors import InputFileError, remote_error
from hep_core.integrity import DamagedOutputError
from hep_core.secrets import redact_all
from hep_core.storage import is_remote
from pipeline.config import Config
from pipeline.configuration.credentials import hide_credentials
from pipeline.errors import (
    MISSING_INPUT_ERRORS,
    CheckFailedError,
    ConfigError,
    RunFolderError,
    cannot_write,
    full_disk_error,
)
from pipeline.machine.doctor import Need
from pipeline.run_folder import RunFolder, in_use
from pipeline.runs.code_meaning import code_digests
from pipeline.runs.fingerprint import Fingerprint, Input, reasons_to_run
from pipeline.runs.outputs import clear_suspicion, damaged_files
from pipeline.runs.own_folders import claimed
from pipeline.runs.provenance import code_version, now, package_versions
from pipeline.runs.store import Version
from pipeline.stages.base import Context, Result, Stage, StageInputs
from pipeline.stages.parts import begin_parts, unchanged_parts
from pipeline.stages.table import STAGES
from pipeline.terminal.exit_codes import stop_if_requested


class State(StrEnum):
    """State of a stage."""

    FRESH = "up to date"
    STALE = "stale"
    MISSING = "not there yet"
    FAILS = "would fail"
    """Its input cannot be read, or that of a stage that it reads, or a setting is missing."""
    WAITS = "would wait"
    """Its input is to come."""

    @property
    def runs(self) -> bool:
        """Whether `run` makes a new version."""
        return self in {State.STALE, State.MISSING}


class StagePlan(NamedTuple):
    """State of a stage, with reasons."""

    stage: Stage
    state: State
    reasons: list[str]
    current: Version | None
    notes: list[str]
    """Remarks that make nothing stale."""


class Runner:
    """Runs the stages of a run folder."""

    def __init__(self, run_folder: RunFolder) -> None:
        self.run_folder = run_folder
        self.console = run_folder.console
        self.log = run_folder.log
        self._up_to_date: set[str] = set()

    @property
    def config(self) -> Config:
        """The config, with the simulated samples of the version in use."""
        return self.run_folder.config

    def plan(self) -> list[StagePlan]:
        """The state of every stage; a stage is also stale if a stage that it reads will run."""
        plans: dict[str, StagePlan] = {}
        for stage in self.wanted():
            current, damage = _without_damage(self.run_folder.store(stage.name).current)
            reads = [*stage.upstream_of(self.config), *stage.optional_upstream]
            before = {name: plans[name].state for name in reads if name in plans}
            ends = [name for name, state in before.items() if state in {State.FAILS, State.WAITS}]
            waits_for = [name for name, state in before.items() if state.runs]
            notes = [*(_other_packages(current) if current else ()), *self._unfinished(stage)]
            if ends:
                state, reasons = before[ends[0]], [f"{name} {before[name]}" for name in ends]
            else:
                state, reasons = self._state(stage, current, waits_for)
            if damage and state is State.MISSING:
                state, reasons = State.STALE, [damage]
            plans[stage.name] = StagePlan(stage, state, reasons, current, notes)
        return list(plans.values())

    def _state(
        self, stage: Stage, current: Version | None, waits_for: Sequence[str]
    ) -> tuple[State, list[str]]:
        """The state of a stage, with reasons, if all that it reads is or will be there."""
        try:
            stage.config_items(self.config)
            if current is None:
                if not waits_for:
                    stage.find_inputs(self.config, None, self.console)
                return State.MISSING, []
            reasons = ["the output of a stage that it reads is gone"]
            if all(in_use(self.run_folder.store(name)) for name in stage.upstream_of(self.config)):
                found = stage.find_inputs(self.config, current, self.console)
                after = self._fingerprint(stage, found, self.run_folder.upstream(stage, mixed=True))
                reasons = _reasons_to_replace(current, after, _damaged(current), ignore=waits_for)
        except MISSING_INPUT_ERRORS as problem:
            return State.WAITS, [str(problem)]
        except (InputFileError, ConfigError, RunFolderError) as problem:
            return State.FAILS, [str(problem)]
        reasons += [f"{name} would run, and its result may change" for name in waits_for]
        return State.STALE if reasons else State.FRESH, reasons

    def wanted(self) -> list[Stage]:
        """The stages that `run` includes, in order."""
        return [stage for stage in STAGES if stage.is_wanted(self.config)]

    def run(self, names: Sequence[str], *, force: bool = False) -> list[str]:
        """Run the named stages in order, skipping those that are up to date; returns the stages that ran."""
        with self.run_folder.locked():
            # A run that cannot begin writes nothing.
            chosen = [stage for stage in STAGES if stage.name in names]
            self.run_folder.refuse_missing_upstream(chosen)
            for stage in chosen:
                # A stage that lacks a setting, such as the signal, asks for it.
                stage.config_items(self.config)
            running: Stage | None = None
            ran: dict[str, bool] = {}
            repaired: set[tuple[str, str]] = set()
            self.log.event(
                "run started", command=[*map(hide_credentials, sys.argv)], stages=list(names)
            )
            try:
                number = 0
                while number < len(chosen):
                    running = stage = chosen[number]
                    if not any(Need.SPARK in later.needs for later in chosen[number:]):
                        # Its idle workers would end with a traceback after a minute.
                        self.run_folder.spark.stop()
                    try:
                        is_new = self._run_stage(stage, force=force and stage.name not in ran)
                    except DamagedOutputError as error:
                        number = self._begin_repair(chosen[: number + 1], error, repaired)
                        continue
                    ran[stage.name] = is_new or ran.get(stage.name, False)
                    number += 1
                    version = self.run_folder.store(stage.name).current()
                    if version is not None:
                        self.run_folder.results.add_stage(version, is_new=ran[stage.name])
                    # A version that a kill left without its pointer is put in use by a stage that does not run.
                    self.run_folder.refresh()
                    self._up_to_date.add(stage.name)
            except BaseException as error:
                try:
                    self._log_end(running, error)
                except RunFolderError as second:
                    # A full disk also stops the log; the first error is the cause.
                    self.console.print(f"warning: {escape(str(second))}", highlight=False)
                raise
            else:
                self._log_end(None, None)
                if "report" in names and (page := self.run_folder.store("report").current()):
                    # The outcome follows, as the last line of a log.
                    self.run_folder.say(f"report: {page.folder / 'report.html'}")
            finally:
                self.run_folder.spark.stop()
        return [name for name, did_run in ran.items() if did_run]

    def _begin_repair(
        self, stages: Sequence[Stage], error: DamagedOutputError, repaired: set[tuple[str, str]]
    ) -> int:
        """Number of the stage to go back to, which makes a damaged file again.

        Raises:
            DamagedOutputError: That stage is none of these, or has made the file again before.
        """
        damage = self.run_folder.suspect(error)
        names = [stage.name for stage in stages]
        repair = (damage.stage, Path(damage.path).name)
        if damage.stage not in names or repair in repaired:
            raise damage from error
        repaired.add(repair)
        self.console.print(f"  note: {escape(str(damage))}", highlight=False)
        self.log.event(
            "output is damaged", stage=damage.stage, path=damage.path, what=damage.damage
        )
        return names.index(damage.stage)

    def _log_end(self, running: Stage | None, error: BaseException | None) -> None:
        where = running.name if running else None
        waits = isinstance(error, MISSING_INPUT_ERRORS)
        if error is None:
            self.log.event("run finished")
        else:
            name = "run waits" if waits else "run failed"
            self.log.event(name, stage=where, error=type(error).__name__, message=str(error))
        self.run_folder.write_metrics(failed=None if waits else where)

    def accept(self) -> list[str]:
        """Declare every existing version up to date; returns the stages that were stale."""
        with self.run_folder.locked():
            settled = {State.FRESH, State.MISSING}
            stale = [
                (plan, plan.current)
                for plan in self.plan()
                if plan.state not in settled and plan.current
            ]
            # All manifests are made before the first is written: an error changes nothing.
            accepted: dict[str, Version] = {}
            for plan, current in stale:
                if damaged := damaged_files(current.folder, current.files):
                    raise RunFolderError(
                        f"{plan.stage.name} cannot be accepted: {damaged[0].place(current.folder)} is gone or changed. "
                        f"Run the stage again; nothing was accepted."
                    )
                found = plan.stage.find_inputs(self.config, current, self.console)
                upstream = self.run_folder.upstream(plan.stage, mixed=True, instead=accepted)
                fingerprint = self._fingerprint(plan.stage, found, upstream)
                why = {"when": now(), "reasons": plan.reasons}
                # What later versions may take over depends on how this one was made, not on what was accepted.
                changes = {
                    "fingerprint": asdict(fingerprint),
                    "accepted": why,
                    "made_from": current.made_from,
                }
                accepted[plan.stage.name] = current._replace(manifest=current.manifest | changes)
            for plan, current in stale:
                self.run_folder.store(plan.stage.name).rewrite_manifest(
                    current, accepted[plan.stage.name].manifest
                )
                self.log.event(
                    "stage accepted",
                    stage=plan.stage.name,
                    version=current.name,
                    reasons=plan.reasons,
                )
            names = [plan.stage.name for plan, _ in stale]
            self.run_folder.results.add(f"{len(names)} stages accepted", accepted=names)
        return names

    def _run_stage(self, stage: Stage, *, force: bool) -> bool:
        """Run a stage unless it is up to date; returns whether it ran."""
        store = self.run_folder.store(stage.name)
        current, damage = _without_damage(store.recovered)
        upstream = self.run_folder.upstream(stage)
        # With --force, the version in use may be damaged: nothing is taken over from it.
        believed = None if force else current
        found = stage.find_inputs(self.config, believed, self.console)
        # Before the work: a change during the work makes the stage stale again.
        fingerprint = self._fingerprint(stage, found, upstream)
        missing = _damaged(believed) if believed else []
        if believed and not missing:
            clear_suspicion(believed.folder)
        reasons = (
            _reasons_to_replace(current, fingerprint, missing)
            if current
            else [damage or "first run"]
        )
        reasons = reasons or ["--force"] * force
        if current and not reasons:
            self.console.print(f"[bold]{stage.name}[/]: up to date", highlight=False)
            self.log.event("stage up to date", stage=stage.name)
            # Facts such as the new time of an unchanged file.
            inputs = found.remembered
            if inputs is not None and json.loads(json.dumps(inputs)) != current.manifest["inputs"]:
                store.rewrite_manifest(current, current.manifest | {"inputs": inputs})
            return False
        shown = "; ".join(reasons[:3]) + (
            f"; and {len(reasons) - 3} more" if len(reasons) > 3 else ""
        )
        self.console.print(f"[bold]{stage.name}[/]: {escape(shown)}", highlight=False)
        self.log.event("stage started", stage=stage.name, reasons=reasons)
        self.say_what_is_stale(stage, upstream)
        out_dir = store.next_folder(fingerprint.digest)
        made_from = Fingerprint.from_json(believed.made_from) if believed else None
        context = Context(
            config=self.config,
            upstream=upstream,
            current=believed,
            missing=frozenset(missing),
            taken_over_parts=unchanged_parts(made_from, fingerprint, missing),
            found=found,
            out_dir=out_dir,
            data_dir=store.data_of(out_dir.absolute()),
            spark=self.run_folder.spark,
            console=self.console,
        )
        self.run_folder.refuse_unfit_machine(stage.needs, f"{stage.name} cannot run")
        self._make_version(stage, context, fingerprint, afresh=force)
        return True

    def say_what_is_stale(self, stage: Stage, upstream: dict[str, Version]) -> None:
        """Name the stale stages whose versions a stage is going to use."""
        # The stages of this run are not.
        others = upstream.keys() - self._up_to_date
        for each in STAGES:
            if each.name in others and (reasons := self._state(each, upstream[each.name], ())[1]):
                self.console.print(
                    f"  note: {each.name} is stale ({escape(reasons[0])}); {stage.name} uses its current version",
                    highlight=False,
                )

    def _make_version(
        self, stage: Stage, context: Context, fingerprint: Fingerprint, *, afresh: bool = False
    ) -> None:
        """The transaction: a new folder, the work, its checks, the manifest, the pointer."""
        store, folder, upstream = (
            self.run_folder.store(stage.name),
            context.out_dir,
            dict(context.upstream),
        )
        started = time.monotonic()
        try:
            unfinished = [path for path in store.unfinished() if stage.can_continue(path)]
            # Afresh, only the work of these settings is thrown away.
            digest = folder.name.partition("-")[2]
            store.begin(
                folder,
                but=[path for path in unfinished if not (afresh and path.name.endswith(digest))],
            )
            # Nobody removes the folder while it is written, whatever became of the lock.
            with claimed([folder]):
                begin_parts(store, context, fingerprint.parts, afresh=afresh)
                store.remove_unfinished(
                    but=[folder, *filter(stage.can_continue, store.unfinished())]
                )
                for words in self._unfinished(stage, but=folder):
                    self.console.print(f"  note: {escape(words)}", highlight=False)
                result = stage.run(context)
                _refuse_failed_checks(stage, result)
                if result.own_inputs is not None:
                    fingerprint = self._fingerprint(stage, StageInputs(result.own_inputs), upstream)
                seconds = time.monotonic() - started
                stop_if_requested()
                with context.bar(stage.name, "") as bar:
                    bar(0, 0, "writing the manifest")
                    manifest = self._manifest(stage, fingerprint, upstream, result, seconds)
                    store.commit(
                        folder,
                        manifest,
                        digests=result.digests,
                        taken_over=result.taken_over,
                        taken_over_parts=context.taken_over_parts,
                    )
        except BaseException as error:
            # After Ctrl-C too. A kill leaves an unfinished folder; the next run continues or removes it. A version
            # that the pointer names is published and stays.
            if not (store.names(folder) or stage.can_continue(folder)):
                store.discard(folder)
            if problem := _about_files(stage, context, error):
                raise problem from error
            raise
        self.log.event(
            "stage finished",
            stage=stage.name,
            version=folder.name,
            seconds=round(seconds, 3),
            summary=result.summary,
        )
        self.console.print(
            f"  {escape(result.summary)}  [dim]({seconds:.1f} s)[/]", highlight=False
        )

    def _unfinished(self, stage: Stage, but: Path | None = None) -> list[str]:
        return [
            f"{path} holds interrupted work; a run with its settings and code continues it, else it stays until `clean`"
            for path in self.run_folder.store(stage.name).unfinished()
            if path != but and stage.can_continue(path)
        ]

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
            "command": [*map(hide_credentials, sys.argv)],
            "fingerprint": asdict(fingerprint),
            "upstream": {name: version.name for name, version in upstream.items()},
            "config": self.config.model_dump(mode="json"),
            "code_version": code_version(),
            "packages": package_versions(),
            "inputs": result.inputs,
            "counters": result.counters,
            "checks": [check._asdict() for check in result.checks],
        }

    def _fingerprint(
        self, stage: Stage, found: StageInputs, upstream: dict[str, Version]
    ) -> Fingerprint:
        read = {
            name: Input(f"output of {name}", stage.content_read(version))
            for name, version in upstream.items()
        }

        def made_of(
            inputs: dict[str, Input], items: dict[str, Any], entry_points: Sequence[str]
        ) -> Fingerprint:
            # Redacted as in the manifest; otherwise a title with a secret would make the stage stale forever.
            return Fingerprint(inputs, redact_all(items), code_digests(entry_points))

        parts = {
            name: made_of(
                {each: read[each] for each in part.upstream}, part.config_items, part.entry_points
            )
            for name, part in stage.parts(self.config).items()
        }
        # Inputs of parts are reasons of the parts.
        own = {} if parts else read
        whole = made_of(
            found.inputs | own, stage.config_items(self.config), stage.entry_points(self.config)
        )
        return replace(whole, parts=parts)


def _without_damage(read: Callable[[], Version | None]) -> tuple[Version | None, str]:
    """A version that can be read, and what is wrong with one that cannot."""
    try:
        return read(), ""
    except RunFolderError as damage:
        return None, str(damage)


def _damaged(version: Version) -> list[str]:
    """Paths of the files of a version that are gone or damaged."""
    return [file.path for file in damaged_files(version.folder, version.files)]


def _reasons_to_replace(
    current: Version, after: Fingerprint, damaged: Sequence[str], *, ignore: Sequence[str] = ()
) -> list[str]:
    """Why the version in use is stale; inputs in `ignore` do not count."""
    before = Fingerprint.from_json(current.manifest["fingerprint"])
    reasons = reasons_to_run(before.without_inputs(ignore), after.without_inputs(ignore))
    return reasons + [f"output is gone or damaged: {path}" for path in damaged]


def _other_packages(current: Version) -> list[str]:
    """Packages whose versions have changed since they computed a version."""
    before, now = current.manifest["packages"], package_versions()
    return [
        f"made with {name} {old}; installed is {now.get(name, 'none')}"
        for name, old in before.items()
        if now.get(name) != old
    ]


def _refuse_failed_checks(stage: Stage, result: Result) -> None:
    if failed := "\n".join(
        f"  {each.name}: {each.detail}" for each in result.checks if not each.passed
    ):
        raise CheckFailedError(
            f"the output of {stage.name} failed its own checks and was not published:\n{failed}\n"
            f"This is a bug or a damaged disk; run again, and report it if it stays."
        )


def _about_files(stage: Stage, context: Context, error: BaseException) -> Exception | None:
    """The error for object storage or a file that cannot be read or written; None for other errors."""
    if lack_of_memory(error):
        return None
    no_room, folder = full_disk_error(error), context.out_dir
    name = getattr(no_room or error, "filename", None)
    # Errors of local files name them.
    if is_remote(context.data_dir) and isinstance(error, Exception) and not (no_room or name):
        problem = remote_error(str(context.data_dir), where="the storage", cause=error)
        if problem:
            return problem
    if not (no_room or isinstance(error, OSError) or type(error).__module__.startswith("pyarrow")):
        return None
    if no_room or (name is not None and Path(name).is_relative_to(folder)):
        return cannot_write(folder.parent, no_room or error)
    return RunFolderError(
        f"{stage.name} failed on a file ({type(error).__name__}: {str(error).strip()}). If it belongs to an earlier "
        f"stage, that output is damaged: run the stage again with --force."
    )
