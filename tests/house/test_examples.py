"""The scripts of the README: three lines make a training script a distributed one."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

import pytest

from ..launch import launch, needs_mpi

ROOT = Path(__file__).parents[2]


def code(name: str) -> list[str]:
    """The script without its first line, which says what it is, and without empty lines."""
    return [line for line in (ROOT / "examples" / name).read_text().splitlines()[1:] if line]


def changes() -> list[str]:
    diff = difflib.unified_diff(code("plain.py"), code("distributed.py"), n=0, lineterm="")
    return [line for line in diff if not line.startswith(("---", "+++", "@@"))]


def test_three_lines_differ_and_the_readme_shows_them():
    assert [line[0] for line in changes()] == ["+", "-", "+", "+"]
    shown = re.search(r"```diff\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]
    assert [line for line in shown.splitlines() if line[:1] in "+-"] == changes()


@pytest.mark.full("its distributed twin is run")
def test_one_process_runs_the_plain_script():
    done = launch(None, "examples/plain.py")
    assert done.returncode == 0 and float(re.search(r"accuracy ([\d.]+)", done.stdout)[1]) > 0.8, done.stderr


@needs_mpi
@pytest.mark.jobs
def test_ranks_end_with_one_model():
    done = launch(2, "examples/distributed.py")
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and len(lines) == 2 and len(set(lines)) == 1, done.stderr
    assert float(re.search(r"accuracy ([\d.]+)", lines[0])[1]) > 0.8


@pytest.mark.full("a job of three ranks; that errors end jobs is tested in tests/transport/test_mpi.py")
@needs_mpi
@pytest.mark.jobs
@pytest.mark.parametrize("where", ["    optimizer.step()", "broadcast_parameters(model.state_dict())"])
def test_a_mistake_on_one_rank_ends_the_job(tmp_path, where):
    """The others wait for that rank, in a step or at the end: nothing hangs."""
    script = tmp_path / "wrong.py"
    text = (ROOT / "examples" / "distributed.py").read_text()
    assert where in text
    wrong = f"{where}\n{' ' * (len(where) - len(where.lstrip()))}assert os.environ['OMPI_COMM_WORLD_RANK'] != '1', 'oh'"
    script.write_text(text.replace("import numpy", "import os\n\nimport numpy").replace(where, wrong))
    done = launch(3, str(script), seconds=90)
    assert done.returncode != 0 and "rank 1 of 3 aborts the job" in done.stderr and "AssertionError: oh" in done.stderr
