"""The recipes of packaging/ for conda-forge and Spack, with the version and the hash of a release written in."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path

import sparse_mpi

from .distribution import ROOT

CONDA = Path("packaging", "conda", "recipe.yaml")
SPACK = Path("packaging", "spack_repo", "sparse_mpi", "packages", "py_sparse_mpi", "package.py")


def filled(recipe: Path, sdist: Path) -> str:
    """Return the text of a recipe for this version, whose source has the hash of ``sdist``."""
    text = (ROOT / recipe).read_text()
    for pattern, new in (
        (r'(version(?:: |\()")[\w.]+(?=")', sparse_mpi.__version__),
        (r"(sparse_mpi-)[\w.]+(?=\.tar\.gz)", sparse_mpi.__version__),
        (r'(sha256(?:: |=)")[0-9a-f]{64}(?=")', sha256(sdist.read_bytes()).hexdigest()),
    ):
        text = re.sub(pattern, rf"\g<1>{new}", text)
    return text
