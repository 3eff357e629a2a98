"""What a study trains, on what, and with which seeds, in words."""

from __future__ import annotations

from typing import Final

from hep_studies.study import StudySettings
from hep_studies.study_result import StudyResult

#: Networks as the sources name them; others have the name of their file.
_NETWORKS: Final = {
    "hlf": "the network of high-level features",
    "particles": "the network of the particle sequence",
    "inclusive": "the network of both inputs",
    "lenet5": "LeNet-5",
    "resnet20": "ResNet-20",
    "seven-layers": "the network of seven layers",
    "perceptron": "the perceptron",
}
EVENTS: Final = "events"
DIGITS: Final = "scikit-learn's digits"
SURFACE: Final = "Beale's function"
#: Public images, and the surface, by the name of their workload.
_ROWS: Final = {"mnist": "MNIST", "cifar10": "CIFAR-10", "surface": SURFACE}


def rows_title(study: StudySettings) -> str:
    """Return what the rows of a study are: events, images, digits or a surface.

    The workloads `mnist` and `cifar10` have the digits of scikit-learn, enlarged to the shape of
    their images, unless a folder has the public files.
    """
    workload = study.workload
    if isinstance(workload, str):
        return EVENTS
    if workload.meaning.get("digits"):
        return DIGITS
    return _ROWS.get(workload.name, workload.name)


def network_title(study: StudySettings) -> str:
    """Return the name of the network of a study; that of a surface is the surface itself."""
    workload = study.workload
    name = workload if isinstance(workload, str) else workload.network_name
    return _NETWORKS.get(name, name)


def workload_title(study: StudySettings) -> str:
    """Return the name of what a study trains, such as "LeNet-5 on scikit-learn's digits"."""
    if rows_title(study) == SURFACE:
        return SURFACE
    return f"{network_title(study)} on {rows_title(study)}"


def sample_of(result: StudyResult) -> str:
    """Return the rows and seeds of a study, such as "2,136 training and 631 test events, 10 seeds".

    A study of times learns nothing, and a surface has no rows to count.
    """
    seeds = _counted(len({run.seed for run in result.runs}), "seed")
    if result.study.times_only is not None:
        return f"times of {network_title(result.study)}'s messages, {seeds}"
    if rows_title(result.study) == SURFACE:
        return f"{SURFACE}, {seeds}"
    num_train, num_test = _num_rows(result)
    return f"{num_train:,} training and {num_test:,} test {_noun(result.study)}, {seeds}"


def what_was_run(result: StudyResult) -> str:
    """Return one sentence on the runs of a study: what they train, on what, and how many."""
    study = result.study
    methods = _counted(len(study.methods), "method")
    workers = "virtual workers" if result.is_simulated else "MPI ranks"
    worker_counts = [result.settings(cell).workers for cell in result.cells()]
    num_workers = f"{max(worker_counts):,}"
    if min(worker_counts) < max(worker_counts):
        num_workers = f"up to {num_workers}"
    runs = _counted(len(result.runs), "run")
    return (
        f"{methods} {_action(result)}, with {num_workers} {workers} and the "
        f"{_seed_range(result)}: {runs}."
    )


def _counted(count: int, noun: str) -> str:
    """Return a count with its noun, such as "1 seed" or "1,080 runs"."""
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {noun}s"


def _seed_range(result: StudyResult) -> str:
    """Return the lowest and the highest seed, such as "seeds 101 to 110"; or the only one."""
    seeds = sorted({run.seed for run in result.runs})
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"


def _action(result: StudyResult) -> str:
    """Return what the methods of a study do, in words."""
    study = result.study
    if study.times_only is not None:
        return f"send the messages of {network_title(study)} and learn nothing"
    if rows_title(study) == SURFACE:
        return f"descend {SURFACE}"
    num_train, num_test = _num_rows(result)
    return (
        f"train {network_title(study)} on {num_train:,} {_noun(study)} and test it on {num_test:,}"
    )


def _num_rows(result: StudyResult) -> tuple[int, int]:
    """Return the numbers of training and of test rows."""
    # The last count of a split is that of all classes.
    counts = result.events["counts"]
    return counts["train"][-1], counts["test"][-1]


def _noun(study: StudySettings) -> str:
    """Return what a row is called in a number of rows."""
    title = rows_title(study)
    if title == DIGITS:
        return "digits of scikit-learn"
    return "events" if title == "events" else f"images of {title}"
