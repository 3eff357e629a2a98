"""The hash of event identities: uniform, independent between streams, frozen."""

from __future__ import annotations

import uuid

import numpy as np
from scipy.stats import chisquare

from features.settings import SplitSettings
from features.splitting import (
    BALANCE_STREAM,
    MIXING_STREAM,
    SPLIT_STREAM,
    event_hash,
    split_index,
    uniform,
)

FILE_UUIDS = [
    str(uuid.UUID(int=index * 0x9E3779B97F4A7C15F39CC0605CEDC834 % 2**128))
    for index in range(1, 21)
]
#: 20 files of 5000 events.
UUIDS = np.repeat(FILE_UUIDS, 5000).tolist()
ENTRIES = np.tile(np.arange(5000), 20)
NUM_EVENTS = len(UUIDS)


def test_shares_are_met_within_their_statistical_errors() -> None:
    expected = np.array([0.64, 0.16, 0.20])
    errors = np.sqrt(expected * (1 - expected) / NUM_EVENTS)

    splits = split_index(UUIDS, ENTRIES, SplitSettings())

    shares = np.bincount(splits, minlength=3) / NUM_EVENTS
    assert (abs(shares - expected) < 4 * errors).all()


def test_numbers_are_uniform_and_uncorrelated() -> None:
    """Row groups are cut from the order of the mixing stream: they must be random samples."""
    max_correlation = 4 / np.sqrt(NUM_EVENTS)

    streams = []
    for stream in (SPLIT_STREAM, BALANCE_STREAM, MIXING_STREAM):
        hashes = event_hash(UUIDS, ENTRIES, stream=stream)
        streams.append(uniform(hashes))

    # The standard deviation of a uniform number is 1 / sqrt(12).
    max_mean_error = 4 / np.sqrt(12 * 5000)
    for numbers in streams:
        histogram, _ = np.histogram(numbers, 100, (0, 1))
        chi2 = chisquare(histogram).statistic
        assert 50 < chi2 < 160
        autocorrelation = np.corrcoef(numbers[:-1], numbers[1:])[0, 1]
        assert abs(autocorrelation) < max_correlation
        file_means = numbers.reshape(20, 5000).mean(axis=1)
        assert (abs(file_means - 0.5) < max_mean_error).all()
    # Each is fully correlated with itself.
    correlations = np.corrcoef([*streams, ENTRIES]) - np.eye(4)
    assert np.abs(correlations).max() < max_correlation


def test_no_two_events_share_a_hash() -> None:
    hashes = event_hash(UUIDS, ENTRIES, stream=SPLIT_STREAM)

    assert len(np.unique(hashes)) == NUM_EVENTS


def test_the_split_of_an_event_does_not_depend_on_other_events() -> None:
    alone = split_index([UUIDS[777]], ENTRIES[777:778], SplitSettings())
    in_reverse = split_index(UUIDS[::-1], ENTRIES[::-1], SplitSettings())
    together = split_index(UUIDS, ENTRIES, SplitSettings())

    assert alone[0] == together[777]
    np.testing.assert_array_equal(in_reverse, together[::-1])
