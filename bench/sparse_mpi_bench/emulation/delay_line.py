"""A link that delays what leaves a host, as a process that holds each packet: for kernels without netem.

``python -m sparse_mpi_bench.emulation.delay_line HOST_END SWITCH_END SECONDS`` makes both ends, TAP devices that may
then go to other namespaces, says ``ready``, and carries packets between them until it is killed, with which they go.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import sys
from collections import deque
from time import perf_counter

SET_INTERFACE, SET_OFFLOAD = 0x400454CA, 0x400454D0  # requests of /dev/net/tun
TAP, NO_INFORMATION, OFFLOAD_HEADER = 0x0002, 0x1000, 0x4000
CHECKSUMS, SEGMENTS = 1, 2  # left to the other end: TCP hands over up to 64 KiB at once
LARGEST = 1 << 17  # bytes of a packet and its headers, at most


def end(name: str) -> int:
    """Return the file of a new TAP device. Raises OSError: the system refuses."""
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, SET_INTERFACE, struct.pack("16sH22x", name.encode(), TAP | NO_INFORMATION | OFFLOAD_HEADER))
    fcntl.ioctl(file, SET_OFFLOAD, CHECKSUMS | SEGMENTS)
    return file


def carry(host: int, switch: int, seconds: float) -> None:
    """Carry packets: those of the host ``seconds`` after they came, those of the switch at once. Does not return."""
    waiting: deque[tuple[float, bytes]] = deque()  # when each is due
    while True:
        left = max(0.0, waiting[0][0] - perf_counter()) if waiting else None
        ready, _, _ = select.select([host, switch], [], [], left)
        if switch in ready:
            _put(host, _get(switch))
        if host in ready:
            waiting.append((perf_counter() + seconds, _get(host)))
        while waiting and waiting[0][0] <= perf_counter():
            _put(switch, waiting.popleft()[1])


def _get(file: int) -> bytes:
    try:
        return os.read(file, LARGEST)
    except OSError:  # the device is down
        return b""


def _put(file: int, packet: bytes) -> None:
    try:
        os.write(file, packet)
    except OSError:  # as a cable that is not plugged in
        pass


if __name__ == "__main__":
    ends = end(sys.argv[1]), end(sys.argv[2])
    print("ready", flush=True)
    carry(*ends, float(sys.argv[3]))
