"""The driver's accounts: which samples the agents may use, what they did, and the records of an epoch.

An epoch is a number of samples of all agents. Each agent may use a limited number of samples and gets more before it
has used them, so that fast agents use more than slow ones, and all together exactly as many as the run has. The samples
that a lost agent used since its last answer are lost too, and others use as many again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from training.loop.account import record_of
from training.transports.basics import Vector, is_finite
from training.workloads.sums import Sums

Totals = Counter[str]
"""Sums by name; those of seconds begin with `seconds `, those of the method with `counted `."""

#: Number of cycles for which the samples of an agent suffice.
_CYCLES_AHEAD: Final = 3


def totals_of(account: dict[str, Any]) -> Totals:
    """An agent's account as sums.

    Examples:
        >>> account = {"steps": 2, "sums": {"loss": 0.5}, "seconds": {"wait": 3.0}, "bytes": 8, "counters": {"none": 0}}
        >>> sorted(totals_of(account).items())
        [('bytes', 8), ('counted none', 0), ('loss', 0.5), ('seconds wait', 3.0), ('steps', 2)]
    """
    return Counter(
        {
            "steps": account["steps"],
            "bytes": account["bytes"],
            **account["sums"],
            **{f"seconds {kind}": seconds for kind, seconds in account["seconds"].items()},
            **{f"counted {name}": count for name, count in account["counters"].items()},
        }
    )


def _record(totals: Totals) -> dict[str, Any]:
    def within(group: str) -> dict[str, Any]:
        return {name.removeprefix(group): value for name, value in totals.items() if name.startswith(group)}

    sums = Sums(*(totals[name] for name in Sums._fields))
    return record_of(totals["steps"], sums, within("seconds "), nbytes=totals["bytes"], counted=within("counted "))


@dataclass
class _Lease:
    """What a live agent may use and has reported."""

    limit: int = 0
    used: int = 0
    recent: int = 0
    """Number of samples in its last cycle."""
    totals: Totals = field(default_factory=Counter)
    square: float = 0.0
    buffers: Vector | None = None


class Ledger:
    """The accounts of a run.

    Args:
        rows: Number of events of the training split.
        epochs: Number of epochs.
        batch_size: Highest number of rows of a step.
        partitions: Number of partitions.

    Examples:
        >>> ledger = Ledger(rows=100, epochs=1, batch_size=8, partitions=2)
        >>> ledger.begin(0), ledger.begin(1), ledger.grant()
        (None, None, None)
        >>> ledger.limit(0), ledger.limit(1)
        (8, 8)
    """

    def __init__(self, *, rows: int, epochs: int, batch_size: int, partitions: int) -> None:
        self.rows, self.epochs, self._batch_size = rows, epochs, batch_size
        self.epoch = 0
        self._leases: dict[int, _Lease] = {}
        self._gone: list[Totals] = [Counter() for _ in range(partitions)]
        self._at_begin: list[Totals] = [Counter() for _ in range(partitions)]

    @property
    def used(self) -> int:
        """Number of samples that all agents have reported."""
        return sum(self.totals(index)["samples"] for index in range(len(self._gone)))

    @property
    def is_done(self) -> bool:
        """Whether all samples of the run are used."""
        return self.used >= self.rows * self.epochs

    @property
    def epoch_is_over(self) -> bool:
        """Whether the samples of the current epoch are used."""
        return self.epoch < self.epochs and self.used >= (self.epoch + 1) * self.rows

    def totals(self, index: int) -> Totals:
        """What the agents of a partition have done."""
        return _sum(self._gone[index], self._leases[index].totals if index in self._leases else Counter())

    @property
    def epoch_totals(self) -> Totals:
        """What all agents have done in the current epoch."""
        now = _sum(*(self.totals(index) for index in range(len(self._gone))))
        return _difference(now, _sum(*self._at_begin))

    def begin(self, index: int) -> None:
        """An agent of a partition is ready."""
        self._leases[index] = _Lease()

    def end(self, index: int) -> None:
        """The agent of a partition is gone."""
        self._gone[index] = self.totals(index)
        self._leases.pop(index, None)

    def report(self, index: int, account: dict[str, Any]) -> None:
        """Take over an agent's answer."""
        lease = self._leases[index]
        lease.recent, lease.used = account["used"] - lease.used, account["used"]
        lease.totals, lease.square, lease.buffers = totals_of(account), account["square"], account["buffers"]

    def grant(self) -> None:
        """Raise the limits of the agents.

        All agents together get at most half of the next epoch. So one epoch ends at a time, and each has samples.
        """
        free = self._free
        wanted = {
            index: max(0, max(self._batch_size, _CYCLES_AHEAD * lease.recent) - (lease.limit - lease.used))
            for index, lease in self._leases.items()
        }
        # Whoever asks for little gets it, and the others share the rest.
        for place, (index, number) in enumerate(sorted(wanted.items(), key=lambda each: each[1])):
            given = min(number, -(-free // (len(wanted) - place)))
            self._leases[index].limit += given
            free -= given

    def limit(self, index: int) -> int:
        """The limit of the agent of a partition, counted from its start."""
        return self._leases[index].limit

    @property
    def to_the_limit(self) -> bool:
        """Whether agents use the last samples up to their limits: there are no more at present."""
        return not self._free

    @property
    def _free(self) -> int:
        """Number of samples that no agent may use yet."""
        end = min((self.epoch + 1) * self.rows + self.rows // 2, self.rows * self.epochs)
        leased = sum(lease.limit - lease.used for lease in self._leases.values())
        return end - self.used - leased

    @property
    def mean_square(self) -> float:
        """Mean of |x - x~*|^2 over the agents."""
        return sum(lease.square for lease in self._leases.values()) / max(1, len(self._leases))

    def mean_buffers(self) -> Vector | None:
        """Mean of the agents' buffers that are finite; None without any."""
        found = [lease.buffers for lease in self._leases.values() if lease.buffers is not None]
        finite = [each for each in found if is_finite(each)]
        return np.mean(finite, axis=0) if finite else None

    def records(self) -> list[dict[str, Any]]:
        """End the epoch; returns the record of each partition."""
        now = [self.totals(index) for index in range(len(self._gone))]
        found = [_record(_difference(after, before)) for after, before in zip(now, self._at_begin, strict=True)]
        self._at_begin, self.epoch = now, self.epoch + 1
        return found

    def state(self) -> dict[str, Any]:
        """The accounts as plain values."""
        now = [dict(self.totals(index)) for index in range(len(self._gone))]
        return {"epoch": self.epoch, "totals": now, "at_begin": [dict(each) for each in self._at_begin]}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue, before any agent begins; the totals of partitions that are gone go to the first."""
        self.epoch = state["epoch"]
        self._gone = _folded(state["totals"], len(self._gone))
        self._at_begin = _folded(state["at_begin"], len(self._gone))


def _folded(found: Sequence[dict[str, Any]], count: int) -> list[Totals]:
    """Totals of a number of partitions, from those of another number."""
    return [
        _sum(*map(Counter, found[index : index + 1]), *map(Counter, found[count:] if not index else ()))
        for index in range(count)
    ]


def _sum(*several: Totals) -> Totals:
    total: Totals = Counter()
    for each in several:
        total.update(each)
    return total


def _difference(after: Totals, before: Totals) -> Totals:
    found = Counter(after)
    found.subtract(before)
    return found
