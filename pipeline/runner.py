"""Runs the stages of a run folder that are stale."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from rich.markup import escape

from hep_core.integrity import DamagedOutputError
from hep_core.scarce_memory import is_memory_scarce
from pipeline.config import Config
from pipeline.configuration.credentials import hide_credentials
from pipeline.errors import MISSING_INPUT_ERRORS, RunFolderError
from pipeline.machine.doctor import Need
from pipeline.machine.own_process import run_in_own_process
from pipeline.planner import (
    Planner,
    StagePlan,
    State,
    damaged_paths,
    readable_version,
    reasons_to_replace,
)
from pipeline.run_folder import RunFolder
from pipeline.runs.manifest import Acceptance
from pipeline.runs.outputs import clear_suspicion, damaged_files
from pipeline.runs.provenance import now
from pipeline.runs.version import Version
from pipeline.stages.base import Context, Stage
from pipeline.stages.parts import unchanged_parts
from pipeline.stages.table import STAGES
from pipeline.transaction import Transaction

#: Reasons that a line of the terminal names.
_MAX_REASONS: Final = 3


class Runner:
    """Runs those stages of a run folder whose output is missing or stale."""

    def __init__(self, run_folder: RunFolder) -> None:
        self.run_folder = run_folder
        self.console = run_folder.console
        self.log = run_folder.log
        self.planner = Planner(run_folder)
        self._up_to_date: set[str] = set()
        """Stages that ran, or did not need to, in this command."""
        self._running: Stage | None = None
        """The stage that began last, for the message about a failure."""

    @property
    def config(self) -> Config:
        """The config, with the simulated samples of the version in use."""
        return self.run_folder.config

    def plan(self) -> list[StagePlan]:
        """Return the state of every wanted stage; see `Planner.plan`."""
        return self.planner.plan()

    def wanted(self) -> list[Stage]:
        """The stages that `run` includes, in order."""
        return self.planner.wanted_stages()

    def run(self, names: Sequence[str], *, force: bool = False) -> list[str]:
        """Run the named stages in their order, skipping those that are up to date.

        It holds the run folder meanwhile, writes log and metrics, and stops Spark at the end.

        Args:
            names: Names of stages.
            force: Whether stages that are up to date run too.

        Returns:
            The names of the stages that ran.
        """
        ran: dict[str, bool] = {}
        with self.run_folder.locked():
            # A run that cannot begin writes nothing.
            stages = [stage for stage in STAGES if stage.name in names]
            self.run_folder.check_upstream_exists(stages)
            for stage in stages:
                # A stage that lacks a setting, such as the signal, asks for it.
                stage.config_items(self.config)
            command = [hide_credentials(argument) for argument in sys.argv]
            self.log.event("run started", command=command, stages=list(names))
            try:
                self._run_stages(stages, ran, force=force)
            except BaseException as error:
                self._log_failure(error)
                raise
            else:
                self.log.event("run finished")
                self.run_folder.write_metrics(failed=None)
                page = self.run_folder.store("report").current()
                if "report" in names and page is not None:
                    # The outcome follows, as the last line of a log.
                    self.run_folder.say(f"report: {page.folder / 'report.html'}")
            finally:
                self.run_folder.spark.stop()
        return [name for name, did_run in ran.items() if did_run]

    def _run_stages(self, stages: Sequence[Stage], ran: dict[str, bool], *, force: bool) -> None:
        """Run stages in order; after a find of damage, return to the stage that wrote the file.

        From there on, the stages are visited again. Those that are up to date are skipped.

        Args:
            stages: The stages.
            ran: Receives whether each stage ran, by name.
            force: Whether stages that are up to date run too, at their first visit.
        """
        repaired: set[tuple[str, str]] = set()
        position = 0
        while position < len(stages):
            stage = stages[position]
            self._running = stage
            # Spark is stopped as soon as neither this stage nor a later one needs it.
            if not any(Need.SPARK in later_stage.needs for later_stage in stages[position:]):
                # Its idle workers would end with a traceback after a minute.
                self.run_folder.spark.stop()
            try:
                is_new = self._run_stage(stage, force=force and stage.name not in ran)
            except DamagedOutputError as error:
                # The loop continues from the stage that wrote the damaged file.
                position = self._repair_position(stages[: position + 1], error, repaired)
                continue
            ran[stage.name] = is_new or ran.get(stage.name, False)
            position += 1
            version = self.run_folder.store(stage.name).current()
            if version is not None:
                self.run_folder.results.add_stage(version, is_new=ran[stage.name])
            # A stage that does not run may put a version in use that a kill left without its
            # pointer.
            self.run_folder.refresh()
            self._up_to_date.add(stage.name)

    def _repair_position(
        self, stages: Sequence[Stage], error: DamagedOutputError, repaired: set[tuple[str, str]]
    ) -> int:
        """Return the position of the stage that makes a damaged file again.

        Args:
            stages: The stages of this run, up to the one that found the damage.
            error: The error about the damaged file.
            repaired: Pairs of stage and file name that were repaired; the new pair is added.

        Raises:
            DamagedOutputError: That stage is none of these, or has made the file again before.
        """
        damage = self.run_folder.suspect(error)
        names = [stage.name for stage in stages]
        repair = (damage.stage, Path(damage.path).name)
        if damage.stage not in names or repair in repaired:
            raise damage from error
        repaired.add(repair)
        self.run_folder.note(str(damage))
        self.log.event(
            "output is damaged", stage=damage.stage, path=damage.path, what=damage.damage
        )
        return names.index(damage.stage)

    def _log_failure(self, error: BaseException) -> None:
        """Write a failure to log and metrics; an input that is still to come is no failure."""
        stage = self._running.name if self._running else None
        waits = isinstance(error, MISSING_INPUT_ERRORS)
        event = "run waits" if waits else "run failed"
        try:
            self.log.event(event, stage=stage, error=type(error).__name__, message=str(error))
            self.run_folder.write_metrics(failed=None if waits else stage)
        except RunFolderError as second:
            # A full disk also stops the log; the first error is the cause.
            self.console.print(f"warning: {escape(str(second))}", highlight=False)

    def _run_stage(self, stage: Stage, *, force: bool) -> bool:
        """Run a stage unless it is up to date, and put its new version in use.

        It compares everything that the result would depend on now with what the version in use
        records. Unchanged parts of that version are taken over.

        Returns:
            Whether it ran.
        """
        store = self.run_folder.store(stage.name)
        current, damage = readable_version(store.recovered)
        upstream = self.run_folder.upstream(stage)
        # With --force, the version in use may be damaged: nothing is taken over from it.
        reusable = None if force else current
        # The fingerprint holds everything that the result would depend on now.
        inputs = stage.find_inputs(self.config, reusable, self.console)
        fingerprint = self.planner.fingerprint(stage, inputs, upstream)
        damaged = [] if reusable is None else damaged_paths(reusable)
        # Files in which damage was found have been read whole just now.
        if reusable is not None and not damaged:
            clear_suspicion(reusable.folder)
        # Any reason makes the stage run; without one, the version in use is kept.
        reasons = [damage or "first run"]
        if current is not None:
            reasons = reasons_to_replace(current, fingerprint, damaged)
        if force and not reasons:
            reasons = ["--force"]
        if current is not None and not reasons:
            self._keep(stage, current, inputs.records)
            return False
        self._announce(stage, reasons)
        self.note_stale_inputs(stage, upstream)
        # The new version gets a folder of its own, and the unchanged parts of the old one.
        out_dir = store.next_folder(fingerprint.digest)
        made_from = None if reusable is None else reusable.made_from
        context = Context(
            config=self.config,
            upstream=upstream,
            current=reusable,
            missing=frozenset(damaged),
            taken_over_parts=unchanged_parts(made_from, fingerprint, damaged),
            inputs=inputs,
            out_dir=out_dir,
            data_dir=store.data_folder(out_dir.absolute()),
            spark=self.run_folder.spark,
            console=self.console,
        )
        self.run_folder.check_machine(stage.needs, f"{stage.name} cannot run")
        transaction = Transaction(
            self.run_folder, self.planner, stage, context, fingerprint, afresh=force
        )
        if not is_memory_scarce():
            transaction.make_version()
            return True

        def make_version_and_stop_spark() -> None:
            """Make the version in a process that ends with the stage."""
            try:
                transaction.make_version()
            finally:
                self.run_folder.spark.stop()

        run_in_own_process(make_version_and_stop_spark)
        return True

    def _keep(
        self, stage: Stage, current: Version, input_records: list[dict[str, Any]] | None
    ) -> None:
        """Keep a version that is up to date, and update the records of its inputs.

        A record, such as the path and time of a ROOT file, may change without a change of the
        result. None means that the stage has no records.
        """
        self.console.print(f"[bold]{stage.name}[/]: up to date", highlight=False)
        self.log.event("stage up to date", stage=stage.name)
        if input_records is None:
            return
        # Through JSON, tuples become lists, as in the manifest.
        if json.loads(json.dumps(input_records)) != current.manifest.inputs:
            self.run_folder.store(stage.name).update_manifest(current, inputs=input_records)

    def _announce(self, stage: Stage, reasons: list[str]) -> None:
        """Print and log that a stage begins, and why; the terminal shows three reasons at most."""
        text = "; ".join(reasons[:_MAX_REASONS])
        num_more = len(reasons) - _MAX_REASONS
        if num_more > 0:
            text += f"; and {num_more} more"
        self.console.print(f"[bold]{stage.name}[/]: {escape(text)}", highlight=False)
        self.log.event("stage started", stage=stage.name, reasons=reasons)

    def note_stale_inputs(self, stage: Stage, upstream: dict[str, Version]) -> None:
        """Print a note on each input of a stage that is stale and does not run in this command.

        Args:
            stage: The stage that is about to run.
            upstream: The versions that it reads, by stage.
        """
        for source in STAGES:
            # The stages of this run are up to date.
            if source.name not in upstream or source.name in self._up_to_date:
                continue
            _, reasons = self.planner.state(source, upstream[source.name])
            if reasons:
                self.run_folder.note(
                    f"{source.name} is stale ({reasons[0]}); {stage.name} uses its current version"
                )

    def accept(self) -> list[str]:
        """Declare every existing version up to date, although inputs, config or code changed.

        Each manifest gets the present fingerprint instead of the recorded one.

        Returns:
            The stages that were stale.

        Raises:
            RunFolderError: A file of a version is damaged; then nothing is accepted.
        """
        with self.run_folder.locked():
            # All manifests are made before the first is written: an error changes nothing.
            accepted: dict[str, Version] = {}
            for plan in self.plan():
                if plan.current is not None and plan.state not in {State.FRESH, State.MISSING}:
                    accepted[plan.stage.name] = self._accepted_version(plan, plan.current, accepted)
            for name, version in accepted.items():
                changes = version.manifest.model_dump(
                    mode="json", include={"fingerprint", "accepted", "made_from"}
                )
                self.run_folder.store(name).update_manifest(version, **changes)
                reasons = changes["accepted"]["reasons"]
                self.log.event("stage accepted", stage=name, version=version.name, reasons=reasons)
            names = list(accepted)
            self.run_folder.results.add(f"{len(names)} stages accepted", accepted=names)
        return names

    def _accepted_version(
        self, plan: StagePlan, current: Version, earlier: dict[str, Version]
    ) -> Version:
        """Return a stale version with the fingerprint that it would have now; nothing is written.

        Args:
            plan: The stage, with the reasons why it is stale.
            current: Its version in use.
            earlier: Versions of earlier stages, by stage, that are accepted in the same command.

        Raises:
            RunFolderError: A file of the version is damaged.
        """
        stage = plan.stage
        for file in damaged_files(current.folder, current.files):
            raise RunFolderError(
                f"{stage.name} cannot be accepted: {file.location(current.folder)} is gone or "
                f"changed. Run the stage again; nothing was accepted."
            )
        inputs = stage.find_inputs(self.config, current, self.console)
        upstream = self.run_folder.upstream(stage, allow_mixed=True, replacements=earlier)
        changes = {
            "fingerprint": self.planner.fingerprint(stage, inputs, upstream),
            "accepted": Acceptance.model_validate({"when": now(), "reasons": plan.reasons}),
            # What later versions may take over depends on how this one was made, not on what was
            # accepted.
            "made_from": current.made_from,
        }
        return replace(current, manifest=current.manifest.model_copy(update=changes))
