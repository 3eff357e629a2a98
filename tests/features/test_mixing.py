"""Row groups, class balance, and what is refused."""

from __future__ import annotations

import uuid
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

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


@pytest.mark.slow
@given(st.integers(1, 5000), st.integers(1, 600), st.integers(1, 16))
def test_there_are_enough_groups_none_too_large(
    num_events: int, rows_per_group: int, feed_workers: int
) -> None:
    size = group_size(num_events, rows_per_group=rows_per_group, feed_workers=feed_workers)
    num_groups = -(-num_events // size)
    assert num_groups >= min(feed_workers, num_events)
    assert 1 <= size <= rows_per_group


@pytest.mark.parametrize(
    ("num_events", "workers"), [(425, 4), (1000, 8), (100_000, 8), (97, 3), (344, 8), (386, 8)]
)
def test_groups_divide_evenly_among_the_fed_workers_where_they_can(
    num_events: int, workers: int
) -> None:
    for rows_per_group in (20, 512):
        size = group_size(num_events, rows_per_group=rows_per_group, feed_workers=workers)
        assert -(-num_events // size) % workers == 0


@given(
    st.lists(st.integers(0, 2**64 - 1), min_size=30, max_size=200, unique=True), st.integers(1, 50)
)
def test_every_event_has_one_place_and_keys_grow_through_the_groups_of_a_split(
    keys: list[int], size: int
) -> None:
    index = np.arange(len(keys))
    of_events = EventKeys(
        split=(index % 3).astype(np.int8),
        mixing=np.array(keys, dtype=np.uint64),
        balance=np.zeros(len(keys)),
        label=(index // 3 % 2).astype(np.int8),
        weight=np.ones(len(keys)),
    )
    halves = [
        EventKeys(*(column[selected] for column in of_events))
        for selected in (index < 13, index >= 13)
    ]
    plan = plan_mixing(halves, FeatureSettings(rows_per_group=size, feed_workers=1), ["a", "b"])
    for split in range(3):
        groups = [each for each in plan.groups if each.split == split]
        assert [each.group for each in groups] == list(range(len(groups)))
        assert {len(each.events) for each in groups[:-1]} <= {
            max(len(each.events) for each in groups)
        }
        events = np.concatenate([each.events for each in groups])
        assert sorted(events) == np.flatnonzero(of_events.split == split).tolist()
        assert (np.diff(of_events.mixing[events].astype(object)) > 0).all()
    assert (
        sum(len(each.events) for each in plan.groups)
        == len(keys)
        == sum(map(sum, plan.counts.values()))
    )


def test_a_task_has_consecutive_groups_up_to_its_limit_and_at_least_one() -> None:
    groups = [RowGroupPlan(0, index, np.arange(rows)) for index, rows in enumerate([3, 3, 3, 9, 1])]
    tasks = MixingPlan(groups, [], {}).tasks(max_events=6)
    assert [[step.group for step in task] for task in tasks] == [[0, 1], [2], [3], [4]]


def test_a_split_of_fewer_events_than_workers_was_refused() -> None:
    """Row groups are for speed; every number of workers trains on all events."""
    index = np.arange(24)
    split = np.where(index < 4, 2, index % 2).astype(np.int8)
    keys = EventKeys(
        split,
        index.astype(np.uint64),
        np.zeros(24),
        (index // 2 % 2).astype(np.int8),
        np.ones(24),
    )
    plan = plan_mixing([keys], FeatureSettings(feed_workers=8), ["a", "b"])
    assert [len(group.events) for group in plan.groups if group.split == 2] == [1] * 4


def test_downsampling_keeps_a_part_of_what_it_kept_before_as_the_larger_class_grows() -> None:
    """The kept sets are nested: with more data of a class, each of its kept events was kept before or is new."""
    rng = np.random.default_rng(6)
    uuids = [str(uuid.UUID(int=int(index))) for index in rng.integers(1, 2**62, 4)]

    def keys(num_files: int) -> EventKeys:
        names = np.repeat(uuids[:num_files], 500)
        entries = np.tile(np.arange(500), num_files)
        label = (names == uuids[0]).astype(np.int8)
        balance = uniform(event_hash(names.tolist(), entries, stream=BALANCE_STREAM))
        zeros = np.zeros(len(names), np.int8)
        return EventKeys(
            zeros, np.arange(len(names), dtype=np.uint64), balance, label, np.ones(len(names))
        )

    retained = [downsampling_mask(keys(num_files), 2) for num_files in (2, 3, 4)]
    assert [int(mask[:500].sum()) for mask in retained] == [500] * 3, (
        "the smallest class stays whole"
    )
    for fewer, more in pairwise(reversed(retained)):
        assert (more[: len(more)] | ~fewer[: len(more)]).all()
    shares = [mask[500:1000].mean() for mask in retained]
    np.testing.assert_allclose(shares, [1, 1 / 2, 1 / 3], atol=0.07)


def test_class_weights_make_classes_count_alike_and_average_one() -> None:
    rng = np.random.default_rng(3)
    labels = np.repeat([0, 1, 2], [1000, 100, 400])
    weights = rng.uniform(0.5, 50, 1500)
    total = weights * class_weights(labels, weights, ["a", "b", "c"])[labels]
    np.testing.assert_allclose(np.bincount(labels, total), [500, 500, 500])
    assert total.mean() == pytest.approx(1)


def test_negative_weights_are_fine_as_long_as_their_sum_is_positive() -> None:
    labels = np.array([0, 0, 0, 1])
    assert class_weights(labels, np.array([1.0, 1.0, -1.0, 2.0]), ["a", "b"]).tolist() == [2.0, 1.0]
    with pytest.raises(FeatureError, match="class a add up to -1"):
        class_weights(labels, np.array([1.0, -1.0, -1.0, 2.0]), ["a", "b"])


def test_a_split_without_a_class_is_shown_with_its_table() -> None:
    with pytest.raises(FeatureError, match=r"(?s)lacks a class.*test\s+QCD\s+0\s+ttbar\s+1"):
        require_all_classes(np.array([[1, 1], [1, 1], [0, 1]]), ["QCD", "ttbar"])
