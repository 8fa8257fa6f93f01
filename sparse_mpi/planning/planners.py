"""The planners, on a `Forecast` of the choices there are and of the length of a step, and plans put into words.

To add one, write its function and add a line to `PLANNERS`. `dense` and `sparse` treat all tensors alike. `secopa` is
selective compression and partitioning (HiPress: Bai et al., SOSP'21), in closed form for each tensor; `partial` leaves
small tensors dense for the same k (ADTopk, HPDC'24, DOI 10.1145/3625549.3658678); `greedy` improves several first plans
by strategy selection (Espresso: Wang et al., EuroSys'23).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

from sparse_mpi.planning.base import Option, Plan, PlannedPart, Profile
from sparse_mpi.planning.timeline import Load, load, step_seconds

DENSE = "dense"  # the option that every profile has: float32, what a job does without a plan
ROUNDING = 1e-9  # relative; a step shorter by less is no gain
# Of greedy: the MIN_PLANS best first plans are improved, and more as long as they have MAX_VISITS tensors together
MIN_PLANS, MAX_VISITS, MAX_SWEEPS = 3, 120, 20

Parts = list[PlannedPart]


class Forecast:
    """A simulator of the steps of a job, which caches the parts and loads that planners try.

    Attributes:
        dense: options that send every element.
        sparse: the other options. Of either kind, options are left out that another one undercuts in every phase.
        choices: names of all of these.

    Raises ValueError: the profile lacks the option dense, or has no sparse one.
    """

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.dense = _worthwhile([option for option in profile.options if option.dense])
        self.sparse = _worthwhile([option for option in profile.options if not option.dense])
        names = [option.name for option in profile.options]
        if DENSE not in names or not self.sparse:
            raise ValueError(
                f"profile must have the option {DENSE} and a sparse one, got {', '.join(names) or 'none'}; "
                f"measure both, such as {DENSE} and oktopk"
            )
        self.choices = [option.name for option in (*self.dense, *self.sparse)]
        self._dense = {option.name for option in profile.options if option.dense}
        self._sizes = [tensor.size for tensor in profile.tensors]
        self._parts: dict[tuple[tuple[int, ...], str], PlannedPart] = {}
        self._loads: dict[PlannedPart, Load] = {}

    def part(self, tensors: Iterable[int], option: str) -> PlannedPart:
        """Return the part of these tensors, reduced by ``option`` at the density of the profile."""
        key = tuple(sorted(tensors)), option
        if key not in self._parts:
            elements = sum(self._sizes[number] for number in key[0])
            k = elements if option in self._dense else max(1, round(self.profile.density * elements))
            self._parts[key] = PlannedPart(option, key[0], k)
        return self._parts[key]

    def whole(self, option: Option) -> Parts:
        return [self.part(range(len(self._sizes)), option.name)]

    def load(self, part: PlannedPart) -> Load:
        if part not in self._loads:
            self._loads[part] = load(self.profile, part)
        return self._loads[part]

    def step(self, parts: Iterable[PlannedPart]) -> float:
        """Return the seconds of a step with these parts."""
        return step_seconds(self.profile, map(self.load, parts))

    def plan(self, planner: str, parts: Sequence[PlannedPart]) -> Plan:
        """Return a plan of these parts, sorted by readiness; parts that are ready together stay in their order."""
        ordered = tuple(sorted(parts, key=lambda part: self.load(part).ready))
        tensors = tuple((tensor.name, tensor.shape) for tensor in self.profile.tensors)
        ranks, density, step = self.profile.ranks, self.profile.density, self.step(ordered)
        return Plan(planner, tensors, ranks, density, ordered, step)


def _worthwhile(options: list[Option]) -> tuple[Option, ...]:
    """Return the options that no other one undercuts or equals in every phase; of equal options, the first."""
    costs = [[number for phase in (o.select, o.exchange, o.merge) for number in vars(phase).values()] for o in options]

    def undercut(i: int) -> bool:
        others = (j for j in range(len(options)) if j != i and (costs[j] != costs[i] or j < i))
        return any(all(a <= b for a, b in zip(costs[j], costs[i], strict=True)) for j in others)

    return tuple(option for i, option in enumerate(options) if not undercut(i))


def dense(profile: Profile) -> Plan:
    """Reduce everything densely, in float32, as a job without a plan does."""
    forecast = Forecast(profile)
    return forecast.plan("dense", forecast.whole(profile.option(DENSE)))


def sparse(profile: Profile) -> Plan:
    """Reduce everything sparsely, by the algorithm with the shortest step."""
    forecast = Forecast(profile)
    return forecast.plan("sparse", min(map(forecast.whole, forecast.sparse), key=forecast.step))


def secopa(profile: Profile) -> Plan:
    """Compress each tensor if, taken by itself, that is cheaper than leaving it dense; fuse tensors of one option."""
    forecast = Forecast(profile)

    def alone(number: int, option: str) -> float:
        _, _, *phases = forecast.load(forecast.part([number], option))
        return sum(phases)

    groups: dict[str, list[int]] = defaultdict(list)
    for number in range(len(profile.tensors)):
        # On a tie it is left dense
        groups[min(forecast.choices, key=lambda option: alone(number, option))].append(number)
    return forecast.plan("secopa", [forecast.part(numbers, option) for option, numbers in groups.items()])


def partial(profile: Profile) -> Plan:
    """Leave tensors up to some size dense, and share what is left of k among the others; return the best such plan.

    The entries sent add up to k exactly. In the paper's program they do not, and exceed it by up to 80 %. Dense tensors
    may use up half of k: time alone would starve the others, whose entries are what training waits for.
    """
    forecast = Forecast(profile)
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
        kept = [forecast.part(small, DENSE)] if small else []
        for option in forecast.sparse:
            yield [*kept, PlannedPart(option.name, tuple(large), k)]


def greedy(profile: Profile) -> Plan:
    """Improve several first plans tensor by tensor, largest first, until no change shortens the step; return the best.

    First plans are those of the other planners; the result is never worse than these. A change moves a tensor, alone or
    with those of its part that are ready before it, into a part of its own; or moves it into another part; or gives its
    whole part another option, or joins it to another part. Whatever is changed is sent at the density of the profile.
    """
    forecast = Forecast(profile)
    plans = [list(planner(profile).parts) for planner in (dense, sparse, secopa, partial)]
    plans.sort(key=forecast.step)
    tried = max(MIN_PLANS, MAX_VISITS // len(profile.tensors))
    for parts in plans[:tried]:  # without the budget of `partial`, which cannot be kept when tensors change sides
        full = [forecast.part(part.tensors, part.option) for part in parts]
        plans.append(_improved(forecast, full))
    return forecast.plan("greedy", min(plans, key=forecast.step))


def _improved(forecast: Forecast, parts: Parts) -> Parts:
    """Return ``parts`` after sweeps over the tensors, of which the last one changed nothing or was the last allowed."""
    tensors = forecast.profile.tensors
    largest_first = sorted(range(len(tensors)), key=lambda number: (-tensors[number].size, number))
    shortest = forecast.step(parts)
    for _ in range(MAX_SWEEPS):
        before = parts
        for number in largest_first:
            found = min(_changes(forecast, parts, number), key=forecast.step)
            if (step := forecast.step(found)) < shortest * (1 - ROUNDING):
                parts, shortest = found, step
        if parts is before:
            break
    return parts


def _changes(forecast: Forecast, parts: Parts, number: int) -> Iterator[Parts]:
    """Yield ``parts`` as they are, and then all that one change to a tensor, or to its part, can make of them."""
    yield parts
    home = next(part for part in parts if number in part.tensors)
    others = [part for part in parts if part is not home]
    # Another option for the whole part.
    for option in forecast.choices:
        yield [*others, forecast.part(home.tensors, option)]
    # A part of its own for the tensor, or for all that are ready by then, as long as others stay.
    ready = forecast.profile.tensors[number].ready
    early = tuple(other for other in home.tensors if forecast.profile.tensors[other].ready <= ready)
    for group in dict.fromkeys([(number,), early]):
        if len(group) < len(home.tensors):
            rest = [*others, forecast.part(set(home.tensors) - set(group), home.option)]
            for option in forecast.choices:
                yield [*rest, forecast.part(group, option)]
    # With another part: swap options, join the two, or move the tensor over.
    for other in others:
        fewer = [part for part in others if part is not other]
        yield [*fewer, forecast.part(home.tensors, other.option), forecast.part(other.tensors, home.option)]
        yield [*fewer, forecast.part(home.tensors + other.tensors, other.option)]
        if len(home.tensors) > 1:
            rest = [*fewer, forecast.part(set(home.tensors) - {number}, home.option)]
            yield [*rest, forecast.part((number, *other.tensors), other.option)]


# The simpler ones first
PLANNERS: dict[str, Callable[[Profile], Plan]] = {
    planner.__name__: planner for planner in (dense, sparse, secopa, partial, greedy)
}


def best(profile: Profile) -> Plan:
    """Return the plan with the shortest step of all planners, on a tie that of the simplest planner."""
    chosen, *others = (planner(profile) for planner in PLANNERS.values())
    for plan in others:
        if plan.predicted < chosen.predicted * (1 - ROUNDING):
            chosen = plan
    return chosen


def explain(profile: Profile, plan: Plan) -> str:
    """Say what ``plan`` does and gains over all dense and all sparse, or "leave it dense" where that is as fast."""
    all_dense, all_sparse = dense(profile), sparse(profile)
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
