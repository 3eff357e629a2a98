"""The causes of an exception, one behind the other."""

from __future__ import annotations

import errno

from hep_core.allocation import lack_of_memory
from hep_core.causes import error_and_causes
from pipeline.errors import full_disk_error


def test_causes_in_a_circle_come_once() -> None:
    error, cause, context = ValueError("no number"), OSError("no disk"), KeyError("no key")
    error.__cause__ = cause
    cause.__context__ = context
    context.__cause__ = error

    assert list(error_and_causes(error)) == [error, cause, context]
    assert list(error_and_causes(None)) == []


def test_an_error_that_is_its_own_cause_is_searched_to_its_end() -> None:
    error = ValueError("no number")
    error.__cause__ = error
    full_disk = OSError(errno.ENOSPC, "No space left on device")
    full_disk.__cause__ = error

    assert full_disk_error(error) is None
    assert full_disk_error(full_disk) is full_disk
    assert lack_of_memory(error) == ""
