"""The scripts of the README: three lines make a training script a distributed one."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from .launch import launch, needs_mpi

ROOT = Path(__file__).parents[1]


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


def test_one_process_runs_the_plain_script():
    done = launch(None, "examples/plain.py")
    assert done.returncode == 0 and float(re.search(r"accuracy ([\d.]+)", done.stdout)[1]) > 0.8, done.stderr


@needs_mpi
def test_ranks_end_with_one_model():
    done = launch(3, "examples/distributed.py")
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and len(lines) == 3 and len(set(lines)) == 1, done.stderr
    assert float(re.search(r"accuracy ([\d.]+)", lines[0])[1]) > 0.8
