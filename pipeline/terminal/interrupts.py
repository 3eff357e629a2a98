"""Whether the user has asked to stop.

The exception of an interrupt can get lost: Python drops those that fall into destructors, and some imports catch all.
So the request is kept here, and checked before anything is published.
"""

from __future__ import annotations

import threading
from typing import Final

requested: Final = threading.Event()


def stop_if_requested() -> None:
    """Raise the interrupt again if it was lost.

    Raises:
        KeyboardInterrupt: The user has asked to stop.
    """
    if requested.is_set():
        raise KeyboardInterrupt
