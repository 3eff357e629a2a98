"""The jagged kernels against plain loops."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ingestion.thresholds import Jagged, any_per_event, drop_padding, is_padding, offsets_after_mask

flags_by_event = st.lists(st.lists(st.booleans(), max_size=6), min_size=1, max_size=12)


def offsets_and_flags(events: list[list[bool]]) -> tuple[np.ndarray, np.ndarray]:
    offsets = np.cumsum([0, *map(len, events)])
    return offsets, np.array([flag for event in events for flag in event], dtype=bool)


@given(flags_by_event)
def test_kept_offsets_count_the_kept_candidates_of_each_event(events: list[list[bool]]) -> None:
    offsets, flags = offsets_and_flags(events)
    assert np.diff(offsets_after_mask(offsets, flags)).tolist() == [sum(event) for event in events]


@given(flags_by_event)
def test_any_per_event_is_any_of_each_event(events: list[list[bool]]) -> None:
    assert any_per_event(*offsets_and_flags(events)).tolist() == [any(event) for event in events]


def test_padding_is_a_negative_pt_or_one_number_in_eta_and_phi() -> None:
    padded = [
        (0, 0, 0),
        (-999, -999, -999),
        (999, 999, 999),
        (-1, 5, 0),
        (0, -9, -9),
        (30, 999, 999),
    ]
    good = [(30, 1, 2), (0, 1, 0), (30, 1, 1), (30, 4, 4), (np.nan,) * 3, (-np.inf, 1, 2)]
    pt, eta, phi = np.array([*padded, *good], np.float32).T
    jets = Jagged(np.array([0, len(pt)]), {"pt": pt, "eta": eta, "phi": phi})
    assert is_padding(jets).tolist() == [True] * len(padded) + [False] * len(good)
    assert drop_padding(jets).fields["pt"].tolist() == [30.0, 30.0, 30.0]
