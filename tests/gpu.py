"""Run the tests that need a GPU, in a bare environment: ``python -m tests.gpu [options] [words for pytest]``.

They are named, since collecting all tests takes longer, and one file that cannot be imported would keep all from being
run. It is a failure if none passes: where CuPy finds no device all are skipped, which shows nothing. ``--no-pools``
gives each array an allocation of its own, so that compute-sanitizer sees what reads beyond it. Plugins that
``setup.cfg`` has options for need not be there. A test that takes longer than ``--limit`` fails, with what each thread
is doing, and the others are still run; one that waits within a library says so, and goes on until its stage is ended.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

FILES = (
    "tests/kernels",
    "tests/collectives/test_device_kinds.py",
    "tests/comm/test_nccl.py",
    "tests/comm/test_torch_nccl.py",
    "tests/training/test_gpu_background.py",
)
UNKNOWN = "ignore::pytest.PytestConfigWarning"  # options of plugins that are not there
# In place of addopts of setup.cfg, which is strict about plugins
OPTIONS = ("-o", "addopts=--import-mode=importlib", "-q", "-rs", "-p", "no:cacheprovider", "-W", UNKNOWN)


class Outcomes:
    """A plugin that counts what became of tests, and ends those that hang."""

    def __init__(self, limit: float) -> None:
        self.counts: Counter[str] = Counter()
        self.limit = limit

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Let the body of a test fail once its time is over; a signal interrupts Python, and no library."""

        def late(*_: object) -> None:
            faulthandler.dump_traceback(2)
            raise TimeoutError(f"{item.name} takes more than {self.limit:g} s; see stderr for what its threads do")

        before = signal.signal(signal.SIGALRM, late)
        signal.setitimer(signal.ITIMER_REAL, self.limit)
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count the body of a test."""
        if report.when == "call":
            self.counts[report.outcome] += 1


def main(words: list[str]) -> int:
    """Run the tests that ``words`` ask for, else all that need a GPU; return pytest's status, or 1 if none passed."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__.partition("\n")[0])
    parser.add_argument("--no-pools", action="store_true", help="an allocation for each array")
    parser.add_argument("--limit", type=float, default=60.0, metavar="SECONDS", help="of the body of a test (60)")
    args, words = parser.parse_known_args(words)
    if args.no_pools:
        os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"  # read by torch at its first allocation
        with suppress(ImportError):
            import cupy

            cupy.cuda.set_allocator(None)
    outcomes = Outcomes(args.limit)
    named = any(Path(word.split("::")[0]).exists() for word in words)
    asked = words if named else ["-m", "gpu", *FILES, *words]
    options = (*OPTIONS, "-o", f"faulthandler_timeout={args.limit + 15}", "--continue-on-collection-errors")
    status = int(pytest.main([*options, *asked], plugins=[outcomes]))
    if status == 0 and not outcomes.counts["passed"]:
        print("no test passed: all were skipped, see above")
        return 1
    return status


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
