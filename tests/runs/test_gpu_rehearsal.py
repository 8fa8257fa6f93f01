"""A rehearsal of gpu-check where it is to be run: a Python with the packages of a lent machine and none else.

They are those of this Python, linked into an environment of their own; the MPI is this Python's, too. The device is the
pretended one, and so is CuPy: without a GPU the real one can do nothing but be imported.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from runs.gpu_check.stages import stages
from sparse_mpi import ALGORITHMS

from ..launch import ROOT

THERE = ("numpy", "numba", "torch", "mpi4py", "psutil", "pytest", "hypothesis")
NOT_THERE = ("sparse_mpi", "pytest_mpi", "xdist", "pytest_timeout", "scipy", "sklearn", "ruff", "mypy")
# What stages need that the machine lacks
SKIPPED = {
    "memcheck": "compute-sanitizer is neither on the path nor in",
    "racecheck": "compute-sanitizer is neither on the path nor in",
    "synccheck": "compute-sanitizer is neither on the path nor in",
    "mps-4": "needs nvidia-cuda-mps-control, which comes with the driver",
    "train-vgg": "needs scikit-learn: ",
    "train-resnet": "needs scikit-learn: ",
    "pace": "needs scikit-learn: ",
    "train-bert": "needs tokenizers and transformers: ",
    "timeline": "needs scikit-learn and matplotlib: ",
}


def needed(names: Iterable[str]) -> dict[str, Distribution]:
    """The installed packages of these names, and all that they need, by name."""
    found: dict[str, Distribution] = {}
    left = list(names)
    while left:
        name = canonicalize_name(left.pop())
        if name not in found:
            found[name] = distribution(name)
            required = map(Requirement, found[name].requires or ())
            left += [one.name for one in required if one.marker is None or one.marker.evaluate({"extra": ""})]
    return found


class Bare:
    """An environment in ``folder`` that has these packages alone, without pip."""

    def __init__(self, folder: Path, packages: dict[str, Distribution]) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=240)
        self.python = str(folder / "bin" / "python")
        self.home = folder / "home"
        self.home.mkdir()
        (site,) = folder.glob("lib/python*/site-packages")
        for package in packages.values():
            for top in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
                if not (site / top).exists():
                    (site / top).symlink_to(package.locate_file(top))

    def run(self, *arguments: str, status: int = 0) -> str:
        """What Python prints in the root of the checkout; it must end with ``status``."""
        path = f"{Path(self.python).parent}:{sys.prefix}/bin:/usr/bin:/bin"  # with the mpiexec of this Python
        environment = {"PATH": path, "HOME": str(self.home), "MPI4PY_LIBMPI": f"{sys.prefix}/lib"}
        done = subprocess.run(
            [self.python, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900
        )
        if done.returncode != status:  # not by assert, which shortens long strings
            ended = f"{' '.join(arguments)}: status {done.returncode} for {status}"
            pytest.fail("\n".join([ended, done.stdout[-8000:], done.stderr[-3000:]]), pytrace=False)
        return done.stdout


# Stages whose programs other stages start, too, on other numbers of ranks or elements
REPEATED = ("allreduce-1", "allreduce-4", "nccl-4", "pointers", "agree-resnet50", "agree-bert-base")


@pytest.mark.jobs
@pytest.mark.full("takes minutes; .ci/run names it")
@pytest.mark.timeout(1500)
def test_gpu_check_is_rehearsed_with_the_packages_of_a_lent_machine(tmp_path):
    """Nothing else can be imported; all tests are collected; all stages are taken whose packages are there."""
    bare = Bare(tmp_path / "bare", needed(THERE))
    ask = "import json, sys; from importlib.metadata import distributions; from importlib.util import find_spec; "
    ask += "print(json.dumps([[d.name for d in distributions()], [n for n in sys.argv[1:] if find_spec(n)]]))"
    names, others = json.loads(bare.run("-I", "-c", ask, *NOT_THERE))
    assert {canonicalize_name(name) for name in names} == needed(THERE).keys() and others == []

    text = bare.run("-m", "tests.gpu", "--collect-only", "--continue-on-collection-errors", status=1)
    collected = re.search(r"(\d+)/\d+ tests collected.*", text)
    assert int(collected[1]) > 200 and "error" not in collected[0], text[-3000:]

    out = tmp_path / "out"
    expected = [stage.name for stage in stages(out, True) if stage.name not in REPEATED]
    printed = bare.run("-m", "runs.gpu_check", "--pretend", "--out", str(out), "--only", *expected)
    record, page = json.loads((out / "gpu-check.json").read_text()), (out / "gpu-check.md").read_text()
    (call,) = record["calls"]
    assert call["pretended"] and "library" in call["mpi"]
    assert "cupy" not in call["versions"] and page in printed  # the library's is told where a checkout has been set up
    found = {row["name"]: row for row in record["stages"]}
    assert list(found) == expected
    for name, row in found.items():
        state = "skipped" if name in SKIPPED else "passed"
        assert row["state"] == state, (row, (out / f"{name}.txt").read_text()[-3000:])
        assert f"| {name} | {state} | 1 |" in page and row["why"].startswith(SKIPPED.get(name, "")), row
    skipped = ", ".join(name for name in expected if name in SKIPPED)
    assert "Nothing here was run on a GPU" in page and f"Skipped, so not shown: {skipped}." in page
    for name in ("warm", "agree-vgg16"):
        assert found[name]["why"] == f"{len(ALGORITHMS)} of {len(ALGORITHMS)} to the bit, with both laws"
    assert record["measured"]["allreduce-2"]["ranks"] == 2
    assert re.search(r"[1-9]\d* passed", found["tests"]["why"])
