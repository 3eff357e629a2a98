"""Row groups and class balance."""

from __future__ import annotations

import math
import uuid

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from features.errors import FeatureError
from features.kernel_pass import EventKeys
from features.mixing import (
    MixingPlan,
    RowGroupPlan,
    class_weights,
    downsampling_mask,
    group_size,
    plan_mixing,
    require_all_classes,
)
from features.settings import FeatureSettings
from features.splitting import BALANCE_STREAM, event_hash, uniform


def event_keys(
    split: NDArray[np.integer], mixing: NDArray[np.integer], label: NDArray[np.integer]
) -> EventKeys:
    """Keys of events of weight 1; all arrays are (num_events,)."""
    num_events = len(split)
    return EventKeys(
        split=split.astype(np.int8),
        mixing=mixing.astype(np.uint64),
        balance=np.zeros(num_events),
        label=label.astype(np.int8),
        weight=np.ones(num_events),
        row=np.arange(num_events),
        num_particles=np.ones(num_events, dtype=np.int32),
    )


@pytest.mark.slow
@given(st.integers(1, 5000), st.integers(1, 600), st.integers(1, 16))
def test_there_are_enough_groups_and_none_is_too_large(
    num_events: int, rows_per_group: int, feed_workers: int
) -> None:
    size = group_size(num_events, rows_per_group=rows_per_group, feed_workers=feed_workers)

    num_groups = math.ceil(num_events / size)
    assert num_groups >= min(feed_workers, num_events)
    assert 1 <= size <= rows_per_group


@pytest.mark.parametrize("rows_per_group", [20, 512])
@pytest.mark.parametrize(
    ("num_events", "workers"), [(425, 4), (1000, 8), (100_000, 8), (97, 3), (344, 8), (386, 8)]
)
def test_groups_divide_evenly_among_the_fed_workers_where_they_can(
    num_events: int, workers: int, rows_per_group: int
) -> None:
    size = group_size(num_events, rows_per_group=rows_per_group, feed_workers=workers)

    num_groups = math.ceil(num_events / size)
    assert num_groups % workers == 0


@given(
    st.lists(st.integers(0, 2**64 - 1), min_size=30, max_size=200, unique=True), st.integers(1, 50)
)
def test_every_event_is_in_one_group_and_keys_grow_through_the_groups_of_a_split(
    mixing_keys: list[int], size: int
) -> None:
    event = np.arange(len(mixing_keys))
    mixing = np.array(mixing_keys, dtype=np.uint64)
    keys = event_keys(split=event % 3, mixing=mixing, label=event // 3 % 2)
    # Two files: of 13 events and of the other events.
    first_part = EventKeys._make([column[:13] for column in keys])
    second_part = EventKeys._make([column[13:] for column in keys])
    second_part = second_part._replace(row=np.arange(len(second_part.row)))
    settings = FeatureSettings(rows_per_group=size, feed_workers=1)

    plan = plan_mixing([first_part, second_part], settings, ["a", "b"])

    for split in range(3):
        groups = [group for group in plan.groups if group.split == split]
        group_numbers = [group.group for group in groups]
        sizes = [len(group.rows) for group in groups]
        events = np.concatenate([group.rows for group in groups])
        # Differences of unsigned integers would wrap.
        key_steps = np.diff(keys.mixing[events].astype(object))
        events_of_split = np.flatnonzero(keys.split == split)
        assert group_numbers == list(range(len(groups)))
        assert set(sizes[:-1]) <= {max(sizes)}
        assert sorted(events) == events_of_split.tolist()
        assert (key_steps > 0).all()
    num_planned = np.sum(list(plan.counts.values()))
    assert num_planned == len(mixing_keys)


def test_a_task_has_consecutive_groups_up_to_its_limit_and_at_least_one() -> None:
    sizes = [3, 3, 3, 9, 1]
    groups = []
    for group_number, size in enumerate(sizes):
        num_particles = np.ones(size, dtype=np.int32)
        groups.append(RowGroupPlan(0, group_number, np.arange(size), num_particles))

    tasks = MixingPlan(groups, [], {}).tasks(max_events=6)

    first_task, *single_tasks = tasks
    assert [group.group for group in first_task] == [0, 1]
    for task, group_number in zip(single_tasks, [2, 3, 4], strict=True):
        assert [group.group for group in task] == [group_number]


def test_a_split_of_fewer_events_than_workers_has_one_event_in_each_group() -> None:
    """Row groups are for speed; every number of workers trains on all events."""
    event = np.arange(24)
    split = np.where(event < 4, 2, event % 2)
    keys = event_keys(split, event, event // 2 % 2)

    plan = plan_mixing([keys], FeatureSettings(feed_workers=8), ["a", "b"])

    sizes_in_test_split = [len(group.rows) for group in plan.groups if group.split == 2]
    assert sizes_in_test_split == [1, 1, 1, 1]


def test_downsampling_keeps_a_subset_of_the_kept_events_as_the_larger_class_grows() -> None:
    """With more data of a class, each kept event of it was kept before or is new."""
    rng = np.random.default_rng(6)
    numbers_of_uuids = rng.integers(1, 2**62, 4).tolist()
    uuids = [str(uuid.UUID(int=bits)) for bits in numbers_of_uuids]

    def kept_events(num_files: int) -> NDArray[np.bool_]:
        """Mask of the events of some files, 500 each; the first is a class by itself."""
        files = np.repeat(np.arange(num_files), 500)
        names = np.repeat(uuids[:num_files], 500).tolist()
        entries = np.tile(np.arange(500), num_files)
        num_events = len(files)
        keys = event_keys(np.zeros(num_events), np.arange(num_events), label=files == 0)
        balance = uniform(event_hash(names, entries, stream=BALANCE_STREAM))
        return downsampling_mask(keys._replace(balance=balance), 2)

    kept_of_two = kept_events(2)
    kept_of_three = kept_events(3)
    kept_of_four = kept_events(4)

    for mask in (kept_of_two, kept_of_three, kept_of_four):
        assert mask[:500].all(), "the smallest class is kept"
    appears_in_three = kept_of_three[:1000] & ~kept_of_two
    appears_in_four = kept_of_four[:1500] & ~kept_of_three
    assert not appears_in_three.any()
    assert not appears_in_four.any()
    # The larger class has one, two and three times the events of the smallest.
    assert kept_of_two[500:].mean() == pytest.approx(1)
    assert kept_of_three[500:].mean() == pytest.approx(1 / 2, abs=0.07)
    assert kept_of_four[500:].mean() == pytest.approx(1 / 3, abs=0.07)


def test_class_weights_make_the_sums_of_classes_equal_and_average_one() -> None:
    labels = np.repeat([0, 1, 2], [1000, 100, 400])
    weights = np.random.default_rng(3).uniform(0.5, 50, 1500)

    factors = class_weights(labels, weights, ["a", "b", "c"])

    balanced = weights * factors[labels]
    sums_of_classes = np.bincount(labels, balanced)
    np.testing.assert_allclose(sums_of_classes, [500, 500, 500])
    assert balanced.mean() == pytest.approx(1)


def test_negative_weights_are_fine_as_long_as_their_sum_is_positive() -> None:
    labels = np.array([0, 0, 0, 1])
    weights = np.array([1.0, 1.0, -1.0, 2.0])
    negative_weights = np.array([1.0, -1.0, -1.0, 2.0])
    # Those of the class a add up to 6e-17.
    cancelling_weights = np.array([0.1, 0.2, -0.3, 2.0])

    factors = class_weights(labels, weights, ["a", "b"])

    assert factors.tolist() == [2.0, 1.0]
    with pytest.raises(FeatureError, match="class a add up to -1"):
        class_weights(labels, negative_weights, ["a", "b"])
    with pytest.raises(FeatureError, match="class a add up to"):
        class_weights(labels, cancelling_weights, ["a", "b"])


def test_a_split_without_a_class_is_shown_with_its_table() -> None:
    with pytest.raises(FeatureError, match=r"(?s)lacks a class.*test\s+QCD\s+0\s+ttbar\s+1"):
        require_all_classes(np.array([[1, 1], [1, 1], [0, 1]]), ["QCD", "ttbar"])
