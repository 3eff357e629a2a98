"""The causes of an exception, one behind the other."""

from __future__ import annotations

from collections.abc import Iterator


def error_and_causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception, its cause, the cause of that, and so on; each exception once.

    The cause is that of `raise ... from`, else the exception that was handled meanwhile. Python
    lets an exception be its own cause (`raise error from error`), or several be causes in a circle.

    Examples:
        >>> error = ValueError("no number")
        >>> error.__cause__ = OSError("no disk")
        >>> [type(cause).__name__ for cause in error_and_causes(error)]
        ['ValueError', 'OSError']
    """
    known_ids = set()
    while error is not None and id(error) not in known_ids:
        known_ids.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
