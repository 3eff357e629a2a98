"""The runs of a comparison: their settings, folders and state."""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from features.dataset import FeatureDataset
from models.networks.registry import ModelName, NetworksSettings
from training import own_folders
from training.errors import StudyError
from training.launching.rank import RunSpec
from training.readers.sharding import plan_epoch, step_bounds
from training.settings import TrainSettings
from training.studies.settings import CompareSettings
from training.studies.variants import (
    ALONE,
    APART,
    COMPARISONS,
    METHODS,
    TableColumn,
    Variant,
    timing_settings,
    train_settings,
)
from training.workloads.registry import HepSettings

#: Version of the results that a comparison keeps of its runs.
_VERSION: Final = 3
_MADE_FROM: Final = "made_from.json"
#: Factor between the two batch sizes of the timing runs, which give the times per step and per event.
_LARGER_BATCH: Final = 4


class PlannedRun(NamedTuple):
    """A training run of a comparison, finished or not."""

    model: ModelName
    variant: Variant
    spec: RunSpec
    digest: str
    """Digest of everything the run's result depends on."""

    @property
    def seed(self) -> int:
        """Seed of the initial weights, the order of events and the partners."""
        return self.spec.train.seed

    @property
    def is_done(self) -> bool:
        """Whether its result exists, for the same settings and data."""
        return (self.spec.out_dir / "summary.json").exists() and self.left_digest == self.digest

    @property
    def left_digest(self) -> str | None:
        """The digest of the run in its folder, None if there is none."""
        return self._made_from().get("digest")

    @property
    def made_with(self) -> str:
        """Version of the code of the run."""
        return str(self._made_from()["code"])

    def prepare(self, code: str) -> None:
        """Make its folder; files of the same run stay, so that it resumes from its last checkpoint.

        Raises:
            StudyError: A folder that this code has not made is at its place.
        """
        folder = self.spec.out_dir
        if self.left_digest != self.digest:
            own_folders.remove(folder)
            try:
                own_folders.make(folder)
            except FileExistsError as cause:
                raise StudyError(
                    f"{folder} holds files that this code has not made (it has no {own_folders.MARKER}), and a run of "
                    f"the comparison goes there. Move it away or remove it."
                ) from cause
        (folder / _MADE_FROM).write_text(json.dumps({"digest": self.digest, "code": code}), encoding="utf-8")

    def forget_checkpoints(self) -> None:
        """Remove the checkpoints of a finished run."""
        shutil.rmtree(self.spec.out_dir / "checkpoints", ignore_errors=True)

    def num_steps(self, dataset: FeatureDataset) -> int:
        """Number of steps of every worker over all epochs."""
        settings = self.spec.train
        rows = [group.rows for group in dataset.splits["train"]]
        if settings.skew is not None:
            rows = np.diff(step_bounds(sum(rows), settings.workers)).tolist()
        per_epoch = plan_epoch(
            rows, world_size=settings.workers, batch_size=settings.batch_size, seed=settings.seed, epoch=0
        ).num_steps
        return per_epoch * settings.epochs

    def _made_from(self) -> dict[str, Any]:
        try:
            content: dict[str, Any] = json.loads((self.spec.out_dir / _MADE_FROM).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return content


class StudyJob(NamedTuple):
    """Runs that share their ranks, which start only once."""

    title: str
    folder: Path
    """Folder of the ranks' log."""
    runs: list[PlannedRun]


class StudyPlan(NamedTuple):
    """All runs of a comparison."""

    name: str
    converging: list[StudyJob]
    """Every variant with every learning rate and seed, one job per network and number of workers."""
    timing: list[StudyJob]
    """Short runs of the bare methods, one job per network and number of workers."""
    digest: str
    """Digest of everything the comparison's result depends on."""

    @property
    def jobs(self) -> list[StudyJob]:
        """All jobs in order of execution."""
        return [*self.timing, *self.converging]

    def runs(self) -> list[PlannedRun]:
        """The runs to compare."""
        return [run for job in self.converging for run in job.runs]

    def timing_runs(self, model: ModelName) -> list[PlannedRun]:
        """The timing runs of a network."""
        return [run for job in self.timing for run in job.runs if run.model == model]


def make_plan(
    name: str,
    settings: CompareSettings,
    *,
    base: TrainSettings,
    networks: NetworksSettings,
    dataset: FeatureDataset,
    folder: Path,
    cores: int,
) -> StudyPlan:
    """The runs of a comparison.

    Args:
        name: One of `COMPARISONS`.
        settings: Settings of the comparison.
        base: The section `train`, with the settings common to all methods and the first seed.
        networks: The section `model`, with the widths.
        dataset: The features.
        folder: Folder of the comparison.
        cores: Number of cores of this machine, the highest number of workers to time.

    Raises:
        ShardError: The dataset has too few row groups for the workers.
    """
    maker = _Maker(settings, base, networks, dataset, folder, dataset_digest(dataset.folder))
    converging = [job for each in settings.models for job in maker.converging(name, each)]
    for job in converging:
        # Check the number of row groups now, before the timing runs.
        job.runs[0].num_steps(dataset)
    counts = _timed_workers(min(cores, len(dataset.splits["train"])))
    timing = [maker.alone(each) for each in settings.models]
    timing += [maker.together(each, workers) for each in settings.models for workers in counts]
    content = [name, _VERSION, settings.simulated_workers]
    content += [run.digest for job in [*converging, *timing] for run in job.runs]
    return StudyPlan(name, converging, timing, _digest(content))


class _Maker(NamedTuple):
    """Makes jobs."""

    settings: CompareSettings
    base: TrainSettings
    networks: NetworksSettings
    dataset: FeatureDataset
    folder: Path
    data: str

    def converging(self, name: str, model: ModelName) -> list[StudyJob]:
        """All variants with all seeds, seed by seed, so that an interrupted comparison has fewer complete seeds."""
        settings = self.settings
        by_workers: dict[int, list[PlannedRun]] = {}
        seeds = range(self.base.seed, self.base.seed + settings.num_seeds(model))
        for seed, variant, factor in itertools.product(seeds, COMPARISONS[name], settings.rate_factors):
            epochs = settings.num_epochs(model)
            train = train_settings(self.base, settings, variant, epochs=epochs, seed=seed, rate_factor=factor)
            where = f"runs/{model}/{variant.key}/rate-times-{factor:.15g}/seed-{seed}"
            by_workers.setdefault(train.workers, []).append(self._run(model, variant, train, where))
        return [
            StudyJob(
                f"{model}: {len({run.variant for run in runs})} method(s) on {workers} worker(s)",
                self.folder / "jobs" / f"{model}-converging-{workers}",
                runs,
            )
            for workers, runs in by_workers.items()
        ]

    def alone(self, model: ModelName) -> StudyJob:
        """Timing runs of one worker with two batch sizes."""
        batch = self.settings.batch_size
        runs = [self._timing_run(model, ALONE, workers=1, batch_size=size) for size in (batch, batch * _LARGER_BATCH)]
        return StudyJob(f"{model}: time of one worker", self.folder / "jobs" / f"{model}-alone", runs)

    def together(self, model: ModelName, workers: int) -> StudyJob:
        """Timing runs of several workers, each on its own core."""
        batch = self.settings.batch_size
        methods = (APART, *METHODS)
        runs = [self._timing_run(model, method, workers=workers, batch_size=batch) for method in methods]
        return StudyJob(
            f"{model}: time of {workers} workers", self.folder / "jobs" / f"{model}-{workers}-workers", runs
        )

    def _timing_run(self, model: ModelName, method: str, *, workers: int, batch_size: int) -> PlannedRun:
        epochs = self.settings.num_timing_epochs(model)
        variant = Variant(method, TableColumn.BASELINE)
        shared = train_settings(self.base, self.settings, variant, epochs=epochs, seed=self.base.seed)
        train = timing_settings(shared, workers=workers, batch_size=batch_size)
        where = f"timing/{model}/{method}-{workers}-workers-batch-{batch_size}"
        return self._run(model, variant, train, where)

    def _run(self, model: ModelName, variant: Variant, train: TrainSettings, where: str) -> PlannedRun:
        chosen = self.networks.of(model)
        workload = HepSettings(folder=self.dataset.folder.absolute(), network=chosen)
        spec = RunSpec(workload, train, (self.folder / where).absolute())
        content = [
            _VERSION,
            chosen.to_json(),
            train.result_items(),
            self.data,
        ]
        return PlannedRun(model, variant, spec, _digest(content))


def dataset_digest(folder: Path) -> str:
    """Digest of a features dataset: of its row groups and counts, and the means and spreads of its columns."""
    content = [(folder / name).read_text(encoding="utf-8") for name in ("dataset.json", "scaler.json")]
    return _digest(content)


def _timed_workers(most: int) -> list[int]:
    """Numbers of workers to time: powers of 2 and `most`; at least 2, since one worker makes no averages.

    Examples:
        >>> _timed_workers(1), _timed_workers(6)
        ([2], [2, 4, 6])
    """
    powers = [2**power for power in range(1, 11) if 2**power <= most]
    return sorted({2, *powers, max(most, 2)})


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
