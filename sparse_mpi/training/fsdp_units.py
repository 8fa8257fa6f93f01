"""The units of a model that torch's FSDP2 shards, parameters that travel together: `Unit`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

SHARD_FIRST = "call torch.distributed.fsdp.fully_shard on its layers, and then on the model itself"


class Unit:
    """Parameters that FSDP2 gathers and reduces together, as this process holds them.

    FSDP2 hands their reduced gradient over as one vector, in which a shard that is smaller than those of other
    processes is padded with zeros at its end.

    Attributes:
        names, parameters: those that have an element in the shard and need a gradient.
        length: of the padded vector.
    """

    def __init__(self, module: Any, names: dict[Tensor, str]) -> None:
        self.module = module
        held = [param for param in _param_group(module).fsdp_params if param.sharded_param.requires_grad]
        padded = [param.padded_sharded_param_size.numel() for param in held]
        self.length: int = sum(padded)
        self.mesh: Any = held[0].sharded_param.device_mesh if held else None
        self.parameters: list[Any] = []
        self._parts: list[slice] = []  # of each parameter in the padded vector
        begin = 0
        for param, size in zip(held, padded, strict=True):
            own = param.sharded_param.to_local().numel()
            if own:
                self.parameters.append(param.sharded_param)
                self._parts.append(slice(begin, begin + own))
            begin += size
        self.names: tuple[str, ...] = tuple(names[parameter] for parameter in self.parameters)
        self._whole = sum(part.stop - part.start for part in self._parts) == self.length

    def without_padding(self, padded: Tensor) -> Tensor:
        """Return the elements ``(n,)`` that belong to parameters: ``padded`` itself where there is no padding."""
        return padded if self._whole else torch.cat([padded[part] for part in self._parts])

    def write(self, flat: Tensor, padded: Tensor) -> None:
        """Write ``flat``, which `without_padding` has returned, back to ``padded``, if it is a copy."""
        if not self._whole:
            sizes = [part.stop - part.start for part in self._parts]
            for part, values in zip(self._parts, flat.split(sizes), strict=True):
                padded[part] = values


def units_of(model: torch.nn.Module) -> list[Unit]:
    """Return the units of ``model`` whose parameters need gradients, in the model's order.

    Raises:
        TypeError: ``model`` is not sharded by FSDP2, or not over a mesh of one dimension.
        ValueError: a parameter that needs a gradient is in no unit.
    """
    try:
        from torch.distributed.fsdp import FSDPModule  # torch >= 2.6
    except ImportError:
        raise TypeError(f"model must be sharded by FSDP2, which needs torch >= 2.6, got {torch.__version__}") from None
    modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
    if not modules:
        raise TypeError(f"model must be sharded by FSDP2, got a {type(model).__name__} that is not; {SHARD_FIRST}")
    names: dict[Tensor, str] = {
        parameter: name.replace("_orig_mod.", "") for name, parameter in model.named_parameters()
    }
    # Modules that were sharded together have one state
    states = {id(module._get_fsdp_state()): module for module in modules}
    units = [Unit(module, names) for module in states.values() if _param_group(module) is not None]
    covered = {param.sharded_param for unit in units for param in _param_group(unit.module).fsdp_params}
    for parameter, name in names.items():
        if parameter.requires_grad and parameter not in covered:
            raise ValueError(f"model must have all its parameters sharded, {name} is in no unit; {SHARD_FIRST}")
    trained = [unit for unit in units if unit.length]
    if not trained:
        raise ValueError("model must have a parameter that needs a gradient, got none; is it frozen?")
    for mesh in {unit.mesh for unit in trained}:
        if mesh.ndim != 1:
            raise TypeError(
                f"model must be sharded over a mesh of one dimension, got {mesh.mesh_dim_names or mesh.ndim}; call "
                'fully_shard(layer, mesh=mesh["shard"]), and give mesh["replicate"] as replicas'
            )
    return trained


def _param_group(module: Any) -> Any:
    """Return what FSDP2 keeps of the parameters of a unit, or None; torch has no public name for it."""
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)  # in newer torch
    if groups is None:
        return state._fsdp_param_group
    if len(groups) > 1:
        raise TypeError("model must have one mesh for each unit, got a shard_placement_fn that uses several")
    return groups[0] if groups else None


def place_of(units: list[Unit]) -> tuple[int, list[int]]:
    mesh = units[0].mesh
    return mesh.get_local_rank(), dist.get_process_group_ranks(mesh.get_group())


def parameters_of(units: list[Unit]) -> Iterator[tuple[str, Any]]:
    for unit in units:
        yield from zip(unit.names, unit.parameters, strict=True)


def sharded_like(parameter: Any, shard: Tensor) -> Any:
    return type(parameter.data).from_local(
        shard,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
