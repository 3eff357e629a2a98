"""Runs the programs of tests/distributed/programs on ranks of MPI, and collects what each rank has
to say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ranks import processes_of

from training.launching.mpirun import find_mpirun, rank_environment
from training.settings import TrainSettings

PROGRAMS = Path(__file__).resolve().parents[1] / "distributed" / "programs"
#: What mpirun says when no rank has begun, and the program is started once more: a busy host did
#: not start its daemon in time, or a killed mpirun of the same process id left files, which are
#: removed then.
_NOT_BEGUN = (
    "A daemon failed to report back after being spawned",
    "PMIx server's listener thread failed to start",
)


class Outcome(NamedTuple):
    """How a job ended."""

    status: int
    results: dict[int, Any]
    """What ranks returned, those that came to their end."""
    output: str


def run_ranks(
    ranks: int,
    program: str,
    folder: Path,
    *,
    options: tuple[str, ...] = (),
    seconds: float = 60,
    environment: dict[str, str] | None = None,
    on_host: Callable[..., list[str]] = lambda *command: list(command),
    **arguments: Any,
) -> Outcome:
    """Run `module:function` on a number of ranks. `on_host` wraps the command.

    Raises:
        AssertionError: It took too long; says what the ranks wrote.
    """
    folder.mkdir(parents=True, exist_ok=True)
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    more = [*options, "--oversubscribe", "--bind-to", "none", *as_root]
    message = (str(PROGRAMS / "run.py"), program, json.dumps(arguments), str(folder))
    with (folder / "output.txt").open("w+", encoding="utf-8", errors="replace") as output:
        process = subprocess.Popen(
            on_host(str(find_mpirun()), *more, "-n", str(ranks), sys.executable, *message),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=rank_environment(TrainSettings(), options) | (environment or {}),
        )
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            for leftovers in processes_of(folder):
                leftovers.kill()
            process.wait()
    text = (folder / "output.txt").read_text(encoding="utf-8", errors="replace")
    if status is None:
        raise AssertionError(f"{program} on {ranks} ranks is not done after {seconds} s:\n{text}")
    files = folder.glob("rank-*.json")
    results = {int(path.stem.removeprefix("rank-")): json.loads(path.read_text()) for path in files}
    return Outcome(status, results, text)


def results_of(ranks: int, program: str, folder: Path, **arguments: Any) -> list[Any]:
    """Run it to a good end; what the ranks returned, in their order."""
    outcome = run_ranks(ranks, program, folder, **arguments)
    if any(sentence in outcome.output for sentence in _NOT_BEGUN):
        outcome = run_ranks(ranks, program, folder, **arguments)
    assert outcome.status == 0, outcome.output
    assert sorted(outcome.results) == list(range(ranks)), outcome.output
    return [outcome.results[rank] for rank in sorted(outcome.results)]


class Case(NamedTuple):
    """A program for a number of ranks, with its arguments."""

    ranks: int
    program: str
    arguments: dict[str, Any]


class Cases:
    """Programs whose ranks are started once for all of one number of ranks, since a start takes seconds."""

    def __init__(
        self, folder: Path, cases: Mapping[Hashable, Case], *, seconds: float = 150
    ) -> None:
        self._folder, self._cases, self._seconds = folder, cases, seconds
        self._found: dict[int, dict[Hashable, list[Any]] | AssertionError] = {}

    def results(self, *name: Hashable) -> list[Any]:
        """What the ranks returned of a case, in their order."""
        ranks = self._cases[name].ranks
        if ranks not in self._found:
            try:
                self._found[ranks] = self._run(ranks)
            except AssertionError as error:
                self._found[ranks] = error
        actual = self._found[ranks]
        if isinstance(actual, AssertionError):
            raise actual
        return actual[name]

    def _run(self, ranks: int) -> dict[Hashable, list[Any]]:
        selected = {
            name: [case.program, case.arguments]
            for name, case in self._cases.items()
            if case.ranks == ranks
        }
        folder = self._folder / f"{ranks}-ranks"
        actual = results_of(
            ranks, "several", folder, seconds=self._seconds, programs=list(selected.values())
        )
        return {
            name: list(outcomes)
            for name, outcomes in zip(selected, zip(*actual, strict=True), strict=True)
        }
