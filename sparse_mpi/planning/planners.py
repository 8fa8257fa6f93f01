"""The planners, on a `Forecast` of the choices there are and of the length of a step, and plans put into words.

To add one, write its function and add a line to `PLANNERS`. `dense` and `sparse` treat all tensors alike. `secopa` is
selective compression and partitioning (HiPress: Bai et al., SOSP'21), in closed form for each tensor; `partial` leaves
small tensors dense for the same k (ADTopk, HPDC'24, DOI 10.1145/3625549.3658678); `greedy` improves several first plans
by strategy selection with bubble elimination (Espresso: Wang et al., EuroSys'23).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from sparse_mpi.planning.base import Option, Plan, PlannedPart, Profile
from sparse_mpi.planning.timeline import Load, load, schedule, simulate

DENSE = "dense"  # the option that every profile has: float32, what a job does without a plan
PARTITIONS = (1, 2, 4, 8)
ROUNDING = 1e-9  # relative; a step shorter by less is no gain
# Of greedy: the MIN_PLANS best first plans are improved, and more as long as they have MAX_VISITS tensors together
MIN_PLANS, MAX_VISITS, MAX_SWEEPS = 3, 120, 20

Parts = list[PlannedPart]


class Strategy(NamedTuple):
    """A way to reduce a part: an option, and into how many pieces to cut the fused vector."""

    option: str
    partitions: int


class Forecast:
    """A simulator of the steps of a job, which caches the parts and loads that planners try.

    Attributes:
        dense: options that send every element.
        sparse: the other options. Of either kind, options are left out that another one undercuts in every phase.
        choices: strategies worth trying; only one piece without overlap, as nothing is pipelined.

    Raises ValueError: the profile lacks the option dense, or has no sparse one.
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
        self.choices = [Strategy(option.name, p) for option in (*self.dense, *self.sparse) for p in self.partitions]
        self._dense = {option.name for option in profile.options if option.dense}
        self._sizes = [tensor.size for tensor in profile.tensors]
        self._parts: dict[tuple[tuple[int, ...], Strategy], PlannedPart] = {}
        self._loads: dict[PlannedPart, Load] = {}

    def part(self, tensors: Iterable[int], strategy: Strategy) -> PlannedPart:
        """Return the part of these tensors, reduced by ``strategy`` at the density of the profile."""
        key = tuple(sorted(tensors)), strategy
        if key not in self._parts:
            elements = sum(self._sizes[number] for number in key[0])
            k = elements if strategy.option in self._dense else max(1, round(self.profile.density * elements))
            self._parts[key] = PlannedPart(strategy.option, key[0], k, min(strategy.partitions, k))
        return self._parts[key]

    def whole(self, option: Option) -> Parts:
        """Return one part of all tensors, reduced by ``option`` in one piece."""
        return [self.part(range(len(self._sizes)), Strategy(option.name, 1))]

    def load(self, part: PlannedPart) -> Load:
        """Return what a part costs."""
        if part not in self._loads:
            self._loads[part] = load(self.profile, part)
        return self._loads[part]

    def step(self, parts: Iterable[PlannedPart]) -> float:
        """Return the seconds of a step with these parts."""
        return schedule(self.profile, [self.load(part) for part in parts], self.overlap, self.cpu_lane)[-1][4]

    def plan(self, planner: str, parts: Sequence[PlannedPart]) -> Plan:
        """Return a plan of these parts, sorted by readiness; parts that are ready together stay in their order."""
        ordered = tuple(sorted(parts, key=lambda part: self.load(part).ready))
        tensors = tuple((tensor.name, tensor.shape) for tensor in self.profile.tensors)
        ranks, density, step = self.profile.ranks, self.profile.density, self.step(ordered)
        return Plan(planner, tensors, ranks, density, ordered, step, self.overlap, self.cpu_lane)


def _worthwhile(options: list[Option]) -> tuple[Option, ...]:
    """Return the options that no other one undercuts or equals in every phase; of equal options, the first."""
    costs = [[number for phase in (o.select, o.exchange, o.merge) for number in vars(phase).values()] for o in options]

    def undercut(i: int) -> bool:
        others = (j for j in range(len(options)) if j != i and (costs[j] != costs[i] or j < i))
        return any(all(a <= b for a, b in zip(costs[j], costs[i], strict=True)) for j in others)

    return tuple(option for i, option in enumerate(options) if not undercut(i))


def dense(profile: Profile, overlap: bool = False, cpu_lane: bool = False) -> Plan:
    """Reduce everything densely, in float32, as a job without a plan does."""
    forecast = Forecast(profile, overlap, cpu_lane)
    return forecast.plan("dense", forecast.whole(profile.option(DENSE)))


def sparse(profile: Profile, overlap: bool = False, cpu_lane: bool = False) -> Plan:
    """Reduce everything sparsely, by the algorithm with the shortest step."""
    forecast = Forecast(profile, overlap, cpu_lane)
    return forecast.plan("sparse", min(map(forecast.whole, forecast.sparse), key=forecast.step))


def secopa(profile: Profile, overlap: bool = False, cpu_lane: bool = False) -> Plan:
    """Compress each tensor if, taken by itself, that is cheaper than leaving it dense; fuse tensors of one strategy.

    K pieces are pipelined where reductions overlap: they take all phases of a piece, and K - 1 times its slowest phase.
    """
    forecast = Forecast(profile, overlap, cpu_lane)
    candidates = [Strategy(option.name, 1) for option in forecast.dense]  # first, so that a tie leaves it dense
    candidates += [Strategy(option.name, p) for option in forecast.sparse for p in forecast.partitions]

    def alone(number: int, strategy: Strategy) -> float:
        _, pieces, *phases = forecast.load(forecast.part([number], strategy))
        return sum(phases) + (pieces - 1) * max(phases)

    groups: dict[Strategy, list[int]] = defaultdict(list)
    for number in range(len(profile.tensors)):
        groups[min(candidates, key=lambda strategy: alone(number, strategy))].append(number)
    return forecast.plan("secopa", [forecast.part(numbers, strategy) for strategy, numbers in groups.items()])


def partial(profile: Profile, overlap: bool = False, cpu_lane: bool = False) -> Plan:
    """Leave tensors up to some size dense, and share what is left of k among the others; return the best such plan.

    The entries sent add up to k exactly. In the paper's program they do not, and exceed it by up to 80 %. Dense tensors
    may use up half of k: time alone would starve the others, whose entries are what training waits for.
    """
    forecast = Forecast(profile, overlap, cpu_lane)
    return forecast.plan("partial", min(_divisions(forecast), key=forecast.step))


def _divisions(forecast: Forecast) -> Iterator[Parts]:
    """Yield all divisions within the budget, with each sparse option; the first has no dense tensors."""
    sizes = [tensor.size for tensor in forecast.profile.tensors]
    for most in (0, *sorted(set(sizes))):
        small = [number for number, size in enumerate(sizes) if size <= most]
        large = [number for number, size in enumerate(sizes) if size > most]
        k = forecast.profile.k - sum(sizes[number] for number in small)
        if 2 * k < forecast.profile.k or not large:
            return
        kept = [forecast.part(small, Strategy(DENSE, 1))] if small else []
        for option in forecast.sparse:
            yield [*kept, PlannedPart(option.name, tuple(large), k)]


def greedy(profile: Profile, overlap: bool = False, cpu_lane: bool = False) -> Plan:
    """Improve several first plans tensor by tensor, largest first, until no change shortens the step; return the best.

    First plans are those of the other planners, and buckets of tensors that are ready one after the other; the result
    is never worse than these. A change moves a tensor, alone or with those of its part that are ready before it, into a
    part of its own; or moves it into another part; or gives its whole part another strategy, or joins it to another
    part. Whatever is changed is sent at the density of the profile.
    """
    forecast = Forecast(profile, overlap, cpu_lane)
    plans = [list(planner(profile, overlap, cpu_lane).parts) for planner in (dense, sparse, secopa, partial)]
    plans += _buckets(forecast) if overlap else []
    plans.sort(key=forecast.step)
    tried = max(MIN_PLANS, MAX_VISITS // len(profile.tensors))
    for parts in plans[:tried]:  # without the budget of `partial`, which cannot be kept when tensors change sides
        full = [forecast.part(part.tensors, Strategy(part.option, part.partitions)) for part in parts]
        plans.append(_improved(forecast, full))
    return forecast.plan("greedy", min(plans, key=forecast.step))


def _buckets(forecast: Forecast) -> Iterator[Parts]:
    """Yield divisions into 2, 4, 8, ... parts of about equal size, in the order of readiness, with each strategy."""
    tensors = forecast.profile.tensors
    order = sorted(range(len(tensors)), key=lambda number: tensors[number].ready)
    count = 2
    while count < 2 * len(tensors):
        groups: dict[int, list[int]] = {}
        passed = 0
        for number in order:
            groups.setdefault(passed * count // forecast.profile.size, []).append(number)
            passed += tensors[number].size
        for strategy in forecast.choices:
            yield [forecast.part(group, strategy) for group in groups.values()]
        count *= 2


def _improved(forecast: Forecast, parts: Parts) -> Parts:
    """Return ``parts`` after sweeps over the tensors, of which the last one changed nothing or was the last allowed."""
    tensors = forecast.profile.tensors
    shortest = forecast.step(parts)
    for _ in range(MAX_SWEEPS):
        before = parts
        for number in sorted(_worth_a_visit(forecast, parts), key=lambda number: (-tensors[number].size, number)):
            found = min(_changes(forecast, parts, number), key=forecast.step)
            if (step := forecast.step(found)) < shortest * (1 - ROUNDING):
                parts, shortest = found, step
        if parts is before:
            break
    return parts


def _worth_a_visit(forecast: Forecast, parts: Parts) -> Iterator[int]:
    """Yield the tensors that are worth changing.

    With overlap, these are not the ones whose exchange ends before the last bubble and that delay no computing: sending
    them faster would only make the bubble longer.
    """
    timeline = simulate(forecast.profile, parts, forecast.overlap, forecast.cpu_lane)
    bubble = timeline.gaps[-1][0] if forecast.overlap and timeline.gaps else 0.0
    ends = {event.part: event.end for event in timeline.events if event.kind == "exchange"}
    for index, part in enumerate(parts):
        costs = forecast.load(part)
        if ends.get(index, 0.0) > bubble or not bubble or costs.select or costs.merge:
            yield from part.tensors


def _changes(forecast: Forecast, parts: Parts, number: int) -> Iterator[Parts]:
    """Yield ``parts`` as they are, and then all that one change to a tensor, or to its part, can make of them."""
    yield parts
    home = next(part for part in parts if number in part.tensors)
    others = [part for part in parts if part is not home]
    kept = Strategy(home.option, home.partitions)
    # Another strategy for the whole part.
    for strategy in forecast.choices:
        yield [*others, forecast.part(home.tensors, strategy)]
    # A part of its own for the tensor, or for all that are ready by then, as long as others stay.
    ready = forecast.profile.tensors[number].ready
    early = tuple(other for other in home.tensors if forecast.profile.tensors[other].ready <= ready)
    for group in dict.fromkeys([(number,), early]):
        if len(group) < len(home.tensors):
            rest = [*others, forecast.part(set(home.tensors) - set(group), kept)]
            for strategy in forecast.choices:
                yield [*rest, forecast.part(group, strategy)]
    # With another part: swap strategies, join the two, or move the tensor over.
    for other in others:
        fewer = [part for part in others if part is not other]
        strategy = Strategy(other.option, other.partitions)
        yield [*fewer, forecast.part(home.tensors, strategy), forecast.part(other.tensors, kept)]
        yield [*fewer, forecast.part(home.tensors + other.tensors, strategy)]
        if len(home.tensors) > 1:
            rest = [*fewer, forecast.part(set(home.tensors) - {number}, kept)]
            yield [*rest, forecast.part((number, *other.tensors), strategy)]


# The simpler ones first
PLANNERS: dict[str, Callable[[Profile, bool, bool], Plan]] = {
    planner.__name__: planner for planner in (dense, sparse, secopa, partial, greedy)
}


def best(profile: Profile, overlap: bool = False, cpu_lane: bool = False) -> Plan:
    """Return the plan with the shortest step of all planners, on a tie that of the simplest planner."""
    chosen, *others = (planner(profile, overlap, cpu_lane) for planner in PLANNERS.values())
    for plan in others:
        if plan.predicted < chosen.predicted * (1 - ROUNDING):
            chosen = plan
    return chosen


def explain(profile: Profile, plan: Plan) -> str:
    """Say what ``plan`` does and gains over all dense and all sparse, or "leave it dense" where that is as fast."""
    all_dense = dense(profile, plan.overlap, plan.cpu_lane)
    all_sparse = sparse(profile, plan.overlap, plan.cpu_lane)
    picked = [part for part in plan.parts if not profile.option(part.option).dense]
    names = sorted({part.option for part in picked})
    alternative = f"all sparse by {all_sparse.parts[0].option} {all_sparse.predicted:.4g} s"
    if all_dense.predicted <= plan.predicted * (1 + ROUNDING):
        this = f", this plan {plan.predicted:.4g} s" if names else ""
        return f"leave it dense: a step is predicted to take {all_dense.predicted:.4g} s so{this}, {alternative}"
    gain = (
        f"A step is predicted to take {plan.predicted:.4g} s, all dense {all_dense.predicted:.4g} s "
        f"({all_dense.predicted / plan.predicted:.2f} times as long), {alternative} "
        f"({all_sparse.predicted / plan.predicted:.2f} times)."
    )
    if not names:
        options = ", ".join(sorted({part.option for part in plan.parts}))
        pieces = sum(part.partitions for part in plan.parts)
        return f"leave it dense, but by {options} in {pieces} piece{'s' * (pieces > 1)}. {gain}"
    chosen = [number for part in picked for number in part.tensors]
    elements, k = sum(profile.tensors[number].size for number in chosen), sum(part.k for part in picked)
    rest = "; the others stay dense" if len(chosen) < len(profile.tensors) else ""
    thinner = f" at density {k / elements:.3g}" if k < 0.9 * plan.density * elements else ""
    return (
        f"{plan.planner}: {', '.join(names)} for {len(chosen)} of {len(profile.tensors)} tensors, "
        f"{100 * elements / profile.size:.3g} % of the elements{thinner}{rest}. {gain}"
    )
