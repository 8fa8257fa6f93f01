"""The pages name what there is, and their tables are what the library says; `tests/docs` runs what they show."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from configparser import ConfigParser
from typing import Any

import numpy as np
import pytest

from sparse_mpi import __version__, contrib, wire
from sparse_mpi.algorithms import ALGORITHMS, Algorithm
from sparse_mpi.checks import removed
from sparse_mpi.predict.models import layout
from sparse_mpi.select import SELECTORS
from sparse_mpi.sparse import SparseVector
from sparse_mpi.training.diloco import DiLoCo
from sparse_mpi.wire import WIRES, pack_whole

from ..launch import ROOT
from ..tables import REFERENCE, table

README = (ROOT / "README.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
DOCS = sorted(page.relative_to(ROOT).as_posix() for page in ROOT.glob("docs/**/*.md"))
RECORDS = [page for page in DOCS if page.startswith("docs/results/")]
FRONT = ["README.md", "CONTRIBUTING.md", "REPRODUCE.md", "examples/README.md"]
PAGES = [page for page in [*FRONT, *DOCS] if page not in RECORDS]


def bounds(name: str) -> list[str]:
    """Return the bound of an algorithm on 4 and 64 ranks, of VGG-16 at 1 %, in units of k(P-1)/P words."""
    gradient = layout("vgg16")
    k = round(gradient.size / 100)
    made = ALGORITHMS[name]()
    return [f"{made.bound(gradient, k, ranks).words / (k * (ranks - 1) / ranks):.1f}" for ranks in (4, 64)]


def bytes_of_a_pair(name: str) -> list[str]:
    """Return those in one message of a format, at three densities."""
    sizes = []
    for count in (1_000, 10_000, 50_000):
        indices = np.arange(count, dtype=np.int32) * (1_000_000 // count)
        vector = SparseVector(indices, np.ones(count, np.float32), 1_000_000)
        sizes.append(f"{pack_whole(WIRES[name], vector).buffer.nbytes / count:.2f}")
    return sizes


def test_tables_of_the_reference_have_every_entry_and_its_numbers():
    """`tests.record` writes the numbers."""
    assert {name: cells[-2:] for name, cells in table(REFERENCE, "algorithms").items()} == {
        name: bounds(name) for name in ALGORITHMS
    }
    assert list(table(REFERENCE, "selectors")) == list(SELECTORS)
    assert {name: cells[-3:] for name, cells in table(REFERENCE, "wires").items()} == {
        name: bytes_of_a_pair(name) for name in WIRES
    }


def found_on(pattern: str, pages: Iterable[str] = PAGES) -> list[tuple[str, Any]]:
    """What a pattern finds on each of the pages, with the page."""
    return [(page, found) for page in pages for found in re.findall(pattern, (ROOT / page).read_text())]


def test_files_that_are_named_exist():
    named = r"\b(?:sparse_mpi|train|tests|docs|slurm|pbs|examples)/[a-z_][\w/-]*(?:\.\w+)?|\bruns/\w+\.(?:py|sh)\b"
    assert not [found for found in found_on(named) if not (ROOT / found[1]).exists()]


def test_what_pip_is_to_install_is_the_checkout_and_its_extras():
    """The package is on no index yet."""
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    for page, (place, extras) in found_on(r"pip install .*?'([^'\[]+)\[(.*?)\]'"):
        assert place == "." and set(extras.split(",")) <= set(setup["options.extras_require"]), (page, place, extras)


def test_links_lead_somewhere():
    links = found_on(r"\]\((?!https?:)([^)#]+)", [*PAGES, *RECORDS])
    assert not [(page, target) for page, target in links if not ((ROOT / page).parent / target).exists()]


def test_migration_lists_what_this_release_removed():
    """Names with a dot in its first column are gone, and each name that was removed since stands there."""
    page = (ROOT / "docs/reference/migration.md").read_text()
    release = ".".join(__version__.split(".")[:2])
    assert f"to {release}\n" in page
    assert not [name for name, (since, _) in removed().items() if since.startswith(release) and name not in page]
    homes = {"contrib": contrib, "wire": wire, "DiLoCo": DiLoCo}
    names = re.findall(r"^\| `(\w+)\.(\w+)`", page, re.MULTILINE)
    assert len(names) >= 3 and not [name for home, name in names if home in homes and name in dir(homes[home])]


def test_the_front_page_says_which_version_it_is_of_and_pages_are_short():
    assert f"version {__version__}" in README and len(README.splitlines()) <= 150
    for page in (*PAGES, *RECORDS):
        assert len((ROOT / page).read_text().splitlines()) <= 200, page


def test_methods_of_an_algorithm_are_those_of_the_protocol():
    section = re.search(r"## Add an algorithm\n(.*?)\n## ", CONTRIBUTING, re.DOTALL)[1]
    shown = dict(re.findall(r"^    def (\w+)\((.*?)\)", section, re.MULTILINE))
    assert set(shown) == {*Algorithm.__abstractmethods__, "bound"}
    for name, arguments in shown.items():
        assert arguments.split(", ") == list(inspect.signature(getattr(Algorithm, name)).parameters)


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize(
    ("call", "runs"),
    [
        (["train"], "python -m sparse_mpi run -n 4 train/vgg.py"),
        (["train", "NP=2", "ARGS=--algo gtopk --density 0.02"], "-n 2 .*vgg.py --algo gtopk --density 0.02"),
        (["train", "MPI=system"], "(?m)^.venv-system/bin/python -m sparse_mpi run -n 4"),
        (["test"], "ruff check(?s:.*)mypy(?s:.*)-m pytest(?s:.*)-m tests.on_ranks 1 2 3 4"),
    ],
)
def test_make_does_what_the_readme_says(call, runs, tmp_path):
    """In a new checkout; ``make -n`` tells all of it, and does none."""
    for name in "Makefile setup.cfg pyproject.toml constraints.txt packaging/progress.py bench/setup.cfg".split():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    given = ("MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "NP", "ARGS", "MPI", "SIZES")  # to the make that runs this test
    kept = {name: value for name, value in os.environ.items() if name not in given}
    done = subprocess.run(["make", "-n", *call], cwd=tmp_path, env=kept, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and re.search(runs, done.stdout), done.stdout + done.stderr
    assert not list(tmp_path.glob(".venv*"))
