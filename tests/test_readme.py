"""What the README shows is run, and its table is what the library says of itself."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sparse_mpi.cli.algorithms import table

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_example_runs(tmp_path):
    """On two MPI ranks if there is an mpiexec, else on one."""
    example = tmp_path / "example.py"
    example.write_text(re.search(r"```python\n(.*?)```", README, re.DOTALL)[1].replace("1_000_000", "10_000"))
    mpiexec = shutil.which("mpiexec", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    launcher = [mpiexec, "-n", "2"] if mpiexec else []
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    done = subprocess.run(
        [*launcher, sys.executable, str(example)],
        env=allowed | os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"rank \d sent [\d,]+ bytes", done.stdout)) == (2 if mpiexec else 1)


def test_table_is_current():
    """Update it with: python -m sparse_mpi algorithms"""
    shown = re.search(r"<!-- algorithms -->\n(.*?)\n<!-- /algorithms -->", README, re.DOTALL)[1]
    assert shown == table()


def test_files_of_the_layout_exist():
    for path in re.findall(r"(?:sparse_mpi|train|tests|docs)/[\w/]*(?:\.py)?", README):
        assert (ROOT / path).exists(), path


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize(
    ("call", "runs"),
    [
        (["train"], "mpiexec -n 4 .*python train/vgg.py"),
        (["train", "NP=2", "ARGS=--algo gtopk --density 0.02"], "-n 2 .*vgg.py --algo gtopk --density 0.02"),
        (["train", "MPI=system"], "(?m)^mpiexec -n 4"),
        (["test"], "ruff check(?s:.*)mypy(?s:.*)-m pytest(?s:.*)--with-mpi"),
    ],
)
def test_make_does_what_the_readme_says(call, runs):
    done = subprocess.run(["make", "-n", *call], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0 and re.search(runs, done.stdout), done.stdout + done.stderr
