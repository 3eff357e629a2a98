"""Training settings that make no sense are refused.

The learning rate in effect is the documented one.
"""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from training.algorithms.registry import SlowMoSettings
from training.settings import TrainSettings


def test_sgd_on_several_workers_is_refused_with_the_fix() -> None:
    with pytest.raises(ValidationError, match="use ar-sgd"):
        TrainSettings(algorithm="sgd", workers=2)


@pytest.mark.parametrize(
    ("optimizer", "scale", "expected_rate"),
    [("sgd", True, 0.4), ("sgd", False, 0.1), ("adam", True, 0.1)],
)
def test_the_linear_rule_holds_for_ar_sgd_with_sgd_only(
    optimizer: str, scale: bool, expected_rate: float
) -> None:
    settings = TrainSettings(
        optimizer=optimizer, workers=4, learning_rate=0.1, scale_learning_rate=scale
    )

    assert settings.effective_learning_rate == pytest.approx(expected_rate)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"algorithm": "qg-dsgdm"}, "for plain SGD only; set train.optimizer=sgd "),
        ({"algorithm": "gradient-tracking"}, "for plain SGD only; set train.optimizer=sgd "),
        (
            {"algorithm": "qg-dsgdm", "optimizer": "sgd", "momentum": 0.9},
            "for plain SGD only; set train.momentum=0 ",
        ),
        (
            {"algorithm": "eamsgd", "optimizer": "sgd", "momentum": 0.9},
            "has its own momentum; set train.momentum=0 ",
        ),
        (
            {"algorithm": "mpca", "slowmo": {}},
            "slowmo does not go around mpca.*the joint model pulls back. Leave",
        ),
        (
            {"algorithm": "sharded", "slowmo": {}, "optimizer_state": "reset"},
            "are at the server and stay as they are",
        ),
        (
            {"algorithm": "sharded", "optimizer": "muon"},
            "muon is not for sharded, whose shards cut the matrices. Use adam, adamw or sgd, or",
        ),
        ({"algorithm": "qg-dsgdm", "optimizer": "muon"}, "set train.optimizer=sgd "),
        ({"optimizer": "muon", "momentum": 0.9}, "momentum: 0.9 has no effect"),
        ({"algorithm": {"name": "easgd", "alpha": 0.1, "rho": 5}}, "set one of them"),
        (
            {"batch_size": 2, "decorrelate": {"from": ["x"], "strength": 1, "classes": ["y"]}},
            "decorrelate: ... has no effect: it needs a batch_size of at least 3",
        ),
        ({"launcher_args": ["-np", "4"]}, "set train.workers instead"),
        ({"launcher": "srun", "launcher_args": ["--ntasks=4"]}, "set train.workers instead"),
        (
            {"launcher": "spark-agents", "algorithm": "ad-psgd"},
            "unlike ad-psgd. Use the algorithm mpca, or",
        ),
        (
            {"algorithm": {"name": "d-psgd", "topology": "star"}},
            "no topology 'star', only complete, ring, exponential",
        ),
    ],
)
def test_contradictions_are_refused_with_the_fix(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TrainSettings.model_validate(keys)


@pytest.mark.parametrize(
    ("algorithm", "chosen_average", "is_exact"),
    [
        ("ar-sgd", None, True),
        ("local-sgd", None, True),
        ("d-psgd", None, False),
        ("swarm-sgd", None, False),
        ("d-psgd", True, True),
    ],
)
def test_slowmo_averages_exactly_around_methods_that_do_so_unless_set(
    algorithm: str, chosen_average: bool | None, is_exact: bool
) -> None:
    slowmo = SlowMoSettings(exact_average=chosen_average)

    assert TrainSettings(algorithm=algorithm, slowmo=slowmo).slowmo_is_exact is is_exact


@pytest.mark.parametrize(
    ("keys", "policy"),
    [
        ({"optimizer": "adam"}, "keep"),
        ({"optimizer": "sgd", "momentum": 0.9}, "keep"),
        ({"optimizer": "adam", "slowmo": {}}, "keep"),
        ({"optimizer": "sgd", "momentum": 0.9, "slowmo": {}}, "reset"),
        ({"optimizer": "sgd", "momentum": 0.9, "slowmo": {}, "optimizer_state": "keep"}, "keep"),
        ({"optimizer": "adam", "slowmo": {}, "optimizer_state": "reset"}, "reset"),
        ({"algorithm": "sharded", "optimizer": "sgd", "momentum": 0.9, "slowmo": {}}, "keep"),
    ],
)
def test_momentum_of_sgd_starts_anew_in_slowmo_and_moments_of_adam_stay(
    keys: dict[str, Any], policy: str
) -> None:
    assert TrainSettings.model_validate({"algorithm": "local-sgd", **keys}).state_policy == policy
