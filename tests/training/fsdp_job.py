"""Trains a small model that FSDP2 shards in several ways; `test_fsdp` starts it and looks at what it saves.

    python -m torch.distributed.run --standalone --nproc-per-node 4 tests/training/fsdp_job.py FOLDER REPLICAS RUN ...

Every rank saves what it saw of a run in FOLDER/RUN-rank.pt.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from ddp_mistakes import refused  # it lies beside this script
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy

from sparse_mpi.fsdp import ShardedReduction, attach
from sparse_mpi.training.fsdp_units import Unit, UnitVector

STEPS = 6
RESUMED = ("momentum", "adamw", "arrival")
SPARSE, ALL = {"density": 0.01}, {"density": 1.0}
MAKE = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 0.01, weight_decay=0.1),
}
MAKE["arrival"] = MAKE["adamw"]


def grid(replicas: int) -> DeviceMesh:
    return init_device_mesh("cpu", (replicas, dist.get_world_size() // replicas), mesh_dim_names=("replicate", "shard"))


class Net(torch.nn.Module):
    """Layers whose rows do not divide by two, so that there is padding."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, 101) for width in (13, 101))
        self.norm, self.head = torch.nn.LayerNorm(101), torch.nn.Linear(101, 7)
        self.skip = False  # the second layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[: 1 if self.skip else 2]:
            x = torch.relu(layer(x))
        return self.head(self.norm(x))


class Run:
    """A sharded model, its optimizer and, unless ``options`` is None, the sparse sum over replicas."""

    def __init__(
        self,
        mesh: DeviceMesh,
        options: dict | None,
        optimizer: str = "sgd",
        *,
        roots: bool = False,
        dtype: torch.dtype = torch.float32,
        joined_bytes: float | None = None,
        state: str | None = None,
        **shard: object,
    ) -> None:
        self.mesh, self.net, self.dtype = mesh, Net().to(dtype), dtype
        # With ``roots`` each unit is a root of its own
        for layer in (*self.net.layers, *([self.net.norm, self.net.head] if roots else [self.net])):
            fully_shard(layer, mesh=mesh if options is None else mesh["shard"], **shard)
        self.optimizer = MAKE[optimizer](self.net.parameters())
        self.saw: dict = {"losses": []}
        if state is not None:
            load_state(self.net, self.optimizer, state)
        if options is not None:
            if optimizer == "arrival":
                options = {"momentum": "arrival", **options}
            made = partial(ShardedReduction, joined_bytes=joined_bytes)
            with patch("sparse_mpi.fsdp.ShardedReduction", made):
                self.reduction = attach(self.net, mesh["replicate"], optimizer=self.optimizer, **options)
            # By unit, the sums of what was given and of what came
            self.given, self.applied = ({unit.names: 0.0 for unit in self.reduction.units} for _ in range(2))
            for vector in self.reduction._vectors:
                vector.take = partial(self._note, vector, vector.take)
                vector.finish = partial(self._note_mean, vector, vector.finish)

    def _note(self, vector: UnitVector, take: Callable, unit: Unit, shard: torch.Tensor) -> None:
        self.given[unit.names] += unit.without_padding(shard).double()
        take(unit, shard)

    def _note_mean(self, vector: UnitVector, finish: Callable, divisor: float) -> None:
        for unit, part in vector.parts(finish(divisor)).items():
            self.applied[unit.names] += part.double()

    def backward(self, number: int) -> None:
        draw = torch.Generator().manual_seed(1000 * number + dist.get_rank())
        x, y = torch.randn(8, 13, generator=draw), torch.randint(7, (8,), generator=draw)
        loss = cross_entropy(self.net(x.to(self.dtype)), (x[:, :7].argmax(1) + y // 6) % 7)
        loss.backward()
        self.saw["losses"].append(loss.item())

    def step(self, number: int) -> None:
        self.optimizer.zero_grad()
        self.backward(number)
        self.optimizer.step()

    def steps(self, first: int = 0, last: int = STEPS) -> Run:
        for number in range(first, last):
            self.step(number)
        return self

    def owed(self) -> dict:
        """What the replicas owe, added up and whole, by parameter."""
        owed = {}
        for name, parameter in self.reduction.parameters.items():
            left = torch.from_numpy(self.reduction.residuals()[name]).view(parameter.to_local().shape)
            dist.all_reduce(left, group=self.mesh["replicate"].get_group())
            whole = DTensor.from_local(
                left, self.mesh["shard"], parameter.placements, shape=parameter.shape, stride=parameter.stride()
            )
            owed[name] = whole.full_tensor()
        return owed

    def save(self) -> dict:
        parameters = {name: parameter.full_tensor().detach() for name, parameter in self.net.named_parameters()}
        if hasattr(self, "reduction"):
            left = torch.cat([torch.from_numpy(residual) for residual in self.reduction.residuals().values()])
            self.saw |= {"residual": left, "sent": self.reduction.comm.traffic.sent, "owed": self.owed()}
            self.saw |= {"shard": self.mesh.get_local_rank("shard"), "report": self.reduction.report._asdict()}
            self.saw |= {"given": torch.cat([*self.given.values()]), "applied": torch.cat([*self.applied.values()])}
            self.saw["elements"] = sum(p.to_local().numel() for p in self.reduction.parameters.values())
        return self.saw | {"parameters": parameters}


def accumulated(mesh: DeviceMesh) -> dict:
    """Two backward passes a step, of which the last is reduced; the mean is clipped."""
    run = Run(mesh, SPARSE, "sgd")
    norms = []
    for number in range(STEPS):
        run.optimizer.zero_grad()
        for half in range(2):
            run.net.set_requires_gradient_sync(half == 1)
            run.backward(2 * number + half)
        norms.append(float(torch.nn.utils.clip_grad_norm_(run.net.parameters(), 0.5).full_tensor()))
        run.optimizer.step()
    return run.save() | {"norms": norms}


def compiled(mesh: DeviceMesh) -> dict:
    run = Run(mesh, SPARSE, "adamw")
    for layer in run.net.layers:
        layer.compile()
    return run.steps().save()


def rounded(mesh: DeviceMesh) -> dict:
    """Reduced in bfloat16, and with parameters that stay whole after the forward pass."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    run = Run(mesh, SPARSE, "momentum", mp_policy=policy, reshard_after_forward=False)
    run.saw["dtypes"] = [str(p.grad.dtype) for p in run.steps().net.parameters()]
    return run.save()


def flushed(run: Run) -> dict:
    before = run.owed()
    run.reduction.flush()
    flushed = {name: parameter.grad.full_tensor() for name, parameter in run.reduction.parameters.items()}
    run.optimizer.step()
    return run.save() | {"before": before, "flushed": flushed}


def two_passes(mesh: DeviceMesh, options: dict | None) -> dict:
    """Two backward passes a step, both reduced."""
    run = Run(mesh, options, "momentum")
    for number in range(4):
        run.optimizer.zero_grad()
        run.backward(2 * number)
        run.backward(2 * number + 1)
        run.optimizer.step()
    return run.save()


def skipped(mesh: DeviceMesh, options: dict | None, optimizer: str, replicas: tuple[int, ...]) -> dict:
    """Some replicas leave a layer out, in every third step; vectors are of several units."""
    run = Run(mesh, options, optimizer, joined_bytes=2.4e4)
    for number in range(STEPS):
        run.net.skip = number % 3 == 1 and mesh.get_local_rank("replicate") in replicas
        run.step(number)
    return run.save()


def frozen(mesh: DeviceMesh) -> dict:
    """A layer is frozen for some steps; later all that is owed is flushed."""
    run = Run(mesh, SPARSE, "sgd").steps(last=3)
    run.net.layers[1].requires_grad_(False)
    owed = [run.owed()["layers.1.weight"]]
    owed.append(run.steps(3, 5).owed()["layers.1.weight"])
    run.net.layers[1].requires_grad_(True)
    return flushed(run.steps(5)) | {"waits": owed}


def saved(mesh: DeviceMesh, optimizer: str) -> dict:
    """Saved after half of the steps, and gone on with, for those that load it; both laws are asserted in each step."""
    run = Run(mesh, SPARSE, optimizer)
    run.reduction.check_every = 1
    run.steps(last=STEPS // 2).optimizer.zero_grad()
    folder = FOLDER / f"checkpoint-{optimizer}"
    owed = run.owed()
    # Where it has no state torch has the optimizer step along zeros for it
    state = get_optimizer_state_dict(run.net, run.optimizer)
    checkpoint.save({"optimizer": state}, checkpoint_id=FOLDER / f"optimizer-{optimizer}")
    run.reduction.save(folder)
    model = {name: parameter.full_tensor() for name, parameter in run.net.state_dict().items()}
    if dist.get_rank() == 0:
        torch.save(model, FOLDER / f"model-{optimizer}.pt")
    assert all(torch.equal(left, owed[name]) for name, left in run.owed().items())
    dist.barrier()
    run.steps(STEPS // 2)
    return run.save() | {"before": owed}


def load_state(net: Net, optimizer: torch.optim.Optimizer, name: str) -> None:
    state = {"optimizer": get_optimizer_state_dict(net, optimizer)}
    checkpoint.load(state, checkpoint_id=FOLDER / f"optimizer-{name}")
    set_optimizer_state_dict(net, optimizer, optim_state_dict=state["optimizer"])


def loaded(mesh: DeviceMesh, optimizer: str, first: bool = False) -> dict:
    """What goes on from `saved`, maybe on other replicas and shards; the optimizer's state may be loaded `first`."""
    run = Run(mesh, SPARSE, optimizer, state=optimizer if first else None)
    model = torch.load(FOLDER / f"model-{optimizer}.pt")
    with torch.no_grad():
        for name, parameter in run.net.named_parameters():
            whole = DTensor.from_local(model[name], mesh["shard"], run_check=False)
            parameter.copy_(whole.redistribute(placements=parameter.placements))
    if not first:
        load_state(run.net, run.optimizer, optimizer)
    run.reduction.load(FOLDER / f"checkpoint-{optimizer}")
    owed = run.owed()
    return run.steps(STEPS // 2).save() | {"before": owed}


def narrow(mesh: DeviceMesh) -> dict:
    """A layer of one row, of which all but the first shard are padding; attached, detached and attached again."""
    saw = {}
    for how, over in (("hsdp", mesh), ("all", mesh["shard"])):
        torch.manual_seed(1)
        net = torch.nn.Sequential(torch.nn.Linear(13, 1), torch.nn.Tanh())
        fully_shard(net, mesh=over)
        optimizer = MAKE["momentum"](net.parameters())
        if how == "all":
            attach(net, mesh["replicate"]).detach()
            reduction = attach(net, mesh["replicate"], density=1.0, optimizer=optimizer)
        for number in range(4):
            optimizer.zero_grad()
            draw = torch.Generator().manual_seed(1000 * number + dist.get_rank())
            (net(torch.randn(8, 13, generator=draw)) - 0.5).square().mean().backward()
            optimizer.step()
        saw[how] = {"parameters": {name: p.full_tensor().detach() for name, p in net.named_parameters()}}
    return saw | {"held": list(reduction.residuals()), "reports": reduction.report is not None}


def mistakes(mesh: DeviceMesh) -> dict:
    """What the errors say, by mistake."""
    replicas = mesh["replicate"]

    def sharded(over: DeviceMesh = mesh["shard"], dtype: torch.dtype | None = None) -> torch.nn.Module:
        net = Net()
        for layer in (*net.layers, net):
            fully_shard(layer, mesh=over, mp_policy=MixedPrecisionPolicy(reduce_dtype=dtype))
        return net

    def partly() -> torch.nn.Module:
        net = Net()
        fully_shard(net.layers[1], mesh=mesh["shard"])
        return net

    def unused(*on: int) -> None:
        net = sharded()
        attach(net, replicas)
        if mesh.get_local_rank("replicate") in on:
            net.layers[0].forward = lambda x: torch.nn.functional.linear(x, net.layers[0].weight)
        net(torch.ones(2, 13)).sum().backward()

    def hooked() -> None:
        net = sharded()
        attach(net, replicas)
        net.head.weight.register_post_accumulate_grad_hook(lambda parameter: None)
        net(torch.ones(2, 13)).sum().backward()

    def twice(then: str) -> None:
        run = Run(mesh, SPARSE, "momentum")
        run.backward(0)
        run.backward(1) if then == "backward" else run.reduction.flush()

    def detached() -> None:
        run = Run(mesh, SPARSE, "momentum").steps(0, 2)
        run.reduction.detach()
        run.steps(2, 4)
        assert any("momentum_buffer" in state for state in run.optimizer.state.values())
        raise ValueError("the optimizer has its momentum")

    def other() -> None:
        attach(sharded(), replicas, optimizer=torch.optim.SGD(Net().parameters(), 0.1))

    def scaled() -> None:
        run, scaler = Run(mesh, SPARSE, "momentum"), torch.amp.GradScaler("cpu")
        scaler.scale(run.net(torch.ones(2, 13)).sum()).backward()
        scaler.step(run.optimizer)

    def with_another(**options: object) -> torch.nn.Module:
        net = Net()
        net.head.register_parameter("more", torch.nn.Parameter(**options))
        for layer in (*net.layers, net):
            fully_shard(layer, mesh=mesh["shard"])
        return net

    def turned() -> torch.nn.Module:
        net = Net()
        if mesh.get_local_rank("replicate"):
            net._modules = {name: net._modules[name] for name in ("layers", "head", "norm")}
        for layer in (*net.layers, net):
            fully_shard(layer, mesh=mesh["shard"])
        return net

    net = sharded()
    attach(net, replicas)
    saved = Run(mesh, SPARSE).steps(last=1).reduction
    saved.save(FOLDER / "other")
    return {
        "plain": refused(lambda: attach(Net(), replicas)),
        "two dimensions": refused(lambda: attach(sharded(mesh), replicas)),
        "float16": refused(lambda: attach(sharded(dtype=torch.float16), replicas)),
        "complex": refused(lambda: attach(with_another(data=torch.ones(1, dtype=torch.complex64)), replicas)),
        "empty": refused(lambda: attach(with_another(data=torch.ones(0, 3)), replicas)),
        "other order": refused(lambda: attach(turned(), replicas)),
        "copy": refused(lambda: copy.deepcopy(attach(sharded(), replicas))),
        "partly": refused(lambda: attach(partly(), replicas)),
        "twice": refused(lambda: attach(net, replicas)),
        "not replicas": refused(lambda: attach(sharded(), mesh["shard"])),
        "everybody": refused(lambda: attach(sharded(), dist.group.WORLD)),
        "optimizer": refused(other),
        "unused": refused(lambda: unused(0, 1)),
        "unused there": refused(lambda: unused(1)),
        "hook": refused(hooked),
        "two passes": refused(lambda: twice("backward")),
        "flush between": refused(lambda: twice("flush")),
        "detached": refused(detached),
        "clip_norm": refused(lambda: attach(sharded(), replicas, clip_norm=1.0)),
        "scaler": refused(scaled),
        "other folder": refused(lambda: attach(sharded(), replicas, algorithm="topka").load(FOLDER / "other")),
    }


RUNS: dict[str, Callable[[DeviceMesh], dict]] = {
    **{f"hsdp-{name}": lambda mesh, name=name: Run(mesh, None, name).steps().save() for name in MAKE},
    **{f"all-{name}": lambda mesh, name=name: Run(mesh, ALL, name).steps().save() for name in MAKE},
    "all-roots": lambda mesh: Run(mesh, ALL, "momentum", roots=True).steps().save(),
    "hsdp-twice": lambda mesh: two_passes(mesh, None),
    "all-twice": lambda mesh: two_passes(mesh, ALL | {"momentum": "local"}),
    "hsdp-skipped": lambda mesh: skipped(mesh, None, "momentum", (0, 1)),
    "all-skipped": lambda mesh: skipped(mesh, ALL, "momentum", (0, 1)),
    "sparse-skipped": lambda mesh: skipped(mesh, SPARSE, "sgd", (1,)),
    "frozen": frozen,
    "oktopk": lambda mesh: Run(mesh, {"density": 0.01, "algorithm": "oktopk", "wire": "coo32"}).steps().save(),
    **{f"saved-{name}": lambda mesh, name=name: saved(mesh, name) for name in RESUMED},
    **{f"loaded-{name}": lambda mesh, name=name: loaded(mesh, name) for name in RESUMED},
    **{f"first-{name}": lambda mesh, name=name: loaded(mesh, name, first=True) for name in RESUMED},
    "accumulated": accumulated,
    "compiled": compiled,
    "bfloat16": rounded,
    "narrow": narrow,
    "mistakes": mistakes,
}


def main(replicas: int, names: list[str]) -> None:
    dist.init_process_group("gloo")
    mesh = grid(replicas)
    for name in names:
        torch.save(RUNS[name](mesh), FOLDER / f"{name}-{replicas}-{dist.get_rank()}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    FOLDER = Path(sys.argv[1])
    main(int(sys.argv[2]), sys.argv[3:])
