"""``python -m sparse_mpi bench network``: a command of ours on emulated hosts, with a slow network between them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from fractions import Fraction
from heapq import merge
from pathlib import Path
from typing import Any

from sparse_mpi.cli import values
from sparse_mpi.cli.launch.find import Mpiexec
from sparse_mpi.cli.launch.start import apart
from sparse_mpi.cli.options import option
from sparse_mpi.cli.values import Refused, refusing
from sparse_mpi_bench import options as bench_options
from sparse_mpi_bench.benchmark import Benchmark, Output
from sparse_mpi_bench.chaos.drawing import parse
from sparse_mpi_bench.chaos.job import ChaosJob
from sparse_mpi_bench.commands import bench_sparse, bench_steps
from sparse_mpi_bench.emulation import hosts, launch, schedule
from sparse_mpi_bench.emulation.links import Links, RatePlayer
from sparse_mpi_bench.emulation.probe import Link, measured, probe

RANKS = range(2, 17)
# Benchmarks whose records are gathered, and the tables of all jobs
RECORDED = {("bench", "steps"): bench_steps.summary, ("bench", "sparse"): bench_sparse.as_markdown}
DESCRIPTION = """\
Run a command of ours with one MPI rank on each of several hosts that are emulated on this machine: network namespaces,
joined by rate-limited links to a switch. All messages go over TCP through these links. What they really give is
measured first and printed; without a command, that is all. The exit code is the command's, 124 past --timeout.

  python -m sparse_mpi bench network --ranks 4 --rate 1gbit -- bench steps --steps 5 --algorithms oktopk
  python -m sparse_mpi bench network --ranks 4 --rate 1gbit -- train/vgg.py --algo oktopk --max-steps 20

When does it pay to send less? Several numbers of ranks and rates are networks of their own, whose records of bench
steps or bench sparse go to one file, which draw draws:

  python -m sparse_mpi bench network --ranks 4 8 --rate 100mbit 1gbit none --json FILE -- bench steps --steps 5

The rates of links may change while the command runs, and links may be down:

  python -m sparse_mpi bench network --rate 1gbit,50mbit --every 30s --log links.jsonl -- train/vgg.py
  python -m sparse_mpi bench network --rate 1gbit,down --every 30s,2s -- train/vgg.py
  python -m sparse_mpi bench network --trace links.txt -- train/vgg.py

A trace has lines "seconds rate" or "seconds rate host": from that second on, that link, or all, has that rate, or is
"down". Each change, and the bytes that hosts have sent, are told on stderr; --log has them for programs. Faults:

  python -m sparse_mpi bench network --elastic --chaos mtti=20,seed=1,kinds=kill,freeze,link -- program.py

Needs Linux, root, iproute2 and Open MPI or MPICH. The ranks share this machine's cores: above some Gbit/s these and not
links decide, which is told.
"""


def check(args: argparse.Namespace) -> None:
    command = _command(args)
    with refusing("--", "; for example --rate 1gbit,50mbit --every 30s"):
        for ranks, rate in _networks(args):
            _schedule(args, rate, ranks)
    if len(_networks(args)) > 1:
        for name in ("every", "trace", "log", "chaos"):
            if getattr(args, name) is not None:
                raise Refused(f"--{name} takes one of --ranks and of --rate, got {len(_networks(args))} networks")
    several = command and len(_networks(args)) > 1
    if (args.json is not None or several) and command[:2] not in RECORDED:
        known = " or ".join(map(" ".join, RECORDED))
        raise Refused(f"--json, and several of --ranks or --rate, take {known} after a --, got {' '.join(command)!r}")


def measure(args: argparse.Namespace) -> Iterator[Output]:
    command, jobs = _command(args), list[dict[str, Any]]()
    recorded = command[:2] in RECORDED and (args.json is not None or len(_networks(args)) > 1)
    with _launcher() as launcher:
        for ranks, rate in _networks(args):
            rates = _schedule(args, rate, ranks)
            first = rates.at(Fraction(0))
            with hosts.emulate(ranks, first[0], _slowest(rates)) as emulated:
                links = Links(emulated)
                links.change(first)
                link = probe(emulated)
                gave = measured(link, first[0])
                yield told(ranks, schedule.describe(first), gave)
                if not command:
                    continue
                file = emulated.folder / "record.json"
                words = [*command, *_known(command, link, file)] if recorded else command
                if code := _run(args, words, launcher, links, rates):
                    yield code
                    return
                if recorded:
                    gave |= {"burst": hosts.burst(emulated.rate) if emulated.rate else 0, "packet": emulated.packet}
                    jobs.append({"rate": rate, "measured": gave, **json.loads(file.read_text())})
                    yield {"jobs": jobs}
    if recorded:
        yield f"\n{RECORDED[command[0], command[1]](jobs)}"


def _command(args: argparse.Namespace) -> tuple[str, ...]:
    return tuple(args.command[args.command[:1] == ["--"] :])


def _networks(args: argparse.Namespace) -> list[tuple[int, str]]:
    return [(ranks, rate) for ranks in dict.fromkeys(args.ranks) for rate in dict.fromkeys(args.rate)]


def _known(command: Sequence[str], link: Link, file: Path) -> list[str]:
    network = ["--gbit", repr(link.rate / 1e9), "--latency", repr(link.trip / 2 * 1e6)] if "steps" in command else []
    return [*network, "--json", str(file)]


def _run(
    args: argparse.Namespace, command: Sequence[str], launcher: Mpiexec, links: Links, rates: schedule.Schedule
) -> int:
    try:
        record = args.log.open("w") if args.log else nullcontext()
    except OSError as error:
        raise Refused(f"--log must be a file that can be written, got {args.log}: {error.strerror}") from None
    with record as file:
        player = RatePlayer(links, rates, file)
        chaos = _chaos(args, launcher, links)
        played = merge(player.play(), *([chaos.play()] if chaos else ()))

        def play() -> int:
            code = launch.run(links.hosts, launcher, command, args.timeout, args.elastic, meanwhile=played)
            player.end()
            return code if chaos is None else chaos.end(code)

        return play() if chaos is None else apart(play)


def _chaos(args: argparse.Namespace, launcher: Mpiexec, links: Links) -> ChaosJob | None:
    if args.chaos is None:
        return None
    return ChaosJob(parse(args.chaos), links.hosts.count, args.elastic, launcher.library.version, links)


@contextmanager
def _launcher() -> Iterator[Mpiexec]:
    """Yield the launcher for emulated hosts. Raises SystemExit: there can be none here, or the system refuses."""
    if lacks := hosts.missing():
        raise SystemExit("\n".join(["bench network cannot run here:", *lacks]))
    try:
        yield launch.find_launcher()
    except RuntimeError as error:
        raise SystemExit(f"bench network cannot run here: {error}") from None


def told(ranks: int, rates: str, gave: Mapping[str, Any]) -> str:
    alone, together = 1e3 * gave["gbit"], 1e3 * gave["together"]
    found = f"measured {alone:.0f} Mbit/s, {gave['trip'] * 1e6:.0f} us round trip, {together:.0f} Mbit/s each at once"
    return f"{ranks} hosts, {rates}: {found}" + (f"; {gave['remark']}" if gave["remark"] else "")


def _slowest(rates: schedule.Schedule) -> int | None:
    limits = [each for step in rates.rates for each in step if each not in (None, schedule.DOWN)]
    return min(limits, default=None)


def _schedule(args: argparse.Namespace, rate: str, ranks: int) -> schedule.Schedule:
    """Return the schedule of one network by the options. Raise ValueError if they are wrong."""
    changes = args.trace is not None or args.every is not None
    if args.chaos is not None and changes and "link" in parse(args.chaos).kinds:
        raise ValueError("chaos with kinds=link takes links down by itself: leave --every and --trace out")
    if args.trace is None:
        return schedule.turns(rate, args.every, ranks)
    if args.every is not None or "," in rate:
        raise ValueError("trace has all changes: leave --every out, and give one --rate, for links without a line")
    return schedule.trace(args.trace, rate, ranks)


NETWORK = Benchmark(
    "network",
    help="run any of these commands over a slow network, emulated on this machine",
    description=DESCRIPTION,
    options=(
        option(
            "--ranks P",
            f"hosts, {RANKS[0]} to {RANKS[-1]}; of several numbers one network each",
            values.integer(RANKS[0], RANKS[-1]),
            [4],
            nargs="+",
        ),
        option(
            "--rate",
            "of every link, in each direction, as tc writes it: 100mbit, 1gbit, ..., or none (default: 1gbit); of "
            "several one network each; several with commas, or down, take turns, beginning with the command",
            bench_options.turns,
            ["1gbit"],
            nargs="+",
        ),
        option(
            "--every TIME",
            "how long each of several rates holds: 30s, 500ms, 2min; several with commas, one for each rate",
            bench_options.every,
        ),
        option(
            "--trace FILE",
            "file of rates by time; links that it has not named yet have the one of --rate",
            values.file("links.txt"),
        ),
        option(
            "--log FILE",
            "file of JSON lines for the start, all changes and the end: seconds, rates, and bytes of every host",
            values.new_file("links.jsonl"),
        ),
        option(
            "--chaos OPTIONS",
            "faults at random, as of sparse_mpi run, and kinds=link, which takes the link of a rank's host down",
            bench_options.chaos,
        ),
        option("--timeout", "seconds the command may take, on each network", values.positive, 600),
        option(
            "--elastic",
            "let the other ranks go on when one is lost, for commands that use sparse_mpi.fault_tolerance",
            action="store_true",
        ),
        option("--json FILE", "write the records of the benchmark, with their networks", values.record),
        option(
            "command",
            "after a --: a path that ends in .py, or what follows python -m sparse_mpi, and its arguments",
            nargs=argparse.REMAINDER,
            metavar="-- COMMAND",
        ),
    ),
    measure=measure,
    check=check,
)
