"""Run the tests that need a GPU, in a bare environment: ``python -m tests.gpu [--no-pools] [words for pytest]``.

They are named, since collecting all tests takes longer, and one file that cannot be imported would keep all from being
run. It is a failure if none passes: where CuPy finds no device all are skipped, which shows nothing. ``--no-pools``
gives each array an allocation of its own, so that compute-sanitizer sees what reads beyond it. Plugins that
``setup.cfg`` has options for need not be there.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

FILES = (
    "tests/kernels",
    "tests/collectives/test_device_kinds.py",
    "tests/comm/test_nccl.py",
    "tests/training/test_gpu_background.py",
)
# In place of addopts of setup.cfg, which is strict about plugins
OPTIONS = ("-o", "addopts=--import-mode=importlib", "-q", "-rs", "-p", "no:cacheprovider")


class Outcomes:
    """A plugin that counts what became of tests."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count the body of a test."""
        if report.when == "call":
            self.counts[report.outcome] += 1


def main(words: list[str]) -> int:
    """Run the tests that ``words`` ask for, else all that need a GPU; return pytest's status, or 1 if none passed."""
    if "--no-pools" in words:
        words.remove("--no-pools")
        os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"  # read by torch at its first allocation
        with suppress(ImportError):
            import cupy

            cupy.cuda.set_allocator(None)
    outcomes = Outcomes()
    named = any(Path(word.split("::")[0]).exists() for word in words)
    asked = words if named else ["-m", "gpu", *FILES, *words]
    status = int(pytest.main([*OPTIONS, "--continue-on-collection-errors", *asked], plugins=[outcomes]))
    if status == 0 and not outcomes.counts["passed"]:
        print("no test passed: all were skipped, see above")
        return 1
    return status


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
