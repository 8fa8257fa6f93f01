"""Every public call with wrong arguments, on one rank and on all: all raise, none waits, errors name the argument."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from sparse_mpi import World, checkpoint
from sparse_mpi.comm import NullComm

from ..launch import launch
from ..prefork import torchrun
from .calls import LOCAL, NOT_WALKED, SHARES, WRONG, calls, objection

NAMES = [name for name, _ in calls(NullComm(), Path())]
MODULES = ("sparse_mpi", *(f"sparse_mpi.{name}" for name in ("optim", "ddp", "fsdp", "checkpoint", "contrib")))
KINDS = (TypeError, ValueError, RuntimeError, OSError)
# A function that does not take what it is told raises in its own name
OWN = {("tell", "function"), ("tell", "class"), ("tell", "hostile")}
EACH = [0, *(pytest.param(n, marks=pytest.mark.full("as the first")) for n in range(1, SHARES))]


def outcomes(name: str, folder: Path, wrong: dict, culprits: tuple[int, ...]) -> list[Exception | None]:
    """What each of two ranks raises."""

    def body(comm):
        call = dict(calls(comm, folder))[name]()
        own = {argument: WRONG[value]() for argument, value in wrong.items()} if comm.rank in culprits else {}
        try:
            call.function(**call.arguments | own)
        except KINDS as error:
            if isinstance(error, UnicodeError):
                raise
            return error
        return None

    return World(2).run(body)


def problem(name: str, folder: Path, argument: str, value: str, culprits: tuple[int, ...]) -> str | None:
    try:
        raised = outcomes(name, folder, {argument: value}, culprits)
    except Exception as error:  # ranks that wait, and errors of other kinds
        return f"{type(error).__name__}: {error}"
    return objection(raised, argument, culprits)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # texts are names of folders
    World(2).run(lambda comm: checkpoint.save(tmp_path / "saved", 1, {"lr": 0.1}, b"m", {"rank": comm.rank}, comm))
    return tmp_path


@pytest.mark.parametrize("share", EACH)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore")
def test_a_wrong_argument_is_an_error_on_all_ranks_that_names_it(folder, name, share):
    assert outcomes(name, folder, {}, ()) == [None, None]
    arguments: list[str] = []
    World(1).run(lambda comm: arguments.extend(dict(calls(comm, folder))[name]().arguments))
    found = {}
    for place, argument in enumerate(arguments):
        for value in list(WRONG)[(share + place) % SHARES :: SHARES]:
            for culprits in ((0, 1), (1,)):
                alone = len(culprits) == 1
                if (alone and (argument == "comm" or name in LOCAL)) or (argument, value) in OWN:
                    continue  # a rank without the others' communicator cannot tell them
                if (said := problem(name, folder, argument, value, culprits)) is not None:
                    found[argument, value, "alone" if alone else "all"] = said[:300]
    assert not found, "\n".join(f"{key}: {said}" for key, said in found.items())


@pytest.mark.jobs
@pytest.mark.parametrize("share", EACH)
def test_a_wrong_argument_of_attach(share):
    pytest.importorskip("torch.distributed.fsdp", reason="needs FSDP2")
    done = launch(None, *torchrun(2, "-m", "tests.arguments.attach_job", str(share)), OMP_NUM_THREADS="1")
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr[-3000:]


def test_every_public_name_is_walked():
    names = {name for module in MODULES for name in importlib.import_module(module).__all__}
    assert names - NOT_WALKED <= {name.partition(".")[2] or name for name in NAMES} | set(NAMES)
