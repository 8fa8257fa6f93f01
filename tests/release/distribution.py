"""The sdist and the wheel: how they are built, and what must and must not be in them."""

from __future__ import annotations

import re
import tarfile
import zipfile
from pathlib import Path
from typing import NamedTuple

from ..checkout import copy
from .environments import Environment, Failed

ROOT = Path(__file__).parents[2]
PACKAGE = "sparse_mpi"
SCRIPT = "sparse-mpi = sparse_mpi.__main__:start"
BESIDE = {"LICENSE", "README.md", "pyproject.toml", "setup.cfg", "PKG-INFO", "setup.py", "MANIFEST.in"}  # in an sdist
PATIENCE = 300.0


class Built(NamedTuple):
    sdist: Path
    wheel: Path
    bench: Path  # the wheel of the workbench


def build(tools: Environment, folder: Path) -> Built:
    """Build an sdist of the files that git knows, and the wheel from it, into ``folder``.

    Raises:
        Failed: it cannot be built.
    """
    tree = copy(folder / "tree")
    tools.run("-m", "build", "--no-isolation", "--outdir", str(folder / "dist"), str(tree), seconds=PATIENCE)
    (sdist,), (wheel,) = (folder / "dist").glob("*.tar.gz"), (folder / "dist").glob("*.whl")
    workbench = ("--no-isolation", "--wheel", "--outdir", str(folder / "bench"), str(tree / "bench"))
    tools.run("-m", "build", *workbench, seconds=PATIENCE)
    return Built(sdist, wheel, next((folder / "bench").glob("*.whl")))


def check(tools: Environment, built: Built) -> None:
    """Raise Failed unless both have what they need, and nothing else, and an index would take them."""
    tools.run("-m", "twine", "--no-color", "check", "--strict", *map(str, built), seconds=PATIENCE)
    library = {file.relative_to(ROOT).as_posix() for file in library_files()}
    with zipfile.ZipFile(built.wheel) as wheel:
        names = set(wheel.namelist())
        info = next(name for name in names if name.endswith(".dist-info/METADATA")).partition("/")[0]
        entries = wheel.read(f"{info}/entry_points.txt").decode()
        described = wheel.read(f"{info}/METADATA").decode()
    _same("the wheel", {name for name in names if not name.startswith(f"{info}/")}, library)
    if not any(name.startswith(f"{info}/") and name.endswith("/LICENSE") for name in names) or SCRIPT not in entries:
        raise Failed("the wheel lacks its license or the command sparse-mpi")
    if relative := re.findall(r"\]\((?!https?:)[^)]*\)", described):
        raise Failed(f"the description has links into the checkout: {relative[:5]}")
    if "License-Expression: MIT" not in described:
        raise Failed("the wheel names no license by SPDX")
    with tarfile.open(built.sdist) as sdist:
        inside = {member.name.partition("/")[2] for member in sdist.getmembers() if member.isfile()}
    needed = {"LICENSE", "README.md", "pyproject.toml", "setup.cfg", "setup.py", "PKG-INFO"}
    own = {name for name in inside if not name.startswith(f"{PACKAGE}.egg-info/")}
    _same("the sdist", own - (BESIDE - needed), library | needed)


def library_files() -> list[Path]:
    """Return the files of the library: modules, kernels in CUDA, and the mark that it has types."""
    found = [file for kind in ("*.py", "*.cu", "*.json", "py.typed") for file in (ROOT / PACKAGE).rglob(kind)]
    return [file for file in found if "__pycache__" not in file.parts]


def _same(what: str, has: set[str], needs: set[str]) -> None:
    if has != needs:
        raise Failed(f"{what} lacks {sorted(needs - has)[:5]}, and should not have {sorted(has - needs)[:5]}")
