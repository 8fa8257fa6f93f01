"""Run the Python of a page in a process of its own, that has the libraries of others imported and nothing of ours.

Code is compiled at its place in the page, so that a traceback names the page's lines and shows them.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import sys
import traceback
import warnings
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

# Each process is forked from one that has imported these, which takes seconds
FORKED = multiprocessing.get_context("forkserver")
# torch's first optimizer imports the fourth
FORKED.set_forkserver_preload(["numba", "torch", "scipy.sparse", "torch._dynamo", "torch.distributed.optim"])


def run_blocks(answer: Connection, folder: str, variables: dict[str, str], page: str, blocks: list[list[Any]]) -> None:
    """Run blocks ``(line, code, code that is taken for granted)`` up to the first that fails, and send what each did.

    They run as a program in ``folder`` does with these environment variables: output and error, None if there is none.
    """
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    sys.path[:] = [folder, *(path for path in sys.path if Path(path).name != "train")]  # as `python file.py` has it
    warnings.filterwarnings("error", category=DeprecationWarning, module="__main__")  # pages show no former spellings
    names: dict[str, Any] = {"__name__": "__main__"}
    done = []
    for line, code, first in blocks:
        printed, error = io.StringIO(), None
        try:
            with contextlib.redirect_stdout(printed):
                if first:
                    exec(compile(first, f"{page}, what is taken for granted", "exec"), names)
                exec(compile("\n" * (line - 1) + code, page, "exec"), names)
        except BaseException:
            error = traceback.format_exc()
        done.append((printed.getvalue(), error))
        if error:
            break
    answer.send(done)
