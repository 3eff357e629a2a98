"""Trains runs of a study on MPI ranks, which start once for all runs of as many workers."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hep_core.random_streams import random_stream
from hep_studies.run_result import evaluate_on_test, write_diverged, write_result
from training.errors import DivergedError
from training.launching.launcher import launch_all
from training.launching.run_spec import RunSpec
from training.loop.progress import Progress
from training.loop.records import read_records
from training.readers.sharding import plan_epoch
from training.settings import TrainSettings

# Runs are stale when the code that they use changes. The plan of their study is not such code.
if TYPE_CHECKING:
    from hep_studies.plan import PlannedRun
    from hep_studies.run_in_simulator import ReportProgress

#: Settings of a warm-up: one epoch, in which no method diverges.
_WARM_UP: Final = {"epochs": 1, "learning_rate": 1e-9, "schedule": {}}


def in_random_order(runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """Return the runs seed by seed, those of a seed in a random order that the seed decides.

    So no method is always the first, and other work on the machine disturbs all alike.
    """
    shuffled: list[PlannedRun] = []
    for seed in dict.fromkeys(run.train.seed for run in runs):
        runs_of_seed = [run for run in runs if run.train.seed == seed]
        order = random_stream(seed, "order of runs").permutation(len(runs_of_seed))
        shuffled += [runs_of_seed[index] for index in order]
    return shuffled


def warm_ups(runs: Sequence[PlannedRun], folder: Path) -> list[RunSpec]:
    """Return a run of one epoch of each method, for the ranks to train before the runs.

    The first run of a method loads its code and memory. That takes up to seconds, which do not
    belong to the method. The folder is emptied, and gets a folder for each method.
    """
    shutil.rmtree(folder, ignore_errors=True)
    # The last of equal keys stays, which is the first run in the reversed order.
    first_runs = {run.method: run for run in reversed(runs)}
    specs = []
    for method, run in first_runs.items():
        train = TrainSettings.model_validate({**run.train.model_dump(), **_WARM_UP})
        out = folder / method
        out.mkdir(parents=True)
        specs.append(RunSpec(run.spec.workload, train, out))
    return specs


class _RunsProgress:
    """Reports the progress of the ranks over all runs, in steps of each worker.

    The ranks call it with the index of the run that they train and its progress. Warm-ups are not
    reported. Runs before the present one count as finished.
    """

    def __init__(self, runs: Sequence[PlannedRun], report: ReportProgress) -> None:
        self._runs = list(runs)
        self._steps = [num_steps(run) for run in runs]
        self._report = report
        self.launched: Sequence[PlannedRun | None] = ()
        """The runs that the ranks train, in their order; None for a warm-up."""

    def __call__(self, launch_index: int, progress: Progress) -> None:
        """Report the steps of all finished runs and those of the run that the ranks train.

        `launch_index`: its position in `launched`.
        """
        run = self.launched[launch_index]
        if run is None:
            # It is a warm-up.
            return
        index = self._runs.index(run)
        # Epochs count from 1; the present one is done in part.
        num_epochs = progress.epoch - 1 + progress.step / progress.num_steps
        steps_of_run = round(self._steps[index] * num_epochs / progress.num_epochs)
        finished_steps = sum(self._steps[:index]) + steps_of_run
        self._report(finished_steps, sum(self._steps), f"{run.title}, seed {run.train.seed}")


def train_on_ranks(
    runs: Sequence[PlannedRun],
    folder: Path,
    *,
    code: str,
    on_progress: ReportProgress,
    on_loss: Callable[[str], None],
) -> None:
    """Train runs of one number of workers, one after the other in the same MPI ranks.

    The ranks start once, since that takes seconds, and first train an epoch of each method to warm
    up. If a run diverges, the ranks end; others start for the remaining runs. At the end, the best
    model of each run predicts the test split, and the result is written into the run's folder.
    Each run continues from its last checkpoint, and has none afterwards.

    Args:
        runs: The runs.
        folder: For the logs of the ranks.
        code: Version of the code, stored with each run.
        on_progress: Gets the finished and all steps, and a note.
        on_loss: Gets a sentence when a rank is lost and all restart.

    Raises:
        TrainingError: A run failed; the message names it.
    """
    order = in_random_order(runs)
    progress = _RunsProgress(order, on_progress)
    for run in runs:
        run.folder.mkdir(parents=True, exist_ok=True)

    unfinished = list(order)
    while unfinished:
        warm_up_specs = warm_ups(unfinished, folder / "warm-up")
        progress.launched = [*[None] * len(warm_up_specs), *unfinished]
        specs = [*warm_up_specs, *(run.spec for run in unfinished)]
        try:
            launch_all(specs, folder, on_progress=progress, on_loss=on_loss)
            break
        except DivergedError:
            # The ranks have ended. The first run without a summary is the one that diverged; other
            # ranks start for the runs after it.
            diverged = next(run for run in unfinished if not (run.folder / "summary.json").exists())
        unfinished.remove(diverged)
        write_diverged(diverged.folder, code=code)

    for run in unfinished:
        workload = run.subject.settings.open()
        scores = evaluate_on_test(workload, workload.load(run.folder / "model"), run.train)
        write_result(run.folder, read_records(run.folder), scores, code=code)
    for run in runs:
        shutil.rmtree(run.folder / "checkpoints", ignore_errors=True)


def num_steps(run: PlannedRun) -> int:
    """Return the number of steps that each worker takes in a run, over all epochs.

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
