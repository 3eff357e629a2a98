"""A clock that jumps from event to event, and coroutines on this clock."""

from __future__ import annotations

import gc
import types
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from typing import Any

from typing_extensions import override

from training.errors import StalledError
from training.transports.basics import Background

Register = Callable[["VirtualTask"], None]
"""Arranges that a suspended task is resumed later."""


@types.coroutine
def suspend(until: float | Register) -> Generator[float | Register, None, None]:
    """Suspend the running task until a time, or until the event that `until` registers it for."""
    yield until


class VirtualTask:
    """A coroutine on the virtual clock."""

    __slots__ = ("_clock", "_work", "has_ended", "name")

    def __init__(self, work: Coroutine[Any, Any, None], name: str, clock: VirtualClock) -> None:
        self._work = work
        self._clock = clock
        self.name = name
        self.has_ended = False

    def resume(self) -> None:
        """Run the task until it is suspended again or ends."""
        try:
            until = self._work.send(None)
        except StopIteration:
            self.has_ended = True
        except BaseException as error:
            error.add_note(f"in the simulated {self.name}")
            raise
        else:
            if isinstance(until, float):
                self._clock.at(until, self.resume)
            else:
                until(self)


class VirtualClock:
    """Runs tasks in the order of their events.

    Simultaneous events run in the order in which they were scheduled.

    Examples:
        >>> clock, wake_times = VirtualClock(), []
        >>> async def sleep(seconds: float) -> None:
        ...     await clock.sleep(seconds)
        ...     wake_times.append(clock.now)
        >>> for seconds in (2.0, 1.0):
        ...     _ = clock.spawn(sleep(seconds), "sleeper")
        >>> clock.run()
        >>> wake_times
        [1.0, 2.0]
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._tasks: list[VirtualTask] = []

    def at(self, time: float, callback: Callable[[], None]) -> None:
        """Call a function at a time."""
        self._order += 1
        heappush(self._events, (time, self._order, callback))

    def spawn(
        self, work: Coroutine[Any, Any, None], name: str, *, must_end: bool = True
    ) -> VirtualTask:
        """Start a coroutine now; `must_end`: whether `run` checks that it ends."""
        task = VirtualTask(work, name, self)
        if must_end:
            self._tasks.append(task)
        self.at(self.now, task.resume)
        return task

    def sleep(self, seconds: float) -> Awaitable[None]:
        """Suspend the running task for some virtual time."""
        return suspend(self.now + seconds)

    def run(self) -> None:
        """Run until nothing more can happen.

        Raises:
            StalledError: A task waits for an event that nothing will cause.
        """
        events = self._events
        while events:
            self.now, _, callback = heappop(events)
            callback()
        stalled = [task.name for task in self._tasks if not task.has_ended]
        if stalled:
            raise StalledError(
                f"the simulation stands still at {self.now:g} s; these never ended: {stalled[:8]}"
            )


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Switch the garbage collector off.

    Its search among thousands of coroutines takes a seventh of the time.

    Examples:
        >>> with without_garbage_collection():
        ...     gc.isenabled()
        False
        >>> gc.isenabled()
        True
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class VirtualLock:
    """A lock on the virtual clock; waiting tasks get it in the order of their requests."""

    __slots__ = ("_clock", "_waiting", "is_held")

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.is_held = False
        """Whether a task has the lock."""
        self._waiting: deque[VirtualTask] = deque()

    async def acquire(self) -> None:
        """Wait for the lock."""
        if self.is_held:
            await suspend(self._waiting.append)
        else:
            self.is_held = True

    def release(self) -> None:
        """Pass the lock to the next task at once."""
        if self._waiting:
            self._clock.at(self._clock.now, self._waiting.popleft().resume)
        else:
            self.is_held = False


class VirtualBackground(Background):
    """Work beside a worker's computation, one piece at a time.

    A caller begins a piece only when the one before has ended.
    """

    is_under_way = False

    def __init__(self, clock: VirtualClock, name: str) -> None:
        self._clock = clock
        self._name = name
        self._waiting: VirtualTask | None = None

    @override
    def begin(self, work: Coroutine[Any, Any, object]) -> None:
        self.is_under_way = True
        self._clock.spawn(self._run(work), self._name, must_end=False)

    @override
    async def drain(self) -> float:
        started = self._clock.now
        if self.is_under_way:

            def wait(task: VirtualTask) -> None:
                self._waiting = task

            await suspend(wait)
        blocked = self._clock.now - started
        self.blocked_seconds += blocked
        return blocked

    async def _run(self, work: Coroutine[Any, Any, object]) -> None:
        started = self._clock.now
        await work
        self.seconds += self._clock.now - started
        self.is_under_way = False
        if self._waiting is not None:
            self._clock.at(self._clock.now, self._waiting.resume)
            self._waiting = None
