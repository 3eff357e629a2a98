"""Decides which events go into which row group, and in which order, from their keys only. No Spark.

The events of a split are sorted by a hash of their identity and cut into row groups of equal length. So every row group
mixes classes and files, whatever the order of the input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from features.errors import FeatureError
from features.kernel_pass import EventKeys
from features.schema import SPLITS, TRAIN
from features.settings import Balance, FeatureSettings


class RowGroupPlan(NamedTuple):
    """The events of one row group."""

    split: int
    group: int
    """Its number within the split."""
    events: NDArray[np.int64]
    """(num_rows,) numbers of its events among the selected events of all parts, in the order of the row group."""


class MixingPlan(NamedTuple):
    """All row groups: of equal size, except that the last of a split may be smaller."""

    groups: list[RowGroupPlan]
    class_weights: list[float]
    counts: dict[str, list[int]]
    """Events of each class by split."""

    def tasks(self, at_most: int) -> list[list[RowGroupPlan]]:
        """Consecutive row groups for each task: `at_most` events, but at least one row group."""
        tasks: list[list[RowGroupPlan]] = []
        room = 0
        for each in self.groups:
            if not tasks or len(each.events) > room:
                tasks.append([])
                room = at_most
            tasks[-1].append(each)
            room -= len(each.events)
        return tasks


def plan_mixing(
    parts: Sequence[EventKeys], settings: FeatureSettings, classes: list[str]
) -> MixingPlan:
    """Decide which events to keep, the row groups of every split, and the class weights.

    Raises:
        FeatureError: A split lacks a class or has too few events, or the weights of a class add up to 0 or less.
    """
    keys = EventKeys(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    kept = np.ones(len(keys.split), dtype=np.bool_)
    if settings.balance is Balance.DOWNSAMPLE:
        kept = kept_by_downsampling(keys, len(classes))
    counts = np.zeros((len(SPLITS), len(classes)), dtype=np.int64)
    np.add.at(counts, (keys.split[kept], keys.label[kept]), 1)
    refuse_empty_classes(counts, classes)
    groups: list[RowGroupPlan] = []
    weights = []
    for split, name in enumerate(SPLITS):
        events = np.flatnonzero(kept & (keys.split == split))
        weights.append(class_weights(keys.label[events], keys.weight[events], classes, split=name))
        size = group_size(
            len(events), rows_per_group=settings.rows_per_group, feed_workers=settings.feed_workers
        )
        mixed = events[np.argsort(keys.mixing[events], kind="stable")]
        cuts = range(0, len(mixed), size)
        groups += [
            RowGroupPlan(split, number, mixed[first : first + size])
            for number, first in enumerate(cuts)
        ]
    return MixingPlan(
        groups, weights[TRAIN].tolist(), dict(zip(SPLITS, counts.tolist(), strict=True))
    )


def kept_by_downsampling(keys: EventKeys, num_classes: int) -> NDArray[np.bool_]:
    """Mask of the events that are kept if all classes of the training split are to be as large as the smallest.

    All events outside the training split are kept: there every event measures.
    """
    counts = np.bincount(keys.label[keys.split == TRAIN], minlength=num_classes)
    fractions = counts.min() / np.maximum(counts, 1)
    kept: NDArray[np.bool_] = (keys.split != TRAIN) | (keys.balance < fractions[keys.label])
    return kept


def group_size(num_events: int, *, rows_per_group: int, feed_workers: int) -> int:
    """Rows per row group for a number of groups of at least `feed_workers`, and a multiple of it where possible.

    Of fewer events each is a row group.

    Examples:
        >>> group_size(425, rows_per_group=2048, feed_workers=4)
        107
        >>> group_size(10_000, rows_per_group=1000, feed_workers=4)
        834
    """
    feed_workers = min(feed_workers, num_events)
    fewest = -(-num_events // (rows_per_group * feed_workers)) * feed_workers
    for num_groups in range(fewest, min(4 * fewest, num_events) + 1, feed_workers):
        size = -(-num_events // num_groups)
        if -(-num_events // size) % feed_workers == 0:
            return size
    return min(rows_per_group, num_events // feed_workers)


def class_weights(
    labels: NDArray[np.integer[Any]],
    weights: NDArray[np.floating[Any]],
    names: list[str],
    *,
    split: str = "train",
) -> NDArray[np.float64]:
    """Weight factor of each class: all classes then have the same sum of weights, on average 1 per event.

    `labels` and `weights`, possibly negative, are (num_events,); a class whose weights add up to 0 or less is refused.
    """
    sums = np.bincount(labels, weights=weights, minlength=len(names))
    for name, total in zip(names, sums, strict=True):
        if total <= 0:
            raise FeatureError(
                f"the event weights of class {name} add up to {total:g} on the {split} split; balancing, losses and "
                f"efficiencies need a positive sum. Check the `weight` of its samples (a branch, or `none`), or add "
                f"events."
            )
    return len(labels) / (len(names) * sums)


def refuse_empty_classes(counts: NDArray[np.int64], names: list[str]) -> None:
    """Refuse a split without events of some class; `counts` are the events, (number of splits, number of classes)."""
    if (counts > 0).all():
        return
    table = "\n".join(
        f"  {name:<8}"
        + "".join(f"{label} {count:>8}   " for label, count in zip(names, row, strict=True))
        for name, row in zip(SPLITS, counts, strict=True)
    )
    raise FeatureError(
        f"a split lacks a class after the selection:\n{table}\nAdd files, or change the shares under features.split."
    )
