"""A process that has imported what ranks need, and copies itself for each: `rank` asks it to.

Most of the time of a job would go into starting Python with torch and Numba for every rank otherwise.

    launch(3, *copied("-c", PROGRAM))
    launch(None, *torchrun(3, "program.py"))

A program that is about imports, about variables that these read, or about what a launcher leaves behind, is to be
started as a user does it.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

from .rank import NAMESPACES

ROOT = Path(__file__).parents[1]
MOST = 1 << 20  # bytes of a request
FILES = 100  # that a process has open at most
# torch's first optimizer imports the second
OTHERS = ("torch", "torch._dynamo", "torch.distributed.optim", "sklearn.datasets", "pytest", "hypothesis")
OURS = ("sparse_mpi.ddp", "sparse_mpi.fault_tolerance", "sparse_mpi.optim", "sparse_mpi.training.diloco")


class Server:
    """The process that is copied; it ends with the one that has started it."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="prefork-")
        self.path = f"{self._folder.name}/socket"
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(self.path)
            listening.listen(64)  # whoever asks before it is ready waits
            command = [sys.executable, "-m", "tests.prefork", str(listening.fileno())]
            # Unbuffered, copies would write a line in pieces, see `launch`
            variables = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
            # It ends with its standard input, which this process holds
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=variables | {"OMP_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                pass_fds=[listening.fileno()],
                start_new_session=True,
            )

    def rank(self, *arguments: str) -> list[str]:
        """Return what stands for ``arguments`` behind ``python``, so that a copy runs them."""
        return [str(Path(__file__).with_name("rank.py")), self.path, *arguments]

    def check(self) -> None:
        """Raise RuntimeError if it has failed: the last jobs count for nothing."""
        if self._process.poll() is not None:
            raise RuntimeError("the process that ranks are copied from has failed")


@cache
def server() -> Server:
    """Return the one of this process."""
    return Server()


def copied(*arguments: str) -> list[str]:
    """Return the arguments of a Python that start in no time what ``arguments`` would: ``-c``, ``-m`` or a file.

    Where there is no Linux, they stay as they are.
    """
    return server().rank(*arguments) if sys.platform == "linux" else [*arguments]


def torchrun(ranks: int, *arguments: str, restarts: int = 0) -> list[str]:
    """Return the arguments of a Python that has torchrun start what `copied` would, on so many ranks."""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
    launcher += ("--max-restarts", str(restarts), "--")  # which takes options behind it for its own otherwise
    return copied(*launcher, *copied(*arguments))


def prepare() -> None:
    """Import what ranks need, as far as it is installed, and load kernels."""
    for module in (*OTHERS, *OURS):
        with suppress(ImportError):
            importlib.import_module(module)
    import numpy as np

    from sparse_mpi import SparseAllreduce, World
    from sparse_mpi.comm import Comm

    for algorithm in ("elect", "oktopk", "topka"):

        def steps(comm: Comm, algorithm: str = algorithm) -> None:
            reducer = SparseAllreduce(1000, k=9, comm=comm, algorithm=algorithm)
            for step in range(4):
                reducer.step(np.random.default_rng(step).standard_normal(1000).astype(np.float32))

        World(2).run(steps)
    gc.collect()
    gc.freeze()  # the end of a copy would take seconds to look through what is imported


def serve(listening: socket.socket) -> None:
    """Answer requests until the parent has ended; return in the copies, each in its place."""
    prepare()
    with listening, selectors.DefaultSelector() as events:
        events.register(listening, selectors.EVENT_READ)
        events.register(sys.stdin, selectors.EVENT_READ)
        copies: dict[socket.socket, int] = {}  # what waits for each, and its process
        while True:
            for key, _ in events.select():
                if key.fileobj is sys.stdin:
                    for process in copies.values():
                        os.kill(process, signal.SIGKILL)
                    os._exit(0)
                elif key.fileobj is listening:
                    asking = listening.accept()[0]
                    _, files, _, _ = socket.recv_fds(asking, 1, FILES)
                    request = asking.makefile("rb").readline(MOST)
                    process = os.fork()
                    if not process:
                        break
                    for file in files:
                        os.close(file)
                    with suppress(OSError):  # who asked was killed
                        asking.sendall(f"{process}\n".encode())
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
                    with suppress(OSError):  # who waited was killed
                        key.data.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
                        key.data.shutdown(socket.SHUT_WR)
            else:
                continue
            break
        for other in [asking, *copies]:
            other.close()
    take_place(files, *json.loads(request))


def take_place(
    files: list[int], numbers: list[int], arguments: list[str], environment: dict[str, str], folder: str
) -> None:
    """Be the process that has asked: with its files, its namespaces, arguments, environment and folder."""
    libc = ctypes.CDLL(None, use_errno=True)
    namespaces, files = files[: len(NAMESPACES)], files[len(NAMESPACES) :]
    for namespace, name in zip(namespaces, NAMESPACES, strict=True):
        here = os.stat(f"/proc/self/ns/{name}")
        if os.fstat(namespace).st_ino != here.st_ino and libc.setns(namespace, 0):
            raise OSError(ctypes.get_errno(), f"setns of {name}")
        os.close(namespace)
    for place, file in enumerate(files):  # out of the way of each other
        files[place] = fcntl.fcntl(file, fcntl.F_DUPFD, max(numbers) + 1)
        os.close(file)
    for number, file in zip(numbers, files, strict=True):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = arguments


def run() -> None:
    """Run what the arguments of this process name, as Python does."""
    how, *arguments = sys.argv
    sys.path[0] = os.getcwd()
    if how == "-c":
        sys.argv = ["-c", *arguments[1:]]
        exec(compile(arguments[0], "<string>", "exec"), vars(sys.modules["__main__"]))
    elif how == "-m":
        sys.argv = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(how).parent.resolve())
        runpy.run_path(how, run_name="__main__")


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
    run()
