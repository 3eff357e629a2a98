"""Decides which events go into which row group, from keys, labels and splits only. The Spark job moves the events.

The events of a split are sorted by a hash of their identity and cut into row groups of equal length. So every row group
mixes classes and files, whatever the order of the input.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from features.errors import EmptySplitError, TooFewEventsError, WeightSumError
from features.schema import SPLITS
from features.splitting import UInt64s


class RowGroupLayout(NamedTuple):
    """The row groups of one split."""

    first_keys: UInt64s
    """(num_groups,) smallest mixing key of each row group; the first is 0."""
    rows: NDArray[np.int64]
    """(num_groups,) rows of each row group: all equal, except that the last may be shorter."""

    def group_of(self, keys: UInt64s) -> NDArray[np.int64]:
        """Row group of each event, from its mixing key."""
        return np.searchsorted(self.first_keys, keys, side="right").astype(np.int64) - 1


def group_size(num_events: int, *, rows_per_group: int, feed_workers: int) -> int:
    """Rows per row group for a number of groups of at least `feed_workers`, and a multiple of it where possible.

    Raises:
        TooFewEventsError: There are fewer events than `feed_workers`.

    Examples:
        >>> group_size(425, rows_per_group=2048, feed_workers=4)
        107
        >>> group_size(10_000, rows_per_group=1000, feed_workers=4)
        834
    """
    if num_events < feed_workers:
        raise TooFewEventsError(
            f"{num_events} events cannot fill {feed_workers} row groups. "
            f"Lower features.feed_workers (now {feed_workers}) or add files."
        )
    fewest = -(-num_events // (rows_per_group * feed_workers)) * feed_workers
    for num_groups in range(fewest, min(4 * fewest, num_events) + 1, feed_workers):
        size = -(-num_events // num_groups)
        if -(-num_events // size) % feed_workers == 0:
            return size
    return min(rows_per_group, num_events // feed_workers)


def layout(keys: UInt64s, *, size: int) -> RowGroupLayout:
    """Cut the sorted keys of a split into row groups of `size`.

    Args:
        keys: (num_events,) mixing keys, in any order.
        size: Rows of each group; the last may have fewer.
    """
    ordered = np.sort(keys)
    first_keys = ordered[::size].copy()
    first_keys[0] = 0
    rows = np.full(len(first_keys), size, dtype=np.int64)
    rows[-1] = len(ordered) - size * (len(first_keys) - 1)
    return RowGroupLayout(first_keys, rows)


def kept_fractions(labels: NDArray[np.integer[Any]], num_classes: int) -> NDArray[np.float64]:
    """Share of each class to keep so that all classes are as large as the smallest; (num_classes,).

    Examples:
        >>> kept_fractions(np.array([0, 0, 0, 0, 1]), 2).tolist()
        [0.25, 1.0]
    """
    counts = np.bincount(labels, minlength=num_classes)
    fractions: NDArray[np.float64] = counts.min() / np.maximum(counts, 1)
    return fractions


def class_weights(
    labels: NDArray[np.integer[Any]], weights: NDArray[np.floating[Any]], names: list[str], *, split: str = "train"
) -> NDArray[np.float64]:
    """Weight factor of each class: all classes then have the same sum of weights, on average 1 per event.

    Args:
        labels: (num_events,) classes.
        weights: (num_events,) event weights, possibly negative.
        names: Names of the classes.
        split: Name of the events' split, for the message.

    Raises:
        WeightSumError: The weights of a class add up to 0 or less.

    Examples:
        >>> class_weights(np.array([0, 0, 0, 1]), np.ones(4), ["QCD", "ttbar"]).round(3).tolist()
        [0.667, 2.0]
    """
    sums = np.bincount(labels, weights=weights, minlength=len(names))
    for name, total in zip(names, sums, strict=True):
        if total <= 0:
            raise WeightSumError(
                f"the event weights of class {name} add up to {total:g} on the {split} split; balancing, losses and "
                f"efficiencies need a positive sum. Check Event.Weight in its files, or add events."
            )
    return len(labels) / (len(names) * sums)


def refuse_empty_classes(split: NDArray[np.integer[Any]], labels: NDArray[np.integer[Any]], names: list[str]) -> None:
    """Refuse a split without events of some class.

    Raises:
        EmptySplitError: A split lacks a class; the message holds the table of counts.
    """
    counts = np.zeros((len(SPLITS), len(names)), dtype=np.int64)
    np.add.at(counts, (split, labels), 1)
    if (counts > 0).all():
        return
    table = "\n".join(
        f"  {name:<8}" + "".join(f"{label} {count:>8}   " for label, count in zip(names, row, strict=True))
        for name, row in zip(SPLITS, counts, strict=True)
    )
    raise EmptySplitError(
        f"a split lacks a class after the selection:\n{table}\nAdd files, or change the shares under features.split."
    )
