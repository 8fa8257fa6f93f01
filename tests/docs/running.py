"""Run what a page shows, in a folder of its own, and say by line what went wrong and what to do about it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import indent

import pytest

from sparse_mpi.comm.runtime import LAUNCHERS

from ..launch import ALLOWED
from ..prefork import copied
from .outputs import TAB, difference
from .pages import ROOT, Block, Page

SECONDS = 240  # for a block
WHAT_TO_DO = "Mend the page or the library, or write <!-- not run: why --> above the block."


def folder_of(page: Page, folder: Path) -> Path:
    """Make ``folder`` what the reader of ``page`` has: its files, and of the repository what its commands name."""
    for name in named(page):
        if name in ("docs", "runs"):  # commands write there
            shutil.copytree(ROOT / name, folder / name, dirs_exist_ok=True)
        else:
            (folder / name).symlink_to(ROOT / name)
    for block in page.files():
        path = folder / str(block.saved)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.code)
    return folder


def named(page: Page) -> set[str]:
    """Return what the commands of ``page`` name of the repository, by the first part of its path.

    The package is not among it, because it is installed. A tutorial that names nothing begins in an empty folder.
    """
    words = re.findall(
        r"(?<![\w/.-])([\w.-]+)/[\w.-]+",
        "\n".join(block.code for block in [*page.commands(), *page.commands(slurm=True)]),
    )
    found = {word for word in words if (ROOT / word).exists()} - {"sparse_mpi"}
    return found | ({"setup.cfg", "train"} if "tests" in found else set())


def environment() -> dict[str, str]:
    """Return the variables of a shell in which the package is installed and ready."""
    kept = {name: value for name, value in os.environ.items() if name not in (*LAUNCHERS, "PYTHONUNBUFFERED")}
    path = os.pathsep.join([f"{sys.prefix}/bin", os.environ.get("PATH", os.defpath)])
    return ALLOWED | kept | {"PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}


def run_python(page: Page, folder: Path) -> None:
    blocks = [block for block in page.run if block.kind == "python"]
    given = [(block.line, block.code, block.marks.get("first", "")) for block in blocks]
    program = copied("-m", "tests.docs.driver", json.dumps([str(ROOT / page.name), given]))
    status, printed, errors = run([sys.executable, *program], folder, environment())
    if status:
        fail(page, blocks[0], f"its Python {ended(status)}:\n\n{indent(printed + errors, TAB)}")
    answers = json.loads(printed.splitlines()[-1])
    for block, (printed, error) in zip(blocks, answers, strict=False):
        if error:
            fail(page, block, f"this block fails:\n\n{indent(error, TAB)}")
        compare(page, block, printed)


def run_commands(page: Page, blocks: Sequence[Block], folder: Path, variables: dict[str, str]) -> None:
    """Run blocks of commands of ``page``, each in a shell that ends at the first error, and compare their output."""
    for block in blocks:
        status, printed, errors = run(["bash", "-euo", "pipefail", "-c", block.code], folder, variables)
        if status:
            fail(page, block, f"\n\n{indent(block.code, TAB)}\n\n{ended(status)}:\n\n{indent(printed + errors, TAB)}")
        compare(page, block, printed)


def ended(status: int) -> str:
    return f"ended with status {status}" if status > 0 else f"took longer than {SECONDS} s"


def run(command: Sequence[str], folder: Path, variables: dict[str, str]) -> tuple[int, str, str]:
    """Return the status of ``command``, -9 where it took too long and was killed, and what it printed."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        printed, errors = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        printed, errors = process.communicate()
    return process.returncode, printed, errors


def compare(page: Page, block: Block, printed: str) -> None:
    """Fail unless ``block`` has printed what the page shows below it, if it shows something."""
    if block.output is None:
        return
    differs = difference(block.output.code, printed, float(block.output.marks.get("within", 0)))
    if differs:
        fail(page, block.output, f"{differs}\n\nCorrect the page, or write ... for what may differ.")


def fail(page: Page, block: Block, problem: str) -> None:
    pytest.fail(f"{page.at(block.line)}: {problem}\n\n{WHAT_TO_DO}", pytrace=False)
