"""Recipes, containers and workflows say what setup.cfg says, and their steps are those that work."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import subprocess
import sys
from email.parser import Parser
from hashlib import sha256
from pathlib import Path

import pytest
import yaml

import sparse_mpi

from ..launch import ALLOWED, MPIEXEC, needs_mpi
from .__main__ import VERSIONS
from .distribution import ROOT
from .recipes import CONDA, SPACK, filled

setup = configparser.ConfigParser()
setup.read(ROOT / "setup.cfg")
NEEDED = dict(line.split(">=") for line in setup["options"]["install_requires"].split())
OLDEST = setup["options"]["python_requires"].removeprefix(">=")
DOCKERFILE = (ROOT / "packaging" / "Dockerfile").read_text()
DEFINITION = (ROOT / "packaging" / "sparse_mpi.def").read_text()
SOURCES = ("LICENSE", "README.md", "constraints.txt", "pyproject.toml", "setup.cfg", "sparse_mpi")
WORKFLOWS = {file.stem: yaml.safe_load(file.read_text()) for file in (ROOT / ".github/workflows").glob("*.yml")}


def test_the_wheel_says_where_the_project_is_and_on_what_it_runs(tmp_path):
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "sparse_mpi", tmp_path / "sparse_mpi", ignore=shutil.ignore_patterns("__pycache__"))
    code = "from setuptools.build_meta import prepare_metadata_for_build_wheel as made; made('made')"
    (tmp_path / "made").mkdir()
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, timeout=120)
    said = Parser().parsestr(next(tmp_path.glob("made/*/METADATA")).read_text())
    links = dict(link.split(", ") for link in said.get_all("Project-URL"))
    assert set(links) == {"Homepage", "Documentation", "Source", "Changelog", "Issues"}
    assert all(link.startswith(links["Source"]) for name, link in links.items() if name in ("Changelog", "Issues"))
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (cited["repository-code"], cited["url"]) == (links["Source"], links["Documentation"])
    classifiers = said.get_all("Classifier")
    assert "Typing :: Typed" in classifiers and said["Requires-Python"] == f">={OLDEST}" == f">={VERSIONS[0]}"
    pythons = [found[1] for found in map(re.compile(r"Programming .*:: (3\.\d+)$").match, classifiers) if found]
    assert pythons == list(VERSIONS)


def test_the_recipe_for_conda_forge_is_what_setup_cfg_says(tmp_path):
    sdist = tmp_path / f"sparse_mpi-{sparse_mpi.__version__}.tar.gz"
    sdist.write_bytes(b"an sdist")
    recipe = yaml.safe_load(filled(CONDA, sdist))
    assert recipe["context"] == {"version": sparse_mpi.__version__, "sha256": sha256(b"an sdist").hexdigest()}
    needed = [f"{name} >={version}" for name, version in NEEDED.items()]
    assert sorted(recipe["requirements"]["run"]) == sorted(["python >=${{ python_min }}", *needed])
    commands = setup["options.entry_points"]["console_scripts"].strip().splitlines()
    assert recipe["build"]["noarch"] == "python" and recipe["build"]["python"]["entry_points"] == commands
    assert (recipe["about"]["summary"], recipe["about"]["license"]) == (
        setup["metadata"]["description"],
        setup["metadata"]["license"],
    )
    for name in recipe["tests"][1]["files"]["recipe"]:
        assert (ROOT / CONDA.parent / name).exists()


def test_the_package_for_spack_is_what_setup_cfg_says(tmp_path):
    sdist = tmp_path / "sdist"
    sdist.write_bytes(b"an sdist")
    calls: dict[str, list[tuple[tuple[str, ...], dict[str, object]]]] = {}

    def directive(name):
        return lambda *values, **how: calls.setdefault(name, []).append((values, how))

    class default_args:
        __init__ = __enter__ = __exit__ = lambda self, *_, **how: None

    names = {name: directive(name) for name in ("license", "version", "variant", "depends_on")}
    bases = {"PythonPackage": type("A", (), {}), "CudaPackage": type("B", (), {"cuda_arch_values": ("80", "90")})}
    names |= {"default_args": default_args} | bases
    exec(re.sub(r"(?m)^from .*\n", "", filled(SPACK, sdist)), names)
    package = names["PySparseMpi"]
    assert package.__doc__ == f"{setup['metadata']['description']}."
    assert package.pypi == f"sparse_mpi/sparse_mpi-{sparse_mpi.__version__}.tar.gz"
    assert ((sparse_mpi.__version__,), {"sha256": sha256(b"an sdist").hexdigest()}) in calls["version"]
    specs = [values[0] for values, _ in calls["depends_on"]]
    extras = dict(re.findall(r"(?m)^    (numba|torch|cupy)\S*>=([\d.]+)", (ROOT / "setup.cfg").read_text()))
    lowest = {"python": OLDEST, **{f"py-{name}": version for name, version in {**NEEDED, **extras}.items()}}
    for name, version in lowest.items():
        assert f"{name}@{version.removesuffix('.0')}:" in specs, (name, version, specs)
    for module in package().import_modules:
        assert __import__(module)


@pytest.mark.parametrize(
    ("text", "line"),
    [(DOCKERFILE, r"^COPY (?!--from)(.*) \S+$"), (DEFINITION, r"^ {4}(\S+) /source/$")],
    ids=["docker", "apptainer"],
)
def test_containers_copy_what_the_wheel_is_made_of(text, line):
    assert " ".join(re.findall(f"(?m){line}", text)).split() == [*SOURCES]


@needs_mpi
@pytest.mark.jobs
@pytest.mark.timeout(1000)
@pytest.mark.full("downloads an MPI and makes an environment")
@pytest.mark.parametrize("text", [DOCKERFILE, DEFINITION], ids=["docker", "apptainer"])
def test_the_steps_of_a_container_make_an_environment_that_sums(index, text, tmp_path):
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    begin = "python3 -m venv /opt/sparse_mpi"
    install = text[text.index(begin) :].split("\n\n")[0].replace(begin, f"{shlex.quote(sys.executable)} -m venv env")
    install = install.replace("/opt/sparse_mpi/", "env/").replace("/source", str(tmp_path))
    brings = re.search("(?m)^ARG EXTRAS=(.*)$", text)
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | ALLOWED
    launcher = [tmp_path / "env" / "bin" / "sparse-mpi", "run", "-n", "4"]
    if brings:
        variables["EXTRAS"] = brings[1]
    else:  # the host's MPI, which here is that of this environment
        launcher = [MPIEXEC, "-n", "4", tmp_path / "env" / "bin" / "python"]
        libraries = map(str, Path(sys.prefix, "lib").glob("libmpi.so.[0-9]*"))
        variables["MPI4PY_LIBMPI"] = next(libraries, variables.get("MPI4PY_LIBMPI", ""))
    how = {"cwd": tmp_path, "env": variables, "capture_output": True, "text": True}
    made = subprocess.run(["sh", "-ec", install], timeout=600, **how)
    assert made.returncode == 0, made.stderr
    done = subprocess.run([*launcher, ROOT / CONDA.parent / "sum_of_ranks.py"], timeout=300, **how)
    assert done.returncode == 0 and sorted(re.findall(r"rank (\d) of 4", done.stdout)) == [*"0123"], done.stderr


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflows_start_targets_of_make_with_as_few_rights_as_they_need(name):
    workflow = WORKFLOWS[name]
    makefile = (ROOT / "Makefile").read_text()
    runs = [step for job in workflow["jobs"].values() for step in job["steps"]]
    for one in runs:
        for target in re.findall(r"\bmake (\S+)", one.get("run", "")):
            assert re.search(rf"(?m)^{target}:", makefile), target
        assert re.fullmatch(r"\S+@[0-9a-f]{40}", one.get("uses", "a@" + "0" * 40)), "an action is pinned to a commit"
    assert set(workflow["permissions"].values() if workflow["permissions"] else ()) <= {"read"}
    assert all("timeout-minutes" in job for job in workflow["jobs"].values())
