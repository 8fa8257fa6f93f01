"""A project that uses the library is checked against the wheel, by mypy and by pyright, and does what its types say."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from sparse_mpi import collectives

from .client import algorithm, sums

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
KNOWN = 0.96  # the share of all names of the library whose types pyright knows
PUBLIC = ("", ".algorithms", ".checkpoint", ".comm", ".ddp", ".fault_tolerance", ".feedback", ".collectives", ".optim")


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The ``bin`` of an environment in which the wheel is installed, beside what this Python has."""
    folder = tmp_path_factory.mktemp("consumer")
    tree = folder / "tree"
    shutil.copytree(ROOT / "sparse_mpi", tree / "sparse_mpi", ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, tree)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    subprocess.run([*build, str(tree)], check=True, timeout=120)
    venv.create(folder / "venv", symlinks=True)
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (wheel,) = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(site)
    (site / "others.pth").write_text(sysconfig.get_path("purelib"))
    return folder / "venv" / "bin"


def run(installed, *command):
    """Run a type checker; pyright looks for the first Python on the path."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH", "VIRTUAL_ENV")}
    path = os.pathsep.join([str(installed), kept["PATH"]])
    done = subprocess.run(command, cwd=HERE, env=kept | {"PATH": path}, capture_output=True, text=True, timeout=240)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.full("make lint checks the project by mypy --strict, beside a library that is not installed")
def test_mypy_sees_a_mistake(installed, tmp_path):
    """The check of make lint would not pass without types, or with names that are not exported."""
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import sparse_mpi\nsparse_mpi.World('4')\nfrom sparse_mpi.reduction.once import Comm\n")
    options = ["--python-executable", str(installed / "python"), "--cache-dir", str(tmp_path / "cache")]
    strict = [sys.executable, "-m", "mypy", "--strict", "--config-file="]
    status, said = run(installed, *strict, *options, str(wrong))
    assert status == 1 and "[arg-type]" in said and 'does not explicitly export attribute "Comm"' in said, said


@pytest.mark.full("starts node, looks at what mypy --strict looks at in make lint, and at every public name")
def test_pyright_has_no_complaint_and_knows_the_types_of_public_names(installed):
    """It brings no node of its own without `pyright[nodejs]`."""
    pyright = shutil.which("pyright", path=str(Path(sys.executable).parent))
    status, said = run(installed, pyright, "--version") if pyright else (1, "it is not there")
    if status:
        pytest.skip(f"needs pyright: pip install 'pyright[nodejs]': {said.strip().splitlines()[-1]}")
    status, said = run(installed, pyright, "client")
    assert status == 0 and "0 errors" in said, said
    _, said = run(installed, pyright, "--verifytypes", "sparse_mpi", "--ignoreexternal", "--outputjson")
    found = json.loads(said)["typeCompleteness"]
    assert found["completenessScore"] > KNOWN
    unknown = {symbol["name"] for symbol in found["symbols"] if not symbol["isTypeKnown"]}
    assert not [name for name in unknown if name.rpartition(".")[0] in {f"sparse_mpi{part}" for part in PUBLIC}]


def test_the_project_runs():
    assert len(sums.main()) == 3 and algorithm.main() == 10.0
    assert set(collectives.__all__) >= {"allreduce", "PersistentAllreduce"}
