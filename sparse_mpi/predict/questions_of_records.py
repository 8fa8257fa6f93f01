"""``predict run``, ``fit`` and ``check``: how long a recorded run takes elsewhere, and how good predictions are."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from sparse_mpi.cli import options, records, values
from sparse_mpi.cli.benchmark import Benchmark, Output
from sparse_mpi.cli.extensions import hook
from sparse_mpi.cli.options import count, option
from sparse_mpi.cli.records import provenance
from sparse_mpi.cli.table import Column, Table
from sparse_mpi.cli.values import refusing
from sparse_mpi.comm import network as network_fit
from sparse_mpi.comm.conversion import comm_of_job
from sparse_mpi.predict import advice, calibration, trained
from sparse_mpi.predict.advice import Job, Verdict
from sparse_mpi.predict.calibration import Fit, Prediction
from sparse_mpi.predict.questions import CLUSTER, FROM, RATE, assumed, cluster_of

RIGHT = 0.1  # advice whose step is at most so much longer than the fastest is right
SIZES = tuple(4**power for power in range(12))  # bytes, to 4 MiB


def _run(args: argparse.Namespace) -> Iterator[Output]:
    """Yield how long a recorded run takes on one cluster until a score."""
    fit, cluster = cluster_of(args)
    with refusing(""):
        run = trained.read_run(args.file)
        needed = run.steps_to(args.score)
        seconds = trained.run_seconds(run, args.score, cluster, args.batch_seconds)
    longer = advice.off_of(run.way, run.n, fit, cluster).longer
    told = assumed(Job(run.n, run.ranks, run.batch), args, fit)
    yield (
        f"{run.way} at {run.density:g}, P = {run.ranks}: {run.score} {args.score:g} after {needed} steps; "
        f"{seconds:.4g} s at {args.rate}, of which the batch {needed * (args.batch_seconds or run.batch):.4g} s; "
        f"the rest may take {longer:.2g} times as long.\nAssumed: {told}."
    )
    yield {"seconds": seconds, "steps": needed, "longer": longer}


def _fit(args: argparse.Namespace) -> Iterator[Output]:
    """Measure the network between the ranks that MPI started; rank 0 prints, and writes the file."""
    comm = comm_of_job()
    with refusing(""):
        seconds = network_fit.measure(comm, SIZES)
    if comm.rank:
        return
    network = network_fit.nearest([1] * len(SIZES), SIZES, seconds)
    table = Table(
        Column("bytes", 9, lambda row: row[0]),
        Column("us", 10, lambda row: 1e6 * row[1], ".1f"),
        Column("fit, us", 10, lambda row: 1e6 * (network.alpha + network.beta * row[0]), ".1f"),
    )
    rate = "" if not network.beta else f"; --rate {8e-9 / network.beta:.3g}gbit --latency {1e6 * network.alpha:.3g}"
    yield "\n".join([*table.lines(zip(SIZES, seconds, strict=True)), f"{network}{rate}"])
    points = [list(point) for point in zip(SIZES, seconds, strict=True)]
    records.write(args.json or "network.json", vars(network), {"ranks": comm.size, "points": points}, provenance())


def _check(args: argparse.Namespace) -> Iterator[Output]:
    """Fit to what was measured, and compare what that predicts for other steps with what was measured of them."""
    with refusing("--from, --check or --ranks: "):
        known = [exchange for record in args.records for exchange in calibration.read(record)]
        others: list[calibration.Exchange] = []
        if args.ranks:
            known, others = calibration.held_out(known, args.ranks)
        others += [exchange for record in args.check for exchange in calibration.read(record)]
        if not others:
            raise ValueError("there must be steps to predict, got none; name records, or ranks of --from to hold out")
        found = calibration.fit(known) if known else Fit(calibration.START, [])
        predictions = [found.predict(exchange) for exchange in others]
        checks, verdicts = calibration.by_rate(predictions), advice.judged(predictions)
    yield f"{'fitted to P = ' + ', '.join(map(str, found.ranks)) if known else 'not fitted'}: {_described(found)}\n"
    yield "\n\n".join(_checked(rate, of) for rate, of in checks.items())
    yield f"\n{_verdicts(verdicts)}"
    yield {
        "cluster": {name: of for name, of in vars(found.cluster).items() if name not in ("gpu", "fabric")},
        "fitted to P": found.ranks,
        "rates": {rate: {"median step error": calibration.median_error(of)} for rate, of in checks.items()},
        "advice": [
            {
                "job": of.job,
                "advised": of.advised.measured.candidate,
                "fastest": of.best.measured.candidate,
                "longer": of.regret,
            }
            for of in verdicts
        ],
        "cases": [of.measured._asdict() | {"predicted step": of.step} for of in predictions],
    }


def _described(found: Fit) -> str:
    """Return what was fitted, in words."""
    of = found.cluster
    told = (
        f", within {1 + advice.spread(found.predictions):.2g} times for nine of ten steps" if found.predictions else ""
    )
    return (
        f"a message takes {1e6 * of.alpha:.3g} us and costs {1e6 * of.message:.3g} us of processor time at either end, "
        f"a byte {1e9 * of.byte:.2g} ns; computing takes {of.speed:.2f} times as long as recorded and "
        f"{of.crowding:.0%} more in a crowd{told}"
    )


def _checked(rate: str, predictions: list[Prediction]) -> str:
    """Return a line for each prediction at one rate."""
    table = Table(
        Column("candidate", -max(9, *(len(p.measured.candidate) for p in predictions)), lambda p: p.measured.candidate),
        Column("n", 12, lambda of: of.measured.n, ","),
        Column("P", 4, lambda of: of.measured.ranks),
        Column("step", 10, lambda of: 1e3 * of.measured.step, ".3f"),
        Column("predicted", 10, "step", ".3f", 1e3),
        Column("error", 7, "error", "+.0%"),
    )
    error = f"median error without sign: {calibration.median_error(predictions):.0%}"
    return "\n".join([f"{rate or 'steps'}: ms", *table.lines(predictions), error])


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


QUESTIONS = (
    Benchmark(
        "run",
        help="how long a recorded training run would take on a cluster until a score",
        description="Steps of a run up to the first epoch whose test is as good as --score, each as long as predicted.",
        options=(
            option("file", "metrics.jsonl of a training program", values.file("metrics.jsonl")),
            option("--score", "score of a test, to reach in the run", values.finite, required=True),
            RATE,
            option("--batch-seconds S", "seconds of a rank's batch there (default: as recorded)", values.positive),
            *CLUSTER,
            options.json("also write all numbers"),
        ),
        measure=_run,
    ),
    Benchmark(
        "fit",
        help="measure this machine's network under mpiexec: alpha and beta",
        description="Messages between neighbours, all ranks at once, and the --rate and --latency they come to.",
        options=(options.json("file of the network (default: network.json)"),),
        measure=_fit,
    ),
    Benchmark(
        "check",
        help="fit to what was measured, and compare what that predicts with what was measured elsewhere",
        description="Fit to records, predict the steps of others, and tell how good times and advice are.",
        options=(
            FROM,
            option("--check FILE", "records to predict", values.file("p8.json"), [], nargs="+"),
            count("--ranks P", [], "or keep these of --from out of the fit, and predict them", nargs="+"),
            options.json("also write all numbers"),
            options.plot("draw predicted over measured seconds"),
        ),
        measure=_check,
        figure=lambda records: hook("draw_check", "--plot")(records),
    ),
)
