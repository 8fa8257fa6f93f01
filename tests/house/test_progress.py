"""What `make` prints while it installs: a line for each package, one at least every few seconds, and why it failed."""

from __future__ import annotations

import subprocess
import sys

from ..docs.pages import ROOT

PIP = """
from time import sleep
print("  Downloading https://some.where/torch-2.13.0%2Bcpu-cp311-cp311-manylinux_2_28_x86_64.whl (191.8 MB)")
print("  Downloading numpy-2.4.6-cp311-cp311-manylinux_2_28_x86_64.whl.metadata (6.6 kB)")
print("Processing /wheels/mpmath-1.3.0-py3-none-any.whl (from sympy>=1.13.3->torch)")
print("Installing collected packages: mpmath, numpy, torch")
sleep(1.5)
print("Could not install")
raise SystemExit(3)
"""
RUN = """
import sys
sys.path.insert(0, "packaging")
import progress
progress.EVERY = 0.2
sys.exit(progress.run("Here", {}))
"""


def test_a_line_a_package_and_a_clock_between():
    command = [sys.executable, "-c", PIP, "pip"]
    done = subprocess.run(
        [sys.executable, "-c", RUN.format(command)], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    lines = done.stdout.strip().split("\n  ")
    assert done.returncode == 3 and done.stderr.endswith("Could not install\n\n")
    assert [line for line in lines if not line[-1:] == "s"] == ["Here", "torch 2.13.0+cpu (191.8 MB)", "mpmath 1.3.0"]
    assert sum(line.startswith("installing 3 packages") for line in lines) >= 2
