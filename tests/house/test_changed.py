"""`make test CHANGED=1` runs the tests that can reach a changed file, and all of them where that cannot be known."""

from __future__ import annotations

import pytest

from .. import changed
from ..changed import Files, concerned, git

REACHED = {
    "sparse_mpi/wire/packed.py": ({"tests/wire", "tests/training", "tests/integrations"}, set()),
    "sparse_mpi/training/ddp_pass.py": ({"tests/training", "tests/golden"}, {"tests/wire", "tests/select"}),
    "sparse_mpi/contrib/frames.py": ({"tests/contrib"}, {"tests/wire", "tests/select", "tests/golden"}),
    "sparse_mpi/integrations/hf.py": ({"tests/integrations"}, {"tests/wire", "tests/select", "tests/contrib"}),
    "train/vgg.py": ({"tests/docs"}, {"tests/wire", "tests/select"}),
    "tests/training/door_job.py": ({"tests/training"}, {"tests/wire"}),  # started as a program
    "docs/index.md": ({"tests/docs"}, {"tests/select", "tests/training"}),
}


@pytest.fixture(scope="module")
def files() -> Files:
    """The library and the programs, with tests of the folders above."""
    kept = tuple({"sparse_mpi/", "train/", "docs/"}.union(*(run | left for run, left in REACHED.values())))
    return Files(path for path in git("ls-files") if path.startswith(kept) and not path.startswith("tests/house/"))


def folders(paths: list[str], files: Files) -> set[str]:
    return {"/".join(test.split("/")[:2]) for test in concerned(paths, files)}


def test_what_imports_or_names_a_changed_file_is_run_and_what_does_not_is_not(files):
    for path, (run, left) in REACHED.items():
        found = folders([path], files)
        assert run <= found and not left & found, (path, found)
    assert folders([], files) == set()


@pytest.mark.parametrize("path", ["setup.cfg", "tests/conftest.py", "tests/fakes/fake_array.py", "sparse_mpi/gone.py"])
def test_all_are_run_where_everything_depends_on_it_or_nobody_is_known_to(files, path):
    assert len(concerned([path], files)) == len([path for path in files.paths if "/test_" in path])


def test_a_name_is_found_wherever_it_stands(tmp_path, monkeypatch):
    sources = {
        "sparse_mpi/__init__.py": "from sparse_mpi.wire import base",
        "sparse_mpi/sparse.py": "",
        "sparse_mpi/comm/world.py": "import sparse_mpi.sparse",
        "sparse_mpi/__main__.py": "COMMANDS = {'run': 'sparse_mpi.comm.world'}",
        "tests/a/test_a.py": "'''Not sparse_mpi.sparse.'''\nimport sparse_mpi\nsparse_mpi.World(2)",
        "tests/a/job.py": "from . import test_a",
        "tests/a/data.json": "{}",
        "tests/b/test_b.py": "PROGRAM = '''\nfrom sparse_mpi import World, Layout\n'''",
        "tests/b/test_c.py": "COMMAND = 'python -m sparse_mpi run tests/a/job.py'",
    }
    for path, text in sources.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.setattr(changed, "ROOT", tmp_path)
    files = Files(sources)
    assert files.reached("tests/a/test_a.py") == {
        "sparse_mpi/__init__.py",
        "sparse_mpi/comm/world.py",
        "tests/a/data.json",
    }
    assert files.reached("tests/b/test_b.py") == {"sparse_mpi/comm/world.py", "sparse_mpi/sparse.py"}
    assert files.reached("tests/b/test_c.py") == {"sparse_mpi/__main__.py", "tests/a/job.py"}
    assert concerned(["sparse_mpi/comm/world.py"], files) == [
        "tests/a/test_a.py",
        "tests/b/test_b.py",
        "tests/b/test_c.py",
    ]
    assert concerned(["tests/a/data.json"], files) == ["tests/a/test_a.py", "tests/b/test_c.py"]


def test_a_commit_that_is_unknown_is_an_error_that_git_explains():
    with pytest.raises(SystemExit, match="CHANGED asks git what differs: git diff --name-only nowhere: .*nowhere"):
        changed.changed("nowhere")
