"""What `doctor` says of the exchange between ranks."""

from __future__ import annotations

from typing import Any

import pytest

from training.errors import LaunchError
from training.launching.probing import describe
from training.settings import TrainSettings

BETWEEN_HOSTS: dict[str, Any] = {
    "problems": [],
    "library": "Open MPI v5.0.11",
    "seconds": 1.2e-4,
    "target_must_help": True,
    "auto": "sockets",
    "overlap": "thread",
    "averages": {"locked": 2.1e-3, "sockets": 6.04e-5},
}
ON_ONE_HOST = BETWEEN_HOSTS | {"auto": "locked", "overlap": "inline", "target_must_help": False}


@pytest.mark.parametrize(
    ("found", "algorithm", "told"),
    [
        (BETWEEN_HOSTS, {"name": "ad-psgd"}, "train with ad-psgd uses sockets: the workers do not share memory"),
        (ON_ONE_HOST, {"name": "swarm-sgd"}, "train with swarm-sgd uses windows (locked): the workers share memory"),
        (
            BETWEEN_HOSTS,
            {"name": "ad-psgd", "exchange": "additive"},
            "train with ad-psgd uses windows (additive): train.algorithm.exchange",
        ),
        (ON_ONE_HOST, {"name": "ad-psgd"}, "the workers share memory, before the gradient"),
        (ON_ONE_HOST | {"overlap": "thread"}, {"name": "ad-psgd"}, "the workers share memory, beside the gradient"),
        (ON_ONE_HOST, {"name": "ad-psgd", "exchange": "sockets"}, "train.algorithm.exchange, beside the gradient"),
        (ON_ONE_HOST, {"name": "ar-sgd"}, "train uses neither, since ar-sgd makes all-reduces"),
    ],
)
def test_both_ways_are_measured_and_that_of_train_is_named(
    found: dict[str, Any], algorithm: dict[str, Any], told: str
) -> None:
    words = describe(found, TrainSettings.model_validate({"workers": 2, "algorithm": algorithm}))
    assert "takes 2,100 us in MPI's windows and 60 us through sockets" in words
    assert told in words
    assert ("need the partner to enter MPI" in words) == found["target_must_help"]


def test_a_way_that_does_not_work_here_has_its_reason() -> None:
    found = ON_ONE_HOST | {"averages": {"locked": "no room in /dev/shm", "sockets": 6e-5}}
    words = describe(found, TrainSettings(workers=2, algorithm="ad-psgd"))
    assert "an unknown time (no room in /dev/shm) in MPI's windows" in words


def test_wrong_one_sided_communication_is_an_error() -> None:
    with pytest.raises(LaunchError, match="rank 0: locks"):
        describe(ON_ONE_HOST | {"problems": ["rank 0: locks: lost"]}, TrainSettings(workers=2, algorithm="ar-sgd"))
