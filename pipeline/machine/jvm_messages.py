"""The standard error of Spark's JVM, without what the JVM says of its own options."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

#: Warnings of the JVM itself, such as "WARNING: Using incubator modules"; those of Spark have a
#: time.
_JVM_NOISE: Final = re.compile(rb"WARNING: |NOTE: Picked up |Picked up _?JAVA_")
_STDERR: Final = 2


@contextmanager
def stderr_for_jvm(on_noise: Callable[[str], None]) -> Iterator[int]:
    """Yield a file descriptor for the standard error of a JVM that starts in this block.

    It is the end of a pipe, whose lines a thread forwards to our standard error as long as the JVM
    lives. Lines about the JVM's own options, on which no user can act, go to `on_noise` instead.
    """
    read_end, write_end = os.pipe()
    threading.Thread(target=_forward_lines, args=(read_end, on_noise), daemon=True).start()
    try:
        yield write_end
    finally:
        # The JVM has its own copy of the descriptor, so the pipe stays open for it.
        os.close(write_end)


def _forward_lines(read_end: int, on_noise: Callable[[str], None]) -> None:
    """Copy lines from a pipe to our standard error, or to `on_noise`, until all writers are gone.

    `read_end` is the file descriptor of the pipe, which this closes.
    """
    with open(read_end, "rb") as lines:
        for line in lines:
            if _JVM_NOISE.match(line):
                on_noise(line.decode(errors="replace").strip())
            else:
                # A JVM whose lines nobody reads would wait for ever, so a lost terminal is no
                # reason to end.
                with suppress(OSError):
                    os.write(_STDERR, line)
