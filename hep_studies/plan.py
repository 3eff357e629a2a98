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
from hep_studies.study import OF_MACHINE, StudySettings
from training.launching.rank import RunSpec
from training.settings import TrainSettings
from training.workloads.registry import WorkloadSettings

#: Version of the results of runs.
_VERSION: Final = 6
#: Keys that change measured times: those of the method include its network.
_TIMES_DEPEND_ON: Final = {"algorithm", "launcher", "launcher_args", "threads"}


class Subject(NamedTuple):
    """What the runs of a study train."""

    settings: WorkloadSettings
    data: str = ""
    """Digest of events; empty for images, which are the public ones."""


CodeOf = Callable[[Subject, TrainSettings, bool], str]
"""Digest of the meaning of the code that trains a subject: in the simulator if the last argument says so."""


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
        """Its result; None if it is not done."""
        return read_result(self.folder, self.method, self.values, self.train.seed)


def planned_runs(
    study: StudySettings, subject: Subject, base: TrainSettings, folder: Path, *, code_of: CodeOf
) -> list[PlannedRun]:
    """The runs of a study in its folder, seed by seed, so that an interrupted study has complete seeds.

    Each has a folder of its own, whose name holds the digest, so that runs of other settings stay. `base`: the section
    `train` of the config, which says how this machine starts ranks, and the first seed.
    """
    found = []
    # Every reader gives the same batches; pyarrow reads the events once, so that epochs do not.
    on_this_machine = base.model_dump(include=set(OF_MACHINE)) | {"reader": "arrow"}
    seeds = range(base.seed, base.seed + study.seeds)
    for seed, method in itertools.product(seeds, study.methods):
        for values in study.combinations(method):
            train = study.train_settings(method, values, seed)
            train = TrainSettings.model_validate({**train.model_dump(), **on_this_machine})
            cluster = study.cluster_settings(values) if study.execution == "simulate" else None
            times = train.model_dump(mode="json", include=_TIMES_DEPEND_ON)
            content = [
                _VERSION,
                study.times_only,
                subject.settings.meaning,
                subject.data,
                train.result_items(),
            ]
            content.append(times if cluster is None else cluster.model_dump(mode="json"))
            digest = digest_of([*content, code_of(subject, train, cluster is not None)])
            where = (folder / "runs" / method / f"seed-{seed}-{digest}").absolute()
            title = study.title_of(method)
            found.append(
                PlannedRun(
                    method, title, values, subject, train, cluster, study.times_only, digest, where
                )
            )
    return found


def digest_of_study(study: StudySettings, runs: Sequence[PlannedRun]) -> str:
    """Digest of all runs of a study, and of what says which are compared."""
    return digest_of([_VERSION, study.best_of, *(run.digest for run in runs)])


def digest_of(content: object) -> str:
    """Sixteen characters that depend on all of some plain values."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
