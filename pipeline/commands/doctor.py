"""`doctor`: check this machine, and start the ranks as a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ingestion.secrets import redact_all
from pipeline.errors import MachineError
from pipeline.machine.doctor import Finding, Need, Severity, about_names, render
from pipeline.run_folder import RunFolder
from training.errors import LaunchError


class Diagnosis(NamedTuple):
    """Findings, and without errors the result of a test of the ranks."""

    findings: list[Finding]
    notes: list[str]
    """Sentences about what is there."""
    error: str | None
    """Reason why the ranks do not start."""

    @property
    def is_well(self) -> bool:
        """Whether there are no errors, and the ranks start."""
        return self.error is None and all(finding.severity is not Severity.ERROR for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        findings = [finding._asdict() for finding in self.findings]
        found: dict[str, Any] = redact_all({**self._asdict(), "findings": findings})
        return {"is_well": self.is_well, **found}


def doctor(run_folder: RunFolder, say: Callable[[str], None]) -> Diagnosis:
    """Check the machine and, if it has no errors, start the ranks for a short test."""
    clash = about_names()
    found = Diagnosis([*run_folder.examine(list(Need)), *([clash] if clash else [])], [], None)
    say(render(found.findings))
    try:
        for words in _notes(run_folder) if found.is_well else ():
            found.notes.append(words)
            say(words)
    except (LaunchError, MachineError) as error:
        say(f"error: {error}")
        found = found._replace(error=str(error))
    finally:
        run_folder.spark.stop()
    return found


def _notes(run_folder: RunFolder) -> Iterator[str]:
    from ingestion.root_format import ZLIB_LIBRARY
    from pipeline.machine.launching import hosts_of
    from training.launching.mpirun import probe_mpi
    from training.launching.rank import describe_devices

    settings = run_folder.config.train
    if ZLIB_LIBRARY != "isal":
        yield f"ROOT files are decompressed by {ZLIB_LIBRARY}; the extra `isal` takes a third less processor time"
    yield describe_devices()
    if settings.workers > 1 and settings.launcher != "spark-agents":
        yield probe_mpi(settings, hosts_of(settings, run_folder.spark.context))
