"""The stages of ``gpu-check``: ``stages.json`` has their commands, needs and estimated times.

``[a|b]`` is ``a`` on a GPU and ``b`` on a pretended one. An estimate is the sum of the seconds of its basis.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from runs.processes import ROOT
from sparse_mpi.algorithms import ALGORITHMS

MARGIN = 2.0  # times its estimate that a stage may take: on one H100 they took 0.3 to 1.3
PRETENDED = 20.0  # times the estimate for a GPU that a pretended stage may take, on cores that others use too
TOOLKITS = ("$CUDA_HOME/bin", "/usr/local/cuda/bin")  # folders of CUDA's tools that need not be on the path
CARRIED = ".gpu/"  # unpacked result of `runs.gpu_check.carry`: an NCCL, and an MPI that takes device pointers
SANITIZER, SERVER = "compute-sanitizer", "nvidia-cuda-mps-control"
MODULES = {"scikit-learn": "sklearn"}  # of packages that are imported by another name


class Stage(NamedTuple):
    """One thing to be shown."""

    name: str
    estimate: float  # seconds
    basis: str  # the terms of the estimate
    command: tuple[str, ...]
    needs: str = ""  # a reason not to try it; "" if there is none
    mpi: bool = False  # it has nothing to show without an MPI
    margin: float = MARGIN

    @property
    def limit(self) -> float:
        return self.margin * self.estimate

    @property
    def shown(self) -> str:
        """Return the command as one line, without paths of this machine."""
        return " ".join(self.command).replace(sys.executable, "python").replace(f"{ROOT}/", "")


def stages(out: Path, pretend: bool) -> list[Stage]:
    """Return the stages, in their order; their results go to the folder ``out``."""
    places = {"python": sys.executable, "sanitizer": _find_sanitizer(), "root": ROOT, "gpu": ROOT / CARRIED, "out": out}
    words = {name: shlex.quote(str(place or SANITIZER)) for name, place in places.items()}
    words |= {"algorithms": " ".join(ALGORITHMS), "commas": ",".join(ALGORITHMS)}

    def made(name: str, basis: str, command: str, needs: str = "") -> Stage:
        command, needs = (re.sub(r"\[(.*?)\|(.*?)\]", rf"\{1 + pretend}", text) for text in (command, needs))
        estimate = sum(float(part.split()[-1]) for part in basis.split(", "))
        lacks, mpi = _missing([need for need in needs.split() if need != "mpi"]), "mpi" in needs.split()
        given = tuple(shlex.split(command.format(**words)))
        return Stage(name, estimate, basis, given, lacks, mpi, PRETENDED if pretend else MARGIN)

    return [made(name, **entry) for name, entry in json.loads(Path(__file__).with_suffix(".json").read_text()).items()]


def _find_sanitizer() -> str | None:
    """Return the path of compute-sanitizer, of the toolkit on the path or else of one of `TOOLKITS`; None without."""
    folders = [os.environ.get("PATH", os.defpath), *map(os.path.expandvars, TOOLKITS)]
    return shutil.which(SANITIZER, path=os.pathsep.join(folders))


def _missing(needs: list[str]) -> str:
    """Return the reason not to try a stage that needs these files, programs and packages; "" if all are there."""
    packages = []
    for need in needs:
        if need.startswith(CARRIED):
            if not (ROOT / need).exists():
                how = "python -m runs.gpu_check.carry, where there is a network; then unpack it as .gpu/README says"
                return f"needs {need}: {how}"
        elif need == SANITIZER:
            if not _find_sanitizer():
                return f"{need} is neither on the path nor in {' or '.join(TOOLKITS)}"
        elif need == SERVER:
            if not shutil.which(need):
                return f"needs {need}, which comes with the driver"
        elif find_spec(MODULES.get(need, need)) is None:
            packages.append(need)
    return f"needs {' and '.join(packages)}: pip install {' '.join(packages)}" if packages else ""
