"""Every feedback rule with every algorithm: the laws, resumption, another k in every step, errors."""

from __future__ import annotations

import pytest

from sparse_mpi import ALGORITHMS, SparseAllreduce
from sparse_mpi.algorithms.published import StaleSelector
from sparse_mpi.reduction.arguments import takes

from ..gradients import gradient
from .rules import KINDS

N, K = 200, 10
few_ranks = pytest.mark.ranks(1, 3)
VARIANTS = {name: (name, {}) for name in ALGORITHMS} | {"topka-published": ("topka", {"selector": StaleSelector()})}


@pytest.mark.thin(1, ranks=(3,), kind=("residual",))
@few_ranks
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", ["residual", "dgc", "gmc"])
def test_k_may_change_from_step_to_step(ranks, variant, kind):
    """Down a density warm-up from dense steps, up again, and back; both laws hold and counts follow at once."""
    name, options = VARIANTS[variant]
    ways = [{"density": d} for d in (0.5, 0.25, 0.0625)] + [{"k": 1}, {}, {"k": 3}, {"density": 1.0}, {}, {"k": N + 9}]
    ways = [{"dense": True}, *ways, {"dense": True}, {}]

    def body(comm):
        reducer = SparseAllreduce(N, k=K, comm=comm, algorithm=name, feedback=kind, **options)
        for step, way in enumerate(ways):
            k = min(way.get("k", round(way.get("density", K / N) * N)), N)
            reducer.step(gradient(comm.rank, step, N), check=True, **way)
            if takes(name, "selector") and "dense" not in way:
                fewest, most = reducer.algorithm.selected_band(reducer.layout, k, comm.size)
                assert int(fewest) <= reducer.report.selected <= max(k, most)
                assert reducer.report.total <= 4 / 3 * k * comm.size
        assert reducer.k == K

    ranks.run(body)


@pytest.mark.ranks(least=2)
@pytest.mark.under_mpi(3)
def test_another_k_or_a_flush_on_one_rank_raises_on_every_rank(ranks):
    def body(comm):
        reducer = SparseAllreduce(N, k=K, comm=comm)
        with pytest.raises(ValueError, match=r"(?s)all ranks must call with the same arguments, but.*k=6"):
            reducer.step(gradient(comm.rank, 0, N), k=5 + (comm.rank == 0))
        with pytest.raises(ValueError, match="give k or density, not both" if comm.rank == 0 else "rank 0: ValueError"):
            reducer.step(gradient(comm.rank, 0, N), k=5, density=0.1 if comm.rank == 0 else None)
        with pytest.raises(ValueError, match="(?s)all ranks must call with the same arguments, but.*call=flush"):
            reducer.flush() if comm.rank == 0 else reducer.step(gradient(comm.rank, 0, N))

    ranks.run(body)


@few_ranks
@pytest.mark.under_mpi(3)
def test_state_of_another_feedback_is_refused(ranks):
    def body(comm):
        states = {kind: SparseAllreduce(N, k=K, comm=comm, feedback=KINDS[kind]).state_dict() for kind in KINDS}
        for kind in KINDS:
            reducer = SparseAllreduce(N, k=K, comm=comm, feedback=KINDS[kind])
            for other, state in states.items():
                if other != kind:
                    with pytest.raises(ValueError, match=r"state\['memory'\] must be"):
                        reducer.load_state_dict(state)
            reducer.load_state_dict(states[kind])

    ranks.run(body)
