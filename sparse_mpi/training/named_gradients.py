"""Vectors of a model's parameters, by name, with a reducer each."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias, TypeVar
from weakref import ref

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from sparse_mpi.arrays import as_arrays, as_tensors, check
from sparse_mpi.comm import Comm
from sparse_mpi.comm.background import Handle, in_turn, progress_thread_of
from sparse_mpi.comm.consistency import check_consistency, same_on_all_ranks, stated, tell
from sparse_mpi.fault_tolerance import ElasticAllreduce
from sparse_mpi.feedback.base import check_sizes, whole_state
from sparse_mpi.monitor.watch import Watch
from sparse_mpi.reduction import SparseAllreduce
from sparse_mpi.reduction.form import EARLIER, WHOLE, check_form, check_list, check_mapping, equal, sealed
from sparse_mpi.reduction.second_moment import LISTS, MEAN, SecondMoment
from sparse_mpi.reduction.settings import Settings
from sparse_mpi.reduction.snapshot import check_ranks
from sparse_mpi.sparse import Layout, SparseVector
from sparse_mpi.states import shown
from sparse_mpi.training.broadcasts import broadcast_tree
from sparse_mpi.training.live_ranks import LiveRanks
from sparse_mpi.training.optimizer_state import add, added, follow
from sparse_mpi.training.parameters import cut_by_tensor, joined, local

T = TypeVar("T")
Names = tuple[str, ...]
Total: TypeAlias = "SparseVector[Tensor] | Tensor"  # the sum of a vector over the ranks
VERSION = 4  # number of the schema, since release 0.4


def names_of(named_parameters: Iterable[tuple[str, Tensor]]) -> dict[Tensor, str]:
    """Return the name of each parameter, of several the alphabetically first.

    Raises TypeError or ValueError if one cannot be reduced.
    """
    try:
        pairs = [(name, parameter) for name, parameter in named_parameters]
    except (TypeError, ValueError):
        pairs = []
    if not pairs or not all(isinstance(x, Tensor) and isinstance(name, str) for name, x in pairs):
        raise TypeError("named_parameters must be pairs of name and tensor, and some; pass model.named_parameters()")
    several = Counter(name for name, _ in pairs)
    if twice := [name for name, count in several.items() if count > 1]:
        raise ValueError(f"named_parameters must have unique names, got {twice[0]!r} twice; pass one model's")
    names: dict[Tensor, str] = {}
    for name, parameter in pairs:
        names[parameter] = min(name, names.get(parameter, name))
        if parameter.requires_grad:
            check(parameter, f"named_parameters: {name}")
    return names


def parameters_of(optimizer: Optimizer | None) -> list[Tensor]:
    return [] if optimizer is None else [p for group in optimizer.param_groups for p in group["params"]]


def in_one_order(parameters: Mapping[str, Tensor], comm: Comm) -> dict[str, Tensor]:
    """Return ``parameters``, by name, in the first rank's order, in which all reduce them. Collective.

    Raises:
        TypeError, ValueError: one cannot be reduced, or ranks have other names, shapes or dtypes; raised on every rank.
    """
    with same_on_all_ranks(comm) as say:
        for name, parameter in parameters.items():
            check(local(parameter), f"parameters: {name}")
        say(parameters=sorted((name, tuple(p.shape), str(p.dtype)) for name, p in parameters.items()))
    return {name: parameters[name] for name in json.loads(tell(comm, json.dumps(list(parameters))))}


def write_mean(total: Total, divisor: float, out: Tensor) -> Tensor:
    """Overwrite ``out`` ``(n,)`` with ``total / divisor``, zero where ``total`` has no entry; return it."""
    if isinstance(total, SparseVector):
        return out.zero_().index_copy_(0, total.indices.long(), (total.values / divisor).to(out.dtype))
    return torch.div(total, divisor, out=out) if total.dtype == out.dtype else out.copy_(total / divisor)


def zeros_among(parts: Mapping[int, Tensor]) -> set[int]:
    """Return the numbers of all-zero ``parts``, all of one device, which is waited for once."""
    if not parts:
        return set()
    found = torch.stack(torch._foreach_norm([*parts.values()], 1)) == 0
    return {number for number, zero in zip(parts, found.tolist(), strict=True) if zero}


class GradientVector:
    """Parameters, by name, with gradients that are reduced as one flat vector ``(n,)``.

    Attributes:
        handle: handle of a flush, or of an attempt, which its result ends.
    """

    def __init__(self, parameters: Mapping[str, Tensor], reducer: SparseAllreduce) -> None:
        self.names, self.parameters, self.reducer = tuple(parameters), list(parameters.values()), reducer
        self.handle: Handle[Any] | None = None
        self.arrived: Tensor | None = None  # indices of the entries of the last sum; None: all
        self.total: Total | None = None  # last sum, until a step along it, where second moments travel
        self.late = False  # the last sum was sparse
        self.used = False  # there was a step, or a state was loaded
        self._updates: dict[Tensor, tuple[ref[Tensor], int]] = {}  # gradients behind a step, and their versions

    def split(self, flat: Tensor) -> list[Tensor]:
        """Return views of a flat vector ``(n,)`` in the shapes of the parameters."""
        layout = self.reducer.layout
        return [part.view(shape) for part, shape in zip(flat.split(layout.sizes), layout.shapes, strict=True)]

    def start(self, gradient: Tensor, absent: Iterable[int] = (), **options: Any) -> Handle[Any]:
        """Begin to reduce a ``gradient`` ``(n,)`` that lacks the ``absent`` parameters; frozen ones keep residuals."""
        self._hold(absent)
        self.handle = self.reducer.start_attempt(gradient, **options)
        return self.handle

    def start_flush(self, check: bool = False) -> None:
        self._hold()
        like = local(self.parameters[0])
        work: Any = partial(self.reducer.flush, like=like, check=check)
        self.handle = progress_thread_of(self.reducer.comm).start(work, like)

    def _hold(self, absent: Iterable[int] = ()) -> None:
        frozen = [number for number, parameter in enumerate(self.parameters) if not parameter.requires_grad]
        self.reducer.absence.here, self.reducer.absence.frozen = {*absent, *frozen}, frozen
        self.used = True

    def wait(self, flushed: bool = False) -> Total:
        """Wait for the sum under way and return it; take note of its entries, if ``flushed`` of the non-zero ones."""
        handle, self.handle = self.handle, None
        if handle is None:
            raise RuntimeError("wait must follow start or start_flush")
        total = handle.wait() if flushed else handle.wait()()
        self.late = isinstance(total, SparseVector)
        self.total = None if flushed or self.reducer.second_moment is None else total
        self.arrived = torch.empty(0, dtype=torch.long) if flushed else None
        # Where every entry was to be sent, zeros have arrived as well
        if isinstance(total, SparseVector) and not self.reducer.whole:
            self.arrived = total.indices
        return total

    def remembered(self) -> dict[str, dict[str, Any]]:
        """Return each parameter's residual, and second moment if any, by name; nothing before the first step."""
        if not self.used:
            return {}
        kept: list[dict[str, Any]] = [*cut_by_tensor(whole_state(self.reducer.feedback), self.reducer.layout.sizes)]
        if (moment := self.reducer.second_moment) is not None:
            kept = [owed | known for owed, known in zip(kept, moment.by_tensor(), strict=True)]
        return dict(zip(self.names, kept, strict=True))

    def stepped(self) -> None:
        """Take note that gradients are a step's updates, momentum included, until they change."""
        self._updates = {p: (ref(p.grad), local(p.grad)._version) for p in self.parameters if p.grad is not None}

    def left(self, members: Iterable[Tensor], passes: int = 0) -> bool:
        """Tell if a gradient still is an update of `stepped`, to which ``passes`` at most have added."""
        known = ((p.grad, *self._updates[p]) for p in members if p in self._updates and p.grad is not None)
        same = (grad for grad, own, version in known if grad is own() and local(grad)._version <= version + passes)
        return any(bool(local(grad).any()) for grad in same)  # zeros were cleared


class NamedGradients:
    """The vectors of a model, and the state of each parameter: residual and second moment.

    A parameter's state moves along to another vector, and is kept while it is in none.

    Args:
        parameters: parameters by name; of a DTensor the shard of this process counts.
        settings: settings of all vectors; layout and k are the whole model's, and computed anew for each vector.
        share: share of its entries that a vector sends.
        ranks: the ranks that reduce; None: they are set later.
        by_k: ``share`` follows from k, which a vector of all parameters takes unrounded.
        survival: options of `ElasticAllreduce`, where ranks may be lost.

    Attributes:
        vectors: vectors by their parameters' names, in the order of reduction.
        flushed: True: the last sums are all residuals, without a step along them yet.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        settings: Settings,
        share: float,
        ranks: LiveRanks | None = None,
        *,
        by_k: bool = False,
        survival: Mapping[str, Any] | None = None,
    ) -> None:
        self.vectors: dict[Names, GradientVector] = {}
        self.flushed = False
        self.parameters, self.settings, self.share, self.ranks = dict(parameters), settings, share, ranks
        self._by_k, self._survival = by_k, survival or {}
        self._kept: dict[str, dict[str, Any]] = {}  # the state of parameters that are in no vector
        self._watch: tuple[int, int] | None = None  # arguments of `Watch`
        self._optimizer: ref[Optimizer] | None = None

    def follow(self, optimizer: Optimizer) -> None:
        """Save and load also what our steps add to the state of ``optimizer``."""
        taken_over = bool(self.settings.feedback.traits.momentum)
        follow(optimizer, travels=self.settings.second_moment is not None, taken_over=taken_over)
        self._optimizer = ref(optimizer)

    @property
    def optimizer(self) -> Optimizer | None:
        return None if self._optimizer is None else self._optimizer()

    def __iter__(self) -> Iterator[GradientVector]:
        return iter(self.vectors.values())

    @property
    def live(self) -> LiveRanks:
        """Return the ranks, or raise RuntimeError if they are not known yet."""
        if self.ranks is None:
            raise RuntimeError(
                "comm must be known, but the state was made before the process group, or is a copy, and ranks meet in "
                "its first step; call torch.distributed.init_process_group before you make it, or look later"
            )
        return self.ranks

    @property
    def comm(self) -> Comm:
        return self.live.comm

    @property
    def elements(self) -> int:
        return sum(local(parameter).numel() for parameter in self.parameters.values())

    def __getstate__(self) -> dict[str, Any]:
        """Return the state by name: a copy has no vectors, and no ranks."""
        kept = dict(self._kept)
        for vector in self:
            kept |= vector.remembered()
        return vars(self) | {"vectors": {}, "flushed": False, "ranks": None, "_kept": kept, "_optimizer": None}

    def adopt(self, names: Names) -> GradientVector:
        """Return the vector of ``names``, made after all work under way where it is new. Collective then.

        It takes its parameters' state over from other vectors, which are dissolved.

        Raises:
            ValueError: other ranks make a vector of other names, or in another order; raised on every rank.
        """
        if names in self.vectors:
            return self.vectors[names]
        before = [self._dissolve(other) for other in list(self.vectors.values()) if set(other.names) & set(names)]
        in_turn(self.comm, lambda: check_consistency(self.comm, stated(names=names)))
        reducer = in_turn(self.comm, lambda: self._reducer(names))
        vector = self.vectors[names] = GradientVector({name: self.parameters[name] for name in names}, reducer)
        if self._watch is not None:
            known = [other.reducer.watch.step for other in before if other.reducer.watch is not None]
            reducer.watch = Watch(self._watch[0], max(known, default=self._watch[1]))
        for other in before:
            if other.reducer.algorithm != reducer.algorithm:
                reducer.use(other.reducer.algorithm)
        kept = [self._kept.pop(name, {}) for name in names]
        if any(kept):
            reducer.feedback.load(joined(list(map(_owed_in, kept)), reducer.layout.sizes))
            vector.used = True
        if (moment := reducer.second_moment) is not None and any(MEAN in one for one in kept):
            moment.load(moment.joined([new | one for new, one in zip(moment.by_tensor(), kept, strict=True)]))
        return vector

    def arrange(self, order: Sequence[Names]) -> None:
        """Have vectors of these names first, in this order. Collective if one is new."""
        for names in order:
            self.adopt(names)
        self.vectors = {names: self.vectors[names] for names in [*order, *self.vectors]}

    def forget(self, names: Collection[str]) -> None:
        """Drop parameters and their state from their vectors. Collective if others stay there."""
        staying = [tuple(name for name in vector.names if name not in names) for vector in self]
        for vector in [vector for vector in self if set(vector.names).issubset(names)]:
            self._dissolve(vector)
        self.arrange([some for some in staying if some])
        for name in names:
            self.parameters.pop(name, None)
            self._kept.pop(name, None)

    def _dissolve(self, vector: GradientVector) -> GradientVector:
        del self.vectors[vector.names]
        self._kept |= vector.remembered()
        return vector

    def _reducer(self, names: Names) -> SparseAllreduce:
        settings = self.settings.part([local(self.parameters[name]).shape for name in names], self.share)
        # A vector of everything takes k as it is, which a share might round to another number
        if self._by_k and settings.layout.size == self.elements:
            settings = replace(settings, k=min(self.settings.k, self.elements))
        if self.ranks is None or self.ranks.team is None:
            return SparseAllreduce(settings=settings, comm=self.comm)
        return ElasticAllreduce(settings=settings, team=self.ranks.team, **self._survival)

    def clip(self, norm: float | None) -> None:
        """Clip the mean of each vector to a ``norm`` before its selection from now on; None: do not."""
        self.settings = replace(self.settings, clip_norm=norm)
        for vector in self:
            vector.reducer.engine.settings = replace(vector.reducer.engine.settings, clip_norm=norm)

    def watch(self, every: int, step: int) -> None:
        self._watch = every, step
        for vector in self:
            vector.reducer.watch = Watch(every, step)

    def flush(self, check: bool = False) -> Iterator[tuple[Tensor, Tensor]]:
        """Send all residuals, also in no vector, and yield each parameter and its sum. Collective.

        An error of one vector is raised behind all, for which other ranks wait.
        """
        if self._kept:
            self.adopt(tuple(self._kept))
        errors: list[Exception] = []
        for vector in self:
            try:
                vector.start_flush(check)
                total: Any = vector.wait(flushed=True)
            except Exception as error:
                errors.append(error)
                continue
            yield from zip(vector.parameters, vector.split(total), strict=True)
        if errors:
            raise errors[0]
        self.flushed = True

    def residuals(self) -> dict[str, np.ndarray]:
        """Return this rank's residual of each parameter ever reduced, ``(n,)`` in host memory."""
        owed = {name: kept["residual"] for name, kept in self._kept.items() if "residual" in kept}
        for vector in self:
            parts = cut_by_tensor({"residual": vector.reducer.residual}, vector.reducer.layout.sizes)
            owed |= {name: part["residual"] for name, part in zip(vector.names, parts, strict=True)}
        return {name: owed[name] for name in self.parameters if name in owed}

    def state_dict(self, **beside: Any) -> dict[str, Any]:
        """Return this rank's state, with ``beside``: plain values and tensors."""
        vectors = [{"names": list(vector.names), "reducer": vector.reducer.state_dict()} for vector in self]
        # Equal on all ranks: the first saves it
        if (optimizer := self.optimizer) is not None and self.comm.rank == 0:
            kept = added(optimizer, self.parameters).items()
            beside |= {"added": as_arrays({name: {key: local(x) for key, x in one.items()} for name, one in kept})}
        return dict(as_tensors(sealed({"version": VERSION, "vectors": vectors, "owed": dict(self._kept), **beside})))

    def checked(self, states: Any, ranks: int) -> list[dict[str, Any]]:
        """Return this rank's ``states`` of ``ranks`` ranks, with arrays. To be called in an agreement.

        Raises:
            TypeError, ValueError: a state is damaged or of another model, or there are too few or many.
        """
        check_ranks(ranks)
        check_list(states, "states")
        expected = list(range(self.comm.rank, ranks, self.comm.size))
        if len(states) != len(expected):
            raise ValueError(
                f"states must be those of ranks {expected} of {ranks}, got {len(states)}; deal them out as "
                "sparse_mpi.checkpoint.load does"
            )
        read: list[dict[str, Any]] = as_arrays(list(states))
        for number, state in enumerate(read):
            check_form(state, "state" if len(read) == 1 else f"states[{number}]")
            _check_state(state, self.parameters)
        if any(names_in(state) != names_in(read[0]) for state in read):
            raise ValueError(f"states must be of the same vectors on all ranks, got others; {WHOLE}")
        return read

    def deal(self, states: Sequence[dict[str, Any]], ranks: int, average: bool) -> None:
        """Restore the states of ``ranks`` ranks, vectors included, as `SparseAllreduce.take_over` does. Collective.

        ``states`` are results of `checked`. Where gradients become means (``average``), residuals are scaled by the
        ratio of the numbers of ranks.
        """
        comm = self.comm
        scale = comm.size / ranks if average else 1.0
        # Ranks that were dealt no state learn of the vectors from the first, which has one
        told = json.loads(tell(comm, json.dumps(names_in(states[0])) if states else ""))
        order = [tuple(names) for names in told]
        self.arrange(order)
        # Dissolved vectors leave nothing: their state is to be loaded
        self._kept = {}
        for number, names in enumerate(order):
            vector = self.vectors[names]
            vector.reducer.take_over([state["vectors"][number]["reducer"] for state in states], ranks)
            vector.used = True
            for array in whole_state(vector.reducer.feedback).values() if scale != 1 else ():
                array *= scale
        for state in states:
            for name, kept in state["owed"].items():
                have = self._kept.get(name, {})
                owed = {key: have.get(key, 0) + scale * array for key, array in _owed_in(kept).items()}
                self._kept[name] = kept | owed
        if (optimizer := self.optimizer) is not None:
            found = broadcast_tree(as_tensors(states[0].get("added", {})) if states else {}, comm)
            add(optimizer, self.parameters, found)


def _check_state(state: dict[str, Any], parameters: Mapping[str, Tensor]) -> None:
    if not equal(version := state.get("version"), VERSION):
        raise ValueError(
            f"state['version'] must be {VERSION}, got {shown(version)}; load it with the release it is of; {EARLIER}"
        )
    check_list(state.get("vectors"), "state['vectors']")
    for number, vector in enumerate(state["vectors"]):
        check_mapping(vector, f"state['vectors'][{number}]")
        check_list(vector.get("names"), f"state['vectors'][{number}]['names']")
        check_mapping(vector.get("reducer"), f"state['vectors'][{number}]['reducer']")
    check_mapping(state.get("owed"), "state['owed']")
    for name, kept in state.get("added", {}).items():
        if name not in parameters:
            raise ValueError(f"state['added'] must be of this model's parameters, got {name!r}; {WHOLE}")
        check_mapping(kept, f"state['added'][{name!r}]")
    names = [*state["owed"], *(name for vector in names_in(state) for name in vector)]
    for name in names:
        if not isinstance(name, str) or name not in parameters or names.count(name) > 1:
            raise ValueError(
                f"state must have each of this model's parameters at most once, got {shown(name)}; {WHOLE}"
            )
    for name, kept in state["owed"].items():
        shape = local(parameters[name]).shape
        check_sizes(kept, _owed_in(kept), math.prod(shape))
        if MEAN in kept:
            SecondMoment(0.0, Layout.of([shape])).check_state(kept)


def _owed_in(kept: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {key: array for key, array in kept.items() if key not in (MEAN, *LISTS)}


def names_in(state: Mapping[str, Any]) -> list[list[str]]:
    return [list(saved["names"]) for saved in state["vectors"]]
