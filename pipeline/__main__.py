"""`python -m pipeline`."""

from __future__ import annotations

import os
import signal
from types import FrameType


def _end_at_once(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of signal handlers
    """End at an interrupt during the imports, before any work has begun."""
    os.write(2, b"\ninterrupted\n")
    os._exit(130)


if __name__ == "__main__":
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, _end_at_once)
    from pipeline.cli import main

    main()
