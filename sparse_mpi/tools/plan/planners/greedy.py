"""Greedy strategy selection with bubble elimination (Espresso: Wang et al., EuroSys'23), from several first plans."""

from __future__ import annotations

from collections.abc import Iterator

from sparse_mpi.tools.plan.base import Part, Plan, Profile
from sparse_mpi.tools.plan.planners.base import ROUNDING, Choice, Forecast
from sparse_mpi.tools.plan.planners.partial import partial
from sparse_mpi.tools.plan.planners.secopa import secopa
from sparse_mpi.tools.plan.planners.single import dense, sparse
from sparse_mpi.tools.plan.timeline import simulate

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
    plans += [_improved(forecast, _at_full_density(forecast, parts)) for parts in plans[:tried]]
    return forecast.plan("greedy", min(plans, key=forecast.step))


def _at_full_density(forecast: Forecast, parts: Parts) -> Parts:
    """Return the same parts without the budget of `partial`, which cannot be kept when tensors change sides."""
    return [forecast.part(part.tensors, Choice(part.option, part.partitions)) for part in parts]


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
