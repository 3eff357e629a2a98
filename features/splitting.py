"""Deterministic pseudo-random numbers from event identities, for split, downsampling and mixing.

The identity of an event is (file UUID, entry). Its number depends on nothing else: not on other
events or files, their order, or the tasks. So an event keeps its split when files are added.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from features.settings import SplitSettings

UInt64s = NDArray[np.uint64]

#: Each purpose has its own stream, so that for example downsampling is independent of the split.
SPLIT_STREAM: Final = 1
BALANCE_STREAM: Final = 2
MIXING_STREAM: Final = 3

#: 2**64 / golden ratio, the constant of SplitMix64.
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)


def event_hash(file_uuids: Sequence[str], entries: NDArray[np.int64], *, stream: int) -> UInt64s:
    """Hash events to 64 well mixed bits each, (num_events,).

    With `mix`, the finaliser of SplitMix64 (Steele, Lea, Flood 2014), and g = 2^64 / golden ratio,
    all modulo 2^64:

        state = mix(first half of the UUID + stream * g)
        state = mix(state xor second half of the UUID)
        hash = mix(state + entry * g)

    Args:
        file_uuids: (num_events,) as text.
        entries: (num_events,).
        stream: One of the constants above.

    Examples:
        >>> uuids = ["4320b7b3-c85c-463c-b2cf-109a77da02a4"]
        >>> hashes = event_hash(uuids, np.array([7]), stream=SPLIT_STREAM)
        >>> hex(int(hashes[0]))
        '0xc38ea6ceac3abf16'
    """
    # Each UUID is parsed and mixed once; `file_index` is the index of the file of each event.
    uuids = np.asarray(file_uuids, dtype=str)
    unique_uuids, file_index = np.unique(uuids, return_inverse=True)
    first_halves, second_halves = _uuid_halves(unique_uuids.tolist())
    # Sums and products overflow on purpose.
    with np.errstate(over="ignore"):
        stream_shift = np.uint64(stream) * _GOLDEN
        file_state = _mix(first_halves + stream_shift)
        file_state = _mix(file_state ^ second_halves)
        event_shift = entries.astype(np.uint64) * _GOLDEN
        event_state = file_state[file_index] + event_shift
        return _mix(event_state)


def _uuid_halves(uuids: Sequence[str]) -> tuple[UInt64s, UInt64s]:
    """Return the upper and the lower 64 bits of UUIDs, (num_uuids,) each."""
    halves = np.zeros((len(uuids), 2), np.uint64)
    for row, text in enumerate(uuids):
        halves[row] = divmod(uuid.UUID(text).int, 1 << 64)
    return halves[:, 0], halves[:, 1]


def uniform(hashes: UInt64s) -> NDArray[np.float64]:
    """Uniform random numbers in [0, 1), from the upper 53 bits of hashes."""
    upper_bits = hashes >> np.uint64(11)
    return upper_bits.astype(np.float64) * 2.0**-53


def split_index(
    file_uuids: Sequence[str], entries: NDArray[np.int64], shares: SplitSettings
) -> NDArray[np.int64]:
    """(num_events,) split of each event, an index into `features.schema.SPLITS`.

    The interval [0, 1) is cut by the shares; an event is in the piece that holds its random number.
    """
    end_of_train = shares.train
    end_of_val = shares.train + shares.val
    hashes = event_hash(file_uuids, entries, stream=SPLIT_STREAM)
    return np.searchsorted([end_of_train, end_of_val], uniform(hashes), side="right")


def _mix(state: UInt64s) -> UInt64s:
    """The finaliser of SplitMix64, without its addition."""
    state = _fold(state, 30) * np.uint64(0xBF58476D1CE4E5B9)
    state = _fold(state, 27) * np.uint64(0x94D049BB133111EB)
    return _fold(state, 31)


def _fold(state: UInt64s, num_bits: int) -> UInt64s:
    """The bits of a state xor its upper bits, shifted down by `num_bits`."""
    return state ^ (state >> np.uint64(num_bits))
