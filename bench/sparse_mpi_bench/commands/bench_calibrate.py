"""``bench calibrate``: fit the model of ``predict`` to measured steps, and say how good its predictions are."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from sparse_mpi.cli import values
from sparse_mpi.cli.options import count, option
from sparse_mpi.cli.table import Column, Table
from sparse_mpi.cli.values import Refused, refusing
from sparse_mpi.collectives.network import measure, nearest
from sparse_mpi.comm.conversion import comm_of_job
from sparse_mpi_bench.benchmark import Benchmark, Output
from sparse_mpi_bench.calibration import fit as calibration
from sparse_mpi_bench.calibration.fit import Fit, JudgedAdvice, Prediction
from sparse_mpi_bench.figures.draw_predict import check as draw_check

RIGHT = 0.1  # advice whose step is longer than the fastest by at most this share is right
SIZES = tuple(4**power for power in range(12))  # bytes, to 4 MiB
DESCRIPTION = """\
Fit the model of predict to the steps of records, for predict advise --from; keep some steps out of the fit, or name
other records, to see how far predictions and advice are off. Without records, measure the network between the ranks.

  python -m sparse_mpi bench calibrate compare.json --json fit.json
  python -m sparse_mpi bench calibrate compare.json --ranks 8 --plot errors.png
  mpiexec -n 4 python -m sparse_mpi bench calibrate
"""


def _calibrate(args: argparse.Namespace) -> Iterator[Output]:
    if not args.records and not args.check:
        yield from _network()
        return
    with refusing("RECORD, --check or --ranks: "):
        known = [step for record in args.records for step in calibration.read(record)]
        others: list[calibration.MeasuredStep] = []
        if args.ranks:
            known, others = calibration.held_out(known, args.ranks)
        others += [step for record in args.check for step in calibration.read(record)]
        found = calibration.fit(known) if known else Fit(calibration.START, [])
        predictions = [found.predict(step) for step in others]
        checks, verdicts = calibration.by_rate(predictions), calibration.judged(predictions)
    yield f"{'fitted to P = ' + ', '.join(map(str, found.ranks)) if known else 'not fitted'}: {_described(found)}"
    if predictions:
        yield "\n" + "\n\n".join(_checked(rate, of) for rate, of in checks.items())
        yield f"\n{_verdicts(verdicts)}"
    yield {
        "cluster": {name: of for name, of in vars(found.cluster).items() if name not in ("gpu", "fabric")},
        "longer": {way: found.longer(way) for way in dict.fromkeys(of.measured.spelled for of in found.predictions)},
        "errors": found.errors if known else {},
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


def _check(args: argparse.Namespace) -> None:
    if args.plot and not (args.check or args.ranks):
        raise Refused("--plot draws predictions: name records by --check, or --ranks to keep out of the fit")


def _network() -> Iterator[Output]:
    comm = comm_of_job()
    with refusing(""):
        seconds = measure(comm, SIZES)
    if comm.rank:
        return
    network = nearest([1] * len(SIZES), SIZES, seconds)
    table = Table(
        Column("bytes", 9, lambda row: row[0]),
        Column("us", 10, lambda row: 1e6 * row[1], ".1f"),
        Column("fit, us", 10, lambda row: 1e6 * (network.alpha + network.beta * row[0]), ".1f"),
    )
    rate = "" if not network.beta else f"; --rate {8e-9 / network.beta:.3g}gbit --latency {1e6 * network.alpha:.3g}"
    yield "\n".join([*table.lines(zip(SIZES, seconds, strict=True)), f"{network}{rate}"])
    points = [list(point) for point in zip(SIZES, seconds, strict=True)]
    yield {**vars(network), "ranks": comm.size, "points": points}


def _described(found: Fit) -> str:
    of = found.cluster
    told = (
        f", within {1 + calibration.spread(found.predictions):.2g} times for nine of ten steps"
        if found.predictions
        else ""
    )
    return (
        f"a message takes {1e6 * of.alpha:.3g} us and costs {1e6 * of.message:.3g} us of processor time at either end, "
        f"a byte {1e9 * of.byte:.2g} ns; computing takes {of.speed:.2f} times as long as recorded and "
        f"{of.crowding:.0%} more in a crowd{told}"
    )


def _checked(rate: str, predictions: list[Prediction]) -> str:
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


def _verdicts(verdicts: list[JudgedAdvice]) -> str:
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


CALIBRATE = Benchmark(
    "calibrate",
    help="fit predict to measured steps, and say how far its predictions are off",
    description=DESCRIPTION,
    options=(
        option(
            "records",
            f"of {calibration.BENCHES}, to fit to",
            values.file("compare.json"),
            [],
            nargs="*",
            metavar="RECORD",
        ),
        option("--check FILE", "records to predict", values.file("p8.json"), [], nargs="+"),
        count("--ranks P", [], "or keep these of the records out of the fit, and predict them", nargs="+"),
        option("--json FILE", "write the fit, for predict --from, and all numbers", values.record),
        option("--plot FILE", "draw predicted over measured seconds", values.figure),
    ),
    measure=_calibrate,
    check=_check,
    figure=draw_check,
)
