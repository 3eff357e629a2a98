"""The result of a study, as stored in `result.json`: its runs, from which tables, figures and pages are made."""

from __future__ import annotations

import base64
import json
import lzma
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import TypeAdapter

from hep_studies.measures import lowest_loss, measure_of
from hep_studies.run_result import RunResult
from hep_studies.study import StudySettings, as_in_json, short
from training.errors import StudyError
from training.loop.summary import count_actions
from training.settings import TrainSettings

#: A result beside its published page: the same JSON, a tenth as long.
PACKED: Final = "result.json.xz"
Floats = NDArray[np.float64]


class Cell(NamedTuple):
    """Runs that differ in seeds only, and in the keys of `best_of`: a method, and values of the other varied keys."""

    method: str
    values: tuple[tuple[str, str], ...] = ()
    """Keys and their values, as JSON."""

    @classmethod
    def of(cls, method: str, values: Mapping[str, Any]) -> Self:
        """From plain values."""
        return cls(
            method, tuple((key, json.dumps(value, sort_keys=True)) for key, value in values.items())
        )

    @property
    def plain(self) -> dict[str, Any]:
        """The plain values."""
        return {key: json.loads(text) for key, text in self.values}

    def has(self, wanted: Mapping[str, Any]) -> bool:
        """Whether its values of the keys that it varies are the wanted ones; 0 and 0.0 are the same."""
        return all(wanted.get(key, value) == value for key, value in self.plain.items())

    def without(self, *keys: str | None) -> Cell:
        """The cell without some keys."""
        return Cell(self.method, tuple(pair for pair in self.values if pair[0] not in keys))


@dataclass(frozen=True)
class TimeCheck:
    """Measured and simulated time of a step of ranks that sleep, with what they send each other [s]."""

    method: str
    step_seconds: float
    """The time of a step without messages, which they sleep."""
    workers: int
    measured: float
    simulated: float

    @property
    def gap(self) -> float:
        """By how much a step takes longer than simulated [s]."""
        return self.measured - self.simulated


@dataclass(frozen=True)
class StudyResult:
    """All results of a study."""

    name: str
    form: str
    digest: str
    """Digest of all that the runs depend on."""
    study: StudySettings
    made: dict[str, Any]
    """Command, machine and versions."""
    data: dict[str, Any]
    """Description of the events: version, classes, number of events by class and split, note."""
    checks: list[TimeCheck]
    """Check of the simulator on this machine, where a study claims times."""
    runs: list[RunResult]
    test_weights: str = ""
    """Float32 in base64; empty where nothing is learnt."""
    version: Literal[6] = 6

    @cached_property
    def groups(self) -> dict[Cell, dict[Cell, list[RunResult]]]:
        """The runs of each cell by seed, for each combination of the keys of `best_of`."""
        found: dict[Cell, dict[Cell, list[RunResult]]] = {}
        for run in sorted(self.runs, key=lambda run: run.seed):
            whole = Cell.of(run.method, run.values)
            tried = Cell("", tuple(pair for pair in whole.values if pair[0] in self.study.best_of))
            found.setdefault(whole.without(*self.study.best_of), {}).setdefault(tried, []).append(
                run
            )
        return found

    def cells(
        self, methods: Sequence[str] = (), where: Mapping[str, Any] | None = None
    ) -> list[Cell]:
        """The cells of some methods, of all by default, with these values of keys that they vary; in their order."""
        chosen, wanted = methods or list(self.study.methods), as_in_json(where or {})
        cells = [cell for method in chosen for cell in self.groups if cell.method == method]
        return [cell for cell in cells if cell.has(wanted)]

    def like(self, cell: Cell, selected: Mapping[str, Any]) -> Cell | None:
        """The cell that a claim names with the same other values as a cell; None if there is none."""
        return next(iter(self.cells([selected["method"]], {**cell.plain, **selected})), None)

    def best(self, cell: Cell) -> Cell:
        """The combination of the keys of `best_of` with the lowest validation loss, averaged over the seeds."""
        found = self.groups[cell]
        return min(found, key=lambda tried: np.mean([lowest_loss(run) for run in found[tried]]))

    def runs_of(self, cell: Cell, at: Mapping[str, Any] | None = None) -> list[RunResult]:
        """The runs of a cell by seed, at its best or with the given values of the keys of `best_of`."""
        if cell not in self.groups:
            return []
        if not at:
            return self.groups[cell][self.best(cell)]
        wanted = as_in_json(at)
        return next(
            (runs for tried, runs in self.groups[cell].items() if tried.plain == wanted), []
        )

    def with_result(self, cell: Cell, at: Mapping[str, Any] | None = None) -> list[RunResult]:
        """The runs of a cell that did not diverge."""
        return [run for run in self.runs_of(cell, at) if not run.has_diverged]

    def numbers(self, cell: Cell, measure: str, at: Mapping[str, Any] | None = None) -> pd.Series:
        """A measure of each run of a cell, by seed; a run that diverged has only the measure of that.

        Tables, figures and comparisons take them from here, so that they are of the same runs.
        """
        chosen = measure_of(measure)
        runs = self.runs_of(cell, at) if measure == "diverged" else self.with_result(cell, at)
        others = runs
        if chosen.relative_to:
            named = getattr(self.study, chosen.relative_to)
            other = named and self.like(cell, {"method": named})
            others = self.with_result(other, at) if other else []
        by_seed = {run.seed: run for run in others}
        of = chosen.of or (lambda run, _: run.numbers.get(measure, np.nan))
        found = {run.seed: of(run, by_seed[run.seed]) for run in runs if run.seed in by_seed}
        return pd.Series(found, dtype=np.float64)

    def correct(self, cell: Cell, at: Mapping[str, Any] | None = None) -> dict[int, Floats]:
        """Weight over mean weight of the test events that each run predicts correctly, else 0, by seed."""
        weights = self.weights / self.weights.mean()
        return {
            run.seed: run.counts.is_correct * weights
            for run in self.with_result(cell, at)
            if run.counts
        }

    @cached_property
    def weights(self) -> Floats:
        """Weights of the test events (num_events,)."""
        return np.frombuffer(base64.b64decode(self.test_weights), dtype=np.float32).astype(
            np.float64
        )

    def curves(self, cell: Cell, name: str) -> Floats:
        """A quantity of each run and epoch, (num_seeds, num_epochs), of the runs that did not diverge."""
        return np.array([run.curves[name] for run in self.with_result(cell)])

    def title(self, cell: Cell) -> str:
        """A cell in words."""
        return ", ".join(
            [
                self.study.title_of(cell.method),
                *(f"{short(key)} {text}" for key, text in cell.values),
            ]
        )

    def never_acted(self, cell: Cell) -> list[str]:
        """What the settings of a cell ask for and none of its runs did, by counter."""
        found = count_actions(self.settings(cell), [run.numbers for run in self.with_result(cell)])
        return [name for name, number in found.items() if not number]

    def settings(self, cell: Cell) -> TrainSettings:
        """Settings of the training of a cell."""
        return self.study.train_settings(cell.method, cell.plain, 1)

    def events_seen(self, *cells: Cell) -> str:
        """Least and greatest number of events, with repetitions, that a run of some cells saw, in words."""
        numbers = [run.numbers for cell in cells for run in self.with_result(cell)]
        seen = sorted({int(each["samples"]) for each in numbers if "samples" in each})
        return " to ".join(f"{end:,}" for end in dict.fromkeys((*seen[:1], *seen[-1:])))

    @property
    def is_simulated(self) -> bool:
        """Whether the times are virtual."""
        return self.study.execution == "simulate"

    @property
    def is_busy(self) -> bool:
        """Whether other work kept at least half of the cores busy when times were measured."""
        return bool(self.made["machine"]["load"] >= self.made["machine"]["cores"] / 2)

    @property
    def warning(self) -> str:
        """What the titles of figures say about measured times that are no good; empty for good ones."""
        return "measured on a busy machine" if self.is_busy and not self.is_simulated else ""


_ADAPTER: Final = TypeAdapter(StudyResult)


def plain(result: StudyResult) -> dict[str, Any]:
    """The plain values of `result.json`, which `read` reads."""
    found: dict[str, Any] = _ADAPTER.dump_python(result, mode="json")
    return found


def pack(result: StudyResult) -> bytes:
    """The content of a file `PACKED`; the same result gives the same bytes."""
    return lzma.compress(json.dumps(plain(result)).encode())


def read(path: Path) -> StudyResult:
    """A result of a finished study: `result.json` of a run folder, or `result.json.xz` beside a page.

    Raises:
        StudyError: It cannot be read, or is of another version.
    """
    try:
        return _ADAPTER.validate_python(
            json.loads(
                lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
            )
        )
    except (OSError, EOFError, ValueError, lzma.LZMAError) as cause:
        raise StudyError(
            f"{path} is no result of a study ({cause}). `compare --study` makes it again."
        ) from cause
