"""The site, built once for all tests that look at it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ..launch import ROOT

ABSENT = ("torch", "mpi4py", "numba", "cupy", "lightning", "transformers", "scipy", "mypy")  # where the site is built


def build(source: Path, out: Path, path: str = "") -> subprocess.CompletedProcess[str]:
    """Build a site as `make docs` does, with modules in the folder ``path`` before all others."""
    recipe = re.search(r"\n\t\$\(DOCS\)/bin/python (.*) docs build/docs\n", (ROOT / "Makefile").read_text())[1]
    command = [sys.executable, *recipe.split(), str(source), str(out)]
    variables = os.environ | {"PYTHONPATH": path}
    return subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=900)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site, built without a warning where what it describes cannot be imported."""
    folder, absent = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("absent")
    for module in ABSENT:
        (absent / f"{module}.py").write_text(f"raise ModuleNotFoundError(name={module!r})")
    done = build(ROOT / "docs", folder, str(absent))
    assert done.returncode == 0 and not done.stderr, done.stderr
    return folder
