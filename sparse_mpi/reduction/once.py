"""Sum arrays once, without error feedback: `sparse_allreduce`."""

from __future__ import annotations

from sparse_mpi import arrays
from sparse_mpi.algorithms import Algorithm, Reduction
from sparse_mpi.algorithms.two_level import placed
from sparse_mpi.arrays import A, Flattens
from sparse_mpi.comm import as_comm
from sparse_mpi.comm.consistency import same_on_all_ranks
from sparse_mpi.reduction.arguments import make_algorithm, resolve_k, usual_density
from sparse_mpi.sparse import Layout, leave


def sparse_allreduce(
    x: Flattens[A],
    *,
    k: int | None = None,
    density: float | None = None,
    comm: object = None,
    algorithm: str | Algorithm = "oktopk",
    **options: object,
) -> Reduction[A]:
    """Sum the k most significant entries of every rank's ``x``, once and without error feedback. Collective.

    Args:
        x: NumPy or CuPy array or torch tensor of any shape, float32 or float64 (float16 and bfloat16 are widened to
            float32), with n elements, the same number on all ranks. It is not modified.
        k: entries that each rank may send, at least 1; more than n means n.
        density: k as a fraction of n, in (0, 1]. Give k or density; the default is a density of 0.01, or 0.0275
            with elect.
        comm: mpi4py communicator, process group or `Comm`; None: all ranks of the job, see `as_comm`.
        algorithm: a name in `ALGORITHMS`, or an instance, for example ``OkTopk(period=32)``. The default rounds nothing
            and needs no earlier steps. Training uses elect, see `sparse_mpi.optim.DistributedOptimizer`.
        options: hyperparameters of a named algorithm; ``selector`` is a name in `SELECTORS` or an instance.

    Returns:
        ``Reduction(total, sent)``: the sum, the same bytes on every rank, and this rank's net contribution (store
        ``x - sent`` as your residual). Both index the flattened ``x``, in its array library and on its device.

    Raises:
        TypeError, ValueError: bad arguments, or arguments that differ between ranks; raised on every rank, before any
            data moves.
    """
    with arrays.on_stream_of(x):
        transport = as_comm(comm)
        with same_on_all_ranks(transport) as say:
            arrays.check(x, "x")
            flat = arrays.widened(arrays.enter(x))
            if len(flat) == 0:
                raise ValueError("x must have at least one element, got none; leave empty tensors out")
            k, made = resolve_k(len(flat), k, density, usual_density(algorithm)), make_algorithm(algorithm, options)
            say(n=len(flat), dtype=flat.dtype, k=k, algorithm=made)
        if made.levels == 2:  # one sum alone has one level, unless it is asked for two
            made = placed(made, transport)
        layout = Layout.of(len(flat))
        # There is no next step, so that the state is dropped
        state = made.init(layout, k, transport.size)
        reduction, _ = made.reduce(flat, k, transport, state, layout)
        return Reduction(leave(reduction.total, x), leave(reduction.sent, x))
