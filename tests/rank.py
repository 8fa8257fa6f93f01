"""A process that starts in no time: it has `prefork` make a copy of itself in its place, and ends as that does.

    python tests/rank.py SOCKET (-c CODE | -m MODULE | PROGRAM.py) [arguments]

Everything that takes long to import is in the copy already. It has this process's arguments, environment, open files,
network and name of the host; MPI starts in it. If this process is killed, so is the copy, and SIGTERM is passed on to
it; if what has started this process ends, as a launcher that is a copy itself, so does this.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import socket
import sys
from contextlib import suppress

NAMESPACES = ("net", "uts")
PR_SET_PDEATHSIG = 1


def main() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    files = []
    for number in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):  # the folder's own is closed
            os.fstat(number)
            files.append(number)
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(sys.argv[1])
        place = [os.open(f"/proc/self/ns/{name}", os.O_RDONLY) for name in NAMESPACES]
        # Files can only be sent with bytes, and bytes may come in parts
        socket.send_fds(server, [b"."], [*place, *files])
        server.sendall(json.dumps([files, sys.argv[2:], dict(os.environ), os.getcwd()]).encode() + b"\n")
        answers = server.makefile("r")
        if copy := int(answers.readline() or 0):
            signal.signal(signal.SIGTERM, lambda *about: os.kill(copy, signal.SIGTERM))
        status = int(answers.readline() or -signal.SIGKILL)
    if status >= 0:
        os._exit(status)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(-status, signal.SIG_DFL) if -status not in (signal.SIGKILL, signal.SIGSTOP) else None
    os.kill(os.getpid(), -status)


if __name__ == "__main__":
    main()
