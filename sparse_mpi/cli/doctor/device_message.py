"""A child of the doctor, which sends itself device memory by MPI, sums it over itself, and fails on wrong bytes."""

from __future__ import annotations

import sys

BYTES = 1 << 20


def main() -> None:
    import cupy
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    send = cupy.arange(BYTES // 4, dtype="float32")
    came, total = cupy.zeros_like(send), cupy.zeros_like(send)
    cupy.cuda.get_current_stream().synchronize()
    MPI.Request.Waitall([comm.Irecv(came, comm.rank), comm.Isend(send, comm.rank)])
    comm.Allreduce(send, total, MPI.SUM)
    right = {"message": (came == send).all(), "allreduce": (total == send * comm.size).all()}
    if wrong := [what for what, is_right in right.items() if not is_right]:
        sys.exit(f"wrong bytes ({' and '.join(wrong)})")


if __name__ == "__main__":
    main()
