"""Row groups are random samples of all classes and files, in random order."""

from __future__ import annotations

import uuid

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chi2, norm

from features.kernel_pass import EventKeys
from features.mixing import plan_mixing
from features.settings import FeatureSettings
from features.splitting import BALANCE_STREAM, MIXING_STREAM, event_hash, split_index, uniform

#: Files by class: many events of one, few of another.
FILES = {0: (1500, 700), 1: (300, 900, 300), 2: (200, 100)}
#: A right order fails a check once in a million times; the events are always the same.
SURE = 1e-6


class Events:
    """The keys of all files, one after the other, and where each event comes from."""

    def __init__(self, settings: FeatureSettings) -> None:
        self.parts: list[EventKeys] = []
        files, entries = [], []
        for label, sizes in FILES.items():
            for size in sizes:
                name, number = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{len(files)}")), np.arange(size)
                self.parts.append(
                    EventKeys(
                        split=split_index([name] * size, number, settings.split).astype(np.int8),
                        mixing=event_hash([name] * size, number, stream=MIXING_STREAM),
                        balance=uniform(event_hash([name] * size, number, stream=BALANCE_STREAM)),
                        label=np.full(size, label, np.int8),
                        weight=np.ones(size),
                    )
                )
                files.append(np.full(size, len(files)))
                entries.append(number / size)
        self.file = np.concatenate(files)
        self.entry = np.concatenate(entries)
        """Place of each event in its file, from 0 to 1."""
        self.label = np.concatenate([part.label for part in self.parts])


def p_of_shares(groups: list[NDArray[np.int64]]) -> float:
    """Chi-square over groups and kinds, given the sums of both."""
    table = np.array([np.bincount(group, minlength=max(map(np.max, groups)) + 1) for group in groups])
    expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / table.sum()
    statistic = ((table - expected) ** 2 / expected).sum()
    return float(chi2.sf(statistic, (table.shape[0] - 1) * (table.shape[1] - 1)))


def p_of_neighbours(files: NDArray[np.int64], entries: NDArray[np.float64]) -> float:
    """The smaller p-value of two checks: neighbours share a file, and neighbours lie near to each other in files."""
    count = len(files)
    shares = np.bincount(files) / count
    same = float(np.square(shares).sum())
    found = (files[1:] == files[:-1]).mean()
    of_files = (found - same) / np.sqrt(same * (1 - same) / (count - 1))
    ranks = np.argsort(np.argsort(entries)) / count - 0.5
    of_entries = (ranks[1:] * ranks[:-1]).mean() * 12 * np.sqrt(count - 1)
    return float(2 * norm.sf(max(abs(of_files), abs(of_entries))))


@pytest.fixture(scope="module")
def events() -> Events:
    return Events(FeatureSettings())


@pytest.fixture(scope="module")
def groups(events: Events) -> list[NDArray[np.int64]]:
    """The events of each row group of the training split, in order."""
    plan = plan_mixing(events.parts, FeatureSettings(rows_per_group=300, feed_workers=4), ["a", "b", "c"])
    return [each.events for each in plan.groups if each.split == 0]


def test_every_row_group_has_its_share_of_each_class_and_file(events: Events, groups: list[NDArray[np.int64]]) -> None:
    assert len(groups) >= 8
    for kind in (events.label.astype(int), events.file):
        assert p_of_shares([kind[group] for group in groups]) > SURE
    # Cut from the events in the order of the files, the shares are wrong.
    unmixed = np.array_split(np.sort(np.concatenate(groups)), len(groups))
    assert p_of_shares([events.file[group] for group in unmixed]) < SURE


def test_neighbours_in_a_row_group_have_nothing_in_common(events: Events, groups: list[NDArray[np.int64]]) -> None:
    def p_value(rows: NDArray[np.int64]) -> float:
        return p_of_neighbours(events.file[rows], events.entry[rows])

    rows = np.concatenate(groups)
    assert p_value(rows) > SURE
    assert p_value(np.sort(rows)) < SURE
    # The right events in each row group, but ordered by entry, or by file.
    for order in (events.entry, events.file):
        assert p_value(np.concatenate([group[np.argsort(order[group], kind="stable")] for group in groups])) < SURE
