"""What is released installs and works where nothing of this checkout is known. `make release` tries more of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .__main__ import attempt, distributions


@pytest.mark.jobs
@pytest.mark.full("builds the wheel, downloads an MPI and makes an environment")
def test_the_wheel_works_in_a_new_environment(tmp_path):
    ask = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--no-deps", "--ignore-installed", "build"]
    done = subprocess.run(ask, capture_output=True, text=True, timeout=60)
    if done.returncode:
        pytest.skip(f"pip reaches no index: {done.stderr.strip().splitlines()[-1]}")
    found = attempt(tmp_path / "new", Path(sys.executable), distributions(tmp_path), "openmpi")
    assert found["outcome"] == "passed", found["because"]
