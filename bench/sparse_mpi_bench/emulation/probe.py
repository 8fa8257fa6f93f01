"""Measure links: a TCP transfer and the round trip of a byte between two hosts, and all hosts at once.

Programs of their own, because a process is on one host. ``serve ADDRESS`` prints ``ready``. Then
``ask ADDRESS SECONDS`` prints bits a second and seconds a round trip. ``exchange OWN NEXT SECONDS`` runs on all hosts,
prints `SAYS`, waits for a line after each, and prints received bits a second.
"""

from __future__ import annotations

import math
import os
import socket
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from subprocess import PIPE
from threading import Thread, Timer
from typing import Any, NamedTuple

from sparse_mpi.checks import present
from sparse_mpi.predict import rates
from sparse_mpi_bench.emulation.hosts import Hosts

PORT = 5201  # any: the hosts are ours
BLOCK = bytes(1 << 16)
BUFFER = 1 << 18  # bytes that wait to be sent: few, which slow links drain in time
TRIPS, FIRST = 200, 20  # round trips, of which the first do not count
LIMIT = 60.0  # seconds in which a probe must end
SLOW = 0.9  # fraction of the nominal rate; headers take 5 % of packets of 1,500 bytes
PROGRAM = [sys.executable, "-m", "sparse_mpi_bench.emulation.probe"]
SAYS = ("ready", "connected")  # lines of a host in an exchange, each before it goes on


class Link(NamedTuple):
    """The measured rates; payload in bits a second."""

    rate: float  # rate of one link, while the others are idle
    trip: float  # median seconds of a round trip
    each: tuple[float, ...] = ()  # received by each host, while all send to the next at once
    busy: float = 0.0  # share of this machine's processor time used meanwhile, by all processes
    load: float = 0.0  # processes that waited for a core in the minute before

    @property
    def together(self) -> float:
        return statistics.fmean(self.each) if self.each else self.rate


def measured(link: Link, rate: int | None) -> dict[str, Any]:
    """Return a link's part of a record: Gbit/s alone and together, and why, if one is `below` its rate."""
    rates = {"gbit": link.rate / 1e9, "together": link.together / 1e9, "each": [bits / 1e9 for bits in link.each]}
    found = {**rates, "trip": link.trip, "busy": link.busy, "load": link.load}
    return {**found, "remark": _remark(link, rate)}


def reached(job: Mapping[str, Any]) -> float:
    """Return the share of its nominal rate that a link of a recorded job gave, alone or together; 1 without a limit."""
    nominal = rates.parse(job.get("rate") or "none")
    gave = job.get("measured") or job.get("options", {})  # older records have no "measured"
    least = min(gave.get(name) or math.inf for name in ("gbit", "together"))
    return 1.0 if nominal is None else min(1e9 * least / nominal, 1.0)


def below(job: Mapping[str, Any]) -> bool:
    """Whether a link of a recorded job measured below its rate."""
    return reached(job) < SLOW


def shortfalls(jobs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines that explain the mark ``*`` of jobs whose links measured `below` their rate; none without."""
    slow = [job for job in jobs if below(job)]
    why = [job.get("measured", {}).get("remark") or f"{reached(job):.0%}" for job in slow]
    lines = [f"  P={job['ranks']} {job['rate']}: {each}" for job, each in zip(slow, why, strict=True)]
    return [f"* the link measured below {SLOW:.0%} of its rate, alone or while all hosts sent", *lines] if slow else []


def _remark(link: Link, rate: int | None) -> str | None:
    if rate is None or min(link.rate, link.together) >= SLOW * rate:
        return None
    hosts = len(link.each)
    if link.together < SLOW * rate:
        moved, wanted = hosts * link.together / 1e9, hosts * rate / 1e9
        return f"cores decide, not links: {hosts} hosts together moved {moved:.3g} of {wanted:.3g} Gbit/s"
    return f"one link alone gave {link.rate / rate:.0%} of its rate: this machine was busy"


def probe(hosts: Hosts, seconds: float = 0.5) -> Link:
    """Measure from host 1 to 2, then from each to the next at once. Raises RuntimeError: no connection in a minute."""
    load = os.getloadavg()[0]
    pair = _pair(hosts, seconds)
    each, busy = _exchange(hosts, seconds)
    return pair._replace(each=each, busy=busy, load=load)


def _pair(hosts: Hosts, seconds: float) -> Link:
    asking = hosts.inside(1, *PROGRAM, "ask", hosts.address(2), str(seconds))
    serving = hosts.inside(2, *PROGRAM, "serve", hosts.address(2))
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
    rate, trip = map(float, done.stdout.split())
    return Link(rate, trip)


def _exchange(hosts: Hosts, seconds: float) -> tuple[tuple[float, ...], float]:
    with ExitStack() as stack:
        peers = []
        for number in range(1, hosts.count + 1):
            ends = (hosts.address(number), hosts.address(number % hosts.count + 1))
            line = hosts.inside(number, *PROGRAM, "exchange", *ends, str(seconds))
            peers.append(stack.enter_context(subprocess.Popen(line, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True)))
            stack.callback(peers[-1].kill)
        patience = Timer(LIMIT, lambda: deque(map(subprocess.Popen.kill, peers), 0))
        stack.callback(patience.cancel)
        patience.start()
        for says in SAYS:
            for number, peer in enumerate(peers, 1):
                _hear(number, peer, says)
            before = _ticks()
            for peer in peers:
                print("go", file=peer.stdin, flush=True)
        each = tuple(float(_hear(number, peer)) for number, peer in enumerate(peers, 1))
        idle, all_ = (after - then for after, then in zip(_ticks(), before, strict=True))
    return each, 1 - idle / max(all_, 1)


def _hear(number: int, peer: subprocess.Popen[str], expected: str = "") -> str:
    """Return the next line of a host's program. Raises RuntimeError: it ends instead."""
    said = present(peer.stdout, "it has a pipe").readline().strip()
    if not said or (expected and said != expected):
        peer.kill()
        why = present(peer.stderr, "it has a pipe").read().strip() or f"nothing for {LIMIT:.0f} s"
        raise RuntimeError(f"host {number} does not send while all do: {why}")
    return said


def _ticks() -> tuple[int, int]:
    spent = [int(word) for word in Path("/proc/stat").read_text().split(maxsplit=9)[1:9]]
    return spent[3] + spent[4], sum(spent)


def serve(address: str) -> None:
    """Answer one client: bytes one by one, then all the rest with one byte that confirms its arrival."""
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
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
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


def exchange(own: str, other: str, seconds: float) -> float:
    """Return bits a second that come to ``own``, which sends to ``other``; goes on at lines of stdin, as `SAYS`."""
    rates: list[float] = []
    with socket.create_server((own, PORT)) as listener:
        print(SAYS[0], flush=True)
        sys.stdin.readline()
        sending = socket.create_connection((other, PORT), timeout=LIMIT)
        receiving, _ = listener.accept()

    def receive() -> None:
        into, received = bytearray(1 << 20), 0
        receiving.recv_into(into)  # time counts from here: not before the other host sends
        start = time.perf_counter()
        while count := receiving.recv_into(into):
            received += count
        rates.append(8 * received / (time.perf_counter() - start))

    with sending, receiving:
        sending.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        print(SAYS[1], flush=True)
        sys.stdin.readline()
        receiver = Thread(target=receive)
        receiver.start()
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            sending.sendall(BLOCK)
        sending.shutdown(socket.SHUT_WR)
        receiver.join()
    return rates[0]


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    elif sys.argv[1] == "ask":
        print(*ask(sys.argv[2], float(sys.argv[3]))[:2])
    else:
        print(exchange(sys.argv[2], sys.argv[3], float(sys.argv[4])))
