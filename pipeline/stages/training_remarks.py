"""Remarks about a training whose result may be less than the user expects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

#: Difference between the numbers of uses of an event in an epoch below which nothing is said.
_EQUAL_USE_TOLERANCE: Final = 0.1


def training_remarks(summary: Mapping[str, Any]) -> list[str]:
    """Return sentences about a training whose result may be less than the user expects.

    There is one about each action that is set and never happened, one about steps that had no
    effect, one about averages that were lost, one about too few sums for a joint model, and one if
    workers used their events unequally often. A run that refuses all steps ends with its first
    weights, which are finite.

    Examples:
        >>> summary = {"own_rows": False, "acted": {}}
        >>> (remark,) = training_remarks({**summary, "per_rank": [{"steps_not_finite": 2}]})
        >>> remark.partition(":")[0]
        '2 steps had no effect, since a gradient or an update was not finite'
        >>> (remark,) = training_remarks({**summary, "per_rank": [{"averages_lost": 7}]})
        >>> remark.partition(":")[0]
        '7 averages were left out, since a connection between two workers broke'
        >>> training_remarks({**summary, "acted": {"slowmo_steps": 0}, "per_rank": []})
        ['what is set never acted: there are no slowmo steps in this training.']
        >>> few = {"sums": 12.0, "steps_per_cycle": 40.0, "effective_share": 0.1}
        >>> (remark,) = training_remarks({**summary, **few, "per_rank": []})
        >>> remark.partition(":")[0]
        'the joint model got 10% of what the workers did'
        >>> uneven = {"own_rows": True, "acted": {}, "workers": 2, "samples": 40}
        >>> (remark,) = training_remarks({**uneven, "per_rank": [{"samples": 10}, {"samples": 30}]})
        >>> remark.partition(":")[0]
        'the events of a slow worker were used 0.50 times an epoch, those of a fast one 1.50 times'
    """
    from training.loop.effective_share import SMALL_EFFECTIVE_SHARE

    ranks = summary["per_rank"]
    num_refused = sum(rank.get("steps_not_finite", 0) for rank in ranks)
    num_lost = sum(rank.get("averages_lost", 0) for rank in ranks)
    remarks = []
    for action, count in summary["acted"].items():
        if not count:
            name = action.replace("_", " ")
            remarks.append(f"what is set never acted: there are no {name} in this training.")
    if num_refused:
        remarks.append(
            f"{num_refused} steps had no effect, since a gradient or an update was not finite: "
            f"lower train.learning_rate."
        )
    if num_lost:
        remarks.append(
            f"{num_lost} averages were left out, since a connection between two workers broke: "
            f"these pairs no longer averaged. Check the network between the hosts, or choose "
            f"another with train.algorithm.network."
        )
    share = summary.get("effective_share", 1.0)
    if share < SMALL_EFFECTIVE_SHARE:
        remarks.append(
            f"the joint model got {share:.0%} of what the workers did: in {summary['sums']:.0f} "
            f"sums a worker took {summary['steps_per_cycle']:.0f} steps between two of a part, and "
            f"its pull towards the last one undid the rest. Give each rank a core, or lower "
            f"train.algorithm.alpha, alpha_peak or alpha_ramp."
        )
    # With rows of its own, each worker trains on other events, as fast as it can.
    if summary["own_rows"]:
        # A use of 1 is the mean over the workers.
        mean_samples = summary["samples"] / summary["workers"]
        uses = [rank["samples"] / mean_samples for rank in ranks]
        if max(uses) - min(uses) > _EQUAL_USE_TOLERANCE:
            remarks.append(
                f"the events of a slow worker were used {min(uses):.2f} times an epoch, those of a "
                f"fast one {max(uses):.2f} times: each worker trains on events of its own, as fast "
                f"as it can."
            )
    return remarks
