"""Output streams that never fail: what a terminal shows is no part of the work.

A log on a full disk, or a terminal that was closed, must not end a stage. Commands whose result is
their output ask afterwards whether it arrived.
"""

from __future__ import annotations

import io
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class LossyOutput(io.RawIOBase):
    """Passes bytes on to the file of a stream, and drops those that it does not take."""

    def __init__(self, stream: io.TextIOWrapper) -> None:
        self._stream = stream
        # The buffer of the stream would keep what it cannot write, and fail again later.
        self._file: Any = getattr(stream.buffer, "raw", stream.buffer)
        self.num_lost_writes = 0
        """How often bytes were dropped."""
        self.error: OSError | None = None
        """The error of the last write that failed."""

    def write(self, data: ReadableBuffer, /) -> int:
        """Write bytes; returns how many need not be written again."""
        try:
            num_written: int | None = self._file.write(data)
        except OSError as error:
            self.error = error
        else:
            if num_written is not None:
                return num_written
            self.error = BlockingIOError("the stream does not wait")
        self.num_lost_writes += 1
        return memoryview(data).nbytes

    def writable(self) -> bool:
        """Whether it can be written: yes."""
        return True

    def isatty(self) -> bool:
        """Whether the file is a terminal."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """The descriptor of the file."""
        return self._stream.fileno()


def drop_lost_output() -> None:
    """Let the standard output and error drop what cannot be written, instead of failing.

    A character that the encoding of a stream lacks becomes a backslash escape.
    """
    sys.stdout = _lossy(sys.stdout)
    sys.stderr = _lossy(sys.stderr)


def lossy_output(stream: object) -> LossyOutput | None:
    """Return what passes on the bytes of a stream; None for one that may fail."""
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    return raw if isinstance(raw, LossyOutput) else None


def num_lost_writes() -> int:
    """Return how often bytes of the standard output and error were dropped."""
    outputs = (lossy_output(sys.stdout), lossy_output(sys.stderr))
    return sum(output.num_lost_writes for output in outputs if output is not None)


def _lossy(stream: TextIO) -> TextIO:
    """Wrap a stream of a file; any other stays, such as that of a closed descriptor."""
    if not isinstance(stream, io.TextIOWrapper) or lossy_output(stream):
        return stream
    with suppress(OSError):
        stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(LossyOutput(stream)),
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
