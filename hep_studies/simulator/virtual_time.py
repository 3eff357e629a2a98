"""A clock that jumps from event to event, and coroutines on this clock."""

from __future__ import annotations

import gc
import inspect
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
    """Suspend the running task until a time [s], or until something else resumes it.

    The task gives `until` to `VirtualTask.resume`: a time, or a function that gets the task and
    keeps it for whoever resumes it.
    """
    yield until


class VirtualTask:
    """A coroutine on the virtual clock, such as the training loop of one simulated worker.

    It runs until it awaits `suspend`. `name` says in messages what it is; `has_ended` whether it
    has run to its end.
    """

    __slots__ = ("_clock", "_work", "has_ended", "name")

    def __init__(self, work: Coroutine[Any, Any, None], name: str, clock: VirtualClock) -> None:
        self._work = work
        self._clock = clock
        self.name = name
        self.has_ended = False

    def resume(self) -> None:
        """Run the task until it is suspended again or ends.

        A suspended task has said by `suspend` when it resumes: at a time, or when whoever keeps it
        calls this method. An error of the task is raised with a note of its name.
        """
        try:
            # Runs the coroutine to its next `suspend`, and returns the argument of that.
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

    def close_unless_begun(self) -> None:
        """Close a coroutine that has not begun; Python would warn that nobody awaits it."""
        if inspect.getcoroutinestate(self._work) == inspect.CORO_CREATED:
            self._work.close()


class VirtualClock:
    """Runs tasks in one thread in the order of virtual time, and jumps over the time between.

    An event is a function to call at a time. The clock calls the earliest one, sets `now` to its
    time, and repeats. Simultaneous events run in the order in which they were scheduled.

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
        """The virtual time [s]."""
        # A heap of time, number in the order of scheduling, and function to call.
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        # Tasks that must have ended when nothing more happens.
        self._tasks: list[VirtualTask] = []

    def at(self, time: float, callback: Callable[[], None]) -> None:
        """Schedule a call of a function at a virtual time [s]."""
        self._order += 1
        heappush(self._events, (time, self._order, callback))

    def spawn(
        self, work: Coroutine[Any, Any, None], name: str, *, must_end: bool = True
    ) -> VirtualTask:
        """Start a coroutine at the present virtual time, and return its task.

        `must_end`: whether `run` raises an error if the coroutine has not ended.
        """
        task = VirtualTask(work, name, self)
        if must_end:
            self._tasks.append(task)
        self.at(self.now, task.resume)
        return task

    def sleep(self, seconds: float) -> Awaitable[None]:
        """Return the wait for some virtual time [s], for the running task to await."""
        return suspend(self.now + seconds)

    def run(self) -> None:
        """Run all events, and those that they schedule, until none is left.

        Raises:
            StalledError: A task waits for an event that nothing will cause.
        """
        events = self._events
        try:
            while events:
                self.now, _, callback = heappop(events)
                callback()
        except BaseException:
            for task in self._tasks:
                task.close_unless_begun()
            raise
        stalled = [task.name for task in self._tasks if not task.has_ended]
        if stalled:
            raise StalledError(
                f"the simulation stands still at {self.now:g} s; these never ended: {stalled[:8]}"
            )


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Switch Python's garbage collector off within a `with` block or a decorated function.

    Its search among thousands of coroutines takes a seventh of the time of a simulation.

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
        """Suspend the running task until it has the lock."""
        if self.is_held:
            await suspend(self._waiting.append)
        else:
            self.is_held = True

    def release(self) -> None:
        """Pass the lock to the first waiting task, now; without one, free it."""
        if self._waiting:
            # `is_held` stays true: the lock has no moment in which another task could take it.
            self._clock.at(self._clock.now, self._waiting.popleft().resume)
        else:
            self.is_held = False


class VirtualBackground(Background):
    """Work beside a worker's computation, one piece at a time, such as an average or a push.

    A caller begins a piece only when the one before has ended. `seconds` sums the time of all
    pieces, `blocked_seconds` the time in which the worker waited for them.
    """

    is_under_way = False
    """Whether a piece has begun and not ended."""

    def __init__(self, clock: VirtualClock, name: str) -> None:
        self._clock = clock
        self._name = name
        # The task that waits in `drain` for the end of the piece.
        self._waiting: VirtualTask | None = None

    @override
    def begin(self, work: Coroutine[Any, Any, object]) -> None:
        self.is_under_way = True
        self._clock.spawn(self._run(work), self._name, must_end=False)

    @override
    async def drain(self) -> float:
        """Wait until the piece under way, if any, has ended; return the time of waiting [s]."""
        started = self._clock.now
        if self.is_under_way:

            def wait(task: VirtualTask) -> None:
                self._waiting = task

            await suspend(wait)
        blocked = self._clock.now - started
        self.blocked_seconds += blocked
        return blocked

    async def _run(self, work: Coroutine[Any, Any, object]) -> None:
        """Run a piece of work to its end, add its time, and resume the task that waits for it."""
        started = self._clock.now
        await work
        self.seconds += self._clock.now - started
        self.is_under_way = False
        if self._waiting is not None:
            self._clock.at(self._clock.now, self._waiting.resume)
            self._waiting = None
