"""Whoever adds a part as CONTRIBUTING says, in a copy of the checkout, meets no test that fails."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..checkout import copy
from ..docs.pages import ROOT, pages
from ..fakes.fake_cuda import COMPILER

pytestmark = [
    pytest.mark.jobs,  # five processes, one after the other
    pytest.mark.skipif(COMPILER is None, reason="counting what a step costs on a device needs g++"),
]
PAGES = pages()
TYPED = {  # the lesson's lines, and the library's
    "from sparse_mpi import sparse, testing, wire\n": "from typing import Any\nfrom sparse_mpi import sparse, wire\n",
    "from sparse_mpi.algorithms import Algorithm, Bound, Reduction\n": (
        "from sparse_mpi.algorithms.base import Algorithm, Bound, Reduction\n"
        "from sparse_mpi.arrays import Array\nfrom sparse_mpi.comm import Comm\nfrom sparse_mpi.sparse import Layout\n"
    ),
    "reduce(self, acc, k, comm, state, layout, add=None):": (
        "reduce(self, acc: Array, k: int, comm: Comm, state: Any, layout: Layout, add: Array | None = None)"
        " -> tuple[Reduction, Any]:"
    ),
    "bound(self, layout, k, ranks):": "bound(self, layout: Layout, k: int, ranks: int) -> Bound:",
}
ROWS = {
    "algorithms": "| `gathered` | TopkA by exact top-k | 2k(P-1) | 8.0, 32.0 | | |",
    "selectors": "| `largest` | the k largest | k |",
    "wires": "| `packed+half` | float16 again | | | |",
}
RECORDS = ("tests/golden/trajectories.json", "sparse_mpi/predict/device_costs.json")
RECORDS += ("docs/reference/gpu-costs.md", "docs/reference/algorithms.md")
NONE_ELSEWHERE = '"elsewhere": {}'  # a line of trajectories.json; it has new names on another processor
PYTEST = ("pytest", "-q", "-p", "no:cacheprovider")
CONCERNED = (  # what fails without a record or room, and the laws
    "tests/house/test_size.py",
    "tests/house/test_readme.py::test_tables_of_the_reference_have_every_entry_and_its_numbers",
    "tests/golden/test_trajectories.py::test_every_case_is_recorded",
    "tests/golden/test_trajectories.py::test_a_trajectory_is_as_recorded[gathered]",
    "tests/comm/test_device_budget.py::test_every_algorithm_and_memory_has_a_budget_that_predictions_know",
    "tests/algorithms/test_algorithms.py::test_all_laws_on_other_numbers_of_ranks_and_on_drawn_gradients[gathered]",
)
FOLDERS = ("house", "golden", "algorithms", "docs", "predict", "comm/test_device_budget.py")


def change(file: Path, before: str, added: str) -> None:
    """Write lines before the one that begins so."""
    text = file.read_text()
    assert text.count(f"\n{before}") == 1
    file.write_text(text.replace(f"\n{before}", f"\n{added}{before}"))


def ring() -> str:
    """Return the file of the lesson's algorithm as it is in the library."""
    lesson, _ = PAGES["docs/tutorials/own-algorithm.md"].files()
    code = lesson.code.partition("\n\nif __name__")[0] + "\n"
    for plain, typed in TYPED.items():
        assert plain in code
        code = code.replace(plain, typed)
    return code


def selector() -> str:
    """Return the file of the selector that CONTRIBUTING shows."""
    block = next(block for block in PAGES["CONTRIBUTING.md"].run if "(Selector)" in block.code)
    return f"{block.marks['first']}\n\n\n{block.code}"


def add(tree: Path) -> None:
    """Do what CONTRIBUTING says to add an algorithm, a selector and a message format."""
    package = tree / "sparse_mpi"
    (package / "algorithms" / "gathered.py").write_text(ring())
    (package / "select" / "largest.py").write_text(selector())
    algorithms, select, wire = (package / kind / "__init__.py" for kind in ("algorithms", "select", "wire"))
    change(algorithms, "from sparse_mpi.algorithms.acpsgd", "from sparse_mpi.algorithms.gathered import Gathered\n")
    change(algorithms, "    },\n", '        "gathered": Gathered,\n')
    change(select, "from sparse_mpi.select.alldim", "from sparse_mpi.select.largest import Largest\n")
    change(select, "    },\n", '        "largest": Largest,\n')
    change(wire, "    },\n", '        "packed+half": BitPacked(Float16()),\n')
    for table, row in ROWS.items():
        change(tree / "docs" / "reference" / "algorithms.md", f"<!-- /{table}", f"{row}\n")
    run(tree, "ruff", "format", "sparse_mpi")
    run(tree, "ruff", "check", "--fix", "sparse_mpi")


def run(tree: Path, *arguments: str) -> str:
    """Run ``python -m *arguments`` with the library of ``tree``, and return what it prints."""
    path = os.pathsep.join(map(str, (tree, tree / "bench", tree / "train")))
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(
        command, cwd=tree, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=1100
    )
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-5_000:]
    return done.stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of the checkout with new parts, and their records."""
    folder = copy(tmp_path_factory.mktemp("checkout"), caches=True)
    add(folder)
    run(folder, "tests.record", "gathered", "packed+half")
    yield folder
    shutil.rmtree(folder)


def test_a_new_part_is_an_entry_like_others(tree):
    run(tree, *PYTEST, *CONCERNED)
    for file in RECORDS:  # what others have is there as it was, in its order
        now, before = ([line.rstrip(",") for line in (root / file).read_text().splitlines()] for root in (tree, ROOT))
        rest, kept = iter(now), [line for line in before if line != NONE_ELSEWHERE]
        assert len(now) > len(before) and all(line in rest for line in kept), file


@pytest.mark.full("all of the house, trajectories, algorithms, pages and predictions, and types: minutes")
@pytest.mark.timeout(1200)
def test_a_new_part_breaks_nothing(tree):
    run(tree, "mypy", "sparse_mpi/algorithms", "sparse_mpi/select", "sparse_mpi/wire")
    folders = [f"tests/{name}" for name in FOLDERS]
    run(tree, *PYTEST, *folders, "-m", "not jobs and not slurm", "--ignore", "tests/house/test_contributing.py")
