"""The result of a study, as stored in `result.json`: tables, figures and pages are made from it."""

from __future__ import annotations

import base64
import json
import lzma
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NotRequired

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter
from typing_extensions import TypedDict

from hep_studies.cells import Cell
from hep_studies.measures import measure_of, number_of_run
from hep_studies.nested_values import as_json
from hep_studies.run_result import RunResult
from hep_studies.study import StudySettings, key_label
from hep_studies.study_sections import AddedValues
from hep_studies.tuning import (
    LOWEST_LOSS,
    Tuning,
    best_combination,
    edges_of_sweep,
    grouped_runs,
    resolved_measure,
)
from training.errors import StudyError
from training.loop.summary import count_actions
from training.settings import TrainSettings

RESULT_FILE: Final = "result.json"
#: A result beside its published page: the same JSON, a tenth as long.
PACKED_FILE: Final = "result.json.xz"
#: The measure of which a run that diverged has a number.
_DIVERGED: Final = "diverged"
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class TimeCheck:
    """Measured and simulated time of a training step of one method [s].

    Instead of computing, MPI ranks of this machine sleep and exchange the method's messages. The
    simulator predicts the same steps. The difference says how wrong the simulated times may be.
    """

    method: str
    step_seconds: float
    """Time of a step of the study without messages."""
    workers: int
    measured: float
    """Measured time of a step with its messages: the median over the repeats."""
    simulated: float
    """Simulated time of the same step."""
    spread: float
    """Half the distance between the quartiles of the repeats, each less the step of ranks that send
    nothing in the same turn."""
    repeats: int
    """Number of repeats of the measurement."""
    load: float
    """Number of cores that other work kept busy meanwhile."""
    slept: float
    """Time for which ranks sleep in a step."""
    steps_per_cycle: float
    """Measured steps of a worker between two sums of a shard; 0 for methods without a joint
    model."""
    simulated_steps_per_cycle: float
    """Simulated steps between them."""
    overhead: float
    """Time by which a measured step of ranks that send nothing is longer than the simulated one.

    It is that of the training loop, a part of the computing time that a study states."""
    refused: str = ""
    """Why the check is not used; empty if it is."""

    @property
    def gap(self) -> float:
        """Time by which messages make a step longer than they do in the simulator [s].

        It may be negative.
        """
        return self.measured - self.overhead - self.simulated


@dataclass(frozen=True)
class Machine:
    """The machine that made the runs."""

    cpu: str
    cores: int
    load: float
    """Number of cores that other work kept busy."""


@dataclass(frozen=True)
class StudyProvenance:
    """How a result was made."""

    command: str
    """Command line that makes it."""
    created: str
    """Date and time."""
    machine: Machine
    packages: dict[str, str]
    """Versions of packages, by name."""


class EventsDescription(TypedDict):
    """The rows that the runs train on."""

    version: str
    """Version of the features, or name of the workload."""
    classes: list[str]
    """Names of the classes of events; empty for other workloads."""
    sample_note: str
    """Where the rows come from, for figures and pages."""
    counts: dict[str, list[int]]
    """Number of rows of each class, then of all, by split."""
    digest: NotRequired[str]
    """Digest of the content of the events; missing for other workloads."""


@dataclass(frozen=True)
class StudyResult:
    """All results of a study: its settings, how it was made, and the result of each run."""

    name: str
    form: str
    """`small` or `full`."""
    digest: str
    """Digest of everything that the runs depend on."""
    study: StudySettings
    """The settings, in which methods also have the values of `added`."""
    provenance: Annotated[StudyProvenance, Field(alias="made")]
    events: Annotated[EventsDescription, Field(alias="data")]
    checks: list[TimeCheck]
    """Checks of the simulated times on this machine."""
    runs: list[RunResult]
    test_weights: str = ""
    """Weights of the test events, float32 in base64; empty where nothing is learnt."""
    version: Literal[6] = 6
    added: AddedValues = field(default_factory=dict)
    """Values that the file of the study does not have: they were added where the best one was at an
    edge of a sweep."""
    checked_again: str = ""
    """When and by which code the checks were measured again; empty if that was with the runs."""

    @cached_property
    def groups(self) -> dict[Cell, dict[Cell, list[RunResult]]]:
        """Runs in the order of their seeds, by cell and by values of the keys of `best_of`."""
        return grouped_runs(self.runs, self.study.best_of)

    def cells(
        self, methods: Sequence[str] = (), values: Mapping[str, Any] | None = None
    ) -> list[Cell]:
        """Return the cells of some methods, by default of all, in their order.

        `values`: values of varied keys; a cell that varies such a key must have its value.
        """
        json_values = as_json(values or {})
        cells = []
        for method in methods or self.study.methods:
            cells += [
                cell for cell in self.groups if cell.method == method and cell.matches(json_values)
            ]
        return cells

    def matching_cell(self, cell: Cell, selection: Mapping[str, Any]) -> Cell | None:
        """Return the cell that a selection means for a given cell, such as its control.

        It has the method and the values of the selection, and the given cell's values of all other
        keys. None without one.
        """
        cells = self.cells([selection["method"]], {**cell.plain_values, **selection})
        return cells[0] if cells else None

    def best_combination(self, cell: Cell, best_in: str = LOWEST_LOSS.best_in) -> Cell:
        """Return the values of the keys of `best_of` at which a cell is best in a measure."""
        return best_combination(self.groups[cell], self.resolved(cell, best_in))

    def resolved(self, cell: Cell, measure: str) -> str:
        """Return a measure of a cell, in which the best accuracy of the study is a number."""
        key = (cell.in_any_situation, measure)
        if key not in self._resolved_measures:
            self._resolved_measures[key] = resolved_measure(self.groups, cell, measure)
        return self._resolved_measures[key]

    @cached_property
    def _resolved_measures(self) -> dict[tuple[Cell, str], str]:
        """Measures that were resolved, since the best accuracy is that of all runs."""
        return {}

    def edges(self, cell: Cell, best_in: str = LOWEST_LOSS.best_in) -> dict[str, str]:
        """Return the keys of which the best value is the lowest or the highest that was tried.

        A better one may lie beyond. By key: "lowest", "highest", or "only one" for a single value.
        """
        return edges_of_sweep(self.groups[cell], self.best_combination(cell, best_in))

    def runs_of(self, cell: Cell, tuning: Tuning = LOWEST_LOSS) -> list[RunResult]:
        """Return the runs of a cell in the order of their seeds, at one combination of `best_of`.

        `tuning`: which one; by default that of the lowest validation loss. A method that sets such
        a key itself has one combination, without that key, at any value of it.
        """
        combinations = self.groups.get(cell, {})
        if not tuning.at:
            if not combinations:
                return []
            return combinations[self.best_combination(cell, tuning.best_in)]
        json_values = as_json(tuning.at)
        for combination, runs in combinations.items():
            if combination.matches(json_values):
                return runs
        return []

    def finished_runs(self, cell: Cell, tuning: Tuning = LOWEST_LOSS) -> list[RunResult]:
        """Return the runs of a cell that did not diverge."""
        return [run for run in self.runs_of(cell, tuning) if not run.has_diverged]

    def numbers(self, cell: Cell, measure: str, tuning: Tuning = LOWEST_LOSS) -> pd.Series:
        """Return a measure of each run of a cell, indexed by seed.

        A run that diverged has only the measure that counts such runs. A measure that is relative
        to another method, such as a speed-up, takes that method's run of the same seed; a seed
        without one is left out. Tables, figures and comparisons take their numbers from here, so
        that they show the same runs. `tuning`: the values of the keys of `best_of`.
        """
        measure = self.resolved(cell, measure)
        relative_to = measure_of(measure).relative_to
        runs = self.runs_of(cell, tuning)
        if measure != _DIVERGED:
            runs = [run for run in runs if not run.has_diverged]
        # A measure that is not relative ignores the second run.
        baselines = {run.seed: run for run in runs}
        if relative_to:
            baseline_runs = self._baseline_runs(relative_to, cell, tuning)
            baselines = {run.seed: run for run in baseline_runs if not run.has_diverged}
        numbers = {}
        for run in runs:
            if run.seed in baselines:
                numbers[run.seed] = number_of_run(measure, run, baselines[run.seed])
        return pd.Series(numbers, dtype=np.float64)

    def diverged_seeds(self, cell: Cell, measure: str, tuning: Tuning = LOWEST_LOSS) -> set[int]:
        """Return the seeds at which a cell has no number of a measure, since a run diverged.

        It is a run of the cell, or one that the measure is relative to.
        """
        if measure == _DIVERGED:
            return set()
        runs = self.runs_of(cell, tuning)
        relative_to = measure_of(self.resolved(cell, measure)).relative_to
        if relative_to:
            runs = runs + self._baseline_runs(relative_to, cell, tuning)
        return {run.seed for run in runs if run.has_diverged}

    def _baseline_runs(self, attribute: str, cell: Cell, tuning: Tuning) -> list[RunResult]:
        """Return the runs that a relative measure of a cell compares with.

        They are those of the method that the attribute of the study names, `reference` or
        `single_worker`, at the cell's values of all keys. Empty if there are none.
        """
        method = getattr(self.study, attribute)
        baseline = self.matching_cell(cell, {"method": method}) if method else None
        if baseline is None:
            return []
        return self.runs_of(baseline, tuning)

    def correct_weights(self, cell: Cell, tuning: Tuning = LOWEST_LOSS) -> dict[int, Floats]:
        """Return for each seed an array (num_events,): weight of an event if predicted correctly.

        Other events have 0. The weights are relative to their mean, so that the mean of the array
        is the weighted accuracy.
        """
        weights = self.weights / self.weights.mean()
        return {
            run.seed: run.counts.is_correct * weights
            for run in self.finished_runs(cell, tuning)
            if run.counts
        }

    @cached_property
    def weights(self) -> Floats:
        """Weights of the test events (num_events,)."""
        encoded = base64.b64decode(self.test_weights)
        return np.frombuffer(encoded, dtype=np.float32).astype(np.float64)

    def curves(self, cell: Cell, name: str) -> Floats:
        """Return a quantity of each finished run and epoch, (num_seeds, num_epochs)."""
        return np.array([run.curves[name] for run in self.finished_runs(cell)])

    def title(self, cell: Cell) -> str:
        """Return the name of a cell in tables and figures: its method and the varied values."""
        values = [f"{key_label(key)} {text}" for key, text in cell.values]
        return ", ".join([self.study.title_of(cell.method), *values])

    def idle_counters(self, cell: Cell, tuning: Tuning = LOWEST_LOSS) -> list[str]:
        """Return the counters of actions that a cell's settings ask for and none of its runs did.

        An action is, for example, an average, a push or a step of SlowMo. Runs without it do not
        show the effect of the settings.
        """
        numbers = [run.numbers for run in self.finished_runs(cell, tuning)]
        counts = count_actions(self.settings(cell), numbers)
        return [name for name, count in counts.items() if not count]

    def settings(self, cell: Cell) -> TrainSettings:
        """Return the training settings of a cell, without the values of the keys of `best_of`."""
        return self.study.train_settings(cell.method, cell.plain_values, 1)

    def events_seen(self, *cells: Cell, tuning: Tuning = LOWEST_LOSS) -> str:
        """Return how many events the runs of cells trained on, such as "1,000 to 1,200".

        An event counts in each epoch. Empty if no run has the number.
        """
        counts: set[int] = set()
        for cell in cells:
            counts |= _num_samples(self.finished_runs(cell, tuning))
        if not counts:
            return ""
        ends = sorted({min(counts), max(counts)})
        return " to ".join(f"{count:,}" for count in ends)

    @property
    def is_simulated(self) -> bool:
        """Whether the times are virtual."""
        return self.study.execution == "simulate"

    @property
    def is_busy(self) -> bool:
        """Whether other work kept at least half of the cores busy when times were measured."""
        machine = self.provenance.machine
        return machine.load >= machine.cores / 2

    @property
    def warning(self) -> str:
        """Warning of unreliable times in the titles of figures; empty for reliable ones."""
        return "measured on a busy machine" if self.is_busy and not self.is_simulated else ""


def _num_samples(runs: Iterable[RunResult]) -> set[int]:
    """Return the distinct numbers of events that runs trained on, counted in each epoch."""
    return {int(run.numbers["samples"]) for run in runs if "samples" in run.numbers}


_ADAPTER: Final = TypeAdapter(StudyResult)


def as_plain(result: StudyResult) -> dict[str, Any]:
    """Return the content of `result.json`."""
    plain: dict[str, Any] = _ADAPTER.dump_python(result, mode="json", by_alias=True)
    return plain


def pack(result: StudyResult) -> bytes:
    """Return the content of a packed file; the same result gives the same bytes."""
    return lzma.compress(json.dumps(as_plain(result)).encode())


def read_study_result(path: Path) -> StudyResult:
    """Read the result of a finished study: `result.json`, or `result.json.xz` beside a page.

    Raises:
        StudyError: The file cannot be read, or has another version.
    """
    try:
        packed = path.read_bytes()
        if path.suffix == ".xz":
            packed = lzma.decompress(packed)
        return _ADAPTER.validate_python(json.loads(packed))
    except (OSError, EOFError, ValueError, lzma.LZMAError) as cause:
        raise StudyError(
            f"{path} is no result of a study ({cause}). `compare --study` makes it again."
        ) from cause
