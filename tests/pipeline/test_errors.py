"""Errors of full disks."""

from __future__ import annotations

import errno

from pipeline.errors import full_disk_error


def test_a_full_disk_is_known_behind_what_a_library_makes_of_it() -> None:
    # matplotlib's PDF writer fails so, when it closes the file that it could not write.
    full = OSError(errno.ENOSPC, "No space left on device")
    actual = None
    try:
        try:
            raise full
        finally:
            raise AttributeError("'Stream' object has no attribute 'pos'")
    except AttributeError as error:
        actual = error
    assert full_disk_error(actual) is full
    assert full_disk_error(OSError(errno.ENOENT, "No such file")) is None
