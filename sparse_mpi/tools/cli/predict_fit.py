"""Where the numbers of ``predict`` come from, and how well they predict what was measured elsewhere."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from sparse_mpi.comm import as_comm
from sparse_mpi.network import fit as network_fit
from sparse_mpi.tools.analysis import advice, calibration, exchanges
from sparse_mpi.tools.analysis.advice import Verdict
from sparse_mpi.tools.analysis.calibration import Check, Fit, Prediction
from sparse_mpi.tools.bench import records
from sparse_mpi.tools.bench.progress import progress
from sparse_mpi.tools.bench.provenance import provenance
from sparse_mpi.tools.cli.figures import save
from sparse_mpi.tools.cli.parsing import Refused
from sparse_mpi.tools.figures.predict import check as figure

SIZES = tuple(4**power for power in range(12))  # bytes, to 4 MiB
RIGHT = 0.1  # advice whose step is at most so much longer than the fastest is right


def fit(file: str) -> int:
    """Measure the network between the ranks that MPI started; rank 0 prints, and writes ``file`` for --network."""
    comm = as_comm(None)
    try:
        seconds = network_fit.measure(comm, SIZES)
    except ValueError as error:
        raise Refused(f"--fit: {error}") from None
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
    print(f"fitted to P = {', '.join(map(str, found.ranks))}: {described(found)}\n")
    print("\n\n".join(_table(of) for of in checks))
    if verdicts:
        print(f"\n{_verdicts(verdicts)}")
    record = _record(args, found, checks, verdicts)
    if args.json:
        records.write_cases(args.json, record)
    if args.plot:
        save(partial(figure, [record]), args.plot)
    return 0


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
    wide = max(len("candidate"), *(len(of.measured.candidate) for of in found.predictions))
    lines = [
        f"{found.rate or 'exchanges'}: ms",
        f"{'candidate':<{wide}} {'n':>12} {'P':>4} {'exchange':>10} {'predicted':>10} {'error':>7} "
        f"{'step':>10} {'predicted':>10} {'error':>7}",
    ]
    lines += [_line(of, wide) for of in found.predictions]
    return "\n".join(
        [*lines, f"median error without sign: exchange {found.median_error:.0%}, step {found.median_step_error:.0%}"]
    )


def _line(of: Prediction, wide: int) -> str:
    """Return the line of a prediction."""
    measured = of.measured
    return (
        f"{measured.candidate:<{wide}} {measured.n:>12,} {measured.ranks:>4} {1e3 * measured.seconds:>10.3f} "
        f"{1e3 * of.seconds:>10.3f} {of.error:>+7.0%} {1e3 * measured.step:>10.3f} {1e3 * of.step:>10.3f} "
        f"{of.step_error:>+7.0%}"
    )


def _verdicts(verdicts: list[Verdict]) -> str:
    """Return a line for each job: what is advised there, and how much longer it takes than the fastest."""
    lines = [f"{'job':<34} {'advised':<22} {'ms':>9} {'fastest':<22} {'ms':>9} {'longer':>7}"]
    for of in verdicts:
        rate, ranks, n, density = of.job
        advised, best = of.advised.measured, of.best.measured
        job = f"{rate} P = {ranks} n = {n:,} {density:g}".strip()
        lines.append(
            f"{job:<34} {advised.candidate:<22} {1e3 * advised.step:>9.2f} "
            f"{best.candidate:<22} {1e3 * best.step:>9.2f} {of.regret:>7.0%}"
        )
    right = sum(of.regret <= RIGHT for of in verdicts)
    return "\n".join([*lines, f"right, within {RIGHT:.0%} of the fastest: {right} of {len(verdicts)}"])


def _record(args: argparse.Namespace, found: Fit, checks: list[Check], verdicts: list[Verdict]) -> dict[str, Any]:
    """Return all numbers as a dict for JSON."""
    return {
        "options": records.options(args),
        **provenance(),
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
