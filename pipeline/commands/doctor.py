"""`doctor`: check this machine, and start the ranks as a test."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ingestion.environment import noted
from ingestion.secrets import redact_all
from pipeline.errors import MachineError
from pipeline.machine.doctor import Finding, Need, Severity, render
from pipeline.run_folder import RunFolder


class Diagnosis(NamedTuple):
    """Findings, and without errors the result of a test of the ranks."""

    findings: list[Finding]
    ignored: str | None = None
    """What of the environment has no influence, of what is there."""
    zlib: str | None = None
    threads: str | None = None
    devices: str | None = None
    ranks: str | None = None
    """Message of the test of the ranks."""
    error: str | None = None
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
    """Check the machine and, if it has no errors, start the ranks for a short test.

    Args:
        run_folder: The run folder.
        say: Called with each finding.
    """
    from training.launching.start_limit import without_network

    spark, train = run_folder.config.spark, run_folder.config.train
    is_alone = train.workers > 1 and without_network(train, [], Path()) != []
    ignored = ", ".join(noted(os.environ, local_spark=spark.master.startswith("local"), one_host=is_alone))
    found = Diagnosis(run_folder.examine(list(Need)), ignored and f"ignored of the environment: {ignored}")
    say(render(found.findings))
    if ignored:
        say(str(found.ignored))
    return _try(found, run_folder, say) if found.is_well else found


def _try(found: Diagnosis, run_folder: RunFolder, say: Callable[[str], None]) -> Diagnosis:
    from ingestion.root_format import ZLIB_LIBRARY
    from pipeline.machine.launching import hosts_of
    from training.errors import LaunchError
    from training.launching.probing import describe_devices, probe_mpi

    settings = run_folder.config.train
    threads = f"threads: {settings.threads} in each of {settings.workers} worker(s) (train.threads)"
    zlib = f"ZLIB of ROOT files: {ZLIB_LIBRARY}"
    if ZLIB_LIBRARY != "isal":
        zlib += " (the extra `isal` reads them with a third less processor time)"
    found = found._replace(zlib=zlib, threads=threads, devices=describe_devices())
    say(zlib)
    say(threads)
    say(str(found.devices))
    if settings.workers == 1 or settings.launcher == "spark-agents":
        return found
    try:
        found = found._replace(ranks=probe_mpi(settings, hosts_of(settings, run_folder.spark.context)))
    except (LaunchError, MachineError) as error:
        found = found._replace(error=str(error))
    finally:
        run_folder.spark.stop()
    say(found.ranks or f"error: {found.error}")
    return found
