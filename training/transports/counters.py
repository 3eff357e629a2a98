"""Counters of all ranks, in the memory of rank 0; no rank waits for its count of samples."""

from __future__ import annotations

import math
from time import perf_counter
from typing import Final

import numpy as np

from training.transports import kernels, messages
from training.transports.basics import MpiProcess
from training.transports.memory import Memory
from training.transports.transport import COUNTERS, CounterName

#: Rank that has the counters, and their record in its memory.
_OWNER: Final = 0
_RECORD: Final = 0
#: Least time between two messages of samples [s]. A message takes a rank some 50 microseconds,
#: though it waits for no answer: with this interval at most half a percent of its time.
_SAMPLES_INTERVAL_SECONDS: Final = 0.01


class SharedCounters:
    """The counters of `Transport.count` on MPI.

    The ranks of the owner's host add in shared memory. For others, the thread of the owner adds. A
    rank waits for the answer to its ticket. It sends its samples from time to time, and takes the
    answer at a later step: so what it knows of the samples of others is a few milliseconds old.
    After each ticket it sends those that are left, so that no sample is left out.

    All ranks together make the counters and `free` them.

    `network`: see `peers.connect`.
    """

    def __init__(self, process: MpiProcess, *, network: str | None) -> None:
        self._memory = Memory(process, [_OWNER], [len(COUNTERS)], np.int64)
        self._memory.open(network=network)
        self._is_in_memory = _RECORD in self._memory.rows
        #: Samples of all ranks by the last answer.
        self._samples_of_all = 0
        #: Samples of this rank in the request under way; None: none is under way.
        self._samples_under_way: int | None = None
        #: Samples of this rank that no request has.
        self._new_samples = 0
        #: Time at which this rank last sent samples [s].
        self._last_sent = -math.inf

    def count(self, counter: CounterName, amount: int) -> int:
        """Add to a counter, and return its value after that; see `Transport.count`."""
        element = COUNTERS.index(counter)
        if self._is_in_memory:
            row, head = self._memory.rows[_RECORD][0], self._memory.heads[_RECORD]
            return int(kernels.fetch_and_add(element, amount, row, head)) + amount
        if counter == "samples":
            return self._count_samples(amount)
        # A connection carries one request at a time.
        self._take_answer(waits=True)
        answer = self._memory.request(
            _RECORD, messages.FETCH_AND_ADD, element=element, amount=amount
        )
        total = int(answer["amount"]) + amount
        self._send_new_samples()
        return total

    def free(self) -> None:
        """Free the memory of the counters, all ranks together."""
        self._memory.free()

    def _count_samples(self, amount: int) -> int:
        """Count samples without waiting; return those of all ranks that this one knows of."""
        self._new_samples += amount
        self._take_answer(waits=False)
        if perf_counter() - self._last_sent > _SAMPLES_INTERVAL_SECONDS:
            self._send_new_samples()
        return self._samples_of_all + (self._samples_under_way or 0) + self._new_samples

    def _take_answer(self, *, waits: bool) -> None:
        """Take the answer to the request of samples, if one is under way and has been answered.

        `waits`: whether to wait for the answer.
        """
        if self._samples_under_way is None:
            return
        answer = self._memory.take_answer(_RECORD, waits=waits)
        if answer is not None:
            self._samples_of_all = int(answer["amount"]) + self._samples_under_way
            self._samples_under_way = None

    def _send_new_samples(self) -> None:
        """Send the new samples, if there are any and no request is under way."""
        if self._new_samples and self._samples_under_way is None:
            self._memory.begin_request(
                _RECORD,
                messages.FETCH_AND_ADD,
                element=COUNTERS.index("samples"),
                amount=self._new_samples,
            )
            self._samples_under_way, self._new_samples = self._new_samples, 0
            self._last_sent = perf_counter()
