"""A thread of a worker that works while the worker computes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class BackgroundThread:
    """Does one job after the other.

    It is a daemon, unlike the threads of `concurrent.futures`: nothing ends its jobs after a failed training.

    Args:
        name: Name of the thread.

    Examples:
        >>> thread = BackgroundThread("sums")
        >>> thread.begin(lambda: 2 + 3).result()
        5
        >>> thread.close()
    """

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def begin(self, job: Callable[[], Any]) -> Future[Any]:
        """Do a job after those before; the result is that of the job, or its error."""
        future: Future[Any] = Future()
        self._jobs.put((future, job))
        return future

    def close(self) -> None:
        """End the thread after its last job."""
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (begun := self._jobs.get()) is not None:
            future, job = begun
            try:
                future.set_result(job())
            except BaseException as error:  # noqa: BLE001 - it is raised where the result is used
                future.set_exception(error)
