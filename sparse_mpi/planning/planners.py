"""The planners, on a `Forecast` of the choices there are and of the length of a step, and plans put into words.

To add one, write its function and add a line to `PLANNERS`; the command line and the tests will find it. `dense` and
`sparse` treat all tensors alike. `secopa` is selective compression and partitioning (HiPress: Bai et al., SOSP'21), in
closed form for each tensor; `partial` leaves small tensors dense for the same k (ADTopk, HPDC'24, DOI
10.1145/3625549.3658678); `greedy` improves several first plans by strategy selection with bubble elimination (Espresso:
Wang et al., EuroSys'23); `brute` searches all plans, for tests to compare the others with.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from math import comb
from typing import NamedTuple

from sparse_mpi.planning.base import Option, Part, Plan, Profile
from sparse_mpi.planning.timeline import Load, load, schedule, simulate

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


def dense(profile: Profile, overlap: bool = False, cpu_lane: bool = False) -> Plan:
    """Reduce everything densely, in float32, as a job without a plan does."""
    forecast = Forecast(profile, overlap, cpu_lane)
    return forecast.plan("dense", forecast.whole(profile.option(DENSE)))


def sparse(profile: Profile, overlap: bool = False, cpu_lane: bool = False) -> Plan:
    """Reduce everything sparsely, by the algorithm with the shortest step."""
    forecast = Forecast(profile, overlap, cpu_lane)
    return forecast.plan("sparse", min(map(forecast.whole, forecast.sparse), key=forecast.step))


def secopa(profile: Profile, overlap: bool = False, cpu_lane: bool = False) -> Plan:
    """Compress each tensor if, taken by itself, that is cheaper than leaving it dense; fuse tensors of one choice.

    K pieces are pipelined where reductions overlap: they take all phases of a piece, and K - 1 times its slowest phase.
    """
    forecast = Forecast(profile, overlap, cpu_lane)
    candidates = [Choice(option.name, 1) for option in forecast.dense]  # first, so that a tie leaves it dense
    candidates += [Choice(option.name, p) for option in forecast.sparse for p in forecast.partitions]
    groups: dict[Choice, list[int]] = defaultdict(list)
    for number in range(len(profile.tensors)):
        groups[min(candidates, key=lambda choice: _alone(forecast, number, choice))].append(number)
    return forecast.plan("secopa", [forecast.part(numbers, choice) for choice, numbers in groups.items()])


def _alone(forecast: Forecast, number: int, choice: Choice) -> float:
    _, pieces, *phases = forecast.load(forecast.part([number], choice))
    return sum(phases) + (pieces - 1) * max(phases)


def partial(profile: Profile, overlap: bool = False, cpu_lane: bool = False) -> Plan:
    """Leave tensors up to some size dense, and share what is left of k among the others; return the best such plan.

    The entries sent add up to k exactly. In the paper's program they do not, and exceed it by up to 80 %. Dense tensors
    may use up half of k: time alone would starve the others, whose entries are what training waits for.
    """
    forecast = Forecast(profile, overlap, cpu_lane)
    return forecast.plan("partial", min(_divisions(forecast), key=forecast.step))


def _divisions(forecast: Forecast) -> Iterator[list[Part]]:
    """Yield all divisions within the budget, with each sparse option; the first has no dense tensors."""
    sizes = [tensor.size for tensor in forecast.profile.tensors]
    for most in (0, *sorted(set(sizes))):
        small = [number for number, size in enumerate(sizes) if size <= most]
        large = [number for number, size in enumerate(sizes) if size > most]
        k = forecast.profile.k - sum(sizes[number] for number in small)
        if 2 * k < forecast.profile.k or not large:
            return
        dense = [forecast.part(small, Choice(DENSE, 1))] if small else []
        for option in forecast.sparse:
            yield [*dense, Part(option.name, tuple(large), k)]


FIRST_PLANNERS = (dense, sparse, secopa, partial)
MIN_PLANS = 3  # so many first plans are improved, the best ones; more of them only
MAX_VISITS = 120  # if they have at most so many tensors together
MAX_SWEEPS = 20

Parts = list[Part]


def greedy(profile: Profile, overlap: bool = False, cpu_lane: bool = False) -> Plan:
    """Improve several first plans tensor by tensor, largest first, until no change shortens the step; return the best.

    First plans are those of the other planners, and buckets of tensors that are ready one after the other; the result
    is never worse than these. A change moves a tensor, alone or with those of its part that are ready before it, into a
    part of its own; or moves it into another part; or gives its whole part another choice, or joins it to another part.
    Whatever is changed is sent at the density of the profile.
    """
    forecast = Forecast(profile, overlap, cpu_lane)
    plans = [list(planner(profile, overlap, cpu_lane).parts) for planner in FIRST_PLANNERS]
    plans += _buckets(forecast) if overlap else []
    plans.sort(key=forecast.step)
    tried = max(MIN_PLANS, MAX_VISITS // len(profile.tensors))
    for parts in plans[:tried]:  # without the budget of `partial`, which cannot be kept when tensors change sides
        full = [forecast.part(part.tensors, Choice(part.option, part.partitions)) for part in parts]
        plans.append(_improved(forecast, full))
    return forecast.plan("greedy", min(plans, key=forecast.step))


def _buckets(forecast: Forecast) -> Iterator[Parts]:
    """Yield divisions into 2, 4, 8, ... parts of about equal size, in the order of readiness, with each choice."""
    tensors = forecast.profile.tensors
    order = sorted(range(len(tensors)), key=lambda number: tensors[number].ready)
    count = 2
    while count < 2 * len(tensors):
        groups: dict[int, list[int]] = {}
        passed = 0
        for number in order:
            groups.setdefault(passed * count // forecast.profile.size, []).append(number)
            passed += tensors[number].size
        for choice in forecast.choices:
            yield [forecast.part(group, choice) for group in groups.values()]
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
        load = forecast.load(part)
        if ends.get(index, 0.0) > bubble or not bubble or load.select or load.merge:
            yield from part.tensors


def _changes(forecast: Forecast, parts: Parts, number: int) -> Iterator[Parts]:
    """Yield ``parts`` as they are, and then all that one change to a tensor, or to its part, can make of them."""
    yield parts
    home = next(part for part in parts if number in part.tensors)
    others = [part for part in parts if part is not home]
    kept = Choice(home.option, home.partitions)
    # Another choice for the whole part.
    for choice in forecast.choices:
        yield [*others, forecast.part(home.tensors, choice)]
    # A part of its own.
    for group in _severed(forecast, home, number):
        rest = [*others, forecast.part(set(home.tensors) - set(group), kept)]
        for choice in forecast.choices:
            yield [*rest, forecast.part(group, choice)]
    # With another part: swap choices, join the two, or move the tensor over.
    for other in others:
        fewer = [part for part in others if part is not other]
        choice = Choice(other.option, other.partitions)
        yield [*fewer, forecast.part(home.tensors, choice), forecast.part(other.tensors, kept)]
        yield [*fewer, forecast.part(home.tensors + other.tensors, choice)]
        if len(home.tensors) > 1:
            rest = [*fewer, forecast.part(set(home.tensors) - {number}, kept)]
            yield [*rest, forecast.part((number, *other.tensors), choice)]


def _severed(forecast: Forecast, home: Part, number: int) -> list[tuple[int, ...]]:
    """Return the groups that may leave a part: the tensor, and all that are ready by then, as long as others stay."""
    ready = forecast.profile.tensors[number].ready
    early = tuple(other for other in home.tensors if forecast.profile.tensors[other].ready <= ready)
    return [group for group in dict.fromkeys([(number,), early]) if len(group) < len(home.tensors)]


MAX_TENSORS = 10
MAX_PLANS = 200_000


def brute(
    profile: Profile, overlap: bool = False, cpu_lane: bool = False, partitions: Sequence[int] = PARTITIONS
) -> Plan:
    """Return the best of all ways to fuse the tensors, with all choices for every part.

    Raises ValueError: there are more than `MAX_TENSORS` tensors or `MAX_PLANS` plans.
    """
    forecast, tensors = Forecast(profile, overlap, cpu_lane), len(profile.tensors)
    remedy = "take greedy, or give brute fewer tensors, options or partitions"
    if tensors > MAX_TENSORS:
        raise ValueError(f"brute takes at most {MAX_TENSORS} tensors, got {tensors}; {remedy}")
    choices = [choice for choice in forecast.choices if choice.partitions in partitions]
    plans = sum(_ways(tensors, parts) * len(choices) ** parts for parts in range(1, tensors + 1))
    if plans > MAX_PLANS:
        raise ValueError(f"brute tries at most {MAX_PLANS:,} plans, got {plans:,} of them; {remedy}")
    candidates = (
        [forecast.part(group, choice) for group, choice in zip(groups, chosen, strict=True)]
        for groups in _groupings(tensors)
        for chosen in product(choices, repeat=len(groups))
    )
    return forecast.plan("brute", min(candidates, key=forecast.step))


def _ways(tensors: int, parts: int) -> int:
    """Count the ways to divide so many tensors into so many parts."""
    if parts in (0, tensors):
        return int(parts == tensors)
    return sum(comb(tensors - 1, kept) * _ways(kept, parts - 1) for kept in range(parts - 1, tensors))


def _groupings(tensors: int) -> Iterator[list[list[int]]]:
    """Yield all ways to group the numbers below ``tensors``, with the last one in each group of the others or alone."""
    if tensors == 0:
        yield []
        return
    for groups in _groupings(tensors - 1):
        for i, group in enumerate(groups):
            yield [*groups[:i], [*group, tensors - 1], *groups[i + 1 :]]
        yield [*groups, [tensors - 1]]


PLANNERS: dict[str, Callable[[Profile, bool, bool], Plan]] = {  # the simpler ones first
    "dense": dense,
    "sparse": sparse,
    "secopa": secopa,
    "partial": partial,
    "greedy": greedy,
    "brute": brute,
}
ORACLES = ("brute",)  # for small problems only


def best(profile: Profile, overlap: bool = False, cpu_lane: bool = False) -> Plan:
    """Return the plan with the shortest step of all planners but the oracles, on a tie that of the simplest planner."""
    chosen = dense(profile, overlap, cpu_lane)
    for name, planner in PLANNERS.items():
        if name not in ORACLES:
            plan = planner(profile, overlap, cpu_lane)
            if plan.predicted < chosen.predicted * (1 - ROUNDING):
                chosen = plan
    return chosen


def explain(profile: Profile, plan: Plan) -> str:
    """Say what ``plan`` does and gains over all dense and all sparse, or "leave it dense" where that is as fast."""
    all_dense = dense(profile, plan.overlap, plan.cpu_lane)
    all_sparse = sparse(profile, plan.overlap, plan.cpu_lane)
    kinds = {option.name: option.dense for option in profile.options}
    names = sorted({part.option for part in plan.parts if not kinds[part.option]})
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
    picked = [part for part in plan.parts if not kinds[part.option]]
    chosen = [number for part in picked for number in part.tensors]
    elements, k = sum(profile.tensors[number].size for number in chosen), sum(part.k for part in picked)
    rest = "; the others stay dense" if len(chosen) < len(profile.tensors) else ""
    thinner = f" at density {k / elements:.3g}" if k < 0.9 * plan.density * elements else ""
    return (
        f"{plan.planner}: {', '.join(names)} for {len(chosen)} of {len(profile.tensors)} tensors, "
        f"{100 * elements / profile.size:.3g} % of the elements{thinner}{rest}. {gain}"
    )
