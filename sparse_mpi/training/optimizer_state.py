"""What our steps add to the state of an optimizer of torch, and what they leave out.

Flattened states of torch.distributed.checkpoint have the loading optimizer's keys. A plain optimizer leaves out ours,
which are saved beside residuals, and asks for its own: zeros where unused.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer, RMSprop

from sparse_mpi.training.adam_steps import ARRIVED
from sparse_mpi.training.parameters import local, sharded_like
from sparse_mpi.training.sgd_steps import DECAY, LAST

ADDED, STEP = (ARRIVED, LAST, DECAY), "step"
SQUARE, MOMENTUM = "square_avg", "momentum_buffer"  # keys of torch that may be unused


def follow(optimizer: Optimizer, travels: bool, taken_over: bool) -> None:
    """Have ``optimizer`` save and load whole states.

    Args:
        optimizer: steps the reduced parameters.
        travels: True: second moments travel, and RMSprop's own are unused.
        taken_over: True: error feedback has SGD's momentum; its buffers are unused.
    """
    unused = SQUARE if travels and isinstance(optimizer, RMSprop) else None
    unused = MOMENTUM if taken_over and isinstance(optimizer, SGD) else unused
    _drop_nothing(optimizer)
    optimizer.register_load_state_dict_post_hook(_drop_nothing)
    if unused is not None:
        for state in optimizer.state.values():
            _drop_zeros(state, unused)
        optimizer.register_state_dict_post_hook(partial(_with_zeros, unused))
        optimizer.register_load_state_dict_pre_hook(partial(_without_zeros, unused))


def added(optimizer: Optimizer, parameters: Mapping[str, Tensor]) -> dict[str, dict[str, Any]]:
    """Return what our steps have added to the state of ``parameters``, and torch's step number, by name."""
    known = {name: optimizer.state[p] for name, p in parameters.items() if p in optimizer.state}
    return {
        name: {key: state[key].detach().clone() for key in (*ADDED, STEP) if isinstance(state.get(key), Tensor)}
        for name, state in known.items()
        if not state.keys().isdisjoint(ADDED)
    }


def add(optimizer: Optimizer, parameters: Mapping[str, Tensor], found: Mapping[str, Mapping[str, Any]]) -> None:
    """Complete the state of ``parameters`` by what `added` has ``found``, if they have taken as many steps."""
    for name, kept in found.items():
        parameter = parameters[name]
        state = optimizer.state.get(parameter, {})
        lacking = [key for key in kept if key in ADDED and key not in state]
        if lacking and float(state.get(STEP, 0)) == float(kept.get(STEP, 0)):
            copies = {key: local(kept[key]).to(parameter.device, copy=True) for key in lacking}
            optimizer.state[parameter].update({key: sharded_like(parameter, copies[key]) for key in lacking})


def _drop_nothing(optimizer: Optimizer) -> None:
    for state in optimizer.state.values():
        for key in [key for key, value in state.items() if isinstance(value, dict) and not value]:
            del state[key]


def _drop_zeros(state: dict[str, Any], key: str) -> None:
    if isinstance(state.get(key), Tensor) and not state[key].is_sparse and not bool(local(state[key]).any()):
        del state[key]
        if state.keys() == {STEP}:
            del state[STEP]


def _with_zeros(unused: str, optimizer: Optimizer, saved: dict[str, Any]) -> None:
    for group, packed in zip(optimizer.param_groups, saved["param_groups"], strict=True):
        for parameter, number in zip(group["params"], packed["params"], strict=True):
            if parameter.requires_grad and unused not in saved["state"].get(number, {}):
                zeros = {STEP: torch.tensor(0.0)} if unused == SQUARE else {}
                saved["state"][number] = zeros | saved["state"].get(number, {}) | {unused: torch.zeros_like(parameter)}


def _without_zeros(unused: str, _: Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
    states = {number: dict(state) for number, state in saved["state"].items()}
    for state in states.values():
        _drop_zeros(state, unused)
    return saved | {"state": {number: state for number, state in states.items() if state}}
