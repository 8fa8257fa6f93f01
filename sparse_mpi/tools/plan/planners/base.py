"""The basis of all planners: the choices there are, parts made of them, and the length of a step with these parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sparse_mpi.tools.plan.base import Option, Part, Plan, Profile
from sparse_mpi.tools.plan.timeline import Load, load, schedule

DENSE = "dense"  # the option that every profile has: float32, what a job does without a plan
PARTITIONS = (1, 2, 4, 8)
ROUNDING = 1e-9  # relative; a step shorter by less is no gain


class Choice(NamedTuple):
    """A way to reduce a part: an option, and into how many pieces to cut the fused vector."""

    option: str
    partitions: int


class Forecast:
    """A simulator of the steps of a job, which caches what a planner asks again and again.

    Attributes:
        dense: options that send every element.
        sparse: the other options. Of either kind, options are left out that another one undercuts in every phase.
        choices: options and numbers of pieces worth trying; only one piece without overlap, as nothing is pipelined.

    Raises:
        ValueError: the profile lacks the option dense, or has no sparse one.
    """

    def __init__(self, profile: Profile, overlap: bool = False, cpu_lane: bool = False) -> None:
        self.profile, self.overlap, self.cpu_lane = profile, overlap, cpu_lane
        self.dense = _worthwhile([option for option in profile.options if option.dense])
        self.sparse = _worthwhile([option for option in profile.options if not option.dense])
        names = [option.name for option in profile.options]
        if DENSE not in names or not self.sparse:
            raise ValueError(
                f"profile must have the option {DENSE} and a sparse one, got {', '.join(names) or 'none'}; "
                f"measure both, such as {DENSE} and oktopk"
            )
        self.partitions = PARTITIONS if overlap else PARTITIONS[:1]
        self.choices = [Choice(option.name, p) for option in (*self.dense, *self.sparse) for p in self.partitions]
        self._dense = {option.name for option in profile.options if option.dense}
        self._sizes = [tensor.size for tensor in profile.tensors]
        self._parts: dict[tuple[tuple[int, ...], Choice], Part] = {}
        self._loads: dict[Part, Load] = {}

    def part(self, tensors: Iterable[int], choice: Choice) -> Part:
        """Return the part of these tensors, reduced as ``choice`` says at the density of the profile."""
        key = tuple(sorted(tensors)), choice
        if key not in self._parts:
            elements = sum(self._sizes[number] for number in key[0])
            k = elements if choice.option in self._dense else max(1, round(self.profile.density * elements))
            self._parts[key] = Part(choice.option, key[0], k, min(choice.partitions, k))
        return self._parts[key]

    def whole(self, option: Option) -> list[Part]:
        """Return one part of all tensors, reduced by ``option`` in one piece."""
        return [self.part(range(len(self._sizes)), Choice(option.name, 1))]

    def load(self, part: Part) -> Load:
        """Return what a part costs."""
        if part not in self._loads:
            self._loads[part] = load(self.profile, part)
        return self._loads[part]

    def step(self, parts: Iterable[Part]) -> float:
        """Return the seconds of a step with these parts."""
        return schedule(self.profile, [self.load(part) for part in parts], self.overlap, self.cpu_lane)[-1][4]

    def plan(self, planner: str, parts: Sequence[Part]) -> Plan:
        """Return a plan of these parts, sorted by readiness; parts that are ready together stay in their order."""
        ordered = tuple(sorted(parts, key=lambda part: self.load(part).ready))
        return Plan(
            planner,
            tuple((tensor.name, tensor.shape) for tensor in self.profile.tensors),
            self.profile.ranks,
            self.profile.density,
            ordered,
            self.step(ordered),
            self.overlap,
            self.cpu_lane,
        )


def _worthwhile(options: list[Option]) -> tuple[Option, ...]:
    """Return the options that no other one undercuts or equals in every phase; of equal options, the first."""
    costs = [[number for phase in (o.select, o.exchange, o.merge) for number in vars(phase).values()] for o in options]

    def undercut(i: int) -> bool:
        """Return whether another option costs no more in any phase, and less in one unless it comes earlier."""
        return any(
            all(a <= b for a, b in zip(costs[j], costs[i], strict=True)) and (costs[j] != costs[i] or j < i)
            for j in range(len(options))
            if j != i
        )

    return tuple(option for i, option in enumerate(options) if not undercut(i))
