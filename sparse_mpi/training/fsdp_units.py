"""The units of a model that torch's FSDP2 shards: `Unit` and `UnitVector`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from sparse_mpi.arrays import check
from sparse_mpi.training.grammar import LEFT
from sparse_mpi.training.named_gradients import GradientVector, Total, write_mean, zeros_among
from sparse_mpi.training.parameters import local, sharded_like

SHARD_FIRST = "call torch.distributed.fsdp.fully_shard on its layers, and then on the model itself"


class Unit:
    """Parameters that FSDP2 gathers and reduces together, as this process holds them.

    FSDP2 hands their reduced gradient over as one vector, in which shards smaller than other processes' end in zeros.

    Attributes:
        names, parameters: names and parameters with an element in the shard that need a gradient.
        length: elements of the padded vector.
        elements: elements of parameters.
        dtype, device: type and place of the vector.
    """

    def __init__(self, module: Any, names: dict[Tensor, str]) -> None:
        self.module = module
        self._group = group = _param_group(module)
        held = [param for param in group.fsdp_params if param.sharded_param.requires_grad]
        padded = [param.padded_sharded_param_size.numel() for param in held]
        self.length: int = sum(padded)
        self.mesh: Any = held[0].sharded_param.device_mesh if held else None
        self.parameters: list[Any] = []
        self._parts: list[slice] = []  # slice of each parameter in the padded vector
        begin = 0
        for param, size in zip(held, padded, strict=True):
            own = param.sharded_param.to_local().numel()
            if own:
                self.parameters.append(param.sharded_param)
                self._parts.append(slice(begin, begin + own))
            begin += size
        self.names: tuple[str, ...] = tuple(names[parameter] for parameter in self.parameters)
        self.elements: int = sum(part.stop - part.start for part in self._parts)
        policy, first = group.mp_policy, held[0].sharded_param if held else torch.empty(0)
        self.dtype: torch.dtype = policy.reduce_dtype or policy.param_dtype or first.dtype
        self.device: torch.device = group.device

    def without_padding(self, padded: Tensor) -> Tensor:
        """Return the elements ``(n,)`` of parameters: ``padded`` itself where there is no padding."""
        return padded if self.elements == self.length else torch.cat([padded[part] for part in self._parts])

    def objection(self, shard: Tensor) -> Exception | None:
        if len(shard) != self.length:
            return ValueError(
                f"a backward pass must bring gradients of all parameters of a unit, {self.length} numbers for "
                f"{', '.join(self.names)}, got {len(shard)}; call model.set_reduce_scatter_unused_params(True) where "
                "some are not used, and attach again after freezing or unfreezing"
            )
        # FSDP2 calls them within the backward pass, when the mean over the replicas is yet to come
        hooked = (n for n, p in zip(self.names, self.parameters, strict=True) if p._post_accumulate_grad_hooks)
        if (name := next(hooked, None)) is not None:
            return ValueError(
                f"parameters must have no hook that is called when .grad is accumulated, got one of {name}; the mean "
                "over the replicas is there after backward(), so do its work then"
            )
        return None


class UnitVector:
    """Units that are reduced as one vector: the `Place` of `sparse_mpi.fsdp`.

    Attributes:
        came: units taken since the last `collect`.
        factor: multiplies the gradients that `collect` returns next.
    """

    def __init__(self, units: Sequence[Unit], vector: GradientVector) -> None:
        self.units, self.vector = list(units), vector
        self.came: set[Unit] = set()
        self.factor = 1.0
        self._reduced = torch.empty(0)  # the gradient that is being reduced

    @cached_property
    def flat(self) -> Tensor:
        """The gradients ``(n,)`` taken so far, 0 elsewhere."""
        first, size = self.units[0], self.vector.reducer.layout.size
        return torch.zeros(size, dtype=first.dtype, device=first.device)

    @property
    def complete(self) -> bool:
        return len(self.came) == len(self.units)

    def parts(self, flat: Tensor) -> dict[Unit, Tensor]:
        return dict(zip(self.units, flat.split([unit.elements for unit in self.units]), strict=True))

    def take(self, unit: Unit, shard: Tensor) -> None:
        """Take a unit's padded gradients, and leave zeros, which FSDP2 makes ``.grad``."""
        self.came.add(unit)
        objection = RuntimeError(LEFT) if self.vector.left(unit.parameters) else unit.objection(shard)
        if objection is None:
            # A module that is called twice in a forward pass comes twice
            self.parts(self.flat)[unit].add_(unit.without_padding(shard))
            shard.zero_()
        else:  # all replicas are to hear of it
            self.vector.reducer.engine.objection = objection

    def collect(self) -> tuple[Tensor, list[int]]:
        owners = [unit for unit in self.units for _ in unit.parameters]
        absent = [number for number, unit in enumerate(owners) if unit not in self.came]
        self._reduced = self.flat
        del self.flat
        self.came = set()
        wide, factor = torch.promote_types(self._reduced.dtype, torch.float32), self.factor
        self.factor = 1.0
        return self._reduced if factor == 1 else self._reduced.to(wide) * factor, absent

    def write(self, total: Total, divisor: float) -> None:
        """Add the mean, ``total / divisor``, to ``.grad`` of the parameters."""
        flat, self._reduced = self._reduced, torch.empty(0)
        write_mean(total, divisor, flat)
        # As in torch, units that take no part on any replica have no gradient, unless something was owed
        reducer = self.vector.reducer
        skipped = reducer.absence.everywhere if reducer.whole else ()
        parts = self.vector.split(flat)
        idle = zeros_among({number: parts[number] for number in skipped})
        for number, (parameter, mean) in enumerate(zip(self.vector.parameters, parts, strict=True)):
            if parameter.grad is not None:
                shard = local(parameter.grad)
                shard.add_(mean.to(shard.device))
            elif number not in idle:
                parameter.grad = sharded_like(parameter, mean.to(local(parameter)))

    def fail(self) -> None:
        """Do nothing: no step is left out where a rank knows its shard alone."""


def joined(units: Sequence[Unit], max_bytes: float) -> list[list[Unit]]:
    """Join neighbours of one dtype and device, up to ``max_bytes``; a larger unit is by itself."""
    found: list[list[Unit]] = []
    for unit in units:
        alike = [one for one in found[-1:] if (one[0].dtype, one[0].device) == (unit.dtype, unit.device)]
        if alike and sum(one.elements for one in [*alike[0], unit]) * unit.dtype.itemsize <= max_bytes:
            found[-1].append(unit)
        else:
            found.append([unit])
    return found


def units_of(model: torch.nn.Module) -> list[Unit]:
    """Return the units of ``model`` with parameters that need gradients, in the model's order.

    Raises:
        TypeError: ``model`` is not sharded by FSDP2, or not over a mesh of one dimension.
        ValueError: a parameter that needs a gradient is in no unit, or has no elements.
    """
    try:
        from torch.distributed.fsdp import FSDPModule  # torch >= 2.6
    except ImportError:
        raise TypeError(f"model must be sharded by FSDP2, which needs torch >= 2.6, got {torch.__version__}") from None
    parts = model.modules() if isinstance(model, torch.nn.Module) else ()
    modules = [module for module in parts if isinstance(module, FSDPModule)]
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
        if not parameter.requires_grad:
            continue
        check(local(parameter), f"model: {name}")  # checks parameters without an element in this shard too
        if not parameter.numel():
            raise ValueError(
                f"model must have parameters with elements, FSDP2 fails in a backward pass for {name}, which has none; "
                "call its requires_grad_(False)"
            )
        if parameter not in covered:
            raise ValueError(f"model must have all its parameters sharded, {name} is in no unit; {SHARD_FIRST}")
    trained = [unit for unit in units if unit.length]
    if not trained:
        raise ValueError("model must have a parameter that needs a gradient, got none; is it frozen?")
    for unit in trained:
        # FSDP2 would divide behind its hook, when the sums have gone already
        sums = getattr(_param_group(unit.module), "force_sum_reduction_for_comms", False)
        if sums or unit.dtype not in (torch.float32, torch.bfloat16):
            raise TypeError(
                f"model must reduce means in float32 or bfloat16, got {'sums' if sums else unit.dtype} of a "
                f"{type(unit.module).__name__}; give MixedPrecisionPolicy a reduce_dtype of torch.bfloat16, and leave "
                "set_force_sum_reduction_for_comms out"
            )
    for mesh in {unit.mesh for unit in trained}:
        if mesh.ndim != 1:
            raise TypeError(
                f"model must be sharded over a mesh of one dimension, got {mesh.mesh_dim_names or mesh.ndim}; call "
                'fully_shard(layer, mesh=mesh["shard"]), and give mesh["replicate"] as replicas'
            )
    return trained


def _param_group(module: Any) -> Any:
    """Return FSDP2's parameter group of a unit, or None."""
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)  # attribute of newer torch
    if groups is None:
        return state._fsdp_param_group
    if len(groups) > 1:
        raise TypeError("model must have one mesh for each unit, got a shard_placement_fn that uses several")
    return groups[0] if groups else None
