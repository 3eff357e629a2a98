"""Runs the programs of tests/distributed/programs on ranks of MPI, and collects their results."""

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
#: Messages of mpirun when no rank has begun; then the program is started once more. A busy host did
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
    """Results of the ranks that came to their end."""
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
    mpirun = [str(find_mpirun()), *options, "--oversubscribe", "--bind-to", "none", *as_root]
    script = [str(PROGRAMS / "run.py"), program, json.dumps(arguments), str(folder)]
    with (folder / "output.txt").open("w+", encoding="utf-8", errors="replace") as output:
        process = subprocess.Popen(
            on_host(*mpirun, "-n", str(ranks), sys.executable, *script),
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
            for rank_process in processes_of(folder):
                rank_process.kill()
            process.wait()
    text = (folder / "output.txt").read_text(encoding="utf-8", errors="replace")
    if status is None:
        raise AssertionError(f"{program} on {ranks} ranks is not done after {seconds} s:\n{text}")
    files = folder.glob("rank-*.json")
    results = {int(path.stem.removeprefix("rank-")): json.loads(path.read_text()) for path in files}
    return Outcome(status, results, text)


def results_of(ranks: int, program: str, folder: Path, **arguments: Any) -> list[Any]:
    """The results of a program that must succeed, in the order of the ranks."""
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
    """Programs whose ranks start once for all of one number of ranks: a start takes seconds."""

    def __init__(
        self, folder: Path, cases: Mapping[Hashable, Case], *, seconds: float = 150
    ) -> None:
        self._folder = folder
        self._cases = cases
        self._seconds = seconds
        self._outcomes: dict[int, dict[Hashable, list[Any]] | AssertionError] = {}

    def results(self, *name: Hashable) -> list[Any]:
        """The results of a case, in the order of the ranks."""
        ranks = self._cases[name].ranks
        if ranks not in self._outcomes:
            try:
                self._outcomes[ranks] = self._run(ranks)
            except AssertionError as error:
                self._outcomes[ranks] = error
        outcome = self._outcomes[ranks]
        if isinstance(outcome, AssertionError):
            raise outcome
        return outcome[name]

    def _run(self, ranks: int) -> dict[Hashable, list[Any]]:
        """The results of all cases of a number of ranks."""
        cases = {name: case for name, case in self._cases.items() if case.ranks == ranks}
        results_by_rank = results_of(
            ranks,
            "several",
            self._folder / f"{ranks}-ranks",
            seconds=self._seconds,
            programs=[[case.program, case.arguments] for case in cases.values()],
        )
        return {
            name: [results[index] for results in results_by_rank]
            for index, name in enumerate(cases)
        }
