"""Recipes, containers and workflows say what setup.cfg says, and their steps are those that work."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
import zipfile
from email.parser import Parser
from hashlib import sha256

import pytest
import yaml

import sparse_mpi

from .__main__ import VERSIONS
from .distribution import ROOT, library_files
from .recipes import CONDA, SPACK, filled

setup = configparser.ConfigParser()
setup.read(ROOT / "setup.cfg")
NEEDED = dict(line.split(">=") for line in setup["options"]["install_requires"].split())
OLDEST = setup["options"]["python_requires"].removeprefix(">=")
DOCKERFILE = (ROOT / "packaging" / "Dockerfile").read_text()
DEFINITION = (ROOT / "packaging" / "sparse_mpi.def").read_text()
SOURCES = ("LICENSE", "README.md", "constraints.txt", "pyproject.toml", "setup.cfg", "setup.py", "sparse_mpi")
WORKFLOWS = {file.stem: yaml.safe_load(file.read_text()) for file in (ROOT / ".github/workflows").glob("*.yml")}


def test_the_wheel_has_the_library_alone_and_says_where_the_project_is_and_on_what_it_runs(tmp_path):
    for name in ("setup.cfg", "setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    for part in ("sparse_mpi", "train", "tests"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "train" / "__init__.py").touch()  # a package if ever there was one
    code = "from setuptools.build_meta import build_wheel as made; made('made')"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, timeout=120)
    with zipfile.ZipFile(next(tmp_path.glob("made/*.whl"))) as wheel:
        packed = [name for name in wheel.namelist() if ".dist-info/" not in name]
        metadata = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        said = Parser().parsestr(wheel.read(metadata).decode())
    assert sorted(packed) == sorted(file.relative_to(ROOT).as_posix() for file in library_files())
    links = dict(link.split(", ") for link in said.get_all("Project-URL"))
    assert set(links) == {"Homepage", "Documentation", "Source", "Changelog", "Issues"}
    assert all(link.startswith(links["Source"]) for name, link in links.items() if name in ("Changelog", "Issues"))
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (cited["repository-code"], cited["url"]) == (links["Source"], links["Documentation"])
    assert said["License-Expression"] == "MIT" and "](docs/" not in str(said.get_payload())
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
        yaml.safe_load((ROOT / "CITATION.cff").read_text())["license"],
    )
    for name in recipe["tests"][1]["files"]["recipe"]:
        assert (ROOT / CONDA.parent / name).exists()


@pytest.mark.parametrize(
    ("text", "line"),
    [(DOCKERFILE, r"^COPY (?!--from)(.*) \S+$"), (DEFINITION, r"^ {4}(\S+) /source/$")],
    ids=["docker", "apptainer"],
)
def test_containers_copy_what_the_wheel_is_made_of(text, line):
    assert " ".join(re.findall(f"(?m){line}", text)).split() == [*SOURCES]


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


def test_the_package_for_spack_is_what_setup_cfg_says(tmp_path):
    sdist = tmp_path / "sdist"
    sdist.write_bytes(b"an sdist")
    package = filled(SPACK, sdist)
    assert f'version("{sparse_mpi.__version__}", sha256="{sha256(b"an sdist").hexdigest()}")' in package
    assert setup["metadata"]["description"] in package and f"/sparse_mpi-{sparse_mpi.__version__}.tar.gz" in package
    extras = dict(re.findall(r"(?m)^    (numba|torch|cupy)\S*>=([\d.]+)", (ROOT / "setup.cfg").read_text()))
    lowest = {"python": OLDEST, **{f"py-{name}": version for name, version in (NEEDED | extras).items()}}
    for name, version in lowest.items():
        assert f'depends_on("{name}@{version.removesuffix(".0")}:"' in package, (name, version)
    for module in re.findall(r'"(sparse_mpi[\w.]*)"', package.partition("import_modules")[2]):
        assert __import__(module)
