"""What FSDP2 alone is to do, beside the checks of all doors: padding, words on a card, mistakes of layouts."""

from __future__ import annotations

import copy
import re
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from sparse_mpi.fsdp import attach

from .calls import SGD, WHOLE
from .check_door import MISTAKES, Ground, check
from .nets import Net

FSDP = ("fsdp",)
STEPS = range(6)


@check(FSDP)
def padding_owes_nothing_and_a_card_carries_what_the_formula_says(ground: Ground) -> None:
    """4 k (N - 1) / (N G) words a step for N replicas of G shards, k entries of the whole model."""
    trainee = ground(net="wide", density=0.01, algorithm="oktopk", options={"wire": "coo32"}).steps(STEPS)
    elements = sum(p.to_local().numel() for p in trainee.parameters)
    assert sum(map(len, trainee.residuals().values())) == elements
    words = 4 * 0.01 * elements * (2 - 1) / 2
    assert trainee.verbs.comm.traffic.sent == pytest.approx(len(STEPS) * 4 * words, rel=0.1)
    assert 0 < trainee.verbs.report.total < 0.1 * elements
    assert len(set(ground.rows(np.array([elements])).ravel())) == 2  # 101 rows are 51 and 50


@check(FSDP)
def compiled_layers_train(ground: Ground) -> None:
    trainee = ground(optimizer="adamw", algorithm="elect")
    for layer in trainee.net.layers:
        layer.compile()
    ground.alike(trainee.steps(STEPS).weights())
    assert trainee.verbs.comm.traffic.sent > 0


@check(FSDP)
def a_process_may_hold_padding_alone(ground: Ground) -> None:
    """Of a layer of one row, all but the first shard are padding; attached, detached and attached again."""
    mesh, ends = ground().mesh, []
    for ours in (False, True):
        torch.manual_seed(1)
        net = torch.nn.Sequential(torch.nn.Linear(13, 1), torch.nn.Tanh())
        fully_shard(net, mesh=mesh["shard"] if ours else mesh)
        optimizer = SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)
        if ours:
            attach(net, mesh["replicate"]).detach()
            reduction = attach(net, mesh["replicate"], density=1.0, optimizer=optimizer)
        for number in range(4):
            optimizer.zero_grad()
            draw = torch.Generator().manual_seed(1000 * number + ground.comm.rank)
            (net(torch.randn(8, 13, generator=draw)) - 0.5).square().mean().backward()
            optimizer.step()
        ends.append(torch.cat([p.full_tensor().detach().flatten() for p in net.parameters()]).numpy())
    np.testing.assert_allclose(*ends, rtol=1e-4, atol=1e-6)
    held, reports = list(reduction.residuals()), reduction.report is not None
    assert (held, reports) == (([], False) if mesh.get_local_rank("shard") else (["0.weight", "0.bias"], True))


def mistakes(ground: Ground) -> dict[str, tuple[Callable[[], object], str]]:
    """What is done, and what the error says, by mistake."""
    mesh = ground().mesh
    replicas, last = mesh["replicate"], mesh.get_local_rank("replicate") == 1

    def sharded(over: Any = mesh["shard"], dtype: torch.dtype | None = None) -> Net:
        net = Net()
        for layer in (*net.layers, net):
            fully_shard(layer, mesh=over, mp_policy=MixedPrecisionPolicy(reduce_dtype=dtype))
        return net

    def attached() -> Net:
        net = sharded()
        attach(net, replicas)
        return net

    def partly() -> None:
        net = Net()
        fully_shard(net.layers[1], mesh=mesh["shard"])
        attach(net, replicas)

    def unused(wrong: bool) -> None:
        net = attached()
        if wrong:
            net.layers[0].forward = lambda x: torch.nn.functional.linear(x, net.layers[0].weight)
        net(torch.ones(2, 4), 0).sum().backward()

    def hooked() -> None:
        net = attached()
        net.layers[2].weight.register_post_accumulate_grad_hook(lambda parameter: None)
        net(torch.ones(2, 4), 0).sum().backward()

    def other_folder() -> None:
        ground(algorithm="elect").steps([0]).verbs.save(ground.folder / "other")
        attach(sharded(), replicas, algorithm="topka").load(ground.folder / "other")

    def twice() -> None:
        attach(attached_once, replicas)

    def with_another(data: torch.Tensor) -> None:
        net = Net()
        net.layers[2].register_parameter("more", torch.nn.Parameter(data))
        for layer in (*net.layers, net):
            fully_shard(layer, mesh=mesh["shard"])
        attach(net, replicas)

    def turned() -> None:
        net = Net()
        if last:
            net.layers._modules = dict(reversed(net.layers._modules.items()))
        for layer in (*net.layers.children(), net):
            fully_shard(layer, mesh=mesh["shard"])
        attach(net, replicas)

    attached_once, held = attached(), "ValueError: replicas must hold the same shard of models of their own, got .* "
    lacks = "ValueError: a backward pass must bring gradients of all parameters of a unit, "
    return {
        "plain": (
            lambda: attach(Net(), replicas),
            "TypeError: model must be sharded by FSDP2, got a Net that is not; call torch.distributed.fsdp.full",
        ),
        "two dimensions": (
            lambda: attach(sharded(mesh), replicas),
            r"TypeError: model must be sharded over a mesh of one dimension, got \('replicate', 'shard",
        ),
        "float16": (
            lambda: attach(sharded(dtype=torch.float16), replicas),
            r"TypeError: model must reduce means in float32 or bfloat16, got torch.float16 of a ",
        ),
        "complex": (
            lambda: with_another(torch.ones(1, dtype=torch.complex64)),
            "TypeError: model: layers.2.more must be of dtype float32.* got complex64",
        ),
        "empty": (
            lambda: with_another(torch.ones(0, 3)),
            r"ValueError: model must have parameters with elements, .* layers.2.more, .* call its requires_grad_",
        ),
        "other order": (turned, "(?s)ValueError: all ranks must call with the same arguments"),
        "copy": (
            lambda: copy.deepcopy(attach(sharded(), replicas)),
            "TypeError: ShardedReduction must not be copied or pickled, .* save its state",
        ),
        "nonfinite": (
            lambda: attach(sharded(), replicas, nonfinite="skip"),
            "ValueError: nonfinite must be one of keep, raise, got 'skip'",
        ),
        "partly": (
            partly,
            "ValueError: model must have all its parameters sharded, layers.0.weight is in no unit; call",
        ),
        "twice": (twice, r"ValueError: model must be attached once, got one that is; call its detach\(\) first"),
        "not replicas": (lambda: attach(sharded(), mesh["shard"]), held + "0 of 2 from [02]"),
        "everybody": (lambda: attach(sharded(), dist.group.WORLD), held + "1 of 2 from 2"),
        "optimizer": (
            lambda: attach(sharded(), replicas, optimizer=SGD(Net().parameters(), 0.1)),
            r"ValueError: optimizer must have the parameters of the sharded model, got one of shape \(6, ",
        ),
        "unused": (lambda: unused(True), lacks),
        "unused there": (lambda: unused(last), f"(?s).*{lacks.partition(' ')[2]}"),
        "hook": (
            hooked,
            "ValueError: parameters must have no hook that is called when .grad is accumulated, got one of layers.2.w",
        ),
        "other folder": (
            other_folder,
            "ValueError: folder must be of algorithm .*TopkA.*, got .*Elect.*; attach as before saving",
        ),
    }


MISTAKES["fsdp"] = mistakes


@check(FSDP)
def a_damaged_folder_is_refused_on_all_processes(ground: Ground) -> None:
    """In words, and before anything is restored; also where a file is one of an earlier step."""
    trainee, whole, other = ground(algorithm="oktopk"), ground.folder / "whole", ground.folder / "damaged"
    for step, folder in enumerate((ground.folder / "earlier", whole)):
        trainee.steps([step]).zero_grad(True)
        trainee.verbs.save(folder)
    file = "__2_0.distcp"
    earlier, now = ((place / file).read_bytes() for place in (ground.folder / "earlier", whole))
    about = (whole / ".metadata").read_bytes()
    damages = {
        file: (None, now[:100], now[:900] + bytes(byte ^ 1 for byte in now[900:]), earlier),
        ".metadata": (None, now, about.replace(b"replica 0/residual/", b"replica 9/residual/")),
    }
    for name, contents in damages.items():
        for content in contents:
            if ground.comm.rank == 0:
                shutil.rmtree(other, ignore_errors=True)
                shutil.copytree(whole, other)
                (other / name).unlink() if content is None else (other / name).write_bytes(content)
            ground.comm.barrier()
            for shards in (2, 4):
                loaded = ground(algorithm="oktopk", shards=shards)
                said = ground.refused(lambda loaded=loaded: loaded.verbs.load(other), ValueError)
                assert re.match("ValueError: folder must (be|have .*,) as ShardedReduction.save w", said), said
                assert not loaded.owed().any() and not loaded.verbs.steps


@check(FSDP)
def a_state_of_one_process_is_refused_on_all(ground: Ground) -> None:
    """Of all shards, whether it is damaged or of an earlier step."""
    trainee = ground(algorithm="topka").steps([0])
    trainee.zero_grad(True)
    earlier = copy.deepcopy(trainee.verbs.state_dict())
    trainee.steps([1]).zero_grad(True)
    damaged = copy.deepcopy(now := trainee.verbs.state_dict())
    damaged["vectors"][0]["reducer"]["residual"][0] += 1
    for other in (earlier, damaged):
        state = other if ground.comm.rank == 3 else now
        ground.refused(lambda state=state: ground(algorithm="topka").verbs.load_state_dict(state), ValueError)


@check(FSDP)
def an_optimizer_has_its_momentum_again_behind_a_detach(ground: Ground) -> None:
    trainee = ground(optimizer="momentum").steps(range(2))
    trainee.verbs.detach()
    assert not any("momentum_buffer" in state for state in trainee.optimizer.state.values())
    for call in (WHOLE, WHOLE):  # torch's mean, which several passes may add to
        trainee.do(2, call)
    trainee.step()
    assert any("momentum_buffer" in state for state in trainee.optimizer.state.values())
