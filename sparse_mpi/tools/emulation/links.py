"""The links of emulated hosts: other rates while connections stay open, and the bytes that they have carried."""

from __future__ import annotations

import json
import subprocess
from collections import defaultdict
from typing import NamedTuple

from sparse_mpi.tools.emulation.hosts import SWITCH, Hosts, port, shaping
from sparse_mpi.tools.emulation.rate import MOST
from sparse_mpi.tools.emulation.schedule import DOWN, Rates


class Carried(NamedTuple):
    """Bytes on the link of each host, headers included."""

    sent: list[int]
    received: list[int]

    def since(self, before: Carried) -> Carried:
        """Return what came to these bytes after ``before``."""
        return Carried(*([b - a for a, b in zip(*pair, strict=True)] for pair in zip(before, self, strict=True)))


class Links:
    """The links of a set of hosts."""

    def __init__(self, hosts: Hosts) -> None:
        """Take them as they were set up."""
        self.hosts = hosts
        self.rates: Rates = (hosts.rate,) * hosts.count

    def change(self, rates: Rates) -> None:
        """Give each link its rate, both ways; what waits in its queues goes on waiting, and connections stay open.

        A link goes down as if its cable was pulled at the switch: TCP sends again what was in its queues.

        Raises:
            RuntimeError: the system refuses; the message has its reason.
        """
        todo: dict[tuple[str, int], list[str]] = defaultdict(list)  # by program and host
        for host, (old, new) in enumerate(zip(self.rates, rates, strict=True), 1):
            if old == new:
                continue
            if new != DOWN:
                # A link loses its limit by a high one: with its queue it would lose what waits there
                bits = MOST if new is None else new
                todo["tc", host].append(" ".join(shaping("eth0", bits)))
                todo["tc", SWITCH].append(" ".join(shaping(port(host), bits)))
            if DOWN in (old, new):
                todo["ip", SWITCH].append(f"link set {port(host)} {'down' if new == DOWN else 'up'}")
        self._call(todo)
        self.rates = rates

    def _call(self, todo: dict[tuple[str, int], list[str]]) -> None:
        """Run the commands of all programs and hosts side by side, so that the links change at nearly one time."""
        pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started = []
        for (program, host), lines in todo.items():
            line = [program, "-n", self.hosts.name(host), "-batch", "-"]
            started.append((lines, subprocess.Popen(line, **pipes)))  # type: ignore[call-overload]
        said = [(lines, each.communicate("\n".join(lines))[1], each.returncode) for lines, each in started]
        for lines, error, code in said:
            if code:
                raise RuntimeError(f"{'; '.join(lines)}: {error.strip() or f'exit code {code}'}")

    def carried(self) -> Carried:
        """Return the bytes since the hosts were set up, counted at the switch: what it got from hosts, and gave them.

        Raises:
            RuntimeError: the system refuses; the message has its reason.
        """
        command = ["ip", "-n", self.hosts.name(SWITCH), "-s", "-json", "link", "show"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or f'exit code {done.returncode}'}")
        counts = {each["ifname"]: each["stats64"] for each in json.loads(done.stdout)}
        ports = [counts[port(host)] for host in range(1, self.hosts.count + 1)]
        return Carried([each["rx"]["bytes"] for each in ports], [each["tx"]["bytes"] for each in ports])
