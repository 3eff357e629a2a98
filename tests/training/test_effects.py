"""What is set has an effect, or it is refused: keys beside others, and mechanisms that a run cannot reach."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError
from simulated import EVERY, SEVERAL, run, settings

from training.errors import IdleSettingError
from training.loop.summary import acted, summary_of_rank
from training.settings import TrainSettings
from training.simulation.cluster import ClusterSettings

AGENTS = {"launcher": "spark-agents", "algorithm": "mpca"}


@pytest.mark.parametrize(
    ("chosen", "key", "beside"),
    [
        ({"momentum": 0.9}, "momentum", {"optimizer": "sgd"}),
        ({"staleness_bound": 2}, "staleness_bound", {"algorithm": "ad-psgd"}),
        ({"optimizer_state": "reset"}, "optimizer_state", {"algorithm": "local-sgd"}),
        ({"optimizer_state": "reset", "algorithm": "ad-psgd"}, "optimizer_state", {"slowmo": {}}),
        ({"slowmo": {"exact_average": False}}, "slowmo.exact_average", {"algorithm": "ad-psgd"}),
        ({"launcher_args": ["-x", "A"], **AGENTS}, "launcher_args", {"launcher": "spark"}),
        ({"staleness_bound": 9, **AGENTS}, "staleness_bound", {"launcher": "spark"}),
        ({"schedule": {"milestones": [3]}}, "milestones", {"schedule": {"milestones": [3], "decay": "step"}}),
        ({"schedule": {"decay": "step"}}, "decay", {"schedule": {"milestones": [3], "decay": "step"}}),
        ({"schedule": {"factor": 0.5}}, "factor", None),
        ({"schedule": {"final_fraction": 0.5}}, "final_fraction", {"schedule": {"decay": "cosine"}}),
        ({"schedule": {"warmup_epochs": 20.5}}, "schedule.warmup_epochs", {"epochs": 21}),
        ({"schedule": {"decay": "step", "milestones": [2, 20]}}, "schedule.milestones", {"epochs": 21}),
    ],
    ids=str,
)
def test_keys_without_effect_are_refused(chosen: dict[str, Any], key: str, beside: dict[str, Any] | None) -> None:
    """They were accepted, some with a sentence among others."""
    with pytest.raises(ValidationError, match=rf"(?s)train\.{key} is|{key}: .* has no effect: it needs"):
        TrainSettings.model_validate(chosen)
    if beside is not None:
        TrainSettings.model_validate(chosen | beside)


@pytest.mark.parametrize(
    ("name", "chosen", "key", "beside"),
    [
        ("swarm-sgd", {"local_steps": 1, "local_steps_law": "geometric"}, "local_steps_law", {"local_steps": 2}),
        ("downpour", {"zealous": True}, "zealous", {"local_steps": 2}),
        ("easgd", {"local_steps": 1, "equilibrium_stop": True}, "equilibrium_stop", {"local_steps": 2}),
        ("easgd", {"synchronous": True, "shards": 4}, "shards", {"synchronous": False}),
        ("easgd", {"synchronous": True, "shards": None}, "shards", {"synchronous": False}),
        ("easgd", {"synchronous": True, "network": "ib0"}, "network", {"synchronous": False}),
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
    name: str, chosen: dict[str, Any], key: str, beside: dict[str, Any]
) -> None:
    with pytest.raises(ValidationError, match=f"{key}: .* has no effect: it needs"):
        TrainSettings.model_validate({"algorithm": {"name": name, **chosen}})
    TrainSettings.model_validate({"algorithm": {"name": name, **chosen, **beside}})


def test_interruptions_of_no_length_were_accepted_by_the_simulated_cluster() -> None:
    with pytest.raises(ValidationError, match=r"pause_probability: 0\.1 has no effect: it needs pause_seconds"):
        ClusterSettings(pause_probability=0.1)
    with pytest.raises(ValidationError, match=r"pause_seconds: 0\.1 has no effect: it needs pause_probability"):
        ClusterSettings(pause_seconds=0.1)
    assert ClusterSettings(pause_seconds=0.1, pause_probability=0.0).pause_seconds == 0.1


@pytest.mark.parametrize(
    ("chosen", "largest"),
    [
        # 16 steps of each worker, 8 in an epoch.
        ({"slowmo": {"tau": 17}}, "train.slowmo.tau to at most 16"),
        ({"algorithm": "local-sgd", "local_steps": 17}, "train.algorithm.local_steps to at most 16"),
        ({"algorithm": "easgd", "local_steps": 16}, "train.algorithm.local_steps to at most 15"),
        ({"algorithm": "easgd", "local_steps": 17, "gradient": "moved"}, "to at most 16"),
        ({"algorithm": "sharded", "overlap": "thread", "bound": 16}, "train.algorithm.bound to at most 15"),
        ({"algorithm": "mpca", "alpha_free": 5}, "train.algorithm.alpha_free to at most 4"),
        ({"algorithm": "mpca", "cycle_steps": 17}, "train.algorithm.cycle_steps to at most 16"),
        ({"algorithm": "ad-psgd", "staleness_bound": 7}, "train.staleness_bound to at most 6"),
        ({"checkpoint_steps": 8}, "train.checkpoint_steps to at most 7"),
        ({"algorithm": "ad-psgd", "workers": 1}, "at least 2 workers, and train.workers is 1"),
        ({"algorithm": "local-sgd", "workers": 1}, "at least 2 workers"),
        ({"algorithm": "downpour", "staleness_bound": 2, "workers": 1}, "staleness_bound has no effect: it needs"),
        ({"skew": {}, "workers": 1}, "skew has no effect: it needs at least 2 workers"),
        ({"launcher": "srun", "workers": 1}, "launcher has no effect, .*: it needs at least 2 workers"),
    ],
    ids=str,
)
def test_a_mechanism_that_no_step_of_the_run_reaches_is_refused(chosen: dict[str, Any], largest: str) -> None:
    """`slowmo.tau` above the number of steps trained without SlowMo, and the summary said SlowMo."""
    how = settings(**chosen)
    rows = 8 * how.workers * how.batch_size
    with pytest.raises(IdleSettingError, match=largest):
        how.refuse_idle(rows)
    how.model_copy(update={"workers": max(2, how.workers), "epochs": 8}).refuse_idle(rows * 8)


def test_a_run_that_reaches_all_is_not_refused() -> None:
    for chosen in EVERY.values():
        settings(**chosen).refuse_idle(320)


@pytest.mark.parametrize("chosen", SEVERAL.values(), ids=SEVERAL)
@pytest.mark.parametrize("slowmo", [None, {"tau": 4}], ids=str)
def test_every_mechanism_counts_how_often_it_acted(chosen: dict[str, Any], slowmo: dict[str, Any] | None) -> None:
    how = settings(**chosen)
    if how.traits.joint_model and slowmo:
        return
    slow = {"slowmo": slowmo} if slowmo else {}
    found = acted(settings(**chosen, **slow), [summary_of_rank(records) for records in run(**chosen, **slow).records])
    assert min(found.values()) > 0
    # 16 steps of each worker.
    assert found.get("slowmo_steps", 4 * how.workers) == 4 * how.workers
