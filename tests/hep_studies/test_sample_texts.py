"""What a study trains, in words."""

from __future__ import annotations

from typing import Any

import pytest
from example_study import example_result, example_run, example_study

from hep_studies.sample_texts import sample_of, what_was_run, workload_title

DIGITS = {"name": "mnist", "network": "lenet5"}


@pytest.mark.parametrize(
    ("workload", "title"),
    [
        ("hlf", "the network of high-level features on events"),
        (DIGITS, "LeNet-5 on scikit-learn's digits"),
        ({**DIGITS, "folder": "mnist-files"}, "LeNet-5 on MNIST"),
        ({"name": "cifar10", "network": "resnet20"}, "ResNet-20 on scikit-learn's digits"),
        ({"name": "surface"}, "Beale's function"),
    ],
)
def test_images_without_files_are_the_digits_of_scikit_learn(workload: Any, title: str) -> None:
    assert workload_title(example_study(workload=workload)) == title


EVENTS = "train the network of high-level features on 800 events and test it on 1,000"
SAMPLE_OF_DIGITS = "800 training and 1,000 test digits of scikit-learn, 2 seeds"
LENET = "train LeNet-5 on 800 digits of scikit-learn and test it on 1,000"


@pytest.mark.parametrize(
    ("study", "sample", "action"),
    [
        ({}, "800 training and 1,000 test events, 2 seeds", EVENTS),
        ({"workload": DIGITS}, SAMPLE_OF_DIGITS, LENET),
        (
            {"workload": {"name": "surface"}},
            "Beale's function, 2 seeds",
            "descend Beale's function",
        ),
        (
            {"workload": DIGITS, "times_only": 4},
            "times of LeNet-5's messages, 2 seeds",
            "send the messages of LeNet-5 and learn nothing",
        ),
    ],
)
def test_one_sentence_says_what_was_run(study: dict[str, Any], sample: str, action: str) -> None:
    runs = [example_run(method, seed) for method in ("sgd", "ar-sgd") for seed in (1, 2)]

    result = example_result(example_study(**study), runs)

    assert sample_of(result) == sample
    workers = "with up to 4 virtual workers and the seeds 1 to 2: 4 runs."
    assert what_was_run(result) == f"3 methods {action}, {workers}"


def test_ranks_of_this_machine_are_no_virtual_workers() -> None:
    result = example_result(example_study(execution="mpi"), [example_run("ar-sgd", 1)])

    assert "with 4 MPI ranks and the seed 1: 1 run." in what_was_run(result)
