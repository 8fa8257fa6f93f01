"""The pages name what there is, and their tables are what the library says; `tests/docs` runs what they show."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
from configparser import ConfigParser

import pytest

from sparse_mpi.algorithms import Algorithm
from sparse_mpi.tools.cli import tables

from ..launch import ROOT

README = (ROOT / "README.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
DOCS = sorted(page.relative_to(ROOT).as_posix() for page in ROOT.glob("docs/**/*.md"))
RECORDS = [page for page in DOCS if page.startswith("docs/results/")]
PAGES = {page: (ROOT / page).read_text() for page in ["README.md", "CONTRIBUTING.md", *DOCS] if page not in RECORDS}


@pytest.mark.parametrize("name", ["algorithms", "selectors", "wires"])
def test_table_is_current(name):
    """Update it with: python -m sparse_mpi algorithms, or selectors"""
    shown = re.search(rf"<!-- {name} -->\n(.*?)\n<!-- /{name} -->", PAGES["docs/reference/algorithms.md"], re.DOTALL)[1]
    assert shown == getattr(tables, name)()


@pytest.mark.parametrize("page", PAGES)
def test_files_that_are_named_exist(page):
    for path in re.findall(
        r"\b(?:sparse_mpi|train|tests|docs|slurm|pbs|examples)/[a-z_][\w/-]*(?:\.\w+)?|\bruns/\w+\.(?:py|sh)\b",
        PAGES[page],
    ):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("page", PAGES)
def test_what_pip_is_to_install_is_the_checkout_and_its_extras(page):
    """The package is on no index yet."""
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    for place, extras in re.findall(r"pip install .*?'([^'\[]+)\[(.*?)\]'", PAGES[page]):
        assert place == "." and set(extras.split(",")) <= set(setup["options.extras_require"]), (place, extras)


@pytest.mark.parametrize("page", [*PAGES, *RECORDS])
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / page).read_text()):
        assert ((ROOT / page).parent / target).exists(), target


def test_the_front_page_is_short():
    assert len(README.splitlines()) <= 150


@pytest.mark.parametrize("page", [*PAGES, *RECORDS])
def test_pages_are_short(page):
    assert len((ROOT / page).read_text().splitlines()) <= 200


def test_methods_of_an_algorithm_are_those_of_the_protocol():
    section = re.search(r"## Add an algorithm\n(.*?)\n## ", CONTRIBUTING, re.DOTALL)[1]
    shown = dict(re.findall(r"^    def (\w+)\((.*?)\)", section, re.MULTILINE))
    assert set(shown) == Algorithm.__abstractmethods__
    for name, arguments in shown.items():
        assert arguments.split(", ") == list(inspect.signature(getattr(Algorithm, name)).parameters)


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize(
    ("call", "runs"),
    [
        (["train"], "python -m sparse_mpi run -n 4 train/vgg.py"),
        (["train", "NP=2", "ARGS=--algo gtopk --density 0.02"], "-n 2 .*vgg.py --algo gtopk --density 0.02"),
        (["train", "MPI=system"], "(?m)^.venv-system/bin/python -m sparse_mpi run -n 4"),
        (["test"], "ruff check(?s:.*)mypy(?s:.*)-m pytest(?s:.*)--with-mpi"),
    ],
)
def test_make_does_what_the_readme_says(call, runs):
    given = ("MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "NP", "ARGS", "MPI", "SIZES")  # to the make that runs this test
    kept = {name: value for name, value in os.environ.items() if name not in given}
    done = subprocess.run(["make", "-n", *call], cwd=ROOT, env=kept, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0 and re.search(runs, done.stdout), done.stdout + done.stderr
