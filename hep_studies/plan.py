"""The runs of a study: their settings, folders and digests."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from hep_studies.run_result import RunResult, read_result
from hep_studies.simulator.cluster import ClusterSettings
from hep_studies.study import StudySettings
from hep_studies.study_sections import MACHINE_KEYS
from training.launching.run_spec import RunSpec
from training.settings import TrainSettings
from training.workloads.registry import WorkloadSettings

#: Version of the results of runs; another one makes all runs again.
_VERSION: Final = 6
#: Keys of `train` that change the times of MPI ranks. Those of the algorithm include its transport.
_KEYS_THAT_CHANGE_TIMES: Final = {"algorithm", "launcher", "launcher_args", "threads"}


class Subject(NamedTuple):
    """The workload that the runs of a study train, with the content of its events."""

    settings: WorkloadSettings
    data_digest: str = ""
    """Digest of events; empty for images, which are the public ones."""


CodeDigest = Callable[[Subject, TrainSettings, bool], str]
"""Return the digest of the code that trains a subject; the last argument: in the simulator."""


class PlannedRun(NamedTuple):
    """A run of a study, finished or not."""

    method: str
    title: str
    values: dict[str, Any]
    """Values of the varied keys."""
    subject: Subject
    train: TrainSettings
    cluster: ClusterSettings | None
    """The simulated cluster; None for an MPI run."""
    times_only: int | None
    """Steps of each worker in an epoch of a run that learns nothing."""
    digest: str
    """Digest of everything that the result depends on."""
    folder: Path

    @property
    def spec(self) -> RunSpec:
        """The run, for MPI ranks."""
        return RunSpec(self.subject.settings, self.train, self.folder)

    @property
    def result(self) -> RunResult | None:
        """The result of the run; None before it is finished."""
        return read_result(self.folder, self.method, self.values, self.train.seed)


def planned_runs(
    study: StudySettings,
    subject: Subject,
    base: TrainSettings,
    folder: Path,
    *,
    code_digest: CodeDigest,
) -> list[PlannedRun]:
    """Return all runs of a study: every seed, method and combination of values of varied keys.

    They are in the order of the seeds, so that an interrupted study has complete seeds. The name of
    a run's folder holds a digest of all that its result depends on. So a run whose settings or code
    change is made in a new folder, and earlier ones stay.

    Args:
        study: The study.
        subject: What it trains.
        base: The section `train` of the config: how this machine starts ranks, and the first seed.
        folder: The folder of the study.
        code_digest: Returns the digest of the code of a run.
    """
    # Every reader gives the same batches. Arrow reads the events once, and not in each epoch.
    machine_values = base.model_dump(include=set(MACHINE_KEYS)) | {"reader": "arrow"}
    seeds = range(base.seed, base.seed + study.seeds)
    runs = []
    for seed, method in itertools.product(seeds, study.methods):
        for values in study.combinations(method):
            train = study.train_settings(method, values, seed)
            train = TrainSettings.model_validate({**train.model_dump(), **machine_values})
            cluster = study.cluster_settings(values) if study.execution == "simulate" else None
            digest = _run_digest(study, subject, train, cluster, code_digest)
            run = PlannedRun(
                method=method,
                title=study.title_of(method),
                values=values,
                subject=subject,
                train=train,
                cluster=cluster,
                times_only=study.times_only,
                digest=digest,
                folder=(folder / "runs" / method / f"seed-{seed}-{digest}").absolute(),
            )
            runs.append(run)
    return runs


def _run_digest(
    study: StudySettings,
    subject: Subject,
    train: TrainSettings,
    cluster: ClusterSettings | None,
    code_digest: CodeDigest,
) -> str:
    """Return the digest of everything that the result of a run depends on.

    Its times depend on the simulated cluster, or, on MPI ranks, on how they are started.
    """
    if cluster is None:
        times = train.model_dump(mode="json", include=_KEYS_THAT_CHANGE_TIMES)
    else:
        times = cluster.model_dump(mode="json")
    return digest_of(
        [
            _VERSION,
            study.times_only,
            subject.settings.meaning,
            subject.data_digest,
            train.result_items(),
            times,
            code_digest(subject, train, cluster is not None),
        ]
    )


def results_of(runs: Sequence[PlannedRun]) -> list[RunResult]:
    """Return the results of the runs that are finished."""
    results = [run.result for run in runs]
    return [result for result in results if result is not None]


def digest_of_study(study: StudySettings, runs: Sequence[PlannedRun]) -> str:
    """Return the digest of all runs of a study, and of the keys that say which are compared."""
    return digest_of([_VERSION, study.best_of, *(run.digest for run in runs)])


def digest_of(values: object) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of plain values as JSON."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]
