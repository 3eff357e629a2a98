"""Checks of simulated times are refused where other work, their repeats or each other speak
against them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from example_study import example_check

from hep_studies.check_rules import is_busy, judge_checks
from hep_studies.simulator.cluster import ClusterSettings
from hep_studies.study_result import TimeCheck
from hep_studies.synthetic_workload import SyntheticWorkload
from training.settings import TrainSettings

STEP_SECONDS = 1e-3
#: A disturbed check of AR-SGD, with the numbers that were once published.
DISTURBED, UNDISTURBED = 13.8e-3, 1.53e-3


@pytest.fixture(autouse=True)
def _machine_of_two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.cpu_count", lambda: 2)


def workload_of(method: str, **train: Any) -> SyntheticWorkload:
    settings = TrainSettings.model_validate({"workers": 4, **train})
    cluster = ClusterSettings()
    num_parameters = 10
    steps_of_workers = [5, 5, 5, 5]
    return SyntheticWorkload(
        method, STEP_SECONDS, settings, cluster, num_parameters, steps_of_workers
    )


def check_of(workload: SyntheticWorkload, measured: float, **fields: Any) -> TimeCheck:
    check = example_check(workload.method, measured, STEP_SECONDS, step_seconds=STEP_SECONDS)
    return replace(check, **fields)


PLAIN = workload_of("plain")
SLOWMO = workload_of("with slowmo", slowmo={"tau": 12})


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"load": 0.2, "spread": 1e-4}, ""),
        ({"load": 1.36}, "the machine was busy, load 1.4 of 2 cores"),
        ({"spread": 1.1e-4}, "its repeats differ by 0.11 ms, in a step of 1 ms"),
    ],
)
def test_other_work_and_a_large_spread_refuse_a_check(fields: dict[str, Any], reason: str) -> None:
    check = check_of(PLAIN, 1.2e-3, **fields)

    (judged,) = judge_checks([PLAIN], [check], cores=2)

    assert judged.refused == reason


def test_a_reason_of_an_earlier_measurement_is_forgotten() -> None:
    check = check_of(PLAIN, 1.2e-3, refused="busy")

    (judged,) = judge_checks([PLAIN], [check], cores=2)

    assert judged.refused == ""


def test_cores_that_the_ranks_may_not_use_are_there_for_other_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("psutil.cpu_count", lambda: 8)

    assert not is_busy(6.1, cores=2)
    assert is_busy(6.3, cores=2)


def test_a_method_that_does_more_in_less_time_refuses_both_checks() -> None:
    checks = [check_of(PLAIN, DISTURBED), check_of(SLOWMO, UNDISTURBED)]

    plain, slowmo = judge_checks([PLAIN, SLOWMO], checks, cores=2)

    reason = "plain takes 13.8 ms a step, but with slowmo, which does more, 1.53 ms"
    assert plain.refused == reason
    assert slowmo.refused == reason


@pytest.mark.parametrize(
    ("less", "more"),
    [
        (
            {"algorithm": {"name": "local-sgd", "local_steps": 8}, "epochs": 4},
            {"algorithm": {"name": "local-sgd", "local_steps": 2}, "epochs": 9},
        ),
        (
            {"algorithm": "ad-psgd"},
            {"algorithm": "ad-psgd", "slowmo": {"exact_average": False}},
        ),
        (
            {"algorithm": "ad-psgd", "slowmo": {"exact_average": False}},
            {"algorithm": "ad-psgd", "slowmo": {"exact_average": True}},
        ),
        ({"slowmo": {"tau": 12}}, {"slowmo": {"tau": 6}}),
    ],
)
def test_methods_are_ordered_by_how_often_they_communicate(
    less: dict[str, Any], more: dict[str, Any]
) -> None:
    rare = workload_of("less", **less)
    frequent = workload_of("more", **more)
    in_order = [check_of(rare, UNDISTURBED), check_of(frequent, DISTURBED)]
    in_wrong_order = [check_of(rare, DISTURBED), check_of(frequent, UNDISTURBED)]

    judged_in_order = judge_checks([rare, frequent], in_order, cores=2)
    judged_in_wrong_order = judge_checks([rare, frequent], in_wrong_order, cores=2)

    assert not any(check.refused for check in judged_in_order)
    assert all(check.refused for check in judged_in_wrong_order)


@pytest.mark.parametrize(
    "other",
    [
        workload_of("other", algorithm="ad-psgd", slowmo={}),
        workload_of("other", batch_size=7, slowmo={}),
        workload_of("more often and less often", slowmo={}, algorithm="local-sgd"),
        SLOWMO._replace(step_seconds=2e-3),
        SLOWMO._replace(num_parameters=11),
    ],
)
def test_workloads_that_differ_otherwise_are_not_ordered(other: SyntheticWorkload) -> None:
    checks = [check_of(PLAIN, DISTURBED), check_of(other, UNDISTURBED)]

    judged = judge_checks([PLAIN, other], checks, cores=2)

    assert not any(check.refused for check in judged)


@pytest.mark.parametrize(("plain", "is_refused"), [(1.62e-3, False), (1.7e-3, True)])
def test_the_order_holds_within_the_spreads(plain: float, is_refused: bool) -> None:
    """The spreads and a part of the step leave 0.11 ms to chance."""
    checks = [check_of(PLAIN, plain, spread=4e-5), check_of(SLOWMO, 1.53e-3, spread=2e-5)]

    judged_plain, judged_slowmo = judge_checks([PLAIN, SLOWMO], checks, cores=2)

    assert bool(judged_plain.refused) == is_refused
    assert bool(judged_slowmo.refused) == is_refused


def test_a_check_that_other_work_disturbed_spoils_no_other() -> None:
    disturbed = check_of(PLAIN, DISTURBED, load=1.4)
    undisturbed = check_of(SLOWMO, UNDISTURBED)

    _, judged = judge_checks([PLAIN, SLOWMO], [disturbed, undisturbed], cores=2)

    assert judged.refused == ""


def test_a_shorter_simulated_step_is_no_contradiction() -> None:
    """Epochs of more steps have other computing times, in the simulator and on the ranks."""
    long_step = check_of(PLAIN, 1.7e-3)
    short_step = check_of(SLOWMO, 1.53e-3, simulated=0.85 * STEP_SECONDS)

    judged = judge_checks([PLAIN, SLOWMO], [long_step, short_step], cores=2)

    assert not any(check.refused for check in judged)
