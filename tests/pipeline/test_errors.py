"""Errors of full disks."""

from __future__ import annotations

import errno

from pipeline.errors import full_disk_error


def test_a_full_disk_is_known_behind_the_error_of_a_library() -> None:
    """As matplotlib's PDF writer fails when it closes a file that it could not write."""
    full_disk = OSError(errno.ENOSPC, "No space left on device")
    error_of_library = AttributeError("'Stream' object has no attribute 'pos'")
    error_of_library.__context__ = full_disk

    assert full_disk_error(error_of_library) is full_disk
    assert full_disk_error(OSError(errno.ENOENT, "No such file")) is None
