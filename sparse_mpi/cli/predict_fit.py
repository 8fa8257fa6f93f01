"""Where the alpha and beta of ``predict`` come from, and how well they predict what was measured elsewhere."""

from __future__ import annotations

import argparse

from sparse_mpi.analysis import exchanges
from sparse_mpi.analysis.exchanges import Check
from sparse_mpi.bench import records
from sparse_mpi.bench.provenance import provenance
from sparse_mpi.cli.predict_plot import draw_check
from sparse_mpi.comm import as_comm
from sparse_mpi.costs import fit as network_fit

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
    print(str(network))
    points = [list(point) for point in zip(SIZES, seconds, strict=True)]
    records.write(file, vars(network), {"ranks": comm.size, "points": points}, provenance())
    return 0


def check(args: argparse.Namespace) -> int:
    """Fit to what was measured on few ranks, and compare what that predicts for others with what was measured there."""
    if not args.records or bool(args.check) == bool(args.check_ranks):
        raise SystemExit(
            "--from FILE ... goes with --check FILE or with --check-ranks P ...: fit to the former, predict the latter"
        )
    try:
        measured = [exchange for record in args.records for exchange in exchanges.read(record)]
        if args.check:
            known, others = measured, exchanges.read(args.check)
        else:
            known, others = exchanges.held_out(measured, args.check_ranks)
        checks = exchanges.check(known, others)
    except ValueError as error:
        raise SystemExit(f"--from, --check or --check-ranks: {error}") from None
    print("\n\n".join(_table(found) for found in checks))
    if args.json:
        networks = {found.rate: {**vars(found.network), "median error": found.median_error} for found in checks}
        cases = [
            prediction.measured._asdict() | {"predicted": prediction.seconds, "error": prediction.error}
            for found in checks
            for prediction in found.predictions
        ]
        records.write(args.json, {"fitted to": args.records, "rates": networks, "cases": cases}, provenance())
    if args.plot:
        draw_check(checks, args.plot)
    return 0


def _table(found: Check) -> str:
    """Return the network that was fitted at one rate, and a line for each prediction."""
    wide = max(len("candidate"), *(len(prediction.measured.candidate) for prediction in found.predictions))
    lines = [
        f"{found.rate or 'exchanges'}: fitted to P = {', '.join(map(str, found.ranks))}: {str(found.network)}",
        f"{'candidate':<{wide}} {'P':>5} {'measured, ms':>13} {'predicted, ms':>14} {'error':>8}",
    ]
    lines += [
        f"{of.candidate:<{wide}} {of.ranks:>5} {1e3 * of.seconds:>13.3f} {1e3 * prediction.seconds:>14.3f} "
        f"{prediction.error:>+8.0%}"
        for prediction in found.predictions
        for of in [prediction.measured]
    ]
    return "\n".join([*lines, f"median error without sign: {found.median_error:.0%}"])
