"""The timeline simulator: an example worked by hand, and what holds for every profile."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparse_mpi.planning.base import PlannedPart
from sparse_mpi.planning.planners import Forecast
from sparse_mpi.planning.timeline import COMMUNICATION, COMPUTE, STREAMS, Event, simulate

from .profiles import MODES, profiles, worked

A, B = 1, 0  # numbers of the tensors of the worked example
TOPKA = (PlannedPart("topka", (A,), 10), PlannedPart("topka", (B,), 5))


def spans(timeline, *kinds):
    return [(event.start, event.end) for event in timeline.events if event.kind in kinds]


def communication(timeline):
    return sum(end - start for start, end in timeline.spans(COMMUNICATION))


def test_without_overlap_one_thing_after_the_other():
    timeline = simulate(worked(), TOPKA)
    assert timeline.events == (
        Event(COMPUTE, "before", None, 0, 2),
        Event(COMPUTE, "backward", None, 2, 12),
        Event(COMPUTE, "select", 0, 12, 13),
        Event(COMMUNICATION, "exchange", 0, 13, 15),
        Event(COMPUTE, "merge", 0, 15, 16),
        Event(COMPUTE, "select", 1, 16, 17),
        Event(COMMUNICATION, "exchange", 1, 17, 19),
        Event(COMPUTE, "merge", 1, 19, 20),
        Event(COMPUTE, "update", None, 20, 21),
    )
    assert (timeline.step, timeline.exposed, timeline.gaps) == (21, 4, [(15, 17)])


def test_selection_delays_the_rest_of_the_backward_pass():
    timeline = simulate(worked(), TOPKA, overlap=True)
    assert spans(timeline, "backward") == [(2, 6), (7, 13)]
    assert spans(timeline, "select") == [(6, 7), (13, 14)] and spans(timeline, "exchange") == [(7, 9), (14, 16)]
    assert spans(timeline, "merge", "update") == [(14, 15), (16, 17), (17, 18)]
    assert (timeline.step, timeline.exposed, timeline.gaps) == (18, 1, [(9, 14)])


@st.composite
def cases(draw):
    """A profile, and all its tensors in some parts."""
    profile = draw(profiles())
    forecast = Forecast(profile, overlap=True)
    owners = [draw(st.integers(0, 3)) for _ in profile.tensors]
    groups = [[number for number, owner in enumerate(owners) if owner == part] for part in set(owners)]
    return profile, [forecast.part(group, draw(st.sampled_from(forecast.choices))) for group in groups]


@pytest.mark.thin(0, overlap=(True,), cpu_lane=(True,))
@pytest.mark.parametrize(("overlap", "cpu_lane"), MODES)
@given(case=cases())
def test_no_stream_does_two_things_at_once_and_no_work_is_lost(case, overlap, cpu_lane):
    profile, parts = case
    timeline = simulate(profile, parts, overlap, cpu_lane)
    for stream in STREAMS:
        busy = timeline.spans(stream)
        assert all(end <= start for (_, end), (start, _) in zip(busy, busy[1:], strict=False))
    work = {kind: sum(b - a for a, b in spans(timeline, kind)) for kind in ("backward", "select", "exchange", "merge")}
    assert work["backward"] == pytest.approx(profile.backward)
    for phase in ("select", "exchange", "merge"):
        expected = 0.0
        for part in parts:
            cost = getattr(profile.option(part.option), phase)
            elements = sum(profile.tensors[number].size for number in part.tensors)
            expected += part.partitions * cost.seconds(elements / part.partitions, part.k / part.partitions)
        assert work[phase] == pytest.approx(expected)


@pytest.mark.thin(0, overlap=(True,), cpu_lane=(True,))
@pytest.mark.parametrize(("overlap", "cpu_lane"), MODES)
@given(case=cases())
def test_bounds_of_a_step(case, overlap, cpu_lane):
    profile, parts = case
    timeline = simulate(profile, parts, overlap, cpu_lane)
    computing = sum(end - start for start, end in timeline.spans(COMPUTE))
    slack = 1e-9 * timeline.step
    assert timeline.step >= computing + timeline.exposed - slack
    assert 0 <= timeline.exposed <= communication(timeline) + slack
    if not cpu_lane:  # then somebody who is not the compute stream works only while that idles
        assert timeline.step == pytest.approx(computing + timeline.exposed)
    assert timeline.step <= simulate(profile, parts).step + slack
    bubbles = sum(end - start for start, end in timeline.gaps)
    busy = timeline.spans(COMMUNICATION) or [(0, 0)]
    assert bubbles + communication(timeline) == pytest.approx(busy[-1][1] - busy[0][0])


@given(case=cases())
def test_a_part_is_selected_when_it_is_ready_and_exchanged_when_it_is_selected(case):
    profile, parts = case
    timeline = simulate(profile, parts, overlap=True, cpu_lane=True)
    for number, part in enumerate(parts):
        first = {}
        for event in timeline.events:
            if event.part == number:
                first.setdefault(event.kind, event.start)
        ready = profile.before + max(profile.tensors[i].ready for i in part.tensors)
        starts = [first[kind] for kind in ("select", "exchange", "merge") if kind in first]
        assert starts == sorted(starts) and (not starts or starts[0] >= ready)
