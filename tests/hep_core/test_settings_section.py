"""What is set has an effect, or it is refused; what acts now and then is counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel, ValidationError
from simulated import PARALLEL_METHODS, LinearGradients, run, settings

from hep_studies.simulator.cluster import ClusterSettings
from training.algorithms.registry import METHODS, SlowMoSettings
from training.errors import IdleSettingError
from training.loop.summary import count_actions, summarize_rank
from training.settings import TrainSettings

AGENTS = {"launcher": "spark-agents", "algorithm": "mpca"}


@pytest.mark.parametrize(
    ("selected", "key", "beside"),
    [
        ({"momentum": 0.9}, "momentum", {"optimizer": "sgd"}),
        ({"staleness_bound": 2}, "staleness_bound", {"algorithm": "ad-psgd"}),
        ({"optimizer_state": "reset"}, "optimizer_state", {"algorithm": "local-sgd"}),
        ({"optimizer_state": "reset", "algorithm": "ad-psgd"}, "optimizer_state", {"slowmo": {}}),
        ({"slowmo": {"exact_average": False}}, "slowmo.exact_average", {"algorithm": "ad-psgd"}),
        ({"launcher_args": ["-x", "A"], **AGENTS}, "launcher_args", {"launcher": "spark"}),
        ({"staleness_bound": 9, **AGENTS}, "staleness_bound", {"launcher": "spark"}),
        (
            {**AGENTS, "algorithm": {"name": "mpca", "network": "ib0"}},
            "algorithm.network",
            {"launcher": "srun"},
        ),
        (
            {"schedule": {"milestones": [3]}},
            "milestones",
            {"schedule": {"milestones": [3], "decay": "step"}},
        ),
        (
            {"schedule": {"decay": "step"}},
            "decay",
            {"schedule": {"milestones": [3], "decay": "step"}},
        ),
        ({"schedule": {"factor": 0.5}}, "factor", None),
        (
            {"schedule": {"final_fraction": 0.5}},
            "final_fraction",
            {"schedule": {"decay": "cosine"}},
        ),
    ],
    ids=str,
)
def test_keys_without_effect_are_refused(
    selected: dict[str, Any], key: str, beside: dict[str, Any] | None
) -> None:
    """They were accepted, some with a sentence among others."""
    with pytest.raises(ValidationError, match=f"{key}: .* has no effect: it needs"):
        TrainSettings.model_validate(selected)
    if beside is not None:
        TrainSettings.model_validate(selected | beside)


def test_every_rule_names_a_key_that_exists() -> None:
    """A rule for a key that no variant of an inner section has would never act."""
    methods = [method.settings for method in METHODS.values()]
    inner_sections: dict[str, Sequence[type[BaseModel]]] = {
        "": [TrainSettings],
        "algorithm": methods,
        "slowmo": [SlowMoSettings],
    }
    for rule in TrainSettings.NEEDS:
        path, _, key = rule.key.rpartition(".")
        assert any(key in section.model_fields for section in inner_sections[path]), rule.key
    for method in methods:
        for rule in method.NEEDS:
            assert rule.key in method.model_fields, rule.key


@pytest.mark.parametrize(
    ("name", "selected", "key", "beside"),
    [
        (
            "swarm-sgd",
            {"local_steps": 1, "local_steps_law": "geometric"},
            "local_steps_law",
            {"local_steps": 2},
        ),
        ("downpour", {"zealous": True}, "zealous", {"local_steps": 2}),
        (
            "easgd",
            {"local_steps": 1, "equilibrium_stop": True},
            "equilibrium_stop",
            {"local_steps": 2},
        ),
        ("easgd", {"synchronous": True, "shards": 4}, "shards", {"synchronous": False}),
        ("easgd", {"synchronous": True, "shards": None}, "shards", {"synchronous": False}),
        ("easgd", {"synchronous": True, "network": "ib0"}, "network", {"synchronous": False}),
        (
            "async-diloco",
            {"outer_momentum": 0.0, "early_momentum": 1.0},
            "early_momentum",
            {"outer_momentum": 0.9},
        ),
        (
            "async-diloco",
            {"local_steps": 1, "dynamic_steps": False},
            "dynamic_steps",
            {"local_steps": 2},
        ),
        ("sharded", {"bound": 3}, "bound", {"overlap": "thread"}),
        ("sharded", {"applies_sum": True}, "applies_sum", {"overlap": "thread"}),
        ("sharded", {"local_optimizer": True}, "local_optimizer", {"overlap": "thread"}),
        ("mpca", {"alpha_ramp": 0, "alpha_peak": 0.4}, "alpha_peak", {"alpha_ramp": 1}),
        ("mpca", {"beta": 1.0, "beta_ramp": 5}, "beta_ramp", {"beta": 0.9}),
        ("mpca", {"gamma": 0.0, "delta": 0.5}, "delta", {"gamma": 0.1}),
    ],
    ids=str,
)
def test_keys_of_a_method_without_effect_are_refused(
    name: str, selected: dict[str, Any], key: str, beside: dict[str, Any]
) -> None:
    with pytest.raises(ValidationError, match=f"{key}: .* has no effect: it needs"):
        TrainSettings.model_validate({"algorithm": {"name": name, **selected}})
    TrainSettings.model_validate({"algorithm": {"name": name, **selected, **beside}})


def test_interruptions_of_no_length_are_refused() -> None:
    with pytest.raises(
        ValidationError, match=r"pause_probability: 0\.1 has no effect: it needs pause_seconds"
    ):
        ClusterSettings(pause_probability=0.1)
    with pytest.raises(
        ValidationError, match=r"pause_seconds: 0\.1 has no effect: it needs pause_probability"
    ):
        ClusterSettings(pause_seconds=0.1)
    assert ClusterSettings(pause_seconds=0.1, pause_probability=0.0).pause_seconds == 0.1


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ({"warmup_epochs": 20.5}, r"warmup_epochs: 20\.5 of 20 epoch.* raise train\.epochs"),
        (
            {"decay": "step", "milestones": [2, 20, 30]},
            r"milestones: 20, 30 of 20 epoch.* raise train\.epochs",
        ),
        (
            {"decay": "cosine", "warmup_epochs": 20},
            r"decay: cosine after 20 .* raise train\.epochs",
        ),
    ],
    ids=str,
)
def test_epochs_of_a_schedule_that_a_run_does_not_reach_are_refused(
    schedule: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        TrainSettings(schedule=schedule, epochs=20)
    TrainSettings(schedule=schedule, epochs=31)


@pytest.mark.parametrize(
    ("milestones", "named"), [([0, 9], "0"), ([-1, 9], "-1"), ([2, 4.5, 9], "2, 4.5")], ids=str
)
def test_milestones_before_the_full_rate_are_refused(milestones: list[float], named: str) -> None:
    schedule = {"decay": "step", "milestones": milestones, "warmup_epochs": 5}

    with pytest.raises(ValidationError, match=rf"milestones: {named} with 5 .*does not fall"):
        TrainSettings(schedule=schedule)
    TrainSettings(schedule={**schedule, "milestones": [5, 9]})


def test_a_milestone_at_the_begin_of_the_run_is_refused_without_a_warm_up() -> None:
    with pytest.raises(ValidationError, match=r"milestones: 0 with 0 .*lower train\.learning_rate"):
        TrainSettings(schedule={"decay": "step", "milestones": [0]})


def test_a_reset_of_an_optimizer_without_state_is_refused() -> None:
    plain = {"algorithm": "local-sgd", "optimizer": "sgd"}

    with pytest.raises(ValidationError, match="optimizer_state: reset has no effect: it needs an"):
        settings(**plain, optimizer_state="reset")
    settings(**plain, optimizer_state="reset", momentum=0.5)
    own_momentum = {"algorithm": "qg-dsgdm", "slowmo": {}, "optimizer": "sgd"}
    settings(**own_momentum, optimizer_state="reset")


@pytest.mark.parametrize(
    ("selected", "key"),
    [
        ({"algorithm": "ad-psgd"}, "algorithm: ad-psgd"),
        ({"algorithm": "local-sgd"}, "algorithm: local-sgd"),
        ({"algorithm": "downpour", "staleness_bound": 2}, "staleness_bound: 2"),
        ({"skew": {}}, "skew"),
        ({"launcher": "srun"}, "launcher: srun"),
        (
            {"algorithm": "async-diloco", "dynamic_steps": False},
            r"algorithm\.dynamic_steps: false",
        ),
        ({"algorithm": "downpour", "local_steps": 3, "zealous": True}, r"algorithm\.zealous: true"),
        ({"algorithm": "easgd", "synchronous": True}, r"algorithm\.synchronous: true"),
        (
            {"algorithm": "qg-dsgdm", "topology": "exponential"},
            r"algorithm\.topology: exponential",
        ),
        (
            {"algorithm": "downpour", "slowmo": {"exact_average": True}},
            r"slowmo\.exact_average: true",
        ),
        ({"launcher_args": ["--bind-to", "core"]}, "launcher_args"),
        ({"max_restarts": 5}, "max_restarts: 5"),
    ],
    ids=str,
)
def test_one_worker_is_refused_for_what_only_several_do(selected: dict[str, Any], key: str) -> None:
    with pytest.raises(
        IdleSettingError, match=rf"train\.{key} has no effect: it needs at least 2 workers"
    ):
        settings(**selected, workers=1).check_one_worker()
    settings(**selected, workers=2).check_one_worker()


@pytest.mark.parametrize(
    "name", [name for name, method in METHODS.items() if method.traits.needs_others]
)
def test_one_worker_of_a_method_for_several_trains_as_with_plain_sgd(name: str) -> None:
    problem = LinearGradients(workers=1, steps=12, seed=5)
    plain: dict[str, Any] = {"optimizer": "sgd", "learning_rate": 0.1}
    np.testing.assert_allclose(
        problem.drive(**plain, algorithm=name), problem.drive(**plain, algorithm="sgd")
    )


def test_a_window_longer_than_the_run_is_counted_and_not_refused() -> None:
    selected = {"slowmo": {"tau": 100}, "algorithm": "local-sgd", "local_steps": 50}
    settings(**selected).check_one_worker()
    actual = count_actions(
        settings(**selected), [summarize_rank(records) for records in run(**selected).records]
    )
    assert actual == {"averages": 0, "slowmo_steps": 0}


@pytest.mark.parametrize("selected", PARALLEL_METHODS.values(), ids=PARALLEL_METHODS)
@pytest.mark.parametrize("slowmo", [None, {"tau": 4}], ids=str)
def test_actions_of_some_steps_are_counted(
    selected: dict[str, Any], slowmo: dict[str, Any] | None
) -> None:
    how = settings(**selected)
    if how.traits.joint_model and slowmo:
        return
    slow = {"slowmo": slowmo} if slowmo else {}
    actual = count_actions(
        settings(**selected, **slow),
        [summarize_rank(records) for records in run(**selected, **slow).records],
    )
    assert min(actual.values()) > 0
    # 16 steps of each worker.
    assert actual.get("slowmo_steps", 4 * how.workers) == 4 * how.workers
