"""``python -m sparse_mpi bench network``: a command of ours on emulated hosts, with a slow network between them.

Benchmarks on emulated networks of several sizes and speeds: a job for each.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from fractions import Fraction
from heapq import merge
from pathlib import Path
from typing import Any

from sparse_mpi.cli import values
from sparse_mpi.cli.benchmark import Benchmark, Output
from sparse_mpi.cli.launch.find import Mpiexec
from sparse_mpi.cli.options import Option, option
from sparse_mpi.cli.values import Refused, refusing
from sparse_mpi.predict import options as predict_options
from sparse_mpi.predict import rates
from sparse_mpi_bench import options as bench_options
from sparse_mpi_bench.chaos.drawing import parse
from sparse_mpi_bench.chaos.job import ChaosJob
from sparse_mpi_bench.commands.formats import TABLE
from sparse_mpi_bench.emulation import hosts, launch, schedule
from sparse_mpi_bench.emulation.links import Links, RatePlayer
from sparse_mpi_bench.emulation.probe import Link, measured, probe

RATE = "of every link, in each direction, as tc writes it, or none"
RANKS = range(2, 17)
DESCRIPTION = """\
Run a command of ours with one MPI rank on each of several hosts that are emulated on this machine: network namespaces,
joined by rate-limited links to a switch. All messages go over TCP through these links. What they really give is
measured first and printed; without a command, that is all. The exit code is the command's, 124 past --timeout.

  python -m sparse_mpi bench network --ranks 4 --rate 1gbit -- bench allreduce --steps 5 --algorithms dense oktopk
  python -m sparse_mpi bench network --ranks 4 --rate 1gbit -- train/vgg.py --algo oktopk --max-steps 20

The rates of links may change while the command runs, and links may be down, all or some of them:

  python -m sparse_mpi bench network --rate 1gbit,50mbit --every 30s --log links.jsonl -- train/vgg.py
  python -m sparse_mpi bench network --rate 1gbit,down --every 30s,2s -- train/vgg.py
  python -m sparse_mpi bench network --trace links.txt -- train/vgg.py

A trace has lines "seconds rate" or "seconds rate host", with blanks or commas: from that second of the command on, the
link of that host (1, 2, ...; all of them, if there is none) has that rate, or is "down". Connections stay open, and no
rank is told. Each change, and the bytes that hosts have sent, are told on stderr; --log has them for programs.
Faults at random instants:

  python -m sparse_mpi bench network --elastic --chaos mtti=20,seed=1,kinds=kill,freeze,link -- program.py

Needs Linux, root, iproute2 and Open MPI or MPICH. The ranks share this machine's cores and memory bandwidth: what they
compute takes longer than on hosts of their own, and above some Gbit/s cores and not links decide, which is told.
Latency is that of this machine, tens of microseconds, and what --latency adds each way. A link lets a millisecond's
worth (at least 4 KiB) pass at once before it holds to its rate.
"""


def measure(args: argparse.Namespace) -> Iterator[Output]:
    """Set up, yield what links give, run the command, remove; yield its exit code."""
    command = args.command[args.command[:1] == ["--"] :]
    with refusing("--", "; for example --rate 1gbit,50mbit --every 30s"):
        rates = _schedule(args)
    first, delay = rates.at(Fraction(0)), schedule.delay(args.latency)
    with _launcher("bench network") as launcher:
        try:
            record = args.log.open("w") if args.log else nullcontext()
        except OSError as error:
            raise Refused(f"--log must be a file that can be written, got {args.log}: {error.strerror}") from None
        with record as file, hosts.emulate(args.ranks, first[0], _slowest(rates), delay) as emulated:
            links = Links(emulated)
            links.change(first)
            yield _told(args.ranks, schedule.describe(first), measured(probe(emulated), first[0]))
            if command:
                player = RatePlayer(links, rates, file)
                chaos = _chaos(args, launcher, links)
                played = merge(player.play(), *([chaos.play()] if chaos else ()))
                code = launch.run(emulated, launcher, command, args.timeout, args.elastic, meanwhile=played)
                player.end()
                if chaos is not None:
                    chaos.end(code)
                yield code


def _chaos(args: argparse.Namespace, launcher: Mpiexec, links: Links) -> ChaosJob | None:
    """Return the faults that are asked for, None if none are."""
    if args.chaos is None:
        return None
    return ChaosJob(parse(args.chaos), args.ranks, args.elastic, launcher.library.version, links)


@contextmanager
def _launcher(kind: str) -> Iterator[Mpiexec]:
    """Yield what starts jobs on emulated hosts.

    Raises SystemExit: there can be no emulated hosts here, or the system refuses something within the ``with`` block.
    """
    if lacks := hosts.missing():
        raise SystemExit("\n".join([f"{kind} cannot run here:", *lacks]))
    try:
        yield launch.find_launcher()
    except RuntimeError as error:
        raise SystemExit(f"{kind} cannot run here: {error}") from None


def _told(ranks: int, rates: str, gave: Mapping[str, Any]) -> str:
    """Return what the links of hosts have been measured to give, and a remark if that is below their rate."""
    alone, together = 1e3 * gave["gbit"], 1e3 * gave["together"]
    found = f"measured {alone:.0f} Mbit/s, {gave['trip'] * 1e6:.0f} us round trip, {together:.0f} Mbit/s each at once"
    return f"{ranks} hosts, {rates}: {found}" + (f"; {gave['remark']}" if gave["remark"] else "")


def _slowest(rates: schedule.Schedule) -> int | None:
    """Return the lowest rate that a link ever has, unless it is down; None if none has a limit."""
    limits = [each for step in rates.rates for each in step if each not in (None, schedule.DOWN)]
    return min(limits, default=None)


def _schedule(args: argparse.Namespace) -> schedule.Schedule:
    """Return what the options say. Raise ValueError if they are wrong."""
    changes = args.trace is not None or args.every is not None
    if args.chaos is not None and changes and "link" in parse(args.chaos).kinds:
        raise ValueError("chaos with kinds=link takes links down by itself: leave --every and --trace out")
    if args.trace is None:
        return schedule.turns(args.rate, args.every, args.ranks)
    if args.every is not None or "," in args.rate:
        raise ValueError("trace has all changes: leave --every out, and give one --rate, for links without a line")
    return schedule.trace(args.trace, args.rate, args.ranks)


LATENCY = option(
    "--latency",
    "of a packet from host to host, each way, as 50us or 1ms, besides this machine's own",
    bench_options.latency,
    "0",
)
NETWORK = Benchmark(
    "network",
    help="run any of these commands over a slow network, emulated on this machine",
    description=DESCRIPTION,
    options=(
        option("--ranks", f"hosts, {RANKS[0]} to {RANKS[-1]}", values.integer(RANKS[0], RANKS[-1]), 4),
        option(
            "--rate",
            "of every link, in each direction, as tc writes it: 100mbit, 1gbit, ..., or none (default: 1gbit); "
            "several with commas, or down, take turns, beginning with the command",
            bench_options.turns,
            "1gbit",
        ),
        LATENCY,
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
        option("--timeout", "seconds the command may take", values.positive, 600),
        option(
            "--elastic",
            "let the other ranks go on when one is lost, for commands that use sparse_mpi.fault_tolerance",
            action="store_true",
        ),
        option(
            "command",
            "after a --: a path that ends in .py, or what follows python -m sparse_mpi, and its arguments",
            nargs=argparse.REMAINDER,
            metavar="-- COMMAND",
        ),
    ),
    measure=measure,
)


Command = Callable[[int, Link, Path], list[str]]  # of ranks, what a link gives, and the file for the record


def networks(ranks: list[int], rates: list[str], seconds: float) -> tuple[Option, ...]:
    """Return the options of which networks, with these defaults."""
    text = f"numbers of hosts, {RANKS[0]} to {RANKS[-1]}, a rank on each"
    return (
        option("--ranks P", text, values.integer(RANKS[0], RANKS[-1]), ranks, nargs="+"),
        option(
            "--rate",
            "of every link, in each direction, as tc writes it, or none",
            predict_options.rate,
            rates,
            nargs="+",
        ),
        LATENCY,
        option("--timeout", "seconds a job may take", values.positive, seconds),
    )


def jobs(
    kind: str, args: argparse.Namespace, command: Command, done: Collection[tuple[int, str]] = ()
) -> Iterator[dict[str, Any]]:
    """Yield the record of each job, with the ``rate`` of its network and what was ``measured`` of it, as they end.

    Raises SystemExit: there can be no emulated hosts here, or a job failed: with its exit code.
    """
    wanted = [(ranks, text) for ranks in dict.fromkeys(args.ranks) for text in dict.fromkeys(args.rate)]
    wanted = [job for job in wanted if job not in done]
    if not wanted:
        return
    output = sys.stderr if getattr(args, "format", TABLE) != TABLE else None  # stdout is for what is asked for
    told = output or sys.stdout
    with _launcher(kind) as launcher:
        for ranks, text in wanted:
            with hosts.emulate(ranks, rates.parse(text), latency=schedule.delay(args.latency)) as emulated:
                link = probe(emulated)
                gave = measured(link, emulated.rate)
                print(_told(ranks, text if emulated.rate else "no limit", gave), file=told, flush=True)
                file = emulated.folder / "record.json"
                if code := launch.run(emulated, launcher, command(ranks, link, file), args.timeout, output=output):
                    raise SystemExit(code)
                gave |= {
                    "latency": emulated.latency,
                    "burst": hosts.burst(emulated.rate) if emulated.rate else 0,
                    "packet": emulated.packet,
                }
                record = {"rate": text, "measured": gave, **json.loads(file.read_text())}
            print(file=told, flush=True)
            yield record
