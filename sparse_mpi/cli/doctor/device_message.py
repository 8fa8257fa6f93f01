"""A child of the doctor, which sends itself device memory by MPI, sums it over itself, and prints a JSON object."""

from __future__ import annotations

import json

BYTES = 1 << 20


def main() -> None:
    import cupy
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    send = cupy.arange(BYTES // 4, dtype="float32")
    came, total = cupy.zeros_like(send), cupy.zeros_like(send)
    cupy.cuda.get_current_stream().synchronize()
    requests = [comm.Irecv(came, comm.rank), comm.Isend(send, comm.rank)]
    MPI.Request.Waitall(requests)
    comm.Allreduce(send, total, MPI.SUM)
    message, allreduce = bool((came == send).all()), bool((total == send * comm.size).all())
    print(json.dumps({"bytes": BYTES, "message": message, "allreduce": allreduce}))


if __name__ == "__main__":
    main()
