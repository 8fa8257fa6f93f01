"""A damaged state is refused on all ranks alike, by the name of what is damaged; or it loads and training goes on."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import fields, is_dataclass
from functools import cache

import numpy as np
import pytest

from sparse_mpi import ALGORITHMS, SparseAllreduce, World
from sparse_mpi.algorithms.hybrid import Fused, Hybrid
from sparse_mpi.algorithms.published import VGG
from sparse_mpi.algorithms.topka import TopkA
from sparse_mpi.feedback import FEEDBACKS
from sparse_mpi.reduction.form import CHECKED, FORM, sealed
from sparse_mpi.select import SELECTORS, Selector
from sparse_mpi.select.random import Random
from sparse_mpi.sparse import Layout
from sparse_mpi.states import ANY, range_of

from ..gradients import gradient
from .damage import GONE, OTHERS, damaged, leaf_at, paths

SHAPES, SIZE = [(12, 10), (8,)], 128
PARTS = Hybrid((Fused(ALGORITHMS["elect"](), (0,), 0.9), Fused(TopkA(Random()), (1,), 0.1)))
CASES: list[dict[str, object]] = [
    *({"algorithm": name} for name in (*ALGORITHMS, PARTS, VGG)),
    *({"algorithm": "topka", "selector": name} for name in SELECTORS),
    *({"algorithm": "elect", "feedback": name} for name in FEEDBACKS),
    *({"algorithm": "elect", "second_moment": 0.99, "levels": levels} for levels in (1, 2)),
    {"algorithm": "oktopk", "levels": 2},
]
ELECT = [*ALGORITHMS].index("elect")
NUMBERS = -5, 0, 1, 2, 7, 1000, 2**31 - 1, 2**31, 2**63, 10**30, 10**5000, 0.5, 1e300, np.nan, np.inf, True
ELEMENTS = {"i": (-5, 0, 1000, 2**31 - 1), "f": (-1, 0, 1e-30, 1e30, np.nan, np.inf)}  # of arrays
# Where no key says what is wrong, the state of a lane does: its arrays do not fit into another segment
OF_LANE = {"start", "stop", "members", "inner"}
MORE = [pytest.param(block, marks=pytest.mark.full("3,000 with the others")) for block in range(1, 120)]


def reducer_of(comm, **options):
    return SparseAllreduce(SHAPES, k=12, comm=comm, **options)


@cache
def saved(ranks=2, case=None, steps=3):
    def run(comm):
        reducer = reducer_of(comm, **(CASES[case] if case is not None else {}))
        for step in range(steps):
            reducer.step(gradient(comm.rank, step, SIZE))
        return reducer.state_dict()

    return World(ranks, per_node=2).run(run)


def changed(draw, value):
    """Return what comes in the place of a leaf: another kind of thing, or another one of its kind, or `GONE`."""
    if draw.random() < 0.2:
        return [*OTHERS, GONE][draw.integers(len(OTHERS) + 1)]
    if not isinstance(value, np.ndarray):
        near = isinstance(value, (int, float)) and draw.random() < 0.3
        return value + 1 if near else NUMBERS[draw.integers(len(NUMBERS))]
    if not len(value) or draw.random() < 0.2:
        return [value[:-1], np.append(value, value[:1]), value.astype("f8"), value[::-1]][draw.integers(4)]
    other = value.copy()
    if draw.random() < 0.5:
        other.view(np.uint8)[draw.integers(other.nbytes)] ^= 1 << draw.integers(8)
    else:
        other[draw.integers(len(other))] = draw.choice(ELEMENTS[other.dtype.kind])
    return other


def mutation(seed):
    """Return a case, its states with a leaf of one rank or of all changed or exchanged, and the keys of that leaf."""
    draw = np.random.default_rng(seed)
    case, ranks = int(draw.integers(len(CASES))), int(draw.integers(2, 5))
    states, seal, way = list(saved(ranks, case, 5)), draw.random() < 0.7, draw.choice(["step", "rank", "new", "new"])
    leaves = [path for path in paths(states[0]) if FORM not in path and (path[0] == "state" or draw.random() < 0.3)]
    path = leaves[draw.integers(len(leaves))]
    for rank in range(ranks) if draw.random() < 0.3 else [int(draw.integers(ranks))]:
        source = saved(ranks, case, 3)[rank] if way == "step" else saved(ranks, case, 5)[(rank + 1) % ranks]
        try:
            other = leaf_at(source, path)  # a leaf of another state
            other = changed(np.random.default_rng(seed), leaf_at(states[rank], path)) if way == "new" else other
        except (KeyError, IndexError):  # which has none
            continue
        states[rank] = damaged(states[rank], (path, other))
        states[rank] = sealed(states[rank]) if seal else states[rank]
    keys = {key for key in path if isinstance(key, str)}
    return CASES[case], states, keys - {"state"} | (OF_LANE if OF_LANE & keys else set()) or {"state"}


@pytest.mark.parametrize("block", [0, *MORE])
def test_a_changed_state_is_refused_by_name_or_goes_on_alike(block):
    """On all ranks, with a new seal or without, on as many ranks or on others."""
    for seed in range(25 * block, 25 * block + 25):
        case, states, keys = mutation(seed)
        others = seed % 5 == 0

        def run(comm, case=case, states=states, plain=seed % 2 and not others):
            reducer = reducer_of(comm, **case)
            try:
                if plain:
                    reducer.load_state_dict(states[comm.rank])
                else:
                    reducer.take_over(states[comm.rank :: comm.size], len(states))
            except (TypeError, ValueError) as error:
                assert not reducer.residual.any()
                return str(error)
            totals = [reducer.step(gradient(comm.rank, step, SIZE)) for step in range(20)]
            return [
                total.tobytes() if isinstance(total, np.ndarray) else total.to_dense().tobytes() for total in totals
            ]

        first, *rest = World(len(states) + (-1 if seed % 2 else 1) * others, per_node=2).run(run)
        if isinstance(first, str):
            assert all(isinstance(text, str) and any(key in text for key in keys) for text in (first, *rest)), seed
        else:
            assert all(other == first for other in rest), seed


@pytest.mark.parametrize("kind", [*ALGORITHMS.values(), *SELECTORS.values()])
def test_each_number_of_a_state_declares_its_range(kind):
    layout, made = Layout.of(SHAPES), kind()
    waiting = [made.init(layout, 12) if isinstance(made, Selector) else made.init(layout, 12, 3)]
    for state in waiting:
        for field in fields(state):
            part = getattr(state, field.name)
            if is_dataclass(part):
                waiting += [] if isinstance(part, Layout) else [part]
            else:
                assert range_of(field) is not ANY, (type(state), field.name)


@pytest.mark.parametrize("case", range(len(CASES)), ids=lambda case: "-".join(map(str, CASES[case].values())))
def test_a_file_of_an_earlier_step_is_refused_on_all_ranks(case):
    states = [saved(case=case)[0], saved(case=case, steps=2)[1]]

    def run(comm):
        with pytest.raises(ValueError, match="all ranks must call with the same arguments"):
            reducer_of(comm, **CASES[case]).load_state_dict(states[comm.rank])

    World(2, per_node=2).run(run)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_file_of_an_earlier_step_is_refused_on_other_numbers_of_ranks(ranks):
    states = [*saved(3)[:2], saved(3, steps=2)[2]]

    def run(comm):
        made = reducer_of(comm)
        with pytest.raises(ValueError, match="states must be of the same number of steps, got those of 2 and 3; load"):
            made.take_over(states[comm.rank :: comm.size], 3)
        assert not made.residual.any()

    World(ranks).run(run)


def test_a_state_of_release_0_4_has_no_checksums_and_ranges_all_the_same():
    def of_0_4(state):
        return state | {FORM: {path: form.partition(CHECKED)[0] for path, form in state[FORM].items()}}

    def run(comm):
        (made := reducer_of(comm)).load_state_dict(of_0_4(saved()[comm.rank]))
        assert made.residual.any()

    World(2).run(run)
    states = [deepcopy(state) for state in saved(case=ELECT)]
    states[1]["state"]["winners"]["margin"] = 2.0
    match = r"\['winners'\]\['margin'\] must be in \[0.00390625, 0.25\], got 2"
    assert_refused([of_0_4(sealed(state)) for state in states], match, **CASES[ELECT])


def assert_refused(states, match, **options):
    """Whether they are loaded or taken over, and with no trace."""

    def run(comm):
        for load, given in (("load_state_dict", [states[comm.rank]]), ("take_over", [[states[comm.rank]], 2])):
            with pytest.raises(ValueError, match=match):
                getattr(made := reducer_of(comm, **options), load)(*given)
            assert not made.residual.any()

    World(2).run(run)


# What an earlier release wrote otherwise, and the error
EARLIER = {
    "0.2": (
        lambda state: {key: state[key] for key in state if key not in (FORM, "version")},
        "load and save it once with sparse_mpi 0.3, then once with 0.4",
    ),
    "0.3": (
        lambda state: sealed(state | {"state": state["state"] | {"turn": 0}}),
        r"state\['state'\] must have .*; if sparse_mpi 0.3 wrote it, load and save it once with sparse_mpi 0.4",
    ),
    "0.3, two levels": (
        lambda state: sealed(state | {"algorithm": state["algorithm"] | {"ranks_per_node": 2}}),
        r"state\['algorithm'\] must be .*; if sparse_mpi 0.3 wrote it, load and save it once with sparse_mpi 0.4",
    ),
}


@pytest.mark.parametrize("release", EARLIER)
def test_a_state_of_an_earlier_release_names_the_release_that_converts_it(release):
    former, message = EARLIER[release]
    assert_refused(list(map(former, saved())), message)
