"""What the parameters of a model owe, by name: flat vectors of some of them each, and a reducer for each vector."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from sparse_mpi.arrays import as_arrays, as_tensors, check
from sparse_mpi.comm import Comm
from sparse_mpi.comm.background import in_turn
from sparse_mpi.comm.consistency import tell
from sparse_mpi.fault_tolerance import ElasticAllreduce
from sparse_mpi.feedback.base import check_sizes, whole_state
from sparse_mpi.reduction import SparseAllreduce
from sparse_mpi.reduction.form import WHOLE, check_form, check_list, check_mapping, equal, sealed
from sparse_mpi.reduction.second_moment import SecondMoment
from sparse_mpi.reduction.settings import Settings
from sparse_mpi.sparse import Layout, SparseVector
from sparse_mpi.training.live_ranks import LiveRanks
from sparse_mpi.training.parameters import cut_by_tensor, joined, keep_mean, local, mean_moment

T = TypeVar("T")
Names = tuple[str, ...]
VERSION = 4  # of the schema, since release 0.4


def names_of(named_parameters: Iterable[tuple[str, Tensor]]) -> dict[Tensor, str]:
    """Return the name of each parameter, or raise TypeError or ValueError if one cannot be reduced.

    Of one that has several names it is the first by the alphabet, whatever the order.
    """
    try:
        pairs = [(name, parameter) for name, parameter in named_parameters]
    except (TypeError, ValueError):
        pairs = []
    if not pairs or not all(isinstance(x, Tensor) and isinstance(name, str) for name, x in pairs):
        raise TypeError("named_parameters must be pairs of name and tensor, and some; pass model.named_parameters()")
    several = Counter(name for name, _ in pairs)
    if twice := [name for name, count in several.items() if count > 1]:
        raise ValueError(f"named_parameters must have unique names, got {twice[0]!r} twice; pass those of one model")
    names: dict[Tensor, str] = {}
    for name, parameter in pairs:
        names[parameter] = min(name, names.get(parameter, name))
        if parameter.requires_grad:
            check(parameter, f"named_parameters: {name}")
    return names


class GradientVector:
    """Some parameters whose gradients are reduced as one flat vector ``(n,)``.

    Attributes:
        arrived: indices of the entries that came with the last sum; None: all have.
        late: the last sum was sparse.
        used: there was a step, or a state was loaded.
    """

    def __init__(self, names: Names, reducer: SparseAllreduce) -> None:
        self.names, self.reducer = names, reducer
        self.arrived: Tensor | None = None
        self.late = self.used = False

    def split(self, flat: Tensor) -> list[Tensor]:
        """Return views of a flat vector ``(n,)``, one for each parameter, in the shapes of these."""
        layout = self.reducer.layout
        parts = zip(flat.split(layout.sizes), layout.shapes, strict=True)
        return [part.view(shape) for part, shape in parts]

    def note(self, total: SparseVector[Tensor] | Tensor, flushed: bool = False) -> None:
        """Take note of which entries have come with ``total``: those that were sent, or with a flush what is not 0."""
        self.late = isinstance(total, SparseVector)
        # Where every entry was to be sent, those that are 0 have arrived as well
        self.arrived = total.indices if isinstance(total, SparseVector) and not self.reducer.whole else None
        if flushed:
            self.arrived = torch.empty(0, dtype=torch.long)

    def remembered(self) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, dict[str, Any]]]:
        """Return what each parameter owes, and its second moments if any, by name; nothing before the first step."""
        if not self.used:
            return {}, {}
        owed = cut_by_tensor(whole_state(self.reducer.feedback), self.reducer.layout.sizes)
        moment = self.reducer.second_moment
        moments = dict(zip(self.names, moment.by_tensor(), strict=True)) if moment is not None else {}
        return dict(zip(self.names, owed, strict=True)), moments

    def hold(self, parameters: Mapping[str, Tensor]) -> None:
        """Have frozen ``parameters`` keep what they owe in the next reduction, in which they have no gradient."""
        frozen = [number for number, name in enumerate(self.names) if not parameters[name].requires_grad]
        self.reducer.absence.here = self.reducer.absence.frozen = frozen

    def masks(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return for each parameter where its gradient has come, or was added since by the caller; None: everywhere."""
        if self.arrived is None:
            return [None] * len(gradients)
        first = next((gradient for gradient in gradients if gradient is not None), self.arrived)
        mask = torch.zeros(self.reducer.layout.size, dtype=torch.bool, device=first.device)
        mask[self.arrived.to(mask.device, torch.long)] = True
        parts = zip(self.split(mask), gradients, strict=True)
        return [part if gradient is None else part | (gradient != 0) for part, gradient in parts]

    def second_moments(self, divisor: float, like: Tensor) -> list[Tensor] | None:
        """Return second moments of the mean, the sum over ``divisor``, as `mean_moment` does; None if there are none."""
        moment = self.reducer.second_moment
        flat = None if moment is None else mean_moment(moment, divisor, like)
        return None if flat is None else self.split(flat)

    def follow(self, betas: Mapping[str, float]) -> None:
        """Take over the betas of second moments, by name; a parameter that has none keeps its own."""
        if (moment := self.reducer.second_moment) is not None:
            moment.betas = [betas.get(name, beta) for name, beta in zip(self.names, moment.betas, strict=True)]


class NamedGradients:
    """The vectors of a model, and what is remembered of each parameter: what it owes, and second moments.

    What is remembered belongs to names: it moves along when a parameter comes into another vector. No parameter is in
    two vectors; of one that is in none, it is kept.

    Args:
        shapes: of the parameters, or of this process's shards of them.
        settings: of every vector, but for layout and k; its layout and k are of all parameters together.
        share: the share of its entries that a vector sends.
        ranks: those that reduce; None until `connect`.
        by_k: ``share`` follows from k: a vector of all parameters takes that as it is.
        survival: options of `ElasticAllreduce`, where ranks may be lost.

    Attributes:
        vectors: by the names of their parameters, in the order in which they are reduced.
        flushed: the last sums are all that was owed, and nobody has stepped along them yet.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        settings: Settings,
        share: float,
        ranks: LiveRanks | None = None,
        *,
        by_k: bool = False,
        survival: Mapping[str, Any] | None = None,
    ) -> None:
        self.vectors: dict[Names, GradientVector] = {}
        self.flushed = False
        self.shapes, self.settings, self.share = dict(shapes), settings, share
        self._ranks, self._by_k, self._survival = ranks, by_k, survival or {}
        # What is remembered of parameters that are in no vector
        self._owed: dict[str, dict[str, np.ndarray]] = {}
        self._moments: dict[str, dict[str, Any]] = {}

    def __iter__(self) -> Iterator[GradientVector]:
        return iter(self.vectors.values())

    @property
    def comm(self) -> Comm:
        """Return the ranks, or raise RuntimeError as long as they are not known."""
        if self._ranks is None:
            raise RuntimeError(
                "comm must be known, but the state was made before the process group, or is a copy, and ranks meet in "
                "its first step; call torch.distributed.init_process_group before you make it, or look later"
            )
        return self._ranks.comm

    @property
    def leads(self) -> bool:
        """Return True on the first rank, and where ranks are not known yet."""
        return self._ranks is None or self.comm.rank == 0

    @property
    def elements(self) -> int:
        return sum(map(math.prod, self.shapes.values()))

    def connect(self, ranks: LiveRanks) -> None:
        self._ranks = ranks

    def __getstate__(self) -> dict[str, Any]:
        """Return what is remembered, by name: a copy has no vectors, and no ranks until `connect`."""
        owed, moments = dict(self._owed), dict(self._moments)
        for vector in self:
            more_owed, more_moments = vector.remembered()
            owed |= more_owed
            moments |= more_moments
        return vars(self) | {"vectors": {}, "flushed": False, "_ranks": None, "_owed": owed, "_moments": moments}

    def adopt(self, names: Names) -> GradientVector:
        """Return the vector of the parameters ``names``, made after all work under way where it is new. Collective then.

        Other vectors with any of these parameters are dissolved; the new one takes over what they remember of its own.
        """
        if names in self.vectors:
            return self.vectors[names]
        before = [self._dissolve(other) for other in list(self.vectors.values()) if set(other.names) & set(names)]
        vector = self.vectors[names] = GradientVector(names, in_turn(self.comm, lambda: self._reducer(names)))
        reducer = vector.reducer
        for other in before:
            reducer.watch = other.reducer.watch
            if other.reducer.algorithm != reducer.algorithm:
                reducer.use(other.reducer.algorithm)
        owed = [self._owed.pop(name, {}) for name in names]
        if any(owed):
            reducer.feedback.load(joined(owed, reducer.layout.sizes))
            vector.used = True
        if (moment := reducer.second_moment) is not None and not self._moments.keys().isdisjoint(names):
            pairs = zip(names, moment.by_tensor(), strict=True)
            moment.load(moment.joined([self._moments.pop(name, unknown) for name, unknown in pairs]))
        return vector

    def adopt_rest(self) -> None:
        """Put parameters that owe something, and are in no vector, into one. Collective if there are any."""
        if self._owed:
            self.adopt(tuple(self._owed))

    def forget(self, names: Collection[str]) -> None:
        """Remember nothing of parameters any more, which leave their vectors. Collective if others stay there."""
        for vector in [vector for vector in self if not set(vector.names).isdisjoint(names)]:
            staying = tuple(name for name in vector.names if name not in names)
            if staying:
                order = list(self.vectors)
                self.adopt(staying)
                self._sort([staying if other == vector.names else other for other in order])
            else:
                self._dissolve(vector)
        for name in names:
            for known in (self.shapes, self._owed, self._moments):
                known.pop(name, None)

    def _sort(self, order: Iterable[Names]) -> None:
        first = [names for names in order if names in self.vectors]
        self.vectors = {names: self.vectors[names] for names in dict.fromkeys([*first, *self.vectors])}

    def _dissolve(self, vector: GradientVector) -> GradientVector:
        """Take a vector apart; what it remembers is kept by name."""
        del self.vectors[vector.names]
        owed, moments = vector.remembered()
        self._owed |= owed
        self._moments |= moments
        return vector

    def _reducer(self, names: Names) -> SparseAllreduce:
        settings = self.settings.part([self.shapes[name] for name in names], self.share)
        # A vector of everything takes k as it is, which a share might round to another number
        if self._by_k and settings.layout.size == self.elements:
            settings = replace(settings, k=min(self.settings.k, self.elements))
        if self._ranks is None or self._ranks.team is None:
            return SparseAllreduce(settings=settings, comm=self.comm)
        return ElasticAllreduce(settings=settings, team=self._ranks.team, **self._survival)

    def parts(self, names: Names, flat: Tensor) -> list[tuple[str, Tensor]]:
        """Return the part ``(m,)`` of each parameter in a flat vector of these ``names``."""
        return list(zip(names, flat.split([math.prod(self.shapes[name]) for name in names]), strict=True))

    def flush(self, parameters: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Send all that the ranks owe, also in no vector, and yield each parameter's name and sum. Collective.

        Frozen ``parameters`` keep what they owe.
        """
        self.adopt_rest()
        for vector in self:
            vector.hold(parameters)
            vector.used = True
            total = vector.reducer.flush(like=local(parameters[vector.names[0]]))
            vector.note(total, flushed=True)
            yield from zip(vector.names, vector.split(total), strict=True)
        self.flushed = True

    def residuals(self, without: Set[str] = frozenset()) -> dict[str, np.ndarray]:
        """Return what this rank has not sent yet of each parameter but some, ``(n,)`` in host memory."""
        shapes = {name: shape for name, shape in self.shapes.items() if name not in without}
        # Nothing, what was kept of parameters in no vector, and what vectors owe: the later ones prevail
        nothing = {name: np.zeros(math.prod(shape), np.float32) for name, shape in shapes.items()}
        owed = {name: remembered.get("residual", nothing[name]) for name, remembered in self._owed.items()}
        for vector in self:
            tensors = cut_by_tensor({"residual": vector.reducer.residual}, vector.reducer.layout.sizes)
            owed |= {name: tensor["residual"] for name, tensor in zip(vector.names, tensors, strict=True)}
        return nothing | owed

    def state_dict(self, **beside: Any) -> dict[str, Any]:
        """Return all that this rank remembers, and what is to be saved ``beside``: plain values and tensors."""
        vectors = [{"names": list(vector.names), "reducer": vector.reducer.state_dict()} for vector in self]
        named = {"vectors": vectors, "owed": dict(self._owed), "moments": dict(self._moments)}
        return dict(as_tensors(sealed({"version": VERSION} | named | beside)))

    def checked(self, states: Any) -> list[dict[str, Any]]:
        """Return ``states``, that `state_dict` returned, or raise TypeError or ValueError; to be called in an agreement.

        Those of release 0.3 are taken too.
        """
        check_list(states, "states")
        read: list[dict[str, Any]] = []
        for number, state in enumerate(states):
            state = as_arrays(state)
            check_form(state, "state" if len(states) == 1 else f"states[{number}]")
            read.append(self._upgraded(state) if "version" not in state else state)
            self._check(read[-1])
        if any(names_in(state) != names_in(read[0]) for state in read):
            raise ValueError(f"states must be of the same vectors on all ranks, got others; {WHOLE}")
        return read

    def _upgraded(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return a state of release 0.3 in today's form: its vectors may be named by their order alone."""
        known = list(self.vectors)
        saved: Any = state.get("buckets", state.get("reducers"))
        check_list(saved, "state['buckets']")
        if any("reducer" not in one for one in saved):
            if len(saved) != len(known):
                raise ValueError(
                    f"state['buckets'] must hold {len(known)} buckets, got {len(saved)}; load it into a "
                    "reduction of the same parameters with the same bucket_cap_mb"
                )
            saved = [{"names": list(names), "reducer": one} for names, one in zip(known, saved, strict=True)]
        return {"owed": {}, "moments": {}} | state | {"version": VERSION, "vectors": saved}

    def _check(self, state: dict[str, Any]) -> None:
        if not equal(version := state["version"], VERSION):
            raise ValueError(f"state['version'] must be {VERSION}, got {version!r}; load it with the release it is of")
        check_list(state.get("vectors"), "state['vectors']")
        check_mapping(state.get("owed"), "state['owed']")
        names = [*state["owed"]]
        for number, saved in enumerate(state["vectors"]):
            check_mapping(saved, f"state['vectors'][{number}]")
            check_list(saved.get("names"), f"state['vectors'][{number}]['names']")
            check_mapping(saved.get("reducer"), f"state['vectors'][{number}]['reducer']")
            names += saved["names"]
        for name in names:
            if name not in self.shapes or names.count(name) > 1:
                raise ValueError(f"state must have each of this model's parameters at most once, got {name!r}; {WHOLE}")
        for name, arrays in state["owed"].items():
            check_mapping(arrays, f"state['owed'][{name!r}]")
            check_sizes(arrays, arrays, Layout.of([self.shapes[name]]).size)
        beta = self.settings.second_moment
        check_mapping(state.get("moments"), "state['moments']")
        for name, moment in state["moments"].items():
            check_mapping(moment, f"state['moments'][{name!r}]")
            SecondMoment(beta or 0.0, Layout.of([self.shapes[name]])).check_state(moment)

    def deal(self, states: Sequence[dict[str, Any]], ranks: int, average: bool) -> None:
        """Restore what ``ranks`` ranks saved, of which this one has ``states``, as `checked` returned them. Collective.

        The vectors become those that were saved. On another number of ranks what the old ones owed is added up.

        Args:
            states: those of the old ranks r, r + P, r + 2 P, ... on rank r of P; empty if there is no such rank.
            ranks: the number of old ranks.
            average: gradients become means: what is owed is scaled by the ratio of the numbers of ranks.
        """
        comm = self.comm
        # Ranks that were dealt no state learn of the vectors from the first, which has one
        told = json.loads(tell(comm, json.dumps(names_in(states[0])) if states else ""))
        order = [tuple(names) for names in told]
        self._owed, self._moments = {}, {}
        if list(self.vectors) != order:
            self._regroup(order)
        for number, names in enumerate(order):
            vector = self.vectors[names]
            vector.reducer.take_over([state["vectors"][number]["reducer"] for state in states], ranks)
            vector.used = True
            if average:
                keep_mean(vector.reducer.feedback, ranks, comm.size)
        scale = comm.size / ranks if average else 1.0
        for state in states:
            for name, arrays in state["owed"].items():
                have = self._owed.get(name, {})
                self._owed[name] = {key: have.get(key, 0) + scale * array for key, array in arrays.items()}
            self._moments |= state["moments"]

    def _regroup(self, order: Sequence[Names]) -> None:
        """Make the vectors of ``order``; what vectors remember that are dissolved is to be loaded. Collective."""
        for names in order:
            self.adopt(names)
        self._sort(order)
        self._owed, self._moments = {}, {}


def names_in(state: Mapping[str, Any]) -> list[list[str]]:
    return [list(saved["names"]) for saved in state["vectors"]]
