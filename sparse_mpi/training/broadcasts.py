"""Make a model and an optimizer equal on all ranks, after an agreement on both."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from sparse_mpi.arrays import as_tensors
from sparse_mpi.checks import check_instance, check_whole
from sparse_mpi.comm import Comm, as_comm
from sparse_mpi.comm.consistency import same_on_all_ranks


def broadcast_parameters(params: object, root_rank: int = 0, comm: object = None) -> None:
    """Overwrite tensors with their values on ``root_rank``, so that a model starts equal on all ranks. Collective.

    Args:
        params: ``model.named_parameters()`` or ``model.state_dict()``; its other values stay.
        root_rank: source rank.
        comm: mpi4py communicator, process group or `Comm`; None: all ranks of the job, see `as_comm`.

    Raises:
        TypeError, ValueError: bad arguments, or names, shapes or dtypes that differ between ranks; on every rank.
    """
    transport = as_comm(comm)
    with same_on_all_ranks(transport) as say:
        check_whole("root_rank", root_rank, 0, most=transport.size - 1)
        tensors = _named_tensors(params)
        forms = [f"{name}:{_checked_form(f'params[{name!r}]', tensor)}" for name, tensor in tensors]
        say(root_rank=root_rank, params=" ".join(forms))
    for tensor in [tensor for _, tensor in tensors if tensor.numel()]:
        # As bytes, because NumPy lacks some of torch's dtypes, for example bfloat16
        whole = tensor.detach().cpu().resolve_conj().resolve_neg().reshape(-1).contiguous()
        received = transport.bcast(whole.view(torch.uint8).numpy(), root_rank)
        tensor.detach().copy_(torch.from_numpy(received).view(tensor.dtype).view(tensor.shape))


def broadcast_optimizer_state(
    optimizer: Optimizer, root_rank: int = 0, comm: object = None, named_parameters: object = None
) -> None:
    """Load state and options of ``optimizer`` on ``root_rank`` on all ranks. Collective.

    States belong to parameters by their place in the groups: known names must be the same. A `DistributedOptimizer`
    knows them, or one of torch made with ``model.named_parameters()``.

    Args:
        optimizer: torch optimizer, with the same groups on all ranks.
        root_rank: source rank.
        comm: see `broadcast_parameters`.
        named_parameters: ``model.named_parameters()``, where the optimizer does not know them.

    Raises:
        TypeError, ValueError: bad arguments, other groups on a rank, or a state that ``torch.load(weights_only=True)``
            refuses; on every rank.
    """
    transport = as_comm(comm)
    with same_on_all_ranks(transport) as say:
        check_whole("root_rank", root_rank, 0, most=transport.size - 1)
        check_instance("optimizer", optimizer, Optimizer)
        given = [] if named_parameters is None else _named_tensors(named_parameters)
        bucketing = getattr(getattr(optimizer, "reduction", None), "bucketing", None)
        names = ({} if bucketing is None else bucketing.names) | {p: name for name, p in given}
        groups = [
            [f"{names.get(p, name)}:{_checked_form('parameter', p)}" for p, name in _members(group)]
            for group in optimizer.param_groups
        ]
        state = optimizer.state_dict() if transport.rank == root_rank else None
        _check_readable("optimizer.state_dict()", state)
        say(root_rank=root_rank, optimizer=type(optimizer).__name__, groups=" | ".join(map(" ".join, groups)))
    received = broadcast_tree(state, transport, root_rank)
    # The root too, whose options become the numbers that they are on other ranks
    with same_on_all_ranks(transport):
        kept = optimizer.param_groups
        optimizer.load_state_dict(received)
        # Schedules and loggers may hold the groups
        for group, loaded in zip(kept, optimizer.param_groups, strict=True):
            group.clear()
            group.update(loaded)
        optimizer.param_groups = kept


def _members(group: Mapping[str, Any]) -> list[tuple[Tensor, str]]:
    return list(zip(group["params"], group.get("param_names", [""] * len(group["params"])), strict=True))


def broadcast_tree(tree: object, comm: Comm, root_rank: int = 0) -> Any:
    """Return the root's ``tree`` of numbers, texts and tensors on all ranks."""
    own = packed(tree) if comm.rank == root_rank else np.zeros(0, np.uint8)
    return unpacked(np.asarray(comm.bcast(own, root_rank)))


def packed(tree: object) -> np.ndarray:
    """Return ``torch.save`` of a tree without NumPy objects, which `unpacked` refuses: see `as_tensors`."""
    file = io.BytesIO()
    torch.save(as_tensors(tree), file)
    return np.frombuffer(file.getvalue(), np.uint8)


def unpacked(data: np.ndarray) -> Any:
    return torch.load(io.BytesIO(data.tobytes()), "cpu", weights_only=True)


def _check_readable(name: str, tree: Any) -> None:
    if isinstance(tree, dict) or type(tree) in (list, tuple):
        for key, part in tree.items() if isinstance(tree, dict) else enumerate(tree):
            _check_readable(f"keys of {name}", key)
            _check_readable(f"{name}[{key!r}]", part)
    elif type(tree) not in (Tensor, bool, int, float, str):
        try:
            unpacked(packed(tree))
        except Exception as problem:  # pickle raises whatever an object does
            raise TypeError(
                f"{name} must be numbers, texts, tensors, or lists or dicts of them, got {tree!r}; take it out, or see "
                "torch.serialization.add_safe_globals"
            ) from problem


def _named_tensors(params: Any) -> list[tuple[str, Tensor]]:
    if isinstance(params, Mapping):  # a state may hold other things than tensors
        params = ({name: x for name, x in params.items() if isinstance(x, Tensor)} or params).items()
    iterable = isinstance(params, Iterable) and not (isinstance(params, np.ndarray) and not params.ndim)
    pairs = list(params) if iterable else [params]
    for pair in pairs:
        name, tensor = pair if isinstance(pair, tuple) and len(pair) == 2 else (None, None)
        if not (isinstance(name, str) and isinstance(tensor, Tensor)):
            raise TypeError(
                f"params must be pairs of a name and a tensor, got {pair!r:.80}; pass model.state_dict() or "
                "model.named_parameters()"
            )
    return sorted(pairs, key=lambda pair: pair[0])


def _checked_form(name: str, tensor: Tensor) -> str:
    frozen = tensor.is_inference() and not torch.is_inference_mode_enabled()
    for unfit, what, remedy in (
        (tensor.is_meta, "on meta", "make values: model.to_empty(device='cpu')"),
        (hasattr(tensor, "to_local"), "that is distributed", "broadcast before fully_shard"),
        (tensor.layout is not torch.strided or tensor.is_quantized, f"of {tensor.layout}", "make it dense"),
        (frozen, "of torch.inference_mode()", "clone() it"),
    ):
        if unfit:
            raise TypeError(f"{name} must be a dense tensor with values, got one {what}; {remedy}")
    return f"{tuple(tensor.shape)}:{tensor.dtype}"
