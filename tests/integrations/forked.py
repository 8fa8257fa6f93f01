"""Ranks that are copies of the process which has imported what they need, once; they find what torchrun sets."""

from __future__ import annotations

import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable


def run(ranks: int, main: Callable[[], object]) -> None:
    """Call ``main`` on so many ranks; exit as the first one does that fails."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        shared = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free.getsockname()[1]), "GROUP_RANK": "0"}
    shared |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "TORCHELASTIC_RUN_ID": "none"}
    children = set()
    for rank in range(ranks):
        child = os.fork()
        if not child:
            os.environ.update(shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
            code = 1
            try:
                main()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush(), sys.stderr.flush()
                os._exit(code)
        children.add(child)
    while children:
        child, status = os.wait()
        children.discard(child)
        if status:
            for other in children:
                os.kill(other, signal.SIGKILL)
            sys.exit(1)
