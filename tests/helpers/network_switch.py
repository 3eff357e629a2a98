"""A network switch in user space, which forwards the frames of TAP devices.

`network_switch.py DELAY RATE TAP ...` starts it.

A frame leaves its port when the frames before it have left at the rate [bits/s; 0: at once], and
arrives after the delay [s]. The program prints a line when the devices exist, and ends with its
standard input.
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
    switch = Switch(ports, delay, rate)
    while True:
        ready, _, _ = select.select([0, *ports], [], [], switch.seconds_to_next_frame())
        if 0 in ready:
            return
        for port in ready:
            switch.receive(port)
        switch.forward_due_frames()


class Switch:
    """Forwards frames of 14 bytes of header: destination and source addresses come first."""

    def __init__(self, ports: list[int], delay: float, rate: float) -> None:
        self._ports = ports
        self._delay = delay
        self._rate = rate
        self._port_of_address: dict[bytes, int] = {}
        self._sending_until = dict.fromkeys(ports, 0.0)
        self._travelling: list[tuple[float, int, bytes, int]] = []
        self._num_frames = 0

    def seconds_to_next_frame(self) -> float | None:
        """Time to the arrival of the next frame; None without any."""
        if not self._travelling:
            return None
        arrival, *_ = self._travelling[0]
        return max(0.0, arrival - time.perf_counter())

    def receive(self, port: int) -> None:
        """Read a frame; it travels after the frames before it have left."""
        now = time.perf_counter()
        frame = os.read(port, _FRAME_BYTES)
        self._port_of_address[frame[6:12]] = port
        duration = 8 * len(frame) / self._rate if self._rate else 0.0
        sent = max(self._sending_until[port], now) + duration
        self._sending_until[port] = sent
        # Frames that arrive at once keep their order.
        self._num_frames += 1
        heapq.heappush(self._travelling, (sent + self._delay, self._num_frames, frame, port))

    def forward_due_frames(self) -> None:
        """Write the frames whose time has come."""
        now = time.perf_counter()
        while self._travelling and self._travelling[0][0] <= now:
            _, _, frame, origin = heapq.heappop(self._travelling)
            for port in self._destinations(frame, origin):
                try:
                    os.write(port, frame)
                except OSError:
                    # The device is not up yet.
                    continue

    def _destinations(self, frame: bytes, origin: int) -> list[int]:
        """The port of a frame's destination, or all other ports while it is unknown."""
        address = frame[:6]
        if address in self._port_of_address:
            return [self._port_of_address[address]]
        return [port for port in self._ports if port != origin]


def _tap(name: str) -> int:
    port = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(port, _TUNSETIFF, struct.pack("16sH", name.encode(), _TAP_WITHOUT_HEADER))
    return port


if __name__ == "__main__":
    main()
