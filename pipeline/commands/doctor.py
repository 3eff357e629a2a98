"""`doctor`: check this machine, and start the ranks as a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

from hep_core.allocation import core_limit, memory_limit
from hep_core.secrets import redact_all
from pipeline.errors import MachineError
from pipeline.machine.doctor import Finding, Need, check_names, render
from pipeline.machine.tokens import check_tokens, tokens_by_address
from pipeline.run_folder import RunFolder
from pipeline.stages.table import STAGES
from training.errors import LaunchError


class Diagnosis(NamedTuple):
    """Problems of this machine, and sentences about its equipment."""

    findings: list[Finding]
    notes: list[str]

    @property
    def is_well(self) -> bool:
        """Whether no finding is an error; a test start of the ranks that fails is one."""
        return all(finding.severity != "error" for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        """Return the diagnosis as JSON content, without secrets."""
        findings = redact_all([finding._asdict() for finding in self.findings])
        return {"is_well": self.is_well, "findings": findings, "notes": redact_all(self.notes)}


def doctor(run_folder: RunFolder, on_line: Callable[[str], None]) -> Diagnosis:
    """Check the machine and, if it has no errors, start the ranks for a short test.

    Ranks are the processes of a parallel training. `on_line` is called with each line for the
    terminal as soon as it is known. A failed start of Spark or the ranks is returned as a finding
    too.
    """
    findings = run_folder.examine(list(Need))
    # A module of the user may have the name of one of our packages.
    if clash_of_names := check_names():
        findings.append(clash_of_names)
    notes = [f"this command may use: {core_limit()}; {memory_limit()}"]
    now = datetime.now(UTC)
    tokens = tokens_by_address(run_folder.config)
    for address_tokens in tokens.values():
        notes += [token.describe(now) for token in address_tokens]
    notes = list(dict.fromkeys(notes))
    findings += check_tokens(tokens, run_seconds=_seconds_of_last_run(run_folder), now=now)
    for note in notes:
        on_line(note)
    on_line(render(findings))
    # The diagnosis shares the list of findings, so a failed start below enters it too.
    diagnosis = Diagnosis(findings, notes)
    try:
        if diagnosis.is_well:
            for note in _try_equipment(run_folder):
                diagnosis.notes.append(note)
                on_line(note)
    except (LaunchError, MachineError) as error:
        advice = "Correct that; `train.workers: 1` needs no ranks."
        failed_start = Finding("ranks", "error", str(error), advice)
        findings.append(failed_start)
        on_line(render([failed_start]))
    finally:
        run_folder.spark.stop()
    return diagnosis


def _seconds_of_last_run(run_folder: RunFolder) -> float:
    """Return how long the stages took that made the versions in use; 0 before the first run."""
    seconds = 0.0
    for stage in STAGES:
        version = run_folder.store(stage.name).readable_current()
        if version is not None:
            seconds += version.manifest.seconds
    return seconds


def _try_equipment(run_folder: RunFolder) -> Iterator[str]:
    """Yield sentences about decompression and devices and, after a test start, about the ranks.

    Raises:
        LaunchError: The ranks do not start.
    """
    from ingestion.root_format import ZLIB_LIBRARY
    from pipeline.machine.launching import find_hosts
    from training.launching.mpirun import probe_mpi
    from training.launching.rank import describe_devices

    settings = run_folder.config.train
    if ZLIB_LIBRARY != "isal":
        yield (
            f"ROOT files are decompressed by {ZLIB_LIBRARY}; the extra `isal` takes a third less "
            "processor time"
        )
    yield describe_devices()
    if settings.workers > 1 and settings.launcher != "spark-agents":
        yield probe_mpi(settings, find_hosts(settings, run_folder.spark.context))
