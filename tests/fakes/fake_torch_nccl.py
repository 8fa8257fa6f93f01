"""torch's NCCL pretended, on the pretended device: over the real gloo of a job, or over the ranks of a `World`.

As strict as NCCL: tensors are on the device, flat and of types that it knows, torch works on CuPy's current stream, the
first call of a group on a device is one of all its ranks, and every array is as long as what comes.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist

from sparse_mpi.comm import device_group, process_group
from sparse_mpi.comm.scheduler import Members

from .fake_device import DEVICE
from .fake_torch import CudaTensor, host

KNOWN = (torch.int8, torch.uint8, torch.int32, torch.int64, torch.float32, torch.float64)


def given(x: torch.Tensor) -> torch.Tensor:
    """The memory of a tensor that is given to NCCL, as it is when all that was queued on the stream is done."""
    assert isinstance(x, CudaTensor) and x.dim() == 1 and x.dtype in KNOWN, f"NCCL takes no {x.dtype} {x.shape}"
    assert DEVICE.torch[-1] == DEVICE.stack[-1].ptr, "torch works on another stream than CuPy"
    DEVICE.stack[-1].flush("device")
    DEVICE.stack[-1].work.finish()
    return host(x)


class OverGloo:
    """``torch.distributed`` for `device_group`, of a job whose groups have gloo for tensors on the host."""

    def __init__(self, backend: str) -> None:
        self._backend = backend  # of groups of the job, which pretend to have NCCL

    def __getattr__(self, name: str):
        return getattr(dist, name)

    def get_backend_config(self, group=None) -> str:
        """NCCL's, but of groups that were made beside the default one."""
        return "cpu:gloo,cuda:nccl" if group in (None, dist.group.WORLD) else dist.get_backend_config(group)

    def new_group(self, ranks, backend, use_local_synchronization):
        assert backend == "nccl" and use_local_synchronization
        return dist.new_group(ranks, backend=self._backend, use_local_synchronization=True)

    def all_gather_into_tensor(self, out, send, group):
        dist.all_gather(list(given(out).split(len(send))), given(send), group=group)

    def all_gather(self, parts, send, group):
        """Gloo has none of uneven lengths."""
        for rank, part in enumerate(parts):
            root = dist.get_global_rank(group, rank)
            if root == dist.get_rank():
                given(part).copy_(given(send))
            if len(part):
                dist.broadcast(given(part), root, group=group)

    def all_to_all_single(self, out, send, came, counts, group):
        dist.all_to_all_single(given(out), given(send), came, counts, group=group)

    def all_reduce(self, x, op=dist.ReduceOp.SUM, group=None):
        dist.all_reduce(given(x), op, group=group)

    def broadcast(self, x, root, group):
        dist.broadcast(given(x), root, group=group)

    def P2POp(self, move, x, peer, group):
        return dist.P2POp(move, given(x), peer, group)


def over_gloo() -> None:
    """Have the process's groups pretend to have NCCL, for good."""
    patches = pytest.MonkeyPatch()
    patches.setattr(device_group, "dist", OverGloo("gloo"))


class Group:
    """A process group of ranks of a `World`; ``comm`` is of these, and carries what NCCL does."""

    def __init__(self, name: str, ranks: list[int], config: str, comm) -> None:
        self.group_name, self.ranks, self.config, self.comm = name, ranks, config, comm
        self.bound_device_id = None
        self.met: set[int] = set()  # devices whose communicator has been in a call of all ranks


class Done:
    def __init__(self, wait=lambda: None) -> None:
        self.wait = wait


class Gloo:
    """``ProcessGroupGloo`` of some ranks of a `World`; those of a name find each other, as over a store."""

    def __init__(self, board: OverWorld, name: str, rank: int, size: int) -> None:
        everybody = board.default.comm
        run, number = everybody.group.run, everybody._number
        there = board.there[run, name]
        there[rank] = number
        run.wake(range(run.size))
        while len(there) < size:
            run.pause(lambda: f"for ranks of {name}")
        if (run, name) not in board.members:
            board.members[run, name] = Members(run, [there[rank] for rank in range(size)])
        self.comm, self.calls = everybody._of(board.members[run, name]), board.gloo

    def barrier(self) -> Done:
        self.comm._barrier()
        return Done()

    def allgather(self, outs, sends) -> Done:
        self.calls.append("allgather")
        for out, came in zip(outs[0], self.comm._allgather(sends[0].numpy()), strict=True):
            out.numpy()[...] = came
        return Done()

    def allreduce(self, sends, options) -> Done:
        self.calls.append("allreduce")
        op = "sum" if options.reduceOp == dist.ReduceOp.SUM else "max"
        sends[0].numpy()[...] = self.comm._allreduce(sends[0].numpy().copy(), op)
        return Done()

    def broadcast(self, sends, options) -> Done:
        self.calls.append("broadcast")
        sends[0].numpy()[...] = self.comm._bcast(sends[0].numpy().copy(), options.rootRank)
        return Done()

    def send(self, sends, dest: int, tag: int) -> Done:
        """On its way at once, as short messages are."""
        self.calls.append("send")
        group = self.comm.group
        group.messages[self.comm._number, group.members[dest]].append(sends[0].numpy().copy())
        group.run.wake([group.members[dest]])
        return Done()

    def recv(self, into, source: int, tag: int) -> Done:
        def wait() -> None:
            came = self.comm._sendrecv(np.empty(0, np.uint8), None, source)
            into[0].numpy()[: len(came)] = came  # a message may be shorter than the room for it

        return Done(wait)


class OverWorld:
    """``torch.distributed`` of ranks that are threads of a `World`, as far as `ProcessGroupComm` uses it."""

    ProcessGroup = Group

    def __init__(self) -> None:
        self.calls: list[str] = []  # of NCCL, by all ranks
        self.gloo: list[str] = []  # those of gloo
        self.there: defaultdict[object, dict[int, int]] = defaultdict(dict)
        self.members: dict[object, Members] = {}
        self._rank = threading.local()

    def over(self, comm, config: str = "cpu:gloo,cuda:nccl") -> None:
        """Have the default group of this rank be of all ranks of ``comm``, with these backends."""
        self._rank.default = Group("0", [*range(comm.size)], config, comm.duplicate())
        self._rank.made, self._rank.groups = Counter(), []

    default = property(lambda self: self._rank.default)
    group = property(lambda self: SimpleNamespace(WORLD=self.default))
    distributed_c10d = SimpleNamespace(_get_default_store=lambda: "")

    def __getattr__(self, name: str):
        return getattr(dist, name)

    def is_initialized(self) -> bool:
        return True

    def get_rank(self) -> int:
        return self.default.comm.rank

    def get_world_size(self) -> int:
        return self.default.comm.size

    def get_process_group_ranks(self, group) -> list[int]:
        return (group or self.default).ranks

    def get_backend_config(self, group=None) -> str:
        return (group or self.default).config

    def PrefixStore(self, name: str, store: str) -> str:
        return f"{store}/{name}"

    def ProcessGroupGloo(self, store: str, rank: int, size: int, timeout) -> Gloo:
        return Gloo(self, store, rank, size)

    def new_group(self, ranks, backend, use_local_synchronization) -> Group:
        assert backend == "nccl" and use_local_synchronization and self.get_rank() in ranks
        self._rank.made[tuple(ranks)] += 1
        name = f"{ranks}/{self._rank.made[tuple(ranks)]}"
        made = Group(name, list(ranks), "cuda:nccl", Gloo(self, name, ranks.index(self.get_rank()), len(ranks)).comm)
        self._rank.groups.append(made)  # torch keeps them
        return made

    def _begin(self, name: str, group: Group):
        self.calls.append(name)
        group.met.add(DEVICE.here)
        return group.comm

    def all_gather_into_tensor(self, out, send, group):
        given(out).numpy()[...] = (
            self._begin("all_gather_into_tensor", group)._allgather(given(send).numpy()).reshape(-1)
        )

    def all_gather(self, parts, send, group):
        came, counts = self._begin("all_gather", group)._allgatherv(given(send).numpy(), None)
        assert counts.tolist() == [len(part) for part in parts], "other lengths came than are expected"
        for part, rows in zip(parts, np.split(came, np.cumsum(counts)[:-1]), strict=True):
            given(part).numpy()[...] = rows

    def all_to_all_single(self, out, send, came, counts, group):
        assert len(out) == sum(came) and len(send) == sum(counts)
        comm = self._begin("all_to_all_single", group)
        given(out).numpy()[...] = comm._alltoallv(given(send).numpy(), np.array(counts), np.array(came))[0]

    def all_reduce(self, x, op=dist.ReduceOp.SUM, group=None):
        comm = self._begin("all_reduce", group)
        x = given(x).numpy()
        x[...] = comm._allreduce(x.copy(), "sum" if op == dist.ReduceOp.SUM else "max")

    def broadcast(self, x, root, group):
        comm = self._begin("broadcast", group)
        x = given(x).numpy()
        x[...] = comm._bcast(x.copy(), group.ranks.index(root))

    def P2POp(self, move, x, peer, group):
        assert DEVICE.here in group.met, "the first call of a group on a device is one of all its ranks"
        return move, given(x).numpy(), group.ranks.index(peer), group

    def batch_isend_irecv(self, moves) -> list[Done]:
        comm = self._begin("batch", moves[0][3])
        leaving = {move: (x, peer) for move, x, peer, _ in moves}
        assert len(leaving) == len(moves), "one message each way"
        send, dest = leaving.get(dist.isend, (np.empty(0, np.uint8), None))
        into, source = leaving.get(dist.irecv, (None, None))
        came = comm._sendrecv(send, dest, source)
        if into is not None:
            assert len(came) == len(into), "a message of another length came"
            into[...] = came
        return [Done() for _ in moves]


def install(monkeypatch) -> OverWorld:
    """On top of `fake_array.install`: process groups are of ranks of a `World`."""
    made = OverWorld()
    for module in (process_group, device_group):
        monkeypatch.setattr(module, "dist", made)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    process_group._warn_of_staging.cache_clear()
    return made
