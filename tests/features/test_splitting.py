"""The hash of event identities: uniform, independent between streams, frozen."""

from __future__ import annotations

import uuid

import numpy as np

from features.settings import SplitSettings
from features.splitting import (
    BALANCE_STREAM,
    MIXING_STREAM,
    SPLIT_STREAM,
    event_hash,
    split_index,
    uniform,
)

FILES = [
    str(uuid.UUID(int=number * 0x9E3779B97F4A7C15F39CC0605CEDC834 % 2**128))
    for number in range(1, 21)
]
UUIDS = [name for name in FILES for _ in range(5000)]
ENTRIES = np.tile(np.arange(5000), 20)


def test_shares_are_met_within_their_statistical_errors() -> None:
    counts = np.bincount(split_index(UUIDS, ENTRIES, SplitSettings()), minlength=3) / len(UUIDS)
    errors = np.sqrt(np.array([0.64 * 0.36, 0.16 * 0.84, 0.2 * 0.8]) / len(UUIDS))
    assert (abs(counts - [0.64, 0.16, 0.20]) < 4 * errors).all()


def test_numbers_are_uniform_and_correlated_with_nothing() -> None:
    """So that row groups, which are cut from the order of the mixing stream, are random samples of all files."""
    streams = [
        uniform(event_hash(UUIDS, ENTRIES, stream=each))
        for each in (SPLIT_STREAM, BALANCE_STREAM, MIXING_STREAM)
    ]
    for actual in streams:
        histogram, _ = np.histogram(actual, 100, (0, 1))
        chi2 = ((histogram - len(UUIDS) / 100) ** 2 / (len(UUIDS) / 100)).sum()
        assert 50 < chi2 < 160
        assert abs(np.corrcoef(actual[:-1], actual[1:])[0, 1]) < 4 / np.sqrt(len(UUIDS))
        means = actual.reshape(len(FILES), -1).mean(axis=1)
        assert (abs(means - 0.5) < 4 / np.sqrt(12 * len(UUIDS) / len(FILES))).all()
    remaining = np.abs(np.corrcoef([*streams, ENTRIES]) - np.eye(4))
    assert remaining.max() < 4 / np.sqrt(len(UUIDS))


def test_no_two_events_share_a_hash() -> None:
    assert len(np.unique(event_hash(UUIDS, ENTRIES, stream=SPLIT_STREAM))) == len(UUIDS)


def test_an_event_keeps_its_split_whatever_else_is_there() -> None:
    alone = split_index([UUIDS[777]], ENTRIES[777:778], SplitSettings())
    reverse = split_index(UUIDS[::-1], ENTRIES[::-1], SplitSettings())[::-1]
    together = split_index(UUIDS, ENTRIES, SplitSettings())
    assert alone[0] == together[777]
    np.testing.assert_array_equal(reverse, together)
