"""Runs the MPI runs of a study: ranks of this machine, started once for all runs of as many workers."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hep_core.random_streams import random_stream
from hep_studies.run_result import scores_of, write_diverged, write_result
from training.errors import DivergedError
from training.launching.launcher import launch_all
from training.launching.rank import RunSpec
from training.loop.progress import Progress
from training.loop.records import read_records
from training.readers.sharding import plan_epoch
from training.settings import TrainSettings

# The plan of a study is no code of its runs, which are stale when their code changes.
if TYPE_CHECKING:
    from hep_studies.plan import PlannedRun
    from hep_studies.run_in_simulator import Tell

#: Settings of a warm-up: one epoch, in which no method diverges.
_WARM_UP: Final = {"epochs": 1, "learning_rate": 1e-9, "schedule": {}}


def in_random_order(runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """The runs of each seed in an order that only the seed decides, so that no method is always the first."""
    found: list[PlannedRun] = []
    for seed in dict.fromkeys(run.train.seed for run in runs):
        of_seed = [run for run in runs if run.train.seed == seed]
        found += [
            of_seed[place]
            for place in random_stream(seed, "order of runs").permutation(len(of_seed))
        ]
    return found


def warm_ups(runs: Sequence[PlannedRun], folder: Path) -> list[RunSpec]:
    """An epoch of each method in a new folder, which the ranks train before any run whose time counts.

    The first run of a method loads its code and memory, which takes up to seconds and has nothing to do with it.
    """
    shutil.rmtree(folder, ignore_errors=True)
    first = {run.method: run for run in reversed(runs)}
    specs = []
    for method, run in first.items():
        train = TrainSettings.model_validate({**run.train.model_dump(), **_WARM_UP})
        specs.append(RunSpec(run.spec.workload, train, folder / method))
        specs[-1].out_dir.mkdir(parents=True)
    return specs


def measure_all(
    runs: Sequence[PlannedRun],
    folder: Path,
    *,
    code: str,
    on_progress: Tell,
    on_loss: Callable[[str], None],
) -> None:
    """Train runs of as many workers, one after the other in the same ranks; each continues from its last checkpoint.

    The ranks warm up before: no run carries the imports and first allocations of a method. `folder`: that of the ranks'
    logs. `code`: version of the code. `on_loss`: called with a sentence when a rank is lost and all restart.

    Raises:
        TrainingError: A run failed; the message names it.
    """
    order = in_random_order(runs)
    left, steps = list(order), [num_steps(run) for run in order]
    for run in runs:
        run.folder.mkdir(parents=True, exist_ok=True)

    def tell(number: int, progress: Progress) -> None:
        if number < len(warm):
            return
        run = left[number - len(warm)]
        place = order.index(run)
        share = (progress.epoch - 1 + progress.step / progress.num_steps) / progress.num_epochs
        done = sum(steps[:place]) + round(steps[place] * share)
        on_progress(done, sum(steps), f"{run.title}, seed {run.train.seed}")

    while left:
        warm = warm_ups(left, folder / "warm-up")
        try:
            launch_all(
                [*warm, *(run.spec for run in left)], folder, on_progress=tell, on_loss=on_loss
            )
            break
        except DivergedError:
            # Its ranks have ended; others start for the runs behind it.
            diverged = next(run for run in left if not (run.folder / "summary.json").exists())
        left.remove(diverged)
        write_diverged(diverged.folder, code=code)
    for run in left:
        workload = run.subject.settings.open()
        scores = scores_of(workload, workload.load(run.folder / "model"), run.train)
        write_result(run.folder, read_records(run.folder), scores, code=code)
    for run in runs:
        shutil.rmtree(run.folder / "checkpoints", ignore_errors=True)


def num_steps(run: PlannedRun) -> int:
    """Number of steps of every worker over all epochs.

    Raises:
        ShardError: There are fewer events than workers.
    """
    settings = run.train
    rows = run.subject.settings.open().group_rows("train")
    plan = plan_epoch(
        rows,
        world_size=settings.workers,
        batch_size=settings.batch_size,
        seed=settings.seed,
        epoch=0,
    )
    return plan.num_steps * settings.epochs
