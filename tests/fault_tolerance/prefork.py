"""A process that has imported what a rank of `chaos` needs, and copies itself for each: `rank` asks it to.

Most of the time of a job would go into starting Python with torch and Numba for every rank otherwise.
"""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sparse_mpi.algorithms import ALGORITHMS
from sparse_mpi.comm.world import World

from . import victim
from .rank import NAMESPACES

MOST = 1 << 20  # bytes of a request


def prepare(folder: str) -> None:
    """Import and compile what ranks need."""
    for algorithm in sorted(ALGORITHMS):
        World(2).run(lambda comm, algorithm=algorithm: victim.train(comm, victim.Options(algorithm, 3)))  # type: ignore[misc]
    for kind in (victim.train_model, victim.train_program):
        World(2).run(lambda comm, kind=kind: kind(comm, victim.Options("oktopk", 2, folder=folder)))  # type: ignore[misc]


def serve(path: str, folder: str) -> None:
    """Answer requests at a socket until the parent has ended; return in the copies, each in its place."""
    prepare(folder)
    with socket.socket(socket.AF_UNIX) as listening, selectors.DefaultSelector() as events:
        listening.bind(path)
        listening.listen(64)
        events.register(listening, selectors.EVENT_READ)
        events.register(sys.stdin, selectors.EVENT_READ)
        copies: dict[socket.socket, int] = {}  # what waits for each, and its process
        while True:
            for key, _ in events.select():
                if key.fileobj is sys.stdin:
                    os._exit(0)
                elif key.fileobj is listening:
                    asking = listening.accept()[0]
                    _, files, _, _ = socket.recv_fds(asking, 1, 8)
                    request = asking.makefile("rb").readline(MOST)
                    process = os.fork()
                    if not process:
                        break
                    for file in files:
                        os.close(file)
                    copies[asking] = process
                    events.register(asking, selectors.EVENT_READ)
                    events.register(os.pidfd_open(process), selectors.EVENT_READ, asking)
                elif key.data is None:  # who waits was killed, and its copy has ended already where it is unknown
                    events.unregister(key.fileobj)
                    if process := copies.get(key.fileobj):  # type: ignore[call-overload]
                        os.kill(process, signal.SIGKILL)
                else:
                    events.unregister(key.fileobj)
                    os.close(key.fd)
                    _, status = os.waitpid(copies.pop(key.data), 0)
                    try:
                        key.data.sendall(str(os.waitstatus_to_exitcode(status)).encode())
                        key.data.shutdown(socket.SHUT_WR)
                    except OSError:  # who waited was killed
                        pass
            else:
                continue
            break
        for other in [asking, *copies]:
            other.close()
    take_place(files, *json.loads(request))


def take_place(files: list[int], arguments: list[str], environment: dict[str, str], folder: str) -> None:
    """Be the process that has asked: with its files, its namespaces, arguments, environment and folder."""
    libc = ctypes.CDLL(None, use_errno=True)
    for namespace, name in zip(files[3:], NAMESPACES, strict=True):
        here = os.stat(f"/proc/self/ns/{name}")
        if os.fstat(namespace).st_ino != here.st_ino and libc.setns(namespace, 0):
            raise OSError(ctypes.get_errno(), f"setns of {name}")
    for number, file in enumerate(files[:3]):
        os.dup2(file, number)
    for file in files:
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv[1:] = arguments


@contextmanager
def started(folder: Path) -> Iterator[list[str]]:
    """Start it for the length of a ``with`` block; return the command line of a rank."""
    path = folder / "prefork"
    command = [sys.executable, "-m", "tests.fault_tolerance.prefork", str(path), str(folder)]
    # It ends with its standard input, which this process holds
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=os.environ | {"OMP_NUM_THREADS": "1"}) as server:
        while not path.exists():
            if server.poll() is not None:
                raise RuntimeError("the process that ranks are copied from has failed")
            try:
                server.wait(0.1)
            except subprocess.TimeoutExpired:
                continue
        yield [str(Path(__file__).with_name("rank.py")), str(path)]
        if server.poll() is not None:
            raise RuntimeError("the process that ranks are copied from has failed: the last jobs count for nothing")


if __name__ == "__main__":
    serve(*sys.argv[1:])
    victim.main()
