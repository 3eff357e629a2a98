"""The rules by which a check of simulated times is refused.

A refused check is not used: other work was there, its repeats differ too much, or it contradicts
another check.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import psutil

from hep_studies.study_result import TimeCheck
from hep_studies.synthetic_workload import SyntheticWorkload

#: Largest share of the cores that other work may keep busy.
_LARGEST_LOAD: Final = 0.1
#: Largest spread over the repeats, as a share of the time of a step without messages. It is the
#: margin of claims about times: a check with a larger one could not decide them.
_LARGEST_SPREAD: Final = 0.1
#: Part of the time of a step without messages by which two methods may be in the wrong order,
#: beside their spreads. The spread of a few repeats may be small by chance.
_ORDER_TOLERANCE: Final = 0.05
#: Settings that may differ between two workloads of which one does more: those that say how often
#: it communicates, and those that follow from them.
_COMMUNICATION_KEYS: Final[dict[str, Any]] = {
    "algorithm": {"local_steps"},
    "epochs": True,
    "slowmo": True,
}


def judge_checks(
    workloads: Sequence[SyntheticWorkload], checks: Sequence[TimeCheck], *, cores: int
) -> list[TimeCheck]:
    """Return the checks of workloads, each with the reason why it is refused, if there is one.

    Of two workloads that differ only in how often they communicate, the one that does so more often
    must not take less time. Else both are refused, since it is not known which one is wrong.
    `cores`: number of cores of this machine that the ranks may use.
    """
    reasons = [_reason_of_check(check, cores) for check in checks]
    accepted = [index for index, reason in enumerate(reasons) if not reason]
    for less, more in itertools.permutations(accepted, 2):
        if not _does_more(workloads[more], workloads[less]):
            continue
        if _are_in_order(checks[less], checks[more]):
            continue
        contradiction = (
            f"{checks[less].method} takes {_milliseconds(checks[less].measured)} a step, but "
            f"{checks[more].method}, which does more, {_milliseconds(checks[more].measured)}"
        )
        reasons[less] = reasons[less] or contradiction
        reasons[more] = reasons[more] or contradiction
    return [replace(check, refused=reason) for check, reason in zip(checks, reasons, strict=True)]


def _reason_of_check(check: TimeCheck, cores: int) -> str:
    """Return why a check is refused whatever the others are; empty if it is not."""
    if is_busy(check.load, cores):
        return f"the machine was busy, load {check.load:.1f} of {_cores_of_machine()} cores"
    if check.spread > _LARGEST_SPREAD * check.step_seconds:
        return (
            f"its repeats differ by {_milliseconds(check.spread)}, in a step of "
            f"{_milliseconds(check.step_seconds)}"
        )
    return ""


def is_busy(load: float, cores: int) -> bool:
    """Tell whether other work that keeps `load` cores busy leaves too few for the ranks.

    `cores`: number of cores of this machine that the ranks may use. The others are there for other
    work.
    """
    other_cores = max(0, _cores_of_machine() - cores)
    return load - other_cores > _LARGEST_LOAD * cores


def _cores_of_machine() -> int:
    return psutil.cpu_count() or 1


def _does_more(workload: SyntheticWorkload, other: SyntheticWorkload) -> bool:
    """Tell whether a workload differs from another only in that it communicates more often."""
    operations = _operations_per_step(workload)
    other_operations = _operations_per_step(other)
    if operations == other_operations or _other_settings(workload) != _other_settings(other):
        return False
    pairs = zip(operations, other_operations, strict=True)
    return all(number >= other_number for number, other_number in pairs)


def _operations_per_step(workload: SyntheticWorkload) -> tuple[float, float, float]:
    """Return the averages, outer steps of SlowMo, and exact averages of SlowMo for each step."""
    train = workload.train
    averages = 1 / train.algorithm.steps_between_averages
    if train.slowmo is None:
        return averages, 0.0, 0.0
    outer_steps = 1 / train.slowmo.tau
    return averages, outer_steps, outer_steps if train.slowmo_is_exact else 0.0


def _other_settings(workload: SyntheticWorkload) -> list[Any]:
    """Return all settings of a workload but those that say how often it communicates."""
    train = workload.train.model_dump(mode="json", exclude=_COMMUNICATION_KEYS)
    return [workload.step_seconds, workload.num_parameters, workload.cluster, train]


def _are_in_order(less: TimeCheck, more: TimeCheck) -> bool:
    """Tell whether the check of a workload that does more is not too short for that.

    Its epochs may have more steps, so that the simulator gives it a shorter step; such a difference
    is no contradiction.
    """
    expected = min(0.0, more.simulated - less.simulated)
    tolerance = less.spread + more.spread + _ORDER_TOLERANCE * less.step_seconds
    return more.measured - less.measured >= expected - tolerance


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"
