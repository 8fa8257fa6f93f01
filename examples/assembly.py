"""Assemble a finite element matrix: each rank has some elements, and gets whole rows.

    python -m sparse_mpi run -n 4 examples/assembly.py

The elements of a mesh are dealt out in strips, and at random for comparison. A rank's
matrix has an entry for each pair of corners of an element, with duplicates;
`reduce_scatter` adds them up and leaves each rank the entries of a range of places,
which may end within a row. So a rank gives its first row to the rank before. The rows
are what PETSc takes in createAIJ, as (indptr, indices, data). They are checked against
the matrix of one process.
"""

from typing import Any

import numpy as np
import scipy.sparse
import scipy.spatial
from mpi4py import MPI

import sparse_mpi
from sparse_mpi.comm import as_comm

POINTS = 20_000


def mesh(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return points (size, 2) from left to right, and triangles (m, 3) in strips."""
    points = np.random.default_rng(1).random((size, 2))
    points = points[np.argsort(points[:, 0])]
    triangles = scipy.spatial.Delaunay(points).simplices
    return points, triangles[np.argsort(points[triangles, 0].mean(axis=1))]


def stiffness(points: np.ndarray, elements: np.ndarray) -> Any:
    """Return the Laplacian of linear elements, an entry for each pair of corners."""
    a, b, c = np.moveaxis(points[elements], 1, 0)
    edges = np.stack([c - b, a - c, b - a], axis=1)  # opposite of each corner
    area = abs(np.linalg.det(edges[:, :2])) / 2
    local = np.einsum("eic,ejc->eij", edges, edges) / (4 * area[:, None, None])
    place = np.repeat(elements, 3, axis=1).ravel(), np.tile(elements, 3).ravel()
    return scipy.sparse.coo_array((local.ravel(), place), (len(points), len(points)))


def whole_rows(part: Any, comm: Any) -> tuple[int, Any]:
    """Return the number of this rank's first row, and its rows, all of them whole."""
    size = part.shape[1]
    first = np.flatnonzero(np.diff(part.indptr))[0]
    head = part[[first]].tocoo()
    heads = sparse_mpi.allgather((first * size + head.col, head.data), comm)
    starts = [keys[0] // size for keys, _ in heads]
    ends = [0, *(start + 1 for start in starts[1:]), size]
    others = [other for rank, other in enumerate(heads) if rank != comm.rank]
    for keys, values in others:
        more = scipy.sparse.coo_array((values, np.divmod(keys, size)), part.shape)
        part = part + more.tocsr()
    return ends[comm.rank], part[ends[comm.rank] : ends[comm.rank + 1]]


def main() -> None:
    """Assemble twice, and check it."""
    comm, world = as_comm(), MPI.COMM_WORLD
    points, strips = mesh(POINTS)
    at_random = np.random.default_rng(2).permutation(strips)
    for name, triangles in {"strips": strips, "at random": at_random}.items():
        before = comm.traffic.sent + comm.traffic.control
        mine = stiffness(points, np.array_split(triangles, comm.size)[comm.rank])
        begin, rows = whole_rows(
            sparse_mpi.reduce_scatter(mine, comm=comm).tocsr(), comm
        )
        sent = comm.traffic.sent + comm.traffic.control - before

        alone = stiffness(points, triangles).tocsr()
        difference = abs(rows - alone[begin : begin + rows.shape[0]]).max()
        found = world.allgather((rows.shape[0], difference, sent))
        counts, differences, bytes_sent = zip(*found, strict=True)
        if sum(counts) != POINTS or max(differences) > 1e-14 * abs(alone).max():
            raise SystemExit("the matrix is not that of one process")
        if comm.rank == 0:
            print(f"{name}: {max(bytes_sent) / 1e3:.0f} kB sent by the busiest rank")
    if comm.rank == 0:
        print("as assembled by one process")


if __name__ == "__main__":
    main()
