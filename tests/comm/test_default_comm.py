"""What ``comm=None`` stands for, by environment: MPI's world, torch's default process group, an error, or one rank."""

from __future__ import annotations

import pytest

from sparse_mpi.comm import as_comm
from sparse_mpi.comm.runtime import LAUNCHERS, MPI_RANKS, TORCHRUN, ranks_of_mpi, refuse_torchrun

from ..launch import launch
from ..prefork import torchrun

dist = pytest.importorskip("torch.distributed")
optim = pytest.importorskip("sparse_mpi.optim")

ENTRIES = """
import sys, numpy as np, torch
import sparse_mpi
from sparse_mpi.comm import as_comm
from sparse_mpi.ddp import SparseState
from sparse_mpi.fault_tolerance import Team
from sparse_mpi.training.diloco import DiLoCo
from sparse_mpi.optim import DistributedOptimizer, broadcast_optimizer_state, broadcast_parameters

net = torch.nn.Linear(3, 2)
def sgd(): return torch.optim.SGD(net.parameters(), lr=1.0)
def combined(request):
    request.start(np.ones(2))
    return request.wait()[0]

sys.modules["cupy"] = None
ENTRIES = {
    "as_comm": lambda: as_comm().size,
    "nccl": lambda: as_comm("nccl").size,  # for which there is no CuPy
    "sparse_allreduce": lambda: sparse_mpi.sparse_allreduce(np.ones(9, np.float32), k=9).total.values.max(),
    "SparseAllreduce": lambda: sparse_mpi.SparseAllreduce(9, k=9).comm.size,
    "allreduce": lambda: sparse_mpi.allreduce({1: 1})[1],
    "reduce": lambda: (sparse_mpi.reduce({1: 1}) or {1: 2})[1],
    "reduce_scatter": lambda: sparse_mpi.allreduce({1: sum(sparse_mpi.reduce_scatter({1: 1}).values())})[1],
    "allgather": lambda: len(sparse_mpi.allgather({1: 1})),
    "allreduce_init": lambda: combined(sparse_mpi.allreduce_init(np.arange(2))),
    "optimizer": lambda: DistributedOptimizer(sgd()).reduction.comm.size,
    "DiLoCo": lambda: DiLoCo(net, sgd(), sgd(), 2).comm.size,
    "Team": lambda: Team().comm.size,
    "SparseState": lambda: SparseState(net.named_parameters()).comm.size,
    "broadcast_parameters": lambda: broadcast_parameters(net.state_dict()) or 2,
    "broadcast_optimizer_state": lambda: broadcast_optimizer_state(sgd()) or 2,
}
def try_all(where):
    said = []
    for name, call in ENTRIES.items():
        try:
            said.append(f"{where} {name}={int(call())}")
        except Exception as error:
            said.append(f"{where} {name}: {type(error).__name__}: {error}")
    print("\\n".join(said) + "\\n", end="", flush=True)

try_all("alone")
torch.distributed.init_process_group("gloo")
try_all("group")
print("MPI" if "mpi4py.MPI" in sys.modules else "no MPI")
"""


@pytest.mark.jobs
def test_under_torchrun_every_entry_point_names_both_remedies_or_takes_the_group():
    done = launch(None, *torchrun(2, "-c", ENTRIES))
    assert done.returncode == 0 and done.stdout.count("no MPI\n") == 2, done.stderr[-3000:]
    lines = [line.partition(" ")[::2] for line in done.stdout.splitlines() if line != "no MPI"]
    others = sorted({line for where, line in lines if where == "group" and not line.endswith("=2")})
    assert [line[:42] for line in others] == [
        "Team: ValueError: comm must be one that su",  # a process group does not
        "nccl: ModuleNotFoundError: No module named",
    ], done.stdout
    said = [line for where, line in lines if where == "alone"]
    assert len(said) > 20, done.stdout
    for line in said:
        assert "RuntimeError: " in line and "init_process_group" in line, line
        assert line.startswith("SparseState") or "start with mpiexec or `python -m sparse_mpi run`" in line, line


@pytest.fixture
def bare(monkeypatch):
    """An environment without a launcher."""
    for name in (*LAUNCHERS, *MPI_RANKS, "SLURM_PROCID", TORCHRUN, "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.fixture
def alone(bare):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield bare
    dist.destroy_process_group()


SRUN = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "1"}


@pytest.mark.parametrize(
    ("variables", "count", "sure"),
    [
        ({}, 0, 0),
        ({"OMPI_COMM_WORLD_SIZE": "3"}, 3, 3),
        ({"PMI_SIZE": "3", "MPI_LOCALNRANKS": "1"}, 3, 3),
        (SRUN, 4, 0),
        (SRUN | {"PMIX_RANK": "1"}, 4, 4),
        (SRUN | {"PALS_RANKID": "1"}, 4, 4),
        (SRUN | {"PMI_SIZE": "4", "PMI_RANK": "1"}, 4, 4),
        (SRUN | {"PMIX_RANK": "1", TORCHRUN: "job"}, 0, 0),
        ({"OMPI_COMM_WORLD_SIZE": "3", TORCHRUN: "job"}, 0, 0),
    ],
)
def test_what_environments_say_of_mpi(bare, variables, count, sure):
    for name, value in variables.items():
        bare.setenv(name, value)
    assert (ranks_of_mpi(), ranks_of_mpi(sure=True)) == (count, sure)


def test_without_a_launcher_a_group_counts_and_mpi_otherwise(alone):
    group = as_comm(dist.group.WORLD)
    assert as_comm() is group and as_comm("mpi") is not group
    for name, value in SRUN.items():  # srun without --mpi, as a group made by hand has it
        alone.setenv(name, value)
    assert as_comm() is group
    alone.setenv("OMPI_COMM_WORLD_SIZE", "1")  # processes that were spawned under mpiexec -n 1
    assert as_comm() is group


def test_plain_python_is_one_rank(bare):
    assert as_comm() is as_comm("mpi") and as_comm().size == 1


@pytest.mark.parametrize("variables", [{"WORLD_SIZE": "2"}, {TORCHRUN: "job"}, SRUN | {TORCHRUN: "job"}])
def test_torchruns_environment_without_a_group_is_an_error(bare, variables):
    for name, value in variables.items():
        bare.setenv(name, value)
    for call in (as_comm, lambda: as_comm("nccl"), refuse_torchrun):
        with pytest.raises(RuntimeError, match=r"init_process_group\('gloo'\) .* start with mpiexec or `python -m"):
            call()


def test_mpis_own_world_under_torchrun_is_an_error_too(bare):
    from mpi4py import MPI

    bare.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match="with MPI each process would be alone"):
        as_comm(MPI.COMM_WORLD.Dup())


@pytest.mark.parametrize("variables", [{"WORLD_SIZE": "1"}, {"WORLD_SIZE": "2", "OMPI_COMM_WORLD_SIZE": "1"}])
def test_other_environments_are_let_pass(bare, variables):
    for name, value in variables.items():
        bare.setenv(name, value)
    refuse_torchrun()
