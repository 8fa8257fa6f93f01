"""Make the sum over the replicas of a model that torch's FSDP2 shards sparse: `attach`.

With a mesh of two dimensions, of which layers are sharded over one::

    mesh = init_device_mesh("cuda", (nodes, 8), mesh_dim_names=("replicate", "shard"))
    for layer in (*model.layers, model):
        fully_shard(layer, mesh=mesh["shard"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    reduction = attach(model, mesh["replicate"], optimizer=optimizer)

FSDP2 gathers and reduces inside a replica, over fast links. What crosses the slow network is the sum over the replicas,
which a mesh of two dimensions (HSDP) makes dense. Here each process reduces its own shard with those that hold the same
shard of other replicas: G lanes side by side, each with a residual of n / G numbers and k / G entries a step. With
Ok-Topk a network card carries 4 k (N - 1) / (N G) words a step for N replicas. FlexDeMo (arXiv 2502.06728) published
the pattern.
"""

from __future__ import annotations

from typing import Any

import torch

from sparse_mpi.algorithms import Algorithm
from sparse_mpi.feedback import Feedback
from sparse_mpi.training.fsdp_reduction import ShardedReduction

__all__ = ["ShardedReduction", "attach"]


def attach(
    model: torch.nn.Module,
    replicas: object,
    *,
    density: float | None = None,
    algorithm: str | Algorithm = "elect",
    feedback: str | Feedback = "residual",
    optimizer: torch.optim.Optimizer | None = None,
    op: str = "average",
    dense_steps: int = 0,
    check_every: int = 0,
    **options: Any,
) -> ShardedReduction:
    """Have gradients of a sharded model reduced sparsely over its replicas, from now on. Collective.

    Each unit, a module that ``fully_shard`` was called on, is reduced by itself within the backward pass, in the stream
    that FSDP2 has for it. Accumulation (``set_requires_gradient_sync``), ``reshard_after_forward``, prefetch, mixed
    precision, ``torch.compile`` of layers and clipping by ``torch.nn.utils.clip_grad_norm_`` work as without. A
    ``GradScaler`` does not: train in bfloat16.

    Args:
        model: whose layers are sharded by ``fully_shard`` over a mesh of one dimension.
        replicas: the processes that hold the same shard, in any order: a mesh of one dimension as
            ``mesh["replicate"]``, a process group, or an mpi4py communicator.
        density: the share of a unit's entries that is sent, see `DistributedOptimizer` for what None means.
        algorithm: a name in `ALGORITHMS`, or an instance.
        feedback: see `SparseAllreduce`.
        optimizer: of the sharded model's parameters, to take its momentum over as for `SparseState`; made after
            ``fully_shard``.
        op: "average" or "sum" over the replicas. Inside a replica FSDP2 averages, or divides as
            ``set_gradient_divide_factor`` says; with a factor that counts all ranks take "sum".
        dense_steps: the number of steps at the beginning that are dense.
        check_every: assert both laws in one step out of this many, 0 for never; costs two dense allreduces.
        **options: hyperparameters of a named algorithm, see `SparseAllreduce`.

    Raises:
        TypeError: ``model`` is not sharded by FSDP2, or over a mesh of several dimensions; replicas are no such thing.
        ValueError: other bad arguments: ``model`` is attached, or has a parameter that is not sharded; ``replicas`` do
            not hold the same shard of models of their own; ``optimizer`` was made before ``fully_shard``; or arguments
            differ between replicas. Raised on every rank of ``replicas``.
    """
    return ShardedReduction(
        model,
        replicas,
        density=density,
        algorithm=algorithm,
        feedback=feedback,
        optimizer=optimizer,
        op=op,
        dense_steps=dense_steps,
        check_every=check_every,
        options=options,
    )
