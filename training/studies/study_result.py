"""The result of a study, as stored in `result.json`: the input of tables, figures and page."""

from __future__ import annotations

import base64
import json
import lzma
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from training.errors import StudyError
from training.loop.summary import acted
from training.studies.measures import lowest_loss, measure_of
from training.studies.run_result import RunResult
from training.studies.study import Chosen, Panel, StudySettings, method_of

VERSION: Final = 5
#: Relative error of a predicted time per batch above which titles of simulated figures say so.
LARGE_MISS: Final = 0.25
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
        return cls(method, tuple((key, _text(value)) for key, value in values.items()))

    def value(self, key: str) -> Any:
        """The value of a varied key; None if this method does not vary it."""
        text = dict(self.values).get(key)
        return None if text is None else json.loads(text)


class TimeCheck(NamedTuple):
    """Measured and predicted time per batch of a run whose workers share this machine [s]."""

    method: str
    workers: int
    measured: float
    predicted: float


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
    cluster: dict[str, Any] | None
    """The simulated cluster, as measured; None for MPI runs."""
    checks: list[TimeCheck]
    """Check of the simulator on this machine, with runs that did not calibrate it."""
    runs: list[RunResult]
    test_weights: str = ""
    """Weights of the test events (num_events,), float32 in base64; empty where nothing is learnt."""

    @property
    def weights(self) -> Floats | None:
        """Weights of the test events (num_events,); None where nothing is learnt."""
        packed = np.frombuffer(base64.b64decode(self.test_weights), dtype=np.float32)
        return packed.astype(np.float64) if len(packed) else None

    def time_error(self, this: Cell, other: Cell, *, of_ratio: bool = True) -> float:
        """Error that all simulated times of two cells may share, as a logarithm: infinite without any check.

        It is the largest factor by which the simulator misses the measured ratio of two methods. Times of unlike
        numbers of workers do not miss alike, so that a single time's miss counts too; so it does if there is only one,
        and for what is not of a ratio of times.
        """
        if not self.is_simulated:
            return 0.0
        misses = [math.log(each.predicted / each.measured) for each in self.checks]
        is_single = len(misses) == 1 or not of_ratio
        if misses and (is_single or self._workers(this) != self._workers(other)):
            misses.append(0.0)
        return max(misses) - min(misses) if misses else math.inf

    @property
    def is_simulated(self) -> bool:
        """Whether the times are virtual."""
        return self.cluster is not None

    @property
    def is_busy(self) -> bool:
        """Whether other work kept at least half of the cores busy when the times were measured."""
        machine = self.made["machine"]
        return bool(machine["load"] >= machine["cores"] / 2)

    @property
    def warning(self) -> str:
        """What the titles of figures say about times that are no good; empty for good ones.

        Simulated times whose check fails, or which were not checked; times that were measured on a busy machine.
        """
        found = []
        miss = max((abs(each.predicted / each.measured - 1) for each in self.checks), default=np.inf)
        if self.is_simulated and miss > LARGE_MISS:
            found.append(f"check of times misses by {100 * miss:.0f} %" if self.checks else "times not checked")
        if self.is_busy and (self.checks or not self.is_simulated):
            found.append("measured on a busy machine")
        return ", ".join(found)

    def cells(self, methods: Sequence[str] = ()) -> list[Cell]:
        """The cells of some methods, of all by default, in the order of the study."""
        chosen = methods or list(self.study.methods)
        found = [cell for cell in self._by_cell if cell.method in chosen]
        return sorted(found, key=lambda cell: chosen.index(cell.method))

    def shown(self, panel: Panel) -> list[Cell]:
        """The cells of a panel."""
        wanted = {key: _text(value) for key, value in panel.where.items()}
        found = self.cells(panel.methods)
        return [cell for cell in found if all(wanted.get(key, text) == text for key, text in cell.values)]

    @cached_property
    def _by_cell(self) -> dict[Cell, dict[Cell, list[RunResult]]]:
        """The runs of each cell for each combination of the keys of `best_of`, by seed."""
        found: dict[Cell, dict[Cell, list[RunResult]]] = {}
        for run in sorted(self.runs, key=lambda run: run.seed):
            tried = {key: value for key, value in run.values.items() if key in self.study.best_of}
            fixed = {key: value for key, value in run.values.items() if key not in tried}
            found.setdefault(Cell.of(run.method, fixed), {}).setdefault(Cell.of(run.method, tried), []).append(run)
        return found

    def by_best(self, cell: Cell) -> dict[Cell, list[RunResult]]:
        """The runs of a cell for each combination of the keys of `best_of`, by seed."""
        return self._by_cell.get(cell, {})

    def best(self, cell: Cell) -> Cell:
        """The combination of the keys of `best_of` with the lowest validation loss, averaged over the seeds."""
        found = self.by_best(cell)
        losses = {each: float(np.mean([lowest_loss(run) for run in runs])) for each, runs in found.items()}
        return min(losses, key=lambda each: losses[each])

    def of(self, cell: Cell) -> list[RunResult]:
        """The runs of a cell at its best, by seed."""
        found = self.by_best(cell)
        return next(iter(found.values())) if len(found) == 1 else found[self.best(cell)]

    def numbers(self, cell: Cell, measure: str) -> dict[int, float]:
        """A measure of each run of a cell, by seed; a run that diverged has only the measure of that.

        Tables, figures and comparisons take them from here, so that they are of the same runs.
        """
        chosen = measure_of(measure)
        others = {run.seed: run for run in self._other(cell, chosen.relative_to) if not run.has_diverged}
        runs = self.of(cell) if measure == "diverged" else self.with_result(cell)
        found = {run.seed: run for run in runs if not chosen.relative_to or run.seed in others}
        return {seed: chosen.of(run, others.get(seed, run)) for seed, run in found.items()}

    def with_result(self, cell: Cell) -> list[RunResult]:
        """The runs of a cell at its best that did not diverge, by seed."""
        return [run for run in self.of(cell) if not run.has_diverged]

    def curves(self, cell: Cell, name: str) -> Floats:
        """A quantity of each run and epoch, (num_seeds, num_epochs), of the runs that did not diverge."""
        return np.array([run.curves[name] for run in self.of(cell) if run.curves])

    def chosen(self, selected: Chosen) -> list[Cell]:
        """The cells that a claim names."""
        values = selected if isinstance(selected, dict) else {}
        wanted = {(key, _text(value)) for key, value in values.items() if key != "method"}
        return [cell for cell in self.cells([method_of(selected)]) if wanted <= set(cell.values)]

    def like(self, cell: Cell, selected: Chosen) -> Cell | None:
        """The cell that a claim names with the same other values as a cell; None if there is none."""
        fixed = selected if isinstance(selected, dict) else {}
        same = {key: text for key, text in cell.values if key not in fixed}
        for each in self.chosen(selected):
            if all(same.get(key, text) == text for key, text in each.values if key not in fixed):
                return each
        return None

    def title(self, cell: Cell) -> str:
        """A cell in words."""
        words = [self.study.title_of(cell.method)]
        words += [f"{key.rpartition('.')[2].replace('_', ' ')} {text}" for key, text in cell.values]
        return ", ".join(words)

    def events_seen(self, cell: Cell) -> set[int]:
        """Numbers of events, with repetitions, that the runs of a cell saw."""
        return {int(run.numbers["samples"]) for run in self.with_result(cell) if "samples" in run.numbers}

    def never_acted(self, cell: Cell) -> list[str]:
        """Counters of the mechanisms of a cell that acted in none of its runs; nothing where results lack them."""
        train = self.study.train_settings(cell.method, {key: json.loads(text) for key, text in cell.values}, 1)
        found = acted(train, [run.numbers for run in self.with_result(cell)])
        return [name for name, number in found.items() if not number]

    def _workers(self, cell: Cell) -> int:
        values = {key: json.loads(text) for key, text in cell.values}
        return self.study.train_settings(cell.method, values, 1).workers

    def _other(self, cell: Cell, relative_to: str) -> list[RunResult]:
        if not relative_to:
            return []
        named = self.study.reference if relative_to == "reference" else self.study.alone
        found = None if named is None else self.like(cell, named)
        return [] if found is None else self.of(found)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "version": VERSION,
            **{name: getattr(self, name) for name in self._names()},
            "study": self.study.model_dump(mode="json"),
            "checks": [each._asdict() for each in self.checks],
            "runs": [run.to_json() for run in self.runs],
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """From what `to_json` gives.

        Raises:
            ValueError: It is of another version.
        """
        if content["version"] != VERSION:
            raise ValueError(f"version {content['version']} instead of {VERSION}")
        values = {name: content[name] for name in cls._names()}
        values["study"] = StudySettings.model_validate(content["study"])
        values["checks"] = [TimeCheck(**each) for each in content["checks"]]
        values["runs"] = [RunResult.from_json(run) for run in content["runs"]]
        return cls(**values)

    @classmethod
    def _names(cls) -> list[str]:
        return [field.name for field in fields(cls)]


def load(path: Path, digest: str) -> StudyResult | None:
    """Earlier results, if they belong to the same runs, else None."""
    try:
        found = read(path)
    except StudyError:
        return None
    return found if found.digest == digest else None


def pack(result: StudyResult) -> bytes:
    """The content of a file `PACKED`; the same result gives the same bytes."""
    return lzma.compress(json.dumps(result.to_json()).encode())


def read(path: Path) -> StudyResult:
    """A result of a finished study.

    Args:
        path: `result.json` of a run folder, or `result.json.xz` beside a page.

    Raises:
        StudyError: It cannot be read, or is of another version.
    """
    try:
        content = json.loads(lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes())
        return StudyResult.from_json(content)
    except (OSError, EOFError, ValueError, KeyError, TypeError, lzma.LZMAError) as cause:
        raise StudyError(f"{path} is no result of a study ({cause}). `compare --study` makes it again.") from cause


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
