"""Where the numbers of ``predict`` come from, and how well they predict what was measured elsewhere."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from sparse_mpi.comm import as_comm
from sparse_mpi.network import fit as network_fit
from sparse_mpi.tools.analysis import advice, calibration, exchanges
from sparse_mpi.tools.analysis.advice import Verdict
from sparse_mpi.tools.analysis.calibration import Check, Fit
from sparse_mpi.tools.bench import records
from sparse_mpi.tools.bench.progress import progress
from sparse_mpi.tools.bench.provenance import provenance
from sparse_mpi.tools.cli.benchmark import Output
from sparse_mpi.tools.cli.parsing import Refused
from sparse_mpi.tools.cli.table import Column, Table

SIZES = tuple(4**power for power in range(12))  # bytes, to 4 MiB
RIGHT = 0.1  # advice whose step is at most so much longer than the fastest is right


def fit(file: str) -> Iterator[Output]:
    """Measure the network between the ranks that MPI started; rank 0 prints, and writes ``file`` for --network."""
    comm = as_comm(None)
    try:
        seconds = network_fit.measure(comm, SIZES)
    except ValueError as error:
        raise Refused(f"--fit: {error}") from None
    if comm.rank:
        return
    network = network_fit.nearest([1] * len(SIZES), SIZES, seconds)
    table = Table(
        Column("bytes", 9, lambda row: row[0]),
        Column("us", 10, lambda row: 1e6 * row[1], ".1f"),
        Column("fit, us", 10, lambda row: 1e6 * (network.alpha + network.beta * row[0]), ".1f"),
    )
    yield "\n".join([*table.lines(zip(SIZES, seconds, strict=True)), str(network)])
    points = [list(point) for point in zip(SIZES, seconds, strict=True)]
    records.write(file, vars(network), {"ranks": comm.size, "points": points}, provenance())


def check(args: argparse.Namespace) -> Iterator[Output]:
    """Fit to what was measured on few ranks, and compare what that predicts for others with what was measured there."""
    if not args.records or not (args.check or args.check_ranks):
        raise Refused(
            "--from FILE ... goes with --check FILE ..., with --check-ranks P ... or with both: fit to the former, "
            "predict the latter"
        )
    try:
        known, others = _divided(args)
        found = fitted(known)
        predictions = [found.predict(exchange) for exchange in progress(others, "predicting steps")]
        checks = calibration.by_rate(predictions)
        verdicts = advice.judged(predictions) if args.advise else []
    except ValueError as error:
        raise Refused(f"--from, --check or --check-ranks: {error}") from None
    yield f"fitted to P = {', '.join(map(str, found.ranks))}: {described(found)}\n"
    yield "\n\n".join(_table(of) for of in checks)
    if verdicts:
        yield f"\n{_verdicts(verdicts)}"
    yield _record(found, checks, verdicts)


def _divided(args: argparse.Namespace) -> tuple[list[exchanges.Exchange], list[exchanges.Exchange]]:
    """Return the steps to fit to, and those to predict.

    Raises:
        ValueError: a record is none, or there are no steps of one or the other kind.
    """
    known = [exchange for record in args.records for exchange in exchanges.read(record)]
    others: list[exchanges.Exchange] = []
    if args.check_ranks:
        known, others = exchanges.held_out(known, args.check_ranks)
    return known, others + [exchange for record in args.check for exchange in exchanges.read(record)]


def fitted(known: list[exchanges.Exchange]) -> Fit:
    """Return the fit to measured steps; the steps of algorithms are recorded behind a progress bar.

    Raises:
        ValueError: there are too few.
    """
    for exchange in progress(known, "recording steps"):
        calibration.predict(exchange, calibration.START)
    return calibration.fit(known)


def described(found: Fit) -> str:
    """Return what was fitted, in words."""
    of = found.cluster
    return (
        f"a message takes {1e6 * of.alpha:.3g} us and costs {1e6 * of.message:.3g} us of processor time at either end, "
        f"a byte {1e9 * of.byte:.2g} ns; computing takes {of.speed:.2f} times as long as here and "
        f"{of.crowding:.0%} more in a crowd, in slices of {1e3 * of.slice:.2g} ms; a waiting rank takes "
        f"{of.polling:.2f} of a core, other programs {of.others:.2f} cores; within "
        f"{advice.spread(found.predictions):.0%} for four of five steps"
    )


def _table(found: Check) -> str:
    """Return a line for each prediction at one rate."""
    table = Table(
        Column(
            "candidate",
            -max(9, *(len(of.measured.candidate) for of in found.predictions)),
            lambda of: of.measured.candidate,
        ),
        Column("n", 12, lambda of: of.measured.n, ","),
        Column("P", 4, lambda of: of.measured.ranks),
        Column("exchange", 10, lambda of: 1e3 * of.measured.seconds, ".3f"),
        Column("predicted", 10, "seconds", ".3f", 1e3),
        Column("error", 7, "error", "+.0%"),
        Column("step", 10, lambda of: 1e3 * of.measured.step, ".3f"),
        Column("predicted", 10, "step", ".3f", 1e3),
        Column("error", 7, "step_error", "+.0%"),
    )
    errors = f"exchange {found.median_error:.0%}, step {found.median_step_error:.0%}"
    rows = table.lines(found.predictions)
    return "\n".join([f"{found.rate or 'exchanges'}: ms", *rows, f"median error without sign: {errors}"])


def _verdicts(verdicts: list[Verdict]) -> str:
    """Return a line for each job: what is advised there, and how much longer it takes than the fastest."""
    table = Table(
        Column("job", -34, lambda of: "{} P = {} n = {:,} {:g}".format(*of.job).strip()),
        Column("advised", -22, lambda of: of.advised.measured.candidate),
        Column("ms", 9, lambda of: 1e3 * of.advised.measured.step, ".2f"),
        Column("fastest", -22, lambda of: of.best.measured.candidate),
        Column("ms", 9, lambda of: 1e3 * of.best.measured.step, ".2f"),
        Column("longer", 7, "regret", ".0%"),
    )
    right = sum(of.regret <= RIGHT for of in verdicts)
    return "\n".join([*table.lines(verdicts), f"right, within {RIGHT:.0%} of the fastest: {right} of {len(verdicts)}"])


def _record(found: Fit, checks: list[Check], verdicts: list[Verdict]) -> dict[str, Any]:
    """Return all numbers as a dict for JSON."""
    return {
        "cluster": vars(found.cluster),
        "fitted to P": found.ranks,
        "rates": {
            of.rate: {"median error": of.median_error, "median step error": of.median_step_error} for of in checks
        },
        "advice": [
            {
                "job": of.job,
                "advised": of.advised.measured.candidate,
                "fastest": of.best.measured.candidate,
                "longer": of.regret,
            }
            for of in verdicts
        ],
        "cases": [
            of.measured._asdict() | {"predicted": of.seconds, "predicted step": of.step}
            for check in checks
            for of in check.predictions
        ],
    }
