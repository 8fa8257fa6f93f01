"""The fixture ``ranks``: one test body, run by the ranks of a `World` or, under mpiexec, by those of MPI.

    python -m pytest                                           worlds of 1 to 8 ranks in this process
    mpiexec -n 4 python -m pytest --with-mpi -m mpi            the same bodies on 4 MPI ranks

``ranks.run(fn)`` returns ``[fn(comm) for every rank]``, under MPI on every rank, so that all assert the same.
``@pytest.mark.ranks(1, 3)`` restricts a test to these sizes, ``@pytest.mark.ranks(least=2)`` to 2 and more.
Not all items of a test are run each time: see `tests/tiers.py`, and the option ``--tier``.
"""

from __future__ import annotations

import gc
import os
import platform
import re
import subprocess
import sys
from argparse import ArgumentTypeError
from contextlib import suppress
from pathlib import Path
from typing import Any

# Recorded bytes are those of one thread, and of kernels that every x86 processor with AVX2 has: NumPy and torch read
# this when they are first imported
os.environ.setdefault("OMP_NUM_THREADS", "1")
if platform.machine() == "x86_64":
    os.environ.setdefault("OPENBLAS_CORETYPE", "Haswell")

import pytest
from hypothesis import HealthCheck, settings

from sparse_mpi import kernels
from sparse_mpi.comm.world import World

from .changed import concerned_since
from .durations import Durations
from .launch import ROOT
from .prefork import copied
from .schedules import Schedules
from .tiers import COMPARED, CORE, TIERS, TRANSPORT, Tiers, parameters

SIZES = range(1, 9)
NEEDS_RANKS = re.compile(r"def \w+\([^)]*\branks\b")

EXAMPLES = {"fast": 10, "wide": 30, "all": 100}  # of a test by hypothesis


def _forget_stale_kernels():
    """Numba compiles a function anew when its own file changes, not when one that it calls from another file does."""
    folder = Path(kernels.__file__).parent
    changed = max(file.stat().st_mtime for file in folder.rglob("*.py"))
    for cached in folder.rglob("*.nbi"):
        with suppress(FileNotFoundError):  # another rank was faster
            if cached.stat().st_mtime < changed:
                cached.unlink()


def pytest_addoption(parser):
    parser.addoption("--tier", choices=TIERS, default="fast", help="which items to run, see tests/tiers.py")
    parser.addoption("--record", metavar="PART", help="record durations of this whole part, see tests/durations.py")
    parser.addoption("--changed", metavar="SINCE", help="only files that can reach a changed one, see tests/changed.py")


def pytest_configure(config):
    settings.register_profile(
        "same-on-all-ranks",
        max_examples=EXAMPLES[config.getoption("--tier")],
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    settings.load_profile("same-on-all-ranks")
    _forget_stale_kernels()
    if config.getoption("markexpr") == "jobs" and (hasattr(config, "workerinput") or not config.getoption("-n", None)):
        copied()  # starts what is copied while tests are collected
    if config.getoption("--with-mpi", False):
        from .mpi_harness import MPIHarness

        config.pluginmanager.register(MPIHarness(config), "mpi-harness")
    config.pluginmanager.register(Tiers(config), "tiers")
    config.pluginmanager.register(Durations(config.getoption("--record")), "durations")


def pytest_ignore_collect(collection_path, config):
    """Leave files unread that no change can reach and, under MPI, of which nothing is run: they import much."""
    if config.getoption("--changed") and collection_path.name.startswith("test_"):
        if collection_path.relative_to(config.rootpath).as_posix() not in concerned_since(
            config.getoption("--changed")
        ):
            return True
    if config.getoption("--with-mpi", False) and collection_path.name.startswith("test_"):
        size, text = config.pluginmanager.getplugin("mpi-harness").size, collection_path.read_text()
        read = size == CORE or collection_path.is_relative_to(config.rootpath / TRANSPORT)
        read |= size in COMPARED and "against_world" in text
        if not NEEDS_RANKS.search(text) or (config.getoption("--tier") == "fast" and not read):
            return True
    return None


def pytest_report_header(config):
    if since := config.getoption("--changed"):
        return f"{len(concerned_since(since))} files of tests, which python -m tests.changed {since} lists"
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session):
    """What nothing can reach is no failure of `--changed`."""
    if session.config.getoption("--changed") and session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.OK


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Leave the items of the tier; under MPI, only tests that need as many ranks, with the marker ``mpi``."""
    harness = config.pluginmanager.getplugin("mpi-harness")
    if config.getoption("--with-mpi", False):
        talking = [item for item in items if "ranks" in item.fixturenames and not item.get_closest_marker("in_world")]
        able = {item for item in talking if parameters(item)["ranks"] == harness.size}
        config.hook.pytest_deselected(items=[item for item in items if item not in able])
        items[:] = [item for item in items if item in able]
    config.pluginmanager.getplugin("tiers").select(config, items, harness and harness.size)
    if config.getoption("--with-mpi", False):
        for item in items:
            item.add_marker(pytest.mark.mpi)


def pytest_collectstart():
    """Have no garbage collected before all tests are: it would look through them time and again."""
    gc.disable()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish():
    """Keep garbage collection from looking through all that was collected: half a second each time."""
    gc.enable()
    gc.collect()
    gc.freeze()


def pytest_generate_tests(metafunc):
    given = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    if "ranks" not in metafunc.fixturenames or "ranks" in given:
        return
    mark = metafunc.definition.get_closest_marker("ranks") or pytest.mark.ranks().mark
    harness = metafunc.config.pluginmanager.getplugin("mpi-harness")
    sizes = mark.args or [size for size in SIZES if size >= mark.kwargs.get("least", 1)]
    if harness is not None:
        wanted = harness.size in mark.args if mark.args else harness.size >= mark.kwargs.get("least", 1)
        sizes = [harness.size] if wanted else []
    metafunc.parametrize("ranks", sizes, indirect=True, ids=lambda size: f"P{size}")


@pytest.fixture
def ranks(request):
    """The ranks a test runs on: ``ranks.size`` and ``ranks.run(fn)``."""
    harness = request.config.pluginmanager.getplugin("mpi-harness")
    if harness is None:
        return World(request.param)
    if request.param != harness.size:
        pytest.skip(f"needs {request.param} ranks, MPI has {harness.size}")
    return harness


@pytest.fixture
def schedules(request):
    """The seeds under which the test tries its law by ``schedules.hold``: see `tests/schedules.py`."""
    return Schedules.of(request)


@pytest.fixture
def no_signals(monkeypatch):
    """Training in this process leaves its ways with signals alone."""
    monkeypatch.setattr("sparse_train.ranks.job.Interruption.__init__", lambda self: setattr(self, "noticed", False))


@pytest.fixture
def device(monkeypatch):
    """A pretended device with a pretended CuPy, and the record of what happens on it."""
    from .fakes.fake_array import install

    return install(monkeypatch)


@pytest.fixture
def files_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let options name files and folders that are not there, as command lines do that are shown and not run."""
    from sparse_mpi.cli.values import Value

    convert = Value.__call__

    def read(self: Value[Any], text: str) -> Any:
        try:
            return convert(self, text)
        except ArgumentTypeError:
            if not re.search("a file|a folder", self.expected):
                raise
            return Path(text)

    monkeypatch.setattr(Value, "__call__", read)


@pytest.fixture
def metrics_folder(tmp_path, monkeypatch):
    """Have reducers write metrics of every step to a folder, as a job called "test", whatever launcher there is."""
    from sparse_mpi.comm.runtime import RANKS
    from sparse_mpi.monitor import metrics

    for name in (*metrics.JOBS, *RANKS, "RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(metrics.DIRECTORY, str(tmp_path))
    monkeypatch.setenv(metrics.JOB, "test")
    monkeypatch.setattr(metrics, "SECONDS", 0.0)
    return tmp_path


@pytest.fixture(scope="session")
def survival():
    """Skip where ranks of real jobs do not survive each other, because MPI has no such thing."""
    command = (sys.executable, "-m", "sparse_mpi", "run", "--elastic", "--dry-run", "-n", "2", __file__)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        assert "--elastic needs an MPI whose ranks survive" in done.stderr
        pytest.skip(done.stderr.strip())
