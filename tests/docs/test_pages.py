"""Every block of code and every command of the documentation is run as it stands there, or says why not.

    python -m pytest --tier all -m "not slurm" tests/docs -k "faults or one-process"

`pages.py` tells what a page may say about its blocks. Commands that start ranks are jobs, those of Slurm are run in
`tests/slurm/test_slurm_pages.py`.
"""

from __future__ import annotations

import ast
import re
import shutil
import textwrap

import pytest

from sparse_mpi_bench.emulation import hosts

from ..launch import needs_mpi
from .options import GPU_CHECK, calls, help_of
from .pages import ROOT, pages
from .running import SECONDS, environment, folder_of, run_commands, run_python

PAGES = pages()
COLUMNS = 88
# Commands that are left to the wide tier: where the gate has what they show
ELSEWHERE = {
    "docs/tutorials/own-algorithm.md": "the page's Python checks the same algorithm",
    "docs/explanation/communication.md": "tests/bench/test_kernels.py takes this benchmark",
    "docs/explanation/architecture.md": "tests/house/test_architecture.py looks at the same boxes and calls",
}
needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")


def having(kind: str) -> list[object]:
    """Return the pages that have something to run of this kind, marked if `make test` leaves them out."""
    found = []
    for name, page in PAGES.items():
        if kind in page.kinds:
            reason = page.marks.get("run by make test-all")
            if reason is None and kind != "python":
                reason = ELSEWHERE.get(name) or ("jobs of other tests do the like" if kind == "jobs" else None)
            found.append(pytest.param(name, marks=[pytest.mark.full(reason)] if reason else []))
    return found


@pytest.mark.parametrize("name", PAGES)
def test_every_block_is_run_or_says_why_not(name):
    told = [f"{PAGES[name].at(line)}: {problem}" for line, problem in PAGES[name].problems]
    assert not told, "\n".join(told)


@pytest.mark.parametrize("name", PAGES)
def test_code_is_as_wide_as_a_page_of_the_site(name):
    """What a program prints may be wider, and is scrolled; in examples/ ruff looks for it."""
    lines = [(block, line) for block in PAGES[name].blocks if block.kind != "text" for line in block.code.splitlines()]
    wide = [f"{PAGES[name].at(block.line)}: {line}" for block, line in lines if len(line) > COLUMNS]
    assert not wide, "\n".join(wide)


@pytest.mark.jobs
@pytest.mark.parametrize("name", having("python"))
def test_python_of_a_page_runs(name, tmp_path):
    for package in filter(None, PAGES[name].marks.get("needs", "").split(", ")):
        pytest.importorskip(package, reason=f"{name} shows what {package} does")
    run_python(PAGES[name], folder_of(PAGES[name], tmp_path))


@needs_bash
@pytest.mark.parametrize("name", having("shell"))
def test_commands_of_a_page_run(name, tmp_path):
    run_commands(PAGES[name], PAGES[name].commands(), folder_of(PAGES[name], tmp_path), environment())


@needs_mpi
@needs_bash
@pytest.mark.jobs
@pytest.mark.timeout(3 * SECONDS)
@pytest.mark.parametrize("name", having("jobs"))
def test_jobs_of_a_page_run(name, tmp_path):
    if any("sparse_mpi bench " in block.code for block in PAGES[name].commands()) and (lacks := hosts.missing()):
        pytest.skip("; ".join(lacks))
    run_commands(PAGES[name], PAGES[name].commands(), folder_of(PAGES[name], tmp_path), environment())


def python_not_run() -> list[object]:
    """Return Python that is shown and not run, with the new side of each diff."""
    found = []
    for page in PAGES.values():
        for block in page.blocks:
            new = re.sub(r"(?m)^(?:-.*\n?|@@.*\n?|[+ ])", "", block.code) if block.kind == "diff" else block.code
            if not block.run and block.kind in ("python", "diff") and block.saved is None:
                found.append(pytest.param(textwrap.dedent(new), id=page.at(block.line)))
    return found


@pytest.mark.parametrize("code", python_not_run())
def test_python_that_is_not_run_is_python_and_imports_what_there_is(code):
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "sparse_mpi":
            exec(ast.unparse(node), {})


CALLS = sorted({tuple(call) for page in PAGES.values() for block in page.blocks for call in calls(block.code)})


def test_calls_are_found_of_all_that_has_options():
    assert len(CALLS) > 50 and {program for program, *_ in CALLS} >= {"sparse_mpi", GPU_CHECK, "train/vgg.py"}


@pytest.mark.parametrize("call", CALLS, ids=" ".join)
def test_commands_have_the_options_shown(call, capsys, monkeypatch, files_are_there, tmp_path):
    for block in PAGES["docs/tutorials/own-algorithm.md"].files():  # modules that commands name
        (tmp_path / block.saved).write_text(block.code)
    monkeypatch.syspath_prepend(tmp_path)
    status = help_of(call[0], [*call[1:]], monkeypatch)
    said = capsys.readouterr()
    assert status == 0 and "usage:" in said.out, said.err


@pytest.mark.parametrize("name", PAGES)
def test_targets_of_make_exist(name):
    targets = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text()))
    assert set(re.findall(r"(?:^ *|`)make ([a-z-]+)", (ROOT / name).read_text(), re.MULTILINE)) <= targets
