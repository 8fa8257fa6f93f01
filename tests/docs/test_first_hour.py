"""The replay of the first hour takes what pages say, in their order, and ends where a step fails."""

from __future__ import annotations

import os
import re
import shutil

import pytest

from .first_hour import FROM_CHECKOUT, MARK, MINUTES, PAGES, Step, clocked, compiled_late, replay, steps
from .pages import ROOT


def test_the_steps_are_those_of_the_pages_from_installing_to_a_verdict(tmp_path):
    clone = tmp_path / "sparse_mpi"
    for page in PAGES:
        (clone / page).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / page, clone / page)
    found = list(steps(tmp_path))
    assert [page for page in PAGES if any(step.page == page for step in found)] == list(PAGES)
    assert sorted(found, key=lambda step: PAGES.index(step.page)) == found
    assert "pip install" in found[0].lines and "SparseAllreduce" in (clone / "example.py").read_text()
    everything = "".join(step.lines for step in found)
    for word in ("run -n 4 example.py", "run -n 4 distributed.py", "predict advise", "bench network"):
        assert word in everything
    assert re.search(FROM_CHECKOUT, found[0].lines) and "doctor --compile" in found[0].lines
    assert "sbatch" not in everything and "make test" not in everything


def test_the_clock_is_told_and_a_step_that_fails_is_shown(capsys):
    todo = [Step("README.md", "first", "true\n"), Step("README.md", "second", "echo why; exit 3\n")]
    script = "".join(f"echo '{MARK}{number}'\n{step.lines}" for number, step in enumerate(todo))
    with pytest.raises(SystemExit, match="README.md: this ended with status 3:\necho why"):
        clocked(todo, script, dict(os.environ))
    said = capsys.readouterr().out
    assert "0:00" in said and "README.md: first" in said and "why" in said and "second" not in said
    assert clocked(todo[:1], script[: script.index("true") + 5], dict(os.environ)) >= 0


def test_a_kernel_that_is_compiled_late_is_named(tmp_path):
    (tmp_path / "early.nbi").touch()
    os.utime(tmp_path / "early.nbi", (1000, 1000))
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "late.nbi").touch()
    assert compiled_late(tmp_path, 1001.0) == ["late.nbi"] and compiled_late(tmp_path, 2e10) == []


@pytest.mark.full("installs two environments, and compiles all kernels twice: a quarter of an hour")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("wheels", [False, True])
def test_the_first_hour_compiles_once(wheels, tmp_path):
    assert replay(tmp_path, wheels) < 60 * MINUTES
