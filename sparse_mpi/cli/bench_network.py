"""``python -m sparse_mpi bench network``: a command of ours on emulated hosts, with a slow network between them."""

from __future__ import annotations

import argparse

from sparse_mpi.emulation import hosts, launch, rate
from sparse_mpi.emulation.probe import probe

RANKS = range(2, 17)
DESCRIPTION = """\
Run a command of ours with one MPI rank on each of several hosts that are emulated on this machine: network namespaces,
joined by rate-limited links to a switch. All messages go over TCP through these links. What they really give is
measured first and printed; without a command, that is all. The exit code is the command's, 124 past --timeout.

  python -m sparse_mpi bench network --ranks 4 --rate 1gbit -- bench allreduce --steps 5 --algorithms dense oktopk
  python -m sparse_mpi bench network --ranks 4 --rate 1gbit -- train/vgg.py --algo oktopk --max-steps 20

Needs Linux, root, iproute2 and Open MPI or MPICH. The ranks share this machine's cores and memory bandwidth: what they
compute takes longer than on hosts of their own. Latency is that of this machine, tens of microseconds. A link lets a
millisecond's worth (at least 128 KiB) pass at once before it holds to its rate.
"""


def add_parser(kinds: argparse._SubParsersAction) -> None:
    """Declare ``bench network``."""
    parser = kinds.add_parser(
        "network",
        help="run any of these commands over a slow network, emulated on this machine",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--ranks", type=int, default=4, help=f"hosts, {RANKS[0]} to {RANKS[-1]} (default: 4)")
    text = "of every link, in each direction, as tc writes it: 100mbit, 1gbit, ..., or none (default: 1gbit)"
    parser.add_argument("--rate", default="1gbit", help=text)
    parser.add_argument("--timeout", type=float, default=600, help="seconds the command may take (default: 600)")
    text = "let the other ranks go on when one is lost, for commands that use sparse_mpi.elastic"
    parser.add_argument("--elastic", action="store_true", help=text)
    text = "after a --: a path that ends in .py, or what follows python -m sparse_mpi, and its arguments"
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help=text)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Set up, measure, run the command, remove; returns its exit code."""
    if args.ranks not in RANKS:
        raise SystemExit(f"--ranks must be {RANKS[0]} to {RANKS[-1]}, got {args.ranks}")
    if not args.timeout > 0:
        raise SystemExit(f"--timeout must be more than 0 seconds, got {args.timeout:g}")
    command = args.command[args.command[:1] == ["--"] :]
    try:
        limit = rate.parse(args.rate)
    except ValueError as error:
        raise SystemExit(f"--{error}") from None
    if lacks := hosts.missing():
        raise SystemExit("\n".join(["bench network cannot run here:", *lacks]))
    try:
        launcher = launch.find_launcher()
        with hosts.emulate(args.ranks, limit) as emulated:
            link = probe(emulated)
            print(
                f"{args.ranks} hosts, {args.rate if limit else 'no limit'}: measured {link.rate / 1e6:.0f} Mbit/s, "
                f"{link.trip * 1e6:.0f} us round trip",
                flush=True,
            )
            return launch.run(emulated, launcher, command, args.timeout, args.elastic) if command else 0
    except RuntimeError as error:
        raise SystemExit(f"bench network cannot run here: {error}") from None
