"""Reads what TensorBoard would read."""

from __future__ import annotations

import struct
from pathlib import Path

from tensorboardX.proto.event_pb2 import Event


def scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
    """Epochs and values of a tag, from the event file: length, its checksum, the event, its checksum."""
    (path,) = folder.iterdir()
    content, at, found = path.read_bytes(), 0, []
    while at < len(content):
        (length,) = struct.unpack_from("<Q", content, at)
        event = Event.FromString(content[at + 12 : at + 12 + length])
        found += [(event.step, value.simple_value) for value in event.summary.value if value.tag == tag]
        at += 16 + length
    return found
