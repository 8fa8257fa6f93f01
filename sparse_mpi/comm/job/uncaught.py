"""Uncaught exceptions end the job: ranks would wait for this one for ever."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import NoReturn

from sparse_mpi.comm.job.launcher import PATIENCE, first_to_say

OURS = "sparse_mpi "  # prefix of our threads' names


class _Uncaught:
    """The handler of an uncaught exception; it calls the former handlers."""

    def __init__(self) -> None:
        self.end: Callable[[BaseException], object] | None = None
        self.installed = False
        self._hook, self._thread_hook = sys.excepthook, threading.excepthook  # the former ones

    def install(self) -> None:
        self.installed = True
        os.register_at_fork(after_in_child=partial(on_uncaught, None))  # no rank waits for a child
        self._hook, sys.excepthook = sys.excepthook, self._in_main
        self._thread_hook, threading.excepthook = threading.excepthook, self._in_thread

    def _in_main(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        end = self.end
        try:
            if end is None or self._hook is not sys.__excepthook__:  # the hook prints the same as `end`
                self._hook(kind, error, trace)
        finally:
            if end is not None:
                end(error)

    def _in_thread(self, failed: threading.ExceptHookArgs) -> None:
        thread, error = failed.thread, failed.exc_value
        # A daemon may fail alone, unless it is one of ours: other ranks wait for its calls.
        end = self.end if thread is None or not thread.daemon or thread.name.startswith(OURS) else None
        try:
            if end is None or self._thread_hook is not threading.__excepthook__:
                self._thread_hook(failed)
        finally:
            if end is not None and error is not None:
                end(error)


_UNCAUGHT = _Uncaught()


def on_uncaught(end: Callable[[BaseException], object] | None) -> None:
    """Have ``end(error)``, which prints it, called for an uncaught exception; the last one given counts.

    Earlier hooks are called first. A daemon thread of the user may fail: no rank waits for it.
    """
    if not _UNCAUGHT.installed:
        _UNCAUGHT.install()
    _UNCAUGHT.end = end


def report_uncaught(error: BaseException) -> None:
    """Handle an ``error`` that was never retrieved, at the end of the program, as if uncaught."""
    if _UNCAUGHT.end is not None:
        sys.excepthook(type(error), error, error.__traceback__)


class Abort:
    def __init__(self, rank: int, size: int, end: Callable[[], object]) -> None:
        self._rank, self._size, self._end = rank, size, end

    def __call__(self, error: BaseException) -> NoReturn:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        if first_to_say(text):
            print(f"rank {self._rank} of {self._size} aborts the job\n{text}", file=sys.stderr, flush=True)
        else:
            time.sleep(PATIENCE)  # the rank that prints it ends the job
        sys.stdout.flush()
        self._end()
        raise error  # `end` has returned

    def guard(self) -> None:
        if self._size > 1:
            on_uncaught(self)
