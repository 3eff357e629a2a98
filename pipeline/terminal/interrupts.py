"""Whether the user has asked to stop.

The exception of an interrupt can get lost: Python drops exceptions of destructors, and some imports catch all. So this
module keeps the request, and the runner checks it before it publishes anything.
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
