"""A second moment that travels: what arrives of it, and which entries are elected by it."""

from __future__ import annotations

import numpy as np
import pytest

from sparse_mpi import SparseAllreduce, World
from sparse_mpi.reduction.second_moment import MEAN, SecondMoment
from sparse_mpi.sparse import Layout

N, BETA = 6000, 0.9
ROUNDED = 2.001  # rounding makes half or twice as much at most


def gradient(rank: int, step: int, size: int = N) -> np.ndarray:
    """Of entries that differ in size by orders of magnitude, the same ones on all ranks."""
    scale = np.exp(2 * np.random.default_rng(1).standard_normal(size))
    return (scale * np.random.default_rng([rank, step]).standard_normal(size)).astype(np.float32)


def reducer(comm, **options):
    made = {"density": 0.03, "algorithm": "elect", "second_moment": BETA} | options
    return SparseAllreduce(made.pop("layout", N), comm=comm, **made)


def mean_square(rank: int, steps: int) -> np.ndarray:
    """Adam's second moment of a rank's own gradients, without bias, by its definition."""
    moment = np.zeros(N)
    for step in range(steps):
        moment = BETA * moment + (1 - BETA) * gradient(rank, step).astype(np.float64) ** 2
    return moment / (1 - BETA**steps)


@pytest.mark.parametrize("options", [{}, {"wire": "packed"}, {"feedback": "gmc"}], ids=str)
def test_it_arrives_with_the_entries(ranks, options):
    def body(comm):
        made, found = reducer(comm, **options), []
        for step in range(4):
            total = made.step(gradient(comm.rank, step), check=True)
            found.append((total.indices, made.second_moment.sums.values))
        return found

    results = ranks.run(body)
    for step, (indices, sums) in enumerate(results[0]):
        assert all(other[step][1].tobytes() == sums.tobytes() for other in results)
        exact = sum(mean_square(rank, step + 1) for rank in range(ranks.size))[indices]
        assert len(sums) == len(indices) > 40
        # Rounded before it is added up, and once more
        most = ROUNDED ** (2 if ranks.size > 1 else 1)
        # The least that arrives is 2^-30 of the largest neighbour
        floor = sums.max() * ranks.size * 2.0**-30
        assert (sums <= most * exact.clip(floor)).all() and (exact <= most * sums).all()
        assert ranks.size > 1 or np.allclose(sums, exact, rtol=1e-5)


@pytest.mark.ranks(1, 3, 4)
def test_ranks_vote_in_its_units(ranks):
    """Whatever the measure of each entry, the same are elected, and sums are those in its measure."""
    measure = np.ldexp(np.float32(1), np.random.default_rng(7).integers(-4, 20, N))

    def body(comm):
        plain, scaled = (reducer(comm, wire="packed") for _ in range(2))
        for step in range(5):
            total, other = (made.step(gradient(comm.rank, step) * by) for made, by in ((plain, 1), (scaled, measure)))
            assert total.indices.tobytes() == other.indices.tobytes()
            assert (total.values * measure[total.indices]).tobytes() == other.values.tobytes()

    for each in (ranks, World(6, 3)):  # in which lanes have the same shares, too
        each.run(body)


def test_it_costs_about_a_byte_an_entry():
    size = 40_000

    def body(comm):
        sent = []
        for made in (reducer(comm, layout=size), reducer(comm, layout=size, second_moment=None)):
            for step in range(16):
                made.step(gradient(comm.rank, step, size))
                sent.append((made.report.traffic.sent, made.report.traffic.messages))
        return np.array(sent).reshape(2, 16, 2)[:, 6:]

    for with_it, without in World(5).run(body):
        k = 0.03 * size * 4 / 5
        more, messages = np.median(with_it, axis=0) - np.median(without, axis=0)
        assert 0 < more <= 1.1 * k and messages <= 9  # of a search


def test_dense_steps_and_flushes_bring_all_of_it(ranks):
    def body(comm):
        made = reducer(comm)
        made.step(gradient(comm.rank, 0))
        made.step(gradient(comm.rank, 1), dense=True)
        dense = made.second_moment.sums
        made.flush(like=gradient(0, 0))
        return dense, made.second_moment.sums

    exact = sum(mean_square(rank, 2) for rank in range(ranks.size))
    for moments in ranks.run(body):
        for sums in moments:  # a flush has no gradient, and so it changes nothing
            np.testing.assert_allclose(sums, exact, rtol=1e-4)


def test_a_square_that_overflows_is_infinite_from_then_on_and_what_is_not_finite_changes_nothing():
    moment, wild = SecondMoment(BETA, Layout.of(4)), np.array([1, np.inf, np.nan, 1e30], np.float32)
    for gradient in (np.full(4, 2, np.float32), wild, np.ones(4, np.float32)):
        moment.update(gradient)
    weights = (1 - BETA) / (1 - BETA ** np.arange(1, 4))
    first, others = 4 + weights[1] * (1 - 4), 4 + weights[2] * (1 - 4)
    expected = [first + weights[2] * (1 - first), others, others, np.inf]
    np.testing.assert_allclose(moment.mean, expected, rtol=1e-6)


@pytest.mark.thin(1)  # many steps each
@pytest.mark.ranks(1, 3, 4)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(
    "options",
    [{}, {"wire": "packed"}, {"wire": "packed+bf16"}, {"wire": "packed+int4"}],
    ids=str,
)
def test_one_finite_spike_arrives_as_inf_at_its_entry_alone(ranks, options, dtype):
    """Both laws hold, nothing is raised, the moments of others stay theirs, and its own stays infinite."""
    at, spike = 5, {np.float16: 6e4, np.float32: 1e22, np.float64: 1e25}[dtype]

    def body(comm):
        made, seen = reducer(comm, nonfinite="raise", density=0.1, **options), []
        # In units of its own moment it is no spike, and comes as others do
        for step in range(30):
            x = gradient(comm.rank, step).clip(-1e3, 1e3).astype(dtype)
            if step == 2 and comm.rank == comm.size - 1:
                x[at] = spike
            total = made.step(x, check=True)
            seen.append((np.asarray(total.indices), np.asarray(made.second_moment.sums.values, np.float64)))
        return seen, made.second_moment.mean[at]

    results = ranks.run(body)
    came = [dict(zip(*pair, strict=True)) for pair in results[0][0]]
    sums = [moments[at] for moments in came[2:] if at in moments]
    assert (
        sums
        and {np.float16: np.isfinite, np.float32: np.isinf, np.float64: lambda x: x > 1e38}[dtype](np.array(sums)).all()
    )
    for moments in came:
        assert all(moment < 1e9 for index, moment in moments.items() if index != at)
    assert np.isinf(results[-1][1]) == (dtype is np.float32)


def test_sums_over_ranks_that_overflow_are_infinite(ranks):
    def body(comm):
        made = reducer(comm, density=0.5, layout=8)
        x = np.array([1.5e19, 2, 1e18, 1, 1, 1, 1, 1], np.float32)
        with np.errstate(over="ignore"):
            total, dense = made.step(x), made.step(x, dense=True)
            return np.isnan(made.second_moment.sums).any(), made.second_moment.sums[0], dense[0], total.nnz

    for nan, first, total, _ in ranks.run(body):
        assert not nan and first == (np.inf if ranks.size > 1 else np.float32(1.5e19) ** 2) and np.isfinite(total)


@pytest.mark.parametrize("new", [1, 3, 4])
def test_other_ranks_take_over_the_mean_of_all(new):
    def save(comm):
        made = reducer(comm)
        for step in range(2):
            made.step(gradient(comm.rank, step))
        return made.state_dict()

    states = World(2).run(save)
    mean = sum(state[MEAN] for state in states) / 2

    def load(comm):
        made = reducer(comm)
        made.take_over(states[comm.rank :: comm.size], 2)
        taken = made.second_moment.mean.copy()
        made.step(gradient(comm.rank, 2))
        return taken, made.second_moment.mean, gradient(comm.rank, 2)

    for taken, after, own in World(new).run(load):
        np.testing.assert_allclose(taken, mean, rtol=1e-6)
        weight = (1 - BETA) / (1 - BETA**3)
        np.testing.assert_allclose(after, taken + weight * (own**2 - taken), rtol=1e-4)


def test_a_state_without_it_is_refused():
    comm = World(1)
    state = comm.run(lambda comm: reducer(comm, second_moment=None).state_dict())[0]
    with pytest.raises(ValueError, match="state must have 'second_moment', got none; save it from a reducer with "):
        comm.run(lambda comm: reducer(comm).load_state_dict(state))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"algorithm": "oktopk"}, "algorithm must carry a second moment beside its values, as elect does"),
        ({"wire": "coo32"}, "algorithm must carry a second moment beside its values"),
    ],
    ids=str,
)
def test_it_is_refused_where_it_cannot_travel(options, message):
    def body(comm):
        made = reducer(comm)
        with pytest.raises(ValueError, match=message):
            reducer(comm, **options)
        with pytest.raises(ValueError, match=message):
            made.use(options.get("algorithm", "dense"))

    World(2).run(body)
