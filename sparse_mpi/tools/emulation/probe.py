"""What a link really gives: a plain TCP transfer and the round trip of one byte, between programs on two hosts.

``python -m sparse_mpi.tools.emulation.probe serve ADDRESS`` on the one says ``ready``, then ``ask ADDRESS SECONDS`` on
the other prints bits a second and seconds a round trip. Programs of their own, because a process is on one host.
"""

from __future__ import annotations

import socket
import statistics
import subprocess
import sys
import time
from typing import NamedTuple

from sparse_mpi.checks import present
from sparse_mpi.tools.emulation.hosts import Hosts

PORT = 5201  # any: the hosts are ours
BLOCK = bytes(1 << 16)
TRIPS, FIRST = 200, 20  # round trips, and how many of them do not count
LIMIT = 60.0  # seconds in which a probe must end


class Link(NamedTuple):
    """What was measured."""

    rate: float  # payload, bits a second
    trip: float  # median seconds of a round trip


def probe(hosts: Hosts, seconds: float = 0.5) -> Link:
    """Measure from host 1 to host 2 for about so many seconds.

    Raises RuntimeError: no connection, or none that ends in a minute.
    """
    program = [sys.executable, "-m", "sparse_mpi.tools.emulation.probe"]
    asking = hosts.inside(1, *program, "ask", hosts.address(2), str(seconds))
    serving = hosts.inside(2, *program, "serve", hosts.address(2))
    with subprocess.Popen(serving, stdout=subprocess.PIPE) as server:
        try:
            present(server.stdout, "it has a pipe").readline()  # it is ready
            done = subprocess.run(asking, capture_output=True, text=True, timeout=LIMIT)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{seconds} s of transfer from host 1 to host 2 took more than {LIMIT:.0f} s") from None
        finally:
            server.kill()
    if done.returncode:
        raise RuntimeError(f"host 1 does not reach host 2: {done.stderr.strip()}")
    return Link(*map(float, done.stdout.split()))


def serve(address: str) -> None:
    """Answer one client: bytes one by one, then all that comes with the one byte that says it is there."""
    with socket.create_server((address, PORT)) as listener:
        print("ready", flush=True)
        connection, _ = listener.accept()
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(TRIPS):
            connection.sendall(connection.recv(1))
        into = bytearray(1 << 20)
        while connection.recv_into(into):
            pass
        connection.sendall(b".")


def ask(address: str, seconds: float) -> Link:
    """Measure as the client of `serve`; the time of a transfer ends with the answer to its last byte."""
    with socket.create_connection((address, PORT), timeout=LIMIT) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 18)  # slow links drain it in time
        trips = []
        for _ in range(TRIPS):
            start = time.perf_counter()
            connection.sendall(b".")
            connection.recv(1)
            trips.append(time.perf_counter() - start)
        sent, start = 0, time.perf_counter()
        while time.perf_counter() < start + seconds:
            connection.sendall(BLOCK)
            sent += len(BLOCK)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
        return Link(8 * sent / (time.perf_counter() - start), statistics.median(trips[FIRST:]))


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        print(*ask(sys.argv[2], float(sys.argv[3])))
