"""A network switch in user space: `network_switch.py DELAY RATE TAP ...` forwards the frames of TAP devices.

A frame leaves its port when the frames before it have left at the rate [bits/s; 0: at once], and arrives after the
delay [s]. The program prints a line when the devices exist, and ends with its standard input.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import select
import struct
import sys
import time

_TUNSETIFF = 0x400454CA
_TAP_WITHOUT_HEADER = 0x0002 | 0x1000
_FRAME_BYTES = 1 << 16
_SET_TIMER_SLACK = 29


def main() -> None:
    delay, rate = float(sys.argv[1]), float(sys.argv[2])
    # Timers of Linux may be 50 microseconds late unless a process asks for better ones.
    ctypes.CDLL(None).prctl(_SET_TIMER_SLACK, 1, 0, 0, 0)
    ports = [_tap(name) for name in sys.argv[3:]]
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    where: dict[bytes, int] = {}
    free_at = dict.fromkeys(ports, 0.0)
    flying: list[tuple[float, int, bytes, int]] = []
    index = 0
    while True:
        wait = max(0.0, flying[0][0] - time.perf_counter()) if flying else None
        ready, _, _ = select.select([0, *ports], [], [], wait)
        if 0 in ready:
            return
        now = time.perf_counter()
        for port in ready:
            frame = os.read(port, _FRAME_BYTES)
            where[frame[6:12]] = port
            free_at[port] = max(free_at[port], now) + (8 * len(frame) / rate if rate else 0.0)
            index += 1
            heapq.heappush(flying, (free_at[port] + delay, index, frame, port))
        now = time.perf_counter()
        while flying and flying[0][0] <= now:
            _, _, frame, origin = heapq.heappop(flying)
            to = where.get(frame[:6])
            for port in [to] if to is not None else [each for each in ports if each != origin]:
                try:
                    os.write(port, frame)
                except OSError:
                    # The device is not up yet.
                    continue


def _tap(name: str) -> int:
    port = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(port, _TUNSETIFF, struct.pack("16sH", name.encode(), _TAP_WITHOUT_HEADER))
    return port


if __name__ == "__main__":
    main()
