"""What tests of releases need."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.fixture
def index():
    """Skip where pip cannot reach an index."""
    ask = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--no-deps", "--ignore-installed", "build"]
    done = subprocess.run(ask, capture_output=True, text=True, timeout=60)
    if done.returncode:
        pytest.skip(f"pip reaches no index: {done.stderr.strip().splitlines()[-1]}")
