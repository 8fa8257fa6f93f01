"""Where the alpha and beta of ``predict`` come from, and how well they predict what was measured elsewhere."""

from __future__ import annotations

import json
import statistics

from sparse_mpi import network_fit
from sparse_mpi.analysis import networks
from sparse_mpi.analysis.prediction import errors
from sparse_mpi.comm import as_comm
from sparse_mpi.costs import Network
from sparse_mpi.provenance import provenance

SIZES = tuple(4**power for power in range(12))  # bytes, to 4 MiB


def fit(file: str) -> int:
    """Measure the network between the ranks that MPI started; rank 0 prints, and writes ``file`` for --network."""
    comm = as_comm(None)
    try:
        seconds = network_fit.measure(comm, SIZES)
    except ValueError as error:
        raise SystemExit(f"--fit: {error}") from None
    if comm.rank:
        return 0
    network = network_fit.nearest([1] * len(SIZES), SIZES, seconds)
    print(f"{'bytes':>9} {'us':>10} {'fit, us':>10}")
    for size, taken in zip(SIZES, seconds, strict=True):
        print(f"{size:>9} {1e6 * taken:>10.1f} {1e6 * (network.alpha + network.beta * size):>10.1f}")
    print(_told(network))
    points = [list(point) for point in zip(SIZES, seconds, strict=True)]
    with open(file, "w") as out:
        json.dump({**vars(network), "ranks": comm.size, "points": points, **provenance()}, out, indent=1)
        out.write("\n")
    return 0


def check(records: list[str], held_out: str | None, file: str | None) -> int:
    """Fit to what ``records`` measured, and compare what that predicts for ``held_out`` with what that measured."""
    if not records or not held_out:
        raise SystemExit("--from FILE ... and --check FILE go together: fit to the former, predict the latter")
    try:
        measured = [exchange for record in records for exchange in networks.exchanges(record)]
        checked = networks.exchanges(held_out)
    except ValueError as error:
        raise SystemExit(f"--from or --check: {error}") from None
    network = networks.fitted(measured)
    ranks = sorted({exchange.ranks for exchange in measured})
    print(f"fitted to {len(measured)} exchanges, P = {', '.join(map(str, ranks))}: {_told(network)}")
    compared = errors(checked, network)
    print(f"\n{f'P = {checked[0].ranks}':<11} {'measured, ms':>13} {'predicted, ms':>14} {'error':>8}")
    for exchange, seconds, off in compared:
        print(f"{exchange.algorithm:<11} {1e3 * exchange.seconds:>13.3f} {1e3 * seconds:>14.3f} {off:>+8.0%}")
    print(f"median error without sign: {statistics.median(abs(off) for _, _, off in compared):.0%}")
    if file:
        cases = [exchange._asdict() | {"predicted": seconds, "error": off} for exchange, seconds, off in compared]
        with open(file, "w") as out:
            json.dump({**vars(network), "fitted to": records, "cases": cases, **provenance()}, out, indent=1)
            out.write("\n")
    return 0


def _told(network: Network) -> str:
    rate = f"{1e-9 / network.beta:.3g} GB/s" if network.beta else "bandwidth without limit"
    return f"alpha {network.alpha * 1e6:.3g} us, {rate}"
