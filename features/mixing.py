"""Decides which events go into which row group, and in which order, from their keys only. No Spark.

The events of a split are sorted by a hash of their identity and cut into row groups of equal
length. So every row group mixes classes and files, whatever the order of the input.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from features.arrays import offsets_from_counts
from features.errors import FeatureError
from features.kernel_pass import EventKeys
from features.schema import SPLITS, TRAIN
from features.settings import Balance, FeatureSettings
from hep_core.weight_sums import are_positive


class RowGroupPlan(NamedTuple):
    """The events of one row group."""

    split: int
    """Number of the split, an index into `SPLITS`."""
    group: int
    """Number of the row group within the split."""
    rows: NDArray[np.int64]
    """(num_rows,) indices into the rows of the files of all parts, in the order of the row
    group."""
    num_particles: NDArray[np.int32]
    """(num_rows,) number of particles of each event."""


class MixingPlan(NamedTuple):
    """All row groups: of equal size, except that the last of a split may be smaller."""

    groups: list[RowGroupPlan]
    class_weights: list[float]
    """Factor on the weights of each class, from the training split."""
    counts: dict[str, list[int]]
    """Events of each class by split."""

    def tasks(self, max_events: int) -> list[list[RowGroupPlan]]:
        """Cut the row groups into tasks of consecutive ones, each of at most `max_events` events.

        A task has at least one row group, however large that is.
        """
        tasks: list[list[RowGroupPlan]] = []
        free_events = 0
        for group in self.groups:
            num_events = len(group.rows)
            if not tasks or num_events > free_events:
                tasks.append([])
                free_events = max_events
            tasks[-1].append(group)
            free_events -= num_events
        return tasks


def plan_mixing(
    keys_by_part: Sequence[EventKeys], settings: FeatureSettings, classes: list[str]
) -> MixingPlan:
    """Decide which events to keep, the row groups of every split, and the class weights.

    In each split the kept events are sorted by their mixing key, a hash, and cut into row groups.
    `keys_by_part` are the keys of the selected events of each part.

    Raises:
        FeatureError: A split lacks a class or has too few events, or the weights of a class add up
            to 0 or less.
    """
    keys = _join_keys(keys_by_part)
    rows = keys.row.astype(np.int64)
    is_kept = np.ones(len(keys.split), dtype=np.bool_)
    if settings.balance is Balance.DOWNSAMPLE:
        is_kept = downsampling_mask(keys, len(classes))
    counts = _count_events(keys, is_kept, len(classes))
    require_all_classes(counts, classes)

    groups: list[RowGroupPlan] = []
    weights_by_split = []
    for split, name in enumerate(SPLITS):
        events = np.flatnonzero(is_kept & (keys.split == split))
        # Weights of all splits are computed for their checks; training uses those of its own split.
        split_weights = class_weights(keys.label[events], keys.weight[events], classes, split=name)
        weights_by_split.append(split_weights)
        mixed = _mixed_events(keys, events)
        size = group_size(
            len(events), rows_per_group=settings.rows_per_group, feed_workers=settings.feed_workers
        )
        for group, start in enumerate(range(0, len(mixed), size)):
            group_events = mixed[start : start + size]
            group_particles = keys.num_particles[group_events]
            groups.append(RowGroupPlan(split, group, rows[group_events], group_particles))
    counts_by_split = dict(zip(SPLITS, counts.tolist(), strict=True))
    return MixingPlan(groups, weights_by_split[TRAIN].tolist(), counts_by_split)


def _join_keys(keys_by_part: Sequence[EventKeys]) -> EventKeys:
    """The keys of all parts, with rows counted through the files of all parts."""
    columns = [np.concatenate(arrays) for arrays in zip(*keys_by_part, strict=True)]
    joined = EventKeys(*columns)
    num_rows = np.array([len(keys.row) for keys in keys_by_part])
    first_rows = offsets_from_counts(num_rows)[:-1]
    first_row_of_part = np.repeat(first_rows, num_rows)
    return joined._replace(row=joined.row + first_row_of_part)


def _mixed_events(keys: EventKeys, events: NDArray[np.int64]) -> NDArray[np.int64]:
    """Some events in the order of their hashes, which are random: it mixes classes and files."""
    order = np.argsort(keys.mixing[events], kind="stable")
    return events[order]


def _count_events(
    keys: EventKeys, is_kept: NDArray[np.bool_], num_classes: int
) -> NDArray[np.int64]:
    """(num_splits, num_classes) numbers of kept events."""
    counts = np.zeros((len(SPLITS), num_classes), dtype=np.int64)
    split = keys.split[is_kept]
    label = keys.label[is_kept]
    # Unlike `counts[...] += 1`, this counts each of several equal pairs of split and label.
    np.add.at(counts, (split, label), 1)
    return counts


def downsampling_mask(keys: EventKeys, num_classes: int) -> NDArray[np.bool_]:
    """(num_events,) whether to keep each event, so that classes are of equal size in training.

    An event of the training split is kept if its balance key, a uniform random number in [0, 1), is
    below the size of the smallest class divided by that of its own class. So the sizes are equal on
    average. All events outside the training split are kept, since they only measure.
    """
    is_train = keys.split == TRAIN
    counts = np.bincount(keys.label[is_train], minlength=num_classes)
    kept_fractions = counts.min() / np.maximum(counts, 1)
    is_drawn = keys.balance < kept_fractions[keys.label]
    mask: NDArray[np.bool_] = ~is_train | is_drawn
    return mask


def group_size(num_events: int, *, rows_per_group: int, feed_workers: int) -> int:
    """Rows per row group so that `feed_workers` divides the number of row groups where possible.

    It tries multiples of `feed_workers` as the number of row groups, from the smallest one by which
    no row group exceeds `rows_per_group`. The last row group may be smaller, which can change the
    number of row groups, so each size is checked. With fewer events than workers, each event is a
    row group.

    Examples:
        >>> group_size(425, rows_per_group=2048, feed_workers=4)
        107
        >>> group_size(10_000, rows_per_group=1000, feed_workers=4)
        834
    """
    feed_workers = min(feed_workers, num_events)
    min_groups = math.ceil(num_events / (rows_per_group * feed_workers)) * feed_workers
    for num_groups in range(min_groups, min(4 * min_groups, num_events) + 1, feed_workers):
        size = math.ceil(num_events / num_groups)
        # The number of row groups of this size may be below `num_groups`.
        if math.ceil(num_events / size) % feed_workers == 0:
            return size
    return min(rows_per_group, num_events // feed_workers)


def class_weights(
    labels: NDArray[np.integer[Any]],
    weights: NDArray[np.floating[Any]],
    names: list[str],
    *,
    split: str = "train",
) -> NDArray[np.float64]:
    """(num_classes,) factors on the weights of each class that make the sums of all classes equal.

    After them the weights of all events are 1 on average. `labels` and `weights`, some of which may
    be negative, are (num_events,); `names` are those of the classes.

    Raises:
        FeatureError: The weights of a class add up to 0 or less.
    """
    num_classes = len(names)
    sums = np.bincount(labels, weights=weights, minlength=num_classes)
    squares = np.bincount(labels, weights=np.square(weights), minlength=num_classes)
    has_positive_sum = are_positive(sums, squares)
    for name, class_sum, is_positive in zip(names, sums, has_positive_sum, strict=True):
        if not is_positive:
            raise FeatureError(
                f"the event weights of class {name} add up to {class_sum:g} on the {split} split; "
                "balancing, losses and efficiencies need a positive sum. Check the `weight` of its "
                "samples (a branch, or `none`), or add events."
            )
    return len(labels) / (num_classes * sums)


def require_all_classes(counts: NDArray[np.int64], classes: list[str]) -> None:
    """Check that each split has events of each class.

    `counts` are the numbers of events, (num_splits, num_classes).

    Raises:
        FeatureError: A split lacks a class; the message has a table of all numbers.
    """
    if (counts > 0).all():
        return
    lines = []
    for split, split_counts in zip(SPLITS, counts, strict=True):
        columns = [f"{name} {count:>8}" for name, count in zip(classes, split_counts, strict=True)]
        lines.append(f"  {split:<8}" + "   ".join(columns))
    table = "\n".join(lines)
    raise FeatureError(
        f"a split lacks a class after the selection:\n{table}\n"
        "Add files, or change the shares under features.split."
    )
