"""Naps of a worker that looks again and again whether something has happened."""

from __future__ import annotations

import os
import time
from typing import Final

#: Pauses that last only as long as another thread needs the core; together they take about a tenth of a millisecond.
_YIELDS: Final = 50
_FIRST_NAP: Final = 1e-5


class Backoff:
    """Pauses between looks: the first ones only give way to who needs the core, later ones are longer and longer naps.

    Even the shortest nap takes 80 microseconds, with a length of 0 too: three times as long as a push of another
    worker that is waited for.

    Args:
        longest: Longest nap [s].
    """

    def __init__(self, *, longest: float) -> None:
        self._longest = longest
        self._yields, self._nap = _YIELDS, _FIRST_NAP

    def pause(self) -> None:
        """Leave the core to others until the next look."""
        if self._yields:
            self._yields -= 1
            os.sched_yield()
            return
        time.sleep(self._nap)
        self._nap = min(2 * self._nap, self._longest)
