"""Hosts on one machine: a network namespace each, joined by rate-limited links to a switch, a namespace too.

    host 1 -- eth0 ====== port1 -- switch, 198.18.0.254 -- port2 ====== eth0 -- host 2
              tbf          tbf                              tbf          tbf

The machine's own network gets no link, address or route, so that nothing can collide with it, and several sets of
hosts live side by side: addresses mean something only inside a set. Names carry the process that made them, by which
the next start finds and removes what a killed one has left behind.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

NAMESPACES = Path("/var/run/netns")
NETWORK = "198.18.0"  # /24: reserved for benchmarks (RFC 2544)
SWITCH = 254  # its number and last byte of its address; host i has i
BRIDGE = "switch"
MOST_HOSTS = 64
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SEGMENT = 64 << 10  # bytes, the most that TCP hands to a link at once on every Linux
LARGEST = 500_000  # bytes, the most that newer ones allow, rounded down
PACKET, JUMBO = 1500, 65520  # bytes: of Ethernet, and of IP over InfiniBand
PATIENCE = 5.0  # seconds in which killed processes must be gone
_serials = itertools.count()


@dataclass(frozen=True)
class Hosts:
    """A set of emulated hosts, numbered from 1; number `SWITCH` is the switch, from which jobs are launched."""

    prefix: str  # prefix of the names of all namespaces
    count: int
    rate: int | None  # bits a second of every link, in each direction, at first; None is no limit
    folder: Path  # folder for temporary files; goes with the hosts
    packet: int = PACKET  # bytes, the largest on any link
    ranks: int = 1  # ranks of a job on each host; several share its memory, and its link

    def name(self, number: int) -> str:
        return f"{self.prefix}-{number}"

    def address(self, number: int) -> str:
        """Return a host's address, the only one, beside the loopback's, that others of the set reach."""
        return f"{NETWORK}.{number}"

    def inside(self, number: int, *command: str) -> list[str]:
        return ["ip", "netns", "exec", self.name(number), *command]


def missing() -> list[str]:
    """Return what this machine lacks for emulated hosts, with the remedy; nothing if it can be tried."""
    if sys.platform != "linux":
        return [f"Linux is needed, for its network namespaces; this is {sys.platform}"]
    lacks = []
    if os.geteuid() != 0:
        lacks.append("only root may create network namespaces; run it as root, in a container with --privileged")
    if absent := [name for name in ("ip", "tc", "unshare") if shutil.which(name) is None]:
        lacks.append(f"{', '.join(absent)} is not on the path; apt install iproute2 util-linux")
    return lacks


@contextmanager
def emulate(count: int, rate: int | None, slowest: int | None = None) -> Iterator[Hosts]:
    """Yield 2 to 64 hosts, with links of ``rate`` bit/s (None: no limit), for a ``with`` block in the main thread.

    ``slowest`` is the least that a link will have. However the block ends, by a signal too, all processes on the hosts
    are killed and the hosts removed. Raises ValueError: ``count`` is wrong; RuntimeError: the system refuses.
    """
    if not 2 <= count <= MOST_HOSTS:
        raise ValueError(f"count must be 2 to {MOST_HOSTS} hosts, got {count}")
    remove_leftovers()
    prefix = f"sparse_mpi-{os.getpid()}-{next(_serials)}"
    before = {number: signal.getsignal(number) for number in STOPPING}
    ours = [number for number, handler in before.items() if handler not in (signal.SIG_IGN, None)]

    def stop(number: int, frame: FrameType | None) -> None:
        _handle(ours, signal.SIG_IGN)  # nothing disturbs the removal
        raise SystemExit(128 + number)

    try:
        _handle(ours, stop)
        folder = Path(tempfile.mkdtemp(prefix=f"{prefix}-"))
        hosts = Hosts(prefix, count, rate, folder, packet(rate if slowest is None else slowest))
        _set_up(hosts)
        yield hosts
    finally:
        _handle(ours, signal.SIG_IGN)
        _remove(prefix)
        for number in ours:
            signal.signal(number, before[number])


def _handle(signals: Iterable[int], handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    for number in signals:
        signal.signal(number, handler)


def _set_up(hosts: Hosts) -> None:
    switch = hosts.name(SWITCH)
    call("ip", "netns", "add", switch)
    call("ip", "-n", switch, "link", "set", "lo", "up")
    call("ip", "-n", switch, "link", "add", BRIDGE, "type", "bridge")
    call("ip", "-n", switch, "addr", "add", f"{hosts.address(SWITCH)}/24", "dev", BRIDGE)
    call("ip", "-n", switch, "link", "set", BRIDGE, "up")
    for number in range(1, hosts.count + 1):
        host, end = hosts.name(number), port(number)
        call("ip", "netns", "add", host)
        call("ip", "-n", host, "link", "set", "lo", "up")
        mtu = ("mtu", str(hosts.packet))
        peer = ("type", "veth", "peer", "name", "eth0", *mtu, "netns", host)
        call("ip", "-n", switch, "link", "add", end, *mtu, *peer)
        call("ip", "-n", switch, "link", "set", end, "master", BRIDGE, "up")
        call("ip", "-n", host, "addr", "add", f"{hosts.address(number)}/24", "dev", "eth0")
        call("ip", "-n", host, "link", "set", "eth0", "up")
        # As on most clusters; this machine's own setting (bbr, say) may behave differently behind a token bucket
        call("ip", "-n", host, "route", "replace", f"{NETWORK}.0/24", "dev", "eth0", "congctl", "cubic")
        if hosts.rate is not None:
            call("ip", "-n", host, "link", "set", "eth0", "gso_max_size", str(min(SEGMENT, segment(hosts.rate))))
            call("tc", "-n", host, *shaping("eth0", hosts.rate))
            call("tc", "-n", switch, *shaping(end, hosts.rate))
    if hosts.rate is not None and segment(hosts.rate) > SEGMENT:
        _allow_large_segments(hosts, segment(hosts.rate))


def _allow_large_segments(hosts: Hosts, size: int) -> None:
    links = {number: ["eth0"] for number in range(1, hosts.count + 1)}
    links[SWITCH] = [port(number) for number in range(1, hosts.count + 1)]
    program = [sys.executable, "-m", "sparse_mpi_bench.emulation.offload", str(size)]
    started = [
        subprocess.Popen(hosts.inside(number, *program, *names), stderr=subprocess.DEVNULL)
        for number, names in links.items()
    ]
    for each in started:
        each.wait()


def port(number: int) -> str:
    return f"port{number}"


def shaping(link: str, rate: int) -> list[str]:
    """Return the arguments of tc: a token bucket of 1 ms before a queue of 50 ms, of at least 256 KiB."""
    queue = max(256 << 10, rate // 8 // 20)
    sizes = ["rate", f"{rate}bit", "burst", f"{burst(rate)}b", "limit", f"{queue}b"]
    return ["qdisc", "replace", "dev", link, "root", "tbf", *sizes]


def burst(rate: int) -> int:
    """Return the bytes that an idle link of ``rate`` bits a second lets pass at once: a millisecond's."""
    return max(4 << 10, rate // 8 // 1000)  # two packets at least


def packet(rate: int | None) -> int:
    """Return the bytes of the largest packets: above 1 Gbit/s so large that TCP acknowledges few."""
    return JUMBO if rate is not None and segment(rate) >= JUMBO else PACKET


def segment(rate: int) -> int:
    """Return the bytes that TCP may hand to a link at once: half of its `burst`, with a timer, uncut, for all of it."""
    return min(LARGEST, burst(rate) // 2)


def call(*command: str) -> str:
    """Return the output of a command. Raises RuntimeError: it fails; the message has its reason."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout


def leftovers(names: Iterable[str], alive: Callable[[int], bool]) -> list[str]:
    found = {m[0]: int(m[1]) for name in names if (m := re.match(r"sparse_mpi-(\d+)-\d+(?=-)", name))}
    return [prefix for prefix, pid in found.items() if not alive(pid)]


def remove_leftovers() -> None:
    names = [file.name for place in (NAMESPACES, Path(tempfile.gettempdir())) for file in _owned(place, "sparse_mpi")]
    for prefix in leftovers(names, _alive):
        _remove(prefix)


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except OSError:
        return False
    return state not in "ZX"  # ended, but its parent has not asked yet


def _owned(place: Path, prefix: str) -> list[Path]:
    return sorted(place.glob(f"{prefix}-*"))


def _remove(prefix: str) -> None:
    names = [file.name for file in _owned(NAMESPACES, prefix)]
    deadline = time.monotonic() + PATIENCE
    while (running := [pid for name in names for pid in _processes(name)]) and time.monotonic() < deadline:
        for pid in running:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.01)
    for name in names:
        subprocess.run(["ip", "netns", "delete", name], capture_output=True)
    for folder in _owned(Path(tempfile.gettempdir()), prefix):
        shutil.rmtree(folder, ignore_errors=True)


def _processes(name: str) -> list[int]:
    listed = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True)
    return [int(pid) for pid in listed.stdout.split()]
