"""Decides which stages must run, and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from hep_core.input_errors import InputFileError
from hep_core.secrets import redact_all
from pipeline.config import Config
from pipeline.errors import MISSING_INPUT_ERRORS, ConfigError, RunFolderError
from pipeline.run_folder import RunFolder
from pipeline.runs.code_meaning import code_digests
from pipeline.runs.fingerprint import Fingerprint, Input, reasons_to_run
from pipeline.runs.outputs import damaged_files
from pipeline.runs.provenance import package_versions
from pipeline.runs.version import Version
from pipeline.stages.base import Stage, StageInputs
from pipeline.stages.table import STAGES, content_read


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
    """The state of a stage, with reasons."""

    stage: Stage
    state: State
    reasons: list[str]
    """Why it has this state, as phrases; empty if it is up to date."""
    current: Version | None
    """The output in use; None if there is none that can be read."""
    notes: list[str]
    """Remarks that make nothing stale."""


class Planner:
    """Compares the versions of a run folder with its inputs, config and code."""

    def __init__(self, run_folder: RunFolder) -> None:
        self._run_folder = run_folder

    @property
    def _config(self) -> Config:
        return self._run_folder.config

    def plan(self) -> list[StagePlan]:
        """Return the state of every wanted stage, in the order in which they run.

        A stage is stale if its inputs, config or code changed, if a file of its output is damaged,
        or if a stage whose output it reads will run.
        """
        states: dict[str, State] = {}
        plans = []
        for stage in self.wanted_stages():
            plan = self._plan_stage(stage, states)
            states[stage.name] = plan.state
            plans.append(plan)
        return plans

    def wanted_stages(self) -> list[Stage]:
        """The stages that `run` includes, in order."""
        return [stage for stage in STAGES if stage.is_wanted(self._config)]

    def _plan_stage(self, stage: Stage, earlier_states: dict[str, State]) -> StagePlan:
        """Return the plan of a stage, from the states of the stages before it.

        If one that it reads fails or waits, this one does too. A damaged version is stale.
        """
        store = self._run_folder.store(stage.name)
        current, damage = readable_version(store.current)
        notes = []
        if current is not None:
            notes += _changed_packages(current)
        notes += self.notes_on_unfinished(stage)
        # The stages that this one reads, needed or optional, by what will become of them.
        blocking: dict[str, State] = {}
        will_run = []
        for name in (*stage.upstream_of(self._config), *stage.optional_upstream):
            source_state = earlier_states.get(name, State.FRESH)
            if source_state in {State.FAILS, State.WAITS}:
                blocking[name] = source_state
            elif source_state.runs:
                will_run.append(name)
        if blocking:
            reasons = [f"{name} {source_state}" for name, source_state in blocking.items()]
            first_state = next(iter(blocking.values()))
            return StagePlan(stage, first_state, reasons, current, notes)
        state, reasons = self.state(stage, current, will_run)
        if damage and state is State.MISSING:
            state, reasons = State.STALE, [damage]
        return StagePlan(stage, state, reasons, current, notes)

    def state(
        self, stage: Stage, current: Version | None, will_run: Sequence[str] = ()
    ) -> tuple[State, list[str]]:
        """Return the state of a stage, with reasons as phrases.

        Args:
            stage: The stage.
            current: Its output in use; None if there is none.
            will_run: Stages that it reads and that will run before it.
        """
        try:
            # This raises an error if the config lacks a setting that the stage needs.
            stage.config_items(self._config)
            if current is None:
                # Only for its errors: inputs that are missing or cannot be read.
                if not will_run:
                    stage.find_inputs(self._config, None, self._run_folder.console)
                return State.MISSING, []
            reasons = self._reasons(stage, current, will_run)
        except MISSING_INPUT_ERRORS as problem:
            return State.WAITS, [str(problem)]
        except (InputFileError, ConfigError, RunFolderError) as problem:
            return State.FAILS, [str(problem)]
        reasons += [f"{name} would run, and its result may change" for name in will_run]
        return State.STALE if reasons else State.FRESH, reasons

    def _reasons(self, stage: Stage, current: Version, will_run: Sequence[str]) -> list[str]:
        """Return why a version is stale, without the changes of stages in `will_run`.

        Everything that the result would depend on now is compared with what the version records.
        """
        for name in stage.upstream_of(self._config):
            source_version = self._run_folder.store(name).readable_current()
            if source_version is None:
                return ["the output of a stage that it reads is gone"]
        inputs = stage.find_inputs(self._config, current, self._run_folder.console)
        upstream = self._run_folder.upstream(stage, allow_mixed=True)
        fingerprint = self.fingerprint(stage, inputs, upstream)
        damaged = damaged_paths(current)
        return reasons_to_replace(current, fingerprint, damaged, ignore=will_run)

    def notes_on_unfinished(self, stage: Stage, *, skip: Path | None = None) -> list[str]:
        """Return a note on each folder with interrupted work that a later run may continue.

        Such a folder holds, for example, a checkpoint of a training. `skip` is a folder without a
        note: that of the run that has just begun.
        """
        return [
            f"{folder} holds interrupted work; a run with its settings and code continues it, else "
            f"it stays until `clean`"
            for folder in self._run_folder.store(stage.name).unfinished()
            if folder != skip and stage.can_continue(folder)
        ]

    def fingerprint(
        self, stage: Stage, stage_inputs: StageInputs, upstream: dict[str, Version]
    ) -> Fingerprint:
        """Return everything that the result of a stage would depend on, as digests and values.

        Args:
            stage: The stage.
            stage_inputs: What it reads besides the output of other stages.
            upstream: The versions that it reads, by the stage that made them.
        """
        outputs_read = {
            name: Input(f"output of {name}", content_read(stage, version))
            for name, version in upstream.items()
        }
        parts = {}
        for name, part in stage.parts(self._config).items():
            part_inputs = {source: outputs_read[source] for source in part.upstream}
            parts[name] = _fingerprint(part_inputs, part.config_items, part.entry_points)
        inputs = dict(stage_inputs.inputs)
        # Where a stage has parts, the outputs of other stages are inputs of these.
        if not parts:
            inputs |= outputs_read
        items, entry_points = stage.config_items(self._config), stage.entry_points(self._config)
        return replace(_fingerprint(inputs, items, entry_points), parts=parts)


def _fingerprint(
    inputs: dict[str, Input], config_items: dict[str, Any], entry_points: Sequence[str]
) -> Fingerprint:
    """Return the fingerprint of a stage or part from its inputs, config values and modules."""
    # Hidden as in the manifest; otherwise a title with a secret would make the stage stale forever.
    return Fingerprint(inputs, redact_all(config_items), code_digests(entry_points))


def readable_version(read: Callable[[], Version | None]) -> tuple[Version | None, str]:
    """Call a function that reads a version.

    Returns:
        The version and "", or None and a message if it is damaged.
    """
    try:
        return read(), ""
    except RunFolderError as damage:
        return None, str(damage)


def damaged_paths(version: Version) -> list[str]:
    """Return the paths of the files of a version that are gone or damaged; see `damaged_files`."""
    return [file.path for file in damaged_files(version.folder, version.files)]


def reasons_to_replace(
    current: Version,
    fingerprint: Fingerprint,
    damaged: Sequence[str],
    *,
    ignore: Sequence[str] = (),
) -> list[str]:
    """Return why the version in use is stale, as phrases; empty if it is up to date.

    Args:
        current: The version in use.
        fingerprint: Everything that its result would depend on now.
        damaged: Paths of its files that are gone or damaged.
        ignore: Inputs, such as stages, whose changes do not count.
    """
    recorded = current.manifest.fingerprint.without_inputs(ignore)
    reasons = reasons_to_run(recorded, fingerprint.without_inputs(ignore))
    return reasons + [f"output is gone or damaged: {path}" for path in damaged]


def _changed_packages(current: Version) -> list[str]:
    """Return a note on each Python package whose version is another than when a version was made.

    A changed package makes nothing stale.
    """
    installed = package_versions()
    return [
        f"made with {name} {version}; installed is {installed.get(name, 'none')}"
        for name, version in current.manifest.packages.items()
        if installed.get(name) != version
    ]
