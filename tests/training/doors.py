"""The four doors of training, each by a small description: what a rank trains with, and what it does by each `Call`.

`check_door` has the checks that all doors pass, `programs` what torch does by the same calls.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from sparse_mpi.comm import as_comm
from sparse_mpi.ddp import SparseState, sparse_hook
from sparse_mpi.fsdp import ShardedReduction, attach
from sparse_mpi.optim import DistributedOptimizer
from sparse_mpi.training.diloco import DiLoCo

from .calls import MAKE, SMALL, WHOLE, Call, Program
from .nets import NETS


class Trainee:
    """What a rank trains with, and what it does by each call; doors add what is theirs.

    Attributes:
        verbs: the object that has the verbs of the door.
        number: of the call.
    """

    verbs: Any = None

    def __init__(self, program: Program, comm: Any, rank: int | None = None) -> None:
        self.program, self.number = program, 0
        self.given = comm  # a transport, or a group of processes
        self.rank = self.comm.rank if rank is None else rank
        self.net = NETS[program.net]().to(getattr(torch, program.dtype))
        self.prepare()
        self.optimizer = MAKE[program.optimizer](self.net.parameters())
        self.scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=2, enabled=program.scaled)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, gamma=0.5)
        self.model: Callable = self.net
        self.distribute()

    def prepare(self) -> None:
        """Do what comes before the optimizer is made."""

    def distribute(self) -> None:
        """Have gradients reduced."""

    @cached_property
    def comm(self) -> Any:
        """Return the transport of all ranks of this door."""
        return as_comm(self.given)

    @property
    def options(self) -> dict[str, Any]:
        """Return the arguments that all doors have."""
        return {"density": self.program.density, "algorithm": self.program.algorithm} | self.program.options

    @property
    def ruled(self) -> dict[str, Any]:
        """Return these, and those of doors that may apply the optimizer's momentum."""
        return {"momentum": self.program.momentum} | self.options

    def do(self, number: int, call: Call) -> None:
        self.number = number
        if call.on in (None, self.rank):
            getattr(self, call.name)(call.value)

    def steps(self, numbers: Iterable[int], *passes: Call) -> Trainee:
        """Take steps as a plain loop does, each with the calls of ``passes``, and return this."""
        for number in numbers:
            for call in (Call("zero_grad", True), *(passes or [WHOLE]), Call("step"), Call("update")):
                self.do(number, call)
        return self

    @property
    def parameters(self) -> list[torch.Tensor]:
        return list(self.net.parameters())

    def weights(self) -> np.ndarray:
        """Return the weights that ranks have in common."""
        return torch.cat([p.detach().float().flatten() for p in self.whole()]).numpy().copy()

    def whole(self) -> Sequence[torch.Tensor]:
        return self.parameters

    def own(self) -> Sequence[torch.Tensor]:
        """Return this rank's own weights."""
        return self.whole()

    def own_weights(self) -> np.ndarray:
        return torch.cat([p.detach().float().flatten() for p in self.own()]).numpy().copy()

    def owed(self) -> np.ndarray:
        """Return what this rank owes, in gradients of all parameters."""
        left = self.residuals()
        return np.concatenate(
            [left.get(name, np.zeros(p.numel(), np.float32)) for name, p in self.net.named_parameters()]
        )

    def residuals(self) -> dict[str, np.ndarray]:
        return self.verbs.residuals()

    @property
    def lr(self) -> float:
        """Return how far SGD moves along a gradient of 1."""
        return self.optimizer.param_groups[0]["lr"]

    def finish(self) -> None:
        """Have all ranks hold what they have in common."""

    def assert_laws(self) -> None:
        """Have each step assert both laws."""
        self.verbs.check_every = 1

    def save(self, folder: Path) -> None:
        """Save all that a run needs to go on; the ranks share the folder."""
        state = {"net": self.net, "optimizer": self.optimizer, "door": self.verbs}
        torch.save({name: part.state_dict() for name, part in state.items()}, folder / f"{self.rank}.pt")
        self.comm.barrier()

    def load(self, folder: Path, ranks: int) -> None:
        """Go on where ``ranks`` ranks have saved."""
        states = [torch.load(folder / f"{rank}.pt") for rank in range(ranks)]
        self.net.load_state_dict(states[0]["net"])
        self.optimizer.load_state_dict(states[self.rank % ranks]["optimizer"])
        if ranks == self.comm.size:
            self.verbs.load_state_dict(states[self.rank]["door"])
        else:
            self.verbs.take_over([state["door"] for state in states[self.rank :: self.comm.size]], ranks)

    def loss(self, which: int, model: Callable | None = None) -> torch.Tensor:
        draw = torch.Generator().manual_seed(1000 * self.number + self.rank)
        return self.net.loss(model or self.model, draw, which)

    def gradient(self, number: int, call: Call) -> np.ndarray:
        """Return this rank's own gradient in a pass, ``(n,)``."""
        self.number, twin = number, NETS[self.program.net]().to(getattr(torch, self.program.dtype))
        with torch.no_grad():
            for parameter, value in zip(twin.parameters(), self.own(), strict=True):
                parameter.copy_(value)
        loss = self.loss(self.least if call.name == "some" else call.value, twin)
        gradients = torch.autograd.grad(loss, list(twin.parameters()), materialize_grads=True)
        return torch.cat([g.float().flatten() for g in gradients]).numpy()

    def backward(self, which: int) -> None:
        self.scaler.scale(self.loss(which)).backward()

    def some(self, _: None) -> None:
        """A backward pass in which the last rank, or replica, uses the first layer alone."""
        self.backward(self.least)

    @property
    def least(self) -> int:
        """Return whether this rank is of the last replica."""
        ranks, shards = self.program.ranks, self.program.shards
        return int(self.rank // shards == ranks // shards - 1)

    def overflow(self, rank: int) -> None:
        """A backward pass of all ranks, in which a gradient of one of them overflows."""
        self.scaler.scale(self.loss(0) * (float("inf") if rank == self.rank else 1.0)).backward()

    def unreduced(self, which: int) -> None:
        """A backward pass whose gradients are kept for the next one."""
        with self.without_reduction():
            self.backward(which)

    def without_reduction(self) -> Any:
        return nullcontext()

    def zero_grad(self, to_none: bool) -> None:
        self.optimizer.zero_grad(set_to_none=to_none)

    def clip(self, norm: float) -> None:
        nn.utils.clip_grad_norm_(self.parameters, norm)

    @torch.no_grad()
    def change(self, how: str) -> None:
        for parameter in self.parameters if how != "none" else self.net.layers[1].parameters():
            if parameter.grad is None:
                continue
            if how == "in place":
                parameter.grad.mul_(0.5)
            elif how == "data":
                parameter.grad.data.mul_(0.5)
            elif how == "replace":
                parameter.grad = parameter.grad * 0.5
            elif how == "none":
                parameter.grad = None
            else:
                parameter.grad.zero_()

    def step(self, _: None = None) -> None:
        self.scaler.step(self.optimizer)  # without a scale that is the optimizer's

    def bare_step(self, _: None) -> None:
        self.optimizer.step()

    def closure(self, which: int) -> None:
        def closure() -> torch.Tensor:
            self.optimizer.zero_grad()
            loss = self.loss(which)
            loss.backward()
            return loss

        self.optimizer.step(closure)

    def unscale(self, _: None) -> None:
        if self.program.scaled:
            self.scaler.unscale_(self.optimizer)

    def update(self, _: None) -> None:
        self.scaler.update()

    def rate(self, _: None) -> None:
        self.schedule.step()

    def freeze(self, layer: int) -> None:
        self.net.layers[layer].requires_grad_(False)

    def unfreeze(self, layer: int) -> None:
        self.net.layers[layer].requires_grad_(True)

    def add_group(self, _: None) -> None:
        if self.net.more is None:
            torch.manual_seed(1)
            self.net.more = nn.Linear(4, 2)
            self.optimizer.add_param_group({"params": self.net.more.parameters(), "lr": 0.05})

    def reload(self, _: None) -> None:
        for part in (self.optimizer, self.verbs):
            if hasattr(part, "load_state_dict"):
                part.load_state_dict(copy.deepcopy(part.state_dict()))

    def copy(self, how: str) -> None:
        """Make a copy, which is a plain optimizer."""
        other = copy.deepcopy(self.optimizer) if how == "copy" else pickle.loads(pickle.dumps(self.optimizer))
        assert type(other) is type(self.optimizer) and not hasattr(other, "reduction")

    def synchronize(self, _: None) -> None:
        """Have ``.grad`` be the mean, of doors that have that call."""

    skip = step  # as gradients are

    def flush(self, _: None = None) -> None:
        """Step along what is owed, which at density 1 is nothing."""
        if self.program.door != "local":
            self.zero_grad(True)


class Wrapped(Trainee):
    """`DistributedOptimizer`, which reduces in a step."""

    def distribute(self) -> None:
        program = self.program
        own = {"bucket_cap_mb": SMALL, "overlap": program.overlap, "backward_passes_per_step": program.passes}
        own["scaler"] = self.scaler if program.scaled else None
        DistributedOptimizer(self.optimizer, self.net.named_parameters(), comm=self.given, **own | self.ruled)
        self.verbs = self.optimizer.reduction

    def synchronize(self, _: None = None) -> None:
        self.optimizer.synchronize()

    def skip(self, _: None) -> None:
        with self.optimizer.skip_synchronize():
            self.step()

    def flush(self, _: None = None) -> None:
        self.optimizer.flush()


class Hooked(Trainee):
    """DDP's hook, which reduces in backward passes."""

    def distribute(self) -> None:
        own = {"dense_steps": 0, "scaler": self.scaler if self.program.scaled else None}
        own["optimizer"] = getattr(self.optimizer, "optim", self.optimizer)  # of one that is sharded
        self.verbs = SparseState(self.net.named_parameters(), comm=self.given, **own | self.ruled)
        self.wrap()

    def wrap(self) -> None:
        group = self.given if isinstance(self.given, dist.ProcessGroup) else None
        how = {"find_unused_parameters": True} | self.program.wrap
        self.model = DistributedDataParallel(self.net, process_group=group, **how)
        self.model.register_comm_hook(self.verbs, sparse_hook)

    def without_reduction(self) -> Any:
        return self.model.no_sync()

    def flush(self, _: None = None) -> None:
        self.verbs.flush()


class Sharded(Trainee):
    """FSDP2, of replicas of ``program.shards`` ranks."""

    def prepare(self) -> None:
        shape = dist.get_world_size() // self.program.shards, self.program.shards
        self.mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
        how = {name: value for name, value in self.program.wrap.items() if name not in ("roots", "joined")}
        for layer in (*self.net.layers, *([] if "roots" in self.program.wrap else [self.net])):
            fully_shard(layer, mesh=self.mesh["shard"], **how)

    def distribute(self) -> None:
        made = partial(ShardedReduction, joined_bytes=self.program.wrap.get("joined"))
        with patch("sparse_mpi.fsdp.ShardedReduction", made):
            self.verbs = attach(self.net, self.mesh["replicate"], **{"optimizer": self.optimizer} | self.ruled)

    def whole(self) -> list[torch.Tensor]:
        if self.program.shards == 1:  # also where the others have failed
            return [parameter.to_local() for parameter in self.parameters]
        return [parameter.full_tensor() for parameter in self.parameters]

    def owed(self) -> np.ndarray:
        """Return what this replica owes."""
        whole = []
        for name, p in self.net.named_parameters():
            left = torch.from_numpy(self.residuals().get(name, np.zeros(0, np.float32))).view(p.to_local().shape)
            own = DTensor.from_local(left, p.device_mesh, p.placements, shape=p.shape, stride=p.stride())
            whole.append(own.full_tensor().flatten())
        return torch.cat(whole).numpy()

    @contextmanager
    def without_reduction(self) -> Any:
        self.net.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self.net.set_requires_gradient_sync(True)

    def flush(self, _: None = None) -> None:
        self.verbs.flush()

    def save(self, folder: Path) -> None:
        state = {"optimizer": get_optimizer_state_dict(self.net, self.optimizer)}
        checkpoint.save(state, checkpoint_id=folder / "optimizer")
        self.verbs.save(folder / "door")
        model = {name: parameter.full_tensor() for name, parameter in self.net.state_dict().items()}
        if self.rank == 0:
            torch.save(model, folder / "model.pt")
        self.comm.barrier()

    @torch.no_grad()
    def load(self, folder: Path, ranks: int) -> None:
        model = torch.load(folder / "model.pt")
        for name, parameter in self.net.named_parameters():
            whole = DTensor.from_local(model[name], self.mesh["shard"], run_check=False)
            parameter.copy_(whole.redistribute(placements=parameter.placements))
        state = {"optimizer": get_optimizer_state_dict(self.net, self.optimizer)}
        checkpoint.load(state, checkpoint_id=folder / "optimizer")
        set_optimizer_state_dict(self.net, self.optimizer, optim_state_dict=state["optimizer"])
        self.verbs.load(folder / "door")


class Local(Trainee):
    """`DiLoCo`, which reduces what ranks have moved; what they have in common are the global parameters."""

    def distribute(self) -> None:
        outer = MAKE[self.program.outer](self.net.parameters())
        self.verbs = DiLoCo(self.net, self.optimizer, outer, self.program.every, comm=self.given, **self.options)

    def whole(self) -> Sequence[torch.Tensor]:
        with self.verbs.globally():
            return [parameter.detach().clone() for parameter in self.parameters]

    def own(self) -> Sequence[torch.Tensor]:
        return self.parameters

    def owed(self) -> np.ndarray:
        return super().owed() / self.optimizer.param_groups[0]["lr"]  # residuals are of moves

    @property
    def lr(self) -> float:
        return self.optimizer.param_groups[0]["lr"] * self.verbs.outer.param_groups[0]["lr"]

    def finish(self) -> None:
        self.verbs.synchronize()

    def synchronize(self, _: None = None) -> None:
        self.verbs.synchronize()

    def flush(self, _: None = None) -> None:
        self.verbs.flush()


DOORS: dict[str, type[Trainee]] = {"optimizer": Wrapped, "ddp": Hooked, "fsdp": Sharded, "local": Local}
