"""Claims of the pages that fit in an hour together: where each stands, its job, how its record is read, its band.

`runs/reproduce.py` runs the jobs; its `--list` prints them.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from sparse_mpi_bench.emulation import hosts

README, RESULTS = "README.md", "docs/results/README.md"
COMMUNICATION, NETWORKS, STEP, SPARSE, ACCURACY, FAULTS, FORMATS, COSTS = (
    *(f"docs/explanation/{name}.md" for name in "communication networks one-step sparse-sums accuracy faults".split()),
    *(f"docs/reference/{name}.md" for name in ("algorithms", "gpu-costs")),
)

Band = tuple[float, float]  # the least and the most that a number may be
Record = Any  # of a job: its JSON, the list of the ones in a folder, or the counts that pytest writes


class Job(NamedTuple):
    """A command of Python; OUT in it is the file or the folder of its record."""

    command: str
    minutes: float  # on two cores that nothing else uses
    needs: tuple[str, ...] = ()  # of NEEDS


class Claim(NamedTuple):
    """A number of a page: its place, and the band that a job must reach."""

    what: str
    page: str
    says: str  # as it stands on the page
    job: str
    read: Callable[[Record], Sequence[float]]
    bands: Sequence[Band]
    why: str  # the bands are as wide as they are
    origin: str  # the record that the page has it from


def near(*expected: float, within: float = 0.02) -> list[Band]:
    """Return bands around numbers, by a share of each."""
    return [(value - within * abs(value), value + within * abs(value)) for value in expected]


def least(*values: float) -> list[Band]:
    """Return bands that have no upper end."""
    return [(value, math.inf) for value in values]


def most(*values: float) -> list[Band]:
    """Return bands from 0 on."""
    return [(0.0, value) for value in values]


NEEDS: dict[str, Callable[[], str]] = {
    "root": lambda: "; ".join(hosts.missing()),
    "mpi": lambda: (
        "" if shutil.which("mpiexec", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}") else "no mpiexec"
    ),
    **{
        name: lambda name=name: "" if find_spec(name) else f"no {name}"  # type: ignore[misc]
        for name in ("numba", "torch", "scipy", "sklearn", "pytest")
    },
    "g++": lambda: "" if shutil.which("g++") else "no g++",
}

BENCH = "-m sparse_mpi bench"
JOBS: dict[str, Job] = {
    "volume": Job(f"{BENCH} volume --ranks 8 32 --n 100000 --density 0.01 --steps 16 --warmup 8 --json OUT", 0.5),
    "packed": Job(
        f"{BENCH} volume --algorithms oktopk:wire=packed --ranks 2 8 64 --steps 64 --warmup 0 --density 0.01 "
        "--json OUT",
        0.3,
    ),
    "energy": Job(
        f"{BENCH} volume --ranks 8 32 --n 100000 --density 0.01 --steps 64 --warmup 0 --algorithms oktopk topka "
        "topkdsa gtopk spardl micro elect elect:wire=packed --gradients independent opposed disjoint --json OUT",
        2,
    ),
    "sparse-volume": Job(f"{BENCH} volume --keyed --cases uniform identical --ranks 256 --json OUT", 0.5),
    "kernels": Job(
        f"{BENCH} kernels --n 14728266 --density 0.01 --threads 1 --rounds 9 --json OUT", 0.5, ("numba", "torch")
    ),
    "steps": Job("-m sparse_mpi run -n 1 runs/steps.py --steps 20 --json OUT", 0.3, ("mpi", "numba")),
    "algorithms": Job(
        "-m sparse_mpi run -n 4 -m sparse_mpi bench steps --steps 6 --warmup 3 "
        "--algorithms topka gtopk oktopk adtopk powersgd --json OUT",
        0.5,
        ("mpi",),
    ),
    "laws": Job(
        "-m sparse_mpi run -n 4 train/vgg.py --tiny --algo oktopk --check-every 1 --max-steps 10 --no-progress "
        "--out OUT",
        0.5,
        ("mpi", "torch", "sklearn"),
    ),
    "compare-8": Job(
        f"{BENCH} network --ranks 8 --rate 1gbit --json OUT -- bench steps --algorithms oktopk elect "
        "--wires own packed packed+bf16 --steps 6 --warmup 6 --seconds 20",
        1.5,
        ("root", "mpi", "numba"),
    ),
    "compare-4": Job(
        f"{BENCH} network --ranks 4 --rate 1gbit 100mbit --json OUT -- bench steps --algorithms oktopk "
        "--wires own packed+bf16 --steps 5 --warmup 4 --seconds 25",
        2,
        ("root", "mpi", "numba"),
    ),
    "sparse": Job(
        f"{BENCH} network --ranks 8 --rate 1gbit -- bench sparse --steps 5 --json OUT", 1.5, ("root", "mpi", "scipy")
    ),
    "elastic": Job(
        f"{BENCH} network --elastic --ranks 8 --rate 1gbit -- bench steps --algorithms elect --copy-every 200 "
        "--steps 100 --warmup 4 --seconds 60 --json OUT",
        3,
        ("root", "mpi"),
    ),
    "lstm": Job(
        "train/study.py lstm --ranks 8 --seeds 41 --ways dense elect --out OUT -- --task text --tiny --epochs 9 "
        "--batch-size 8 --optimizer adam --lr 3e-3",
        2,
        ("torch",),
    ),
    "vit": Job(
        "train/study.py vit --ranks 8 --seeds 21 --ways dense elect:density=0.05 --out OUT -- --tiny --epochs 20",
        5,
        ("torch", "sklearn"),
    ),
    "pages": Job(
        "-m pytest -q --tier all tests/docs/test_pages.py -k python_of_a_page --junitxml OUT", 4, ("pytest", "torch")
    ),
    "launches": Job("-m pytest -q --tier all tests/comm/test_device_budget.py --junitxml OUT", 1, ("pytest", "g++")),
}


def sent(algorithm: str, member: str = "words") -> Callable[[Record], list[float]]:
    """Return a reader of words over k(P-1)/P, one for each number of ranks."""
    return lambda record: [
        row[member] * row["ranks"] / (row["ranks"] - 1) / row["k"]
        for row in record["volumes"]
        if row["algorithm"] == algorithm
    ]


def over_bound(record: Record) -> list[float]:
    """Read bytes, control included, over 8k(P-1)/P."""
    return [row["over bound"] for row in record["volumes"]]


def cases(member: str, gradients: str, *algorithms: str, ranks: int | None = None) -> Callable[[Record], list[float]]:
    """Return a reader of `bench volume`, by algorithm and then by the number of ranks."""
    return lambda record: [
        row[member]
        for algorithm in algorithms
        for row in record["volumes"]
        if (row["algorithm"], row["gradients"]) == (algorithm, gradients) and row["ranks"] in (ranks or row["ranks"],)
    ]


def formats(member: str, *names: str) -> Callable[[Record], list[float]]:
    """Return a reader of message formats of `bench kernels`."""
    return lambda record: [record["cases"][0]["formats"][name][member] for name in names]


def kilobytes(case: str) -> Callable[[Record], list[float]]:
    """Return a reader of `bench volume --keyed`: butterfly, split, doubling, gather."""
    return lambda record: [
        row["sent"] / 1000
        for name in ("butterfly", "split", "doubling", "gather")
        for row in record["volumes"]
        if (row["case"], row["algorithm"]) == (case, name)
    ]


def ratio(above: str, below: str) -> Callable[[Record], list[float]]:
    """Return a reader of `bench kernels`: the median of one method over that of another, round by round."""

    def read(record: Record) -> list[float]:
        methods = record["cases"][0]["methods"]
        ratios = sorted(a / b for a, b in zip(methods[above], methods[below], strict=True))
        return [ratios[len(ratios) // 2]]

    return read


def passes(*names: str) -> Callable[[Record], list[float]]:
    """Return a reader of `runs/steps.py`: the least time of each over the least of an add pass."""
    return lambda record: [record["ms"][name]["least"] / record["ms"]["add"]["least"] for name in names]


def milliseconds(name: str) -> Callable[[Record], list[float]]:
    """Return a reader of `bench steps` on emulated networks: a step, one for each rate."""
    return lambda record: [1e3 * job["results"][name]["step"] for job in record["jobs"]]


def faster(*names: str) -> Callable[[Record], list[float]]:
    """Return a reader of `bench steps` on emulated networks: speedups over dense, by name and then by rate."""
    return lambda record: [1 / job["results"][name]["over dense"] for name in names for job in record["jobs"]]


def over_pickled(member: str) -> Callable[[Record], list[float]]:
    """Return a reader of `bench sparse`: pickled allreduce over auto, the least and the most of all cases."""

    def read(record: Record) -> list[float]:
        rows = [case["candidates"] for case in record["cases"].values()]
        ratios = [row["pickled allreduce"][member] / row["auto"][member] for row in rows]
        return [min(ratios), max(ratios)]

    return read


def memory(record: Record) -> list[float]:
    """Read the most memory of auto, over the bytes of its input and result."""
    return [max(case["candidates"]["auto"]["memory"] for case in record["cases"].values())]


def survival(record: Record) -> list[float]:
    """Read the steps of a team over the steps of ranks that do not survive, turn by turn."""
    both = (record["results"][name]["steps"] for name in ("elect in a team", "elect"))
    ratios = sorted(a / b for a, b in zip(*both, strict=False))
    return [ratios[len(ratios) // 2]]


def score(record: Record) -> list[float]:
    """Read the score of a sparse run minus that of the dense one, and its bytes in per cent of dense's."""
    runs = sorted(record, key=lambda run: run["way"] != "dense")
    return [runs[1]["score"] - runs[0]["score"], 100 * runs[1]["mb_total"] / runs[0]["mb_total"]]


def tests(record: Record) -> list[float]:
    """Read how many tests have failed, and how many have passed."""
    failed = record["failures"] + record["errors"]
    return [failed, record["tests"] - record["skipped"] - failed]


COUNTED = "counted, from a fixed seed: 2 %, for another NumPy rounds otherwise"
RINGS = "the links decide: a ring of 2n(P-1)/P words at the rate takes 824 ms on 8 hosts and 707 on 4"
SHARED = "ranks share two cores, which other work slows down: half of what the page has"
DIFFERS = "ratios of kernels differ by processor: a third of what the page has"

CLAIMS: dict[str, Claim] = {
    "volume.topka": Claim(
        "words of a rank over k(P-1)/P, P = 8 and 32: twice P",
        FORMATS,
        "| TopkA: allgather of all selections | 2k(P-1) | 8.0, 32.0 |",
        "volume",
        sent("topka"),
        near(16, 64),
        COUNTED,
        "conformance suite",
    ),
    "volume.dense": Claim(
        "words over n, P = 8 and 32",
        FORMATS,
        "| `dense` | allreduce of all entries | 2n | 100, 100 |",
        "volume",
        lambda record: [words / 100 for words in sent("dense")(record)],
        near(2, 2),
        "counted; k is n / 100",
        "conformance suite",
    ),
    "volume.oktopk": Claim(
        "words over k(P-1)/P",
        FORMATS,
        "balanced allgather | 4k as a rule, 6k at most | 2.0, 2.0 |",
        "volume",
        sent("oktopk"),
        near(4, 4, within=0.1),
        "counted; at most k entries pass the threshold, as a rule a few per cent fewer",
        "volume-formats",
    ),
    "volume.oktopk-most": Claim(
        "words of the busiest rank and step over k(P-1)/P",
        FORMATS,
        "balanced allgather | 4k as a rule, 6k at most | 2.0, 2.0 |",
        "volume",
        sent("oktopk", "most_words"),
        most(6, 6),
        "the bound",
        "volume-formats",
    ),
    "volume.elect": Claim(
        "words over k(P-1)/P, in int8, P = 8 and 32",
        FORMATS,
        "| ours: ranks vote, all give values of the elected | 2.4k packed, 1k in int8 |",
        "volume",
        sent("elect"),
        near(0.95, 0.95, within=0.1),
        "counted; control comes to it",
        "energy",
    ),
    "volume.spardl": Claim(
        "words over k(P-1)/P",
        FORMATS,
        "Bruck allgather | 4k, in 2 log2 P messages | 2.0, 1.8 |",
        "volume",
        sent("spardl"),
        near(4, 3.7, within=0.05),
        "counted; on more ranks selections overlap",
        "energy",
    ),
    "volume.micro": Claim(
        "words over k(P-1)/P",
        FORMATS,
        "each rank chooses in its own part | 3k to 4k | 1.75, 1.8 |",
        "volume",
        sent("micro"),
        [(3, 4)] * 2,
        "a third of them indices; its threshold lags by up to a quarter",
        "energy",
    ),
    "volume.gtopk": Claim(
        "words of the busiest rank over k: half of the critical path is sent, 2 log2 P",
        FORMATS,
        "| 4k log2 P on the critical path | 2.0, 2.0 |",
        "volume",
        lambda record: [row["most_words"] / row["k"] for row in record["volumes"] if row["algorithm"] == "gtopk"],
        near(6, 10),
        COUNTED,
        "energy",
    ),
    "volume.result": Claim(
        "entries of the sum over k, P = 8 and 32: gtopk, oktopk, spardl",
        FORMATS,
        "| 4k log2 P on the critical path | 2.0, 2.0 |",
        "volume",
        lambda record: [
            row["total"]
            for name in ("gtopk", "oktopk", "spardl")
            for row in record["volumes"]
            if row["algorithm"] == name
        ],
        [(1, 1), (1, 1), (0.9, 1), (0.9, 1), (0.9, 1), (0.9, 1)],
        "k entries, about k, at most k",
        "volume-formats",
    ),
    "volume.packed": Claim(
        "bytes over 8k(P-1)/P, P = 2, 8, 64",
        COMMUNICATION,
        "| independent | `packed` | 1.339, 1.03 | 1.315, 1.09 | 1.304, 1.15 |",
        "packed",
        over_bound,
        near(1.339, 1.315, 1.304, within=0.03),
        "counted, from a fixed seed; words are those of the page to the last digit, control is less since",
        "volume-formats",
    ),
    **{
        f"bytes.{name}": Claim(
            "bytes over 8k(P-1)/P, control included, P = 8 and 32",
            FORMATS,
            says,
            "energy",
            cases("over bound", "independent", name),
            near(*expected, within=0.04),
            "counted; the page rounds to two digits",
            "worst inputs",
        )
        for name, says, expected in (
            ("topka", "| TopkA: allgather of all selections | 2k(P-1) | 8.0, 32.0 |", (8.0, 32.0)),
            ("topkdsa", "dense if smaller | 4k to 2k + n | 8.7, 28.5 |", (8.7, 28.5)),
            ("gtopk", "| 4k log2 P on the critical path | 2.0, 2.0 |", (2.0, 2.0)),
            ("oktopk", "balanced allgather | 4k as a rule, 6k at most | 2.0, 2.0 |", (2.0, 2.0)),
            ("spardl", "Bruck allgather | 4k, in 2 log2 P messages | 2.0, 1.8 |", (2.0, 1.8)),
            ("micro", "each rank chooses in its own part | 3k to 4k | 1.75, 1.8 |", (1.75, 1.8)),
            ("elect:wire=packed", "| 2.4k packed, 1k in int8 | 1.2, 1.2 packed |", (1.2, 1.2)),
        )
    },
    "energy.gain": Claim(
        "energy that elect removes over what oktopk does, P = 8 and 32",
        RESULTS,
        "n = 10^5: `elect` removes 2.06 and 2.62 times as much energy as `oktopk` on 8 and 32 ranks",
        "energy",
        lambda record: [
            a / b
            for a, b in zip(
                cases("energy", "independent", "elect:wire=packed")(record),
                cases("energy", "independent", "oktopk")(record),
                strict=True,
            )
        ],
        near(2.06, 2.62, within=0.05),
        "counted, from a fixed seed",
        "energy",
    ),
    "energy.opposed": Claim(
        "energy on opposed gradients, P = 8: oktopk, elect",
        FORMATS,
        "| `oktopk` | ranks that oppose each other | energy -0.10, P = 8 and 32 (`elect`: 0.10) |",
        "energy",
        cases("energy", "opposed", "oktopk", "elect", ranks=8),
        [(-0.11, -0.09), (0.09, 0.11)],
        "counted, from a fixed seed, to two digits",
        "worst inputs",
    ),
    "energy.disjoint": Claim(
        "energy on disjoint gradients, P = 32: spardl, oktopk",
        FORMATS,
        "| `spardl` | disjoint gradients | energy 0.35, P = 32 (`oktopk`: 1.00) |",
        "energy",
        cases("energy", "disjoint", "spardl", "oktopk", ranks=32),
        near(0.35, 1.0, within=0.03),
        "counted, from a fixed seed, to two digits",
        "worst inputs",
    ),
    "wire.bytes": Claim(
        "bytes of an entry in 8, 4 and 2 bits, of 1 % of normal values",
        COMMUNICATION,
        "takes 2.10, 1.60 and 1.35 bytes in 8, 4 and 2 bits, and is off by 0.4, 3 and 6 %",
        "kernels",
        formats("bytes a pair", "packed+int8", "packed+int4", "packed+int2"),
        near(2.10, 1.60, 1.35, within=0.01),
        "counted, from a fixed seed",
        "bench kernels",
    ),
    "wire.error": Claim(
        "per cent that such an entry is off by",
        COMMUNICATION,
        "takes 2.10, 1.60 and 1.35 bytes in 8, 4 and 2 bits, and is off by 0.4, 3 and 6 %",
        "kernels",
        lambda record: [100 * error for error in formats("error", "packed+int8", "packed+int4", "packed+int2")(record)],
        near(0.44, 3, 6, within=0.05),
        "from a fixed seed, to a digit",
        "bench kernels",
    ),
    **{
        f"sparse.{case}": Claim(
            "kB of payload of a rank, P = 256: butterfly, split, doubling, gather",
            SPARSE,
            says,
            "sparse-volume",
            kilobytes(case),
            near(*expected, within=0.03),
            "counted, from a fixed seed; the page has two or three digits",
            "sparse-volume",
        )
        for case, says, expected in (
            ("uniform", "| uniform | 256 | 78 | 76 | 147 | 231 |", (78, 76, 147, 231)),
            ("identical", "| identical | 256 | 1.8 | 2.2 | 7.3 | 232 |", (1.83, 2.2, 7.3, 232)),
        )
    },
    "select.topk": Claim(
        "torch.topk over select, 14.7 M entries, a thread",
        RESULTS,
        "`torch.topk` 113 times `select`",
        "kernels",
        ratio("torch.topk", "select"),
        least(38),
        DIFFERS,
        "select-cpu",
    ),
    "select.floor": Claim(
        "accumulate and select over a copy of 12 bytes an element",
        RESULTS,
        "accumulate and select takes 0.78 of a copy of 12 bytes an entry",
        "kernels",
        ratio("accumulate + select", "copy"),
        most(1.2),
        "half as much again as the page has",
        "select-cpu",
    ),
    "step.overhead": Claim(
        "a step of a rank alone over an add pass: oktopk, elect",
        STEP,
        "| 1 | 6.9 | 10.0 | 9.4 |",
        "steps",
        passes("oktopk", "elect"),
        most(2.2, 2.2),
        "least of 20 steps; half as much again as the page has",
        "steps",
    ),
    "mpi.bytes": Claim(
        "bytes over 8k(P-1)/P on 4 ranks of MPI: topka, gtopk, oktopk",
        RESULTS,
        "x least `topka` 4.000, `gtopk` 2.667, `oktopk` 1.985",
        "algorithms",
        lambda record: [record["results"][name]["over bound"] for name in ("topka", "gtopk", "oktopk")],
        near(4.0, 2.667, 1.985),
        COUNTED,
        "allreduce-p4-cpu",
    ),
    "mpi.adtopk": Claim(
        "words over k(P-1) on 4 ranks of MPI, tensors that are sent whole included",
        FORMATS,
        "top k of every row of every tensor | 1.25 to 1.75 k(P-1) |",
        "algorithms",
        lambda record: [record["results"]["adtopk"]["over bound"] * 2 / 4],
        [(1.25, 1.75)],
        "by the width of rows, and how many steps are plain",
        "allreduce-p4-cpu",
    ),
    "mpi.powersgd": Claim(
        "bytes over 8k(P-1)/P on 4 ranks of MPI",
        FORMATS,
        "by power iteration | factors | 1.12, P = 4 |",
        "algorithms",
        lambda record: [record["results"]["powersgd"]["over bound"]],
        near(1.12),
        "counted",
        "allreduce-p4-cpu",
    ),
    "laws": Claim(
        "steps of training in which both laws were asserted on 4 ranks of MPI",
        README,
        "the sum has **the same bytes on every rank**, and **nothing is lost**",
        "laws",
        lambda record: [record[-1]["steps"]],
        [(10, 10)],
        "a step that breaks a law ends the job",
        "conformance suite",
    ),
    "network.dense-8": Claim(
        "ms of a dense sum of VGG-16's gradient on 8 hosts at 1 Gbit/s",
        README,
        "8 hosts, 1 Gbit/s: 1004 ms dense, 114 ms by Ok-Topk",
        "compare-8",
        milliseconds("dense"),
        [(780, 1250)],
        RINGS,
        "compare-vgg16",
    ),
    "network.oktopk-8": Claim(
        "dense over oktopk packed there",
        README,
        "8 hosts, 1 Gbit/s: 1004 ms dense, 114 ms by Ok-Topk",
        "compare-8",
        faster("oktopk packed"),
        least(4.4),
        SHARED,
        "compare-vgg16",
    ),
    "network.break-even": Claim(
        "Gbit/s from which dense is faster than oktopk packed there, by what both computed on two cores",
        "docs/explanation/networks.md",
        "The break-even is the bandwidth up to which a candidate is faster than dense",
        "compare-8",
        lambda record: [record["jobs"][0]["results"]["oktopk packed"]["break even"] / 1e9],
        [(8, 30)],
        "computed from two times, and other work on the cores changes one of them; 11 in the table, more since",
        "compare-vgg16",
    ),
    "network.step-8": Claim(
        "dense over oktopk in bfloat16 and elect in int8 there",
        STEP,
        "as `oktopk` in bfloat16 (99 to 109 ms), 6.9 to 7.4 times as long as `elect` (131 to 142)",
        "compare-8",
        faster("oktopk packed+bf16", "elect"),
        least(5, 3.4),
        SHARED,
        "steps",
    ),
    "network.dense-4": Claim(
        "ms of a dense sum on 4 hosts at 1 Gbit/s and 100 Mbit/s",
        NETWORKS,
        "| dense | 7,493 | 788 | 8,811 |",
        "compare-4",
        milliseconds("dense"),
        [(670, 1000), (6700, 9400)],
        RINGS,
        "compare-vgg16",
    ),
    "network.oktopk-4": Claim(
        "dense over oktopk in bfloat16 on 4 hosts at 1 Gbit/s and 100 Mbit/s",
        NETWORKS,
        "| oktopk packed+bf16 | 80 (92.0x) | 51 (15.9x) |",
        "compare-4",
        faster("oktopk packed+bf16"),
        least(8, 46),
        SHARED,
        "compare-vgg16",
    ),
    "sparse.pickled": Claim(
        "pickled allreduce over auto, least and most of five kinds of keys",
        SPARSE,
        "Against pickled `allreduce` on eight hosts it is 5 to 10 times as fast",
        "sparse",
        over_pickled("seconds"),
        least(2.5, 5),
        SHARED,
        "sparse-compare",
    ),
    "sparse.bytes": Claim(
        "the same, bytes of the busiest host",
        SPARSE,
        "with a third to a thirteenth of the bytes",
        "sparse",
        over_pickled("bytes"),
        [(2.8, 4.2), (12, 14)],
        "counted at the links, with headers; what the busiest host pickles differs by how MPI's tree lies",
        "sparse-compare",
    ),
    "sparse.memory": Claim(
        "most bytes that auto holds, over its input and result",
        SPARSE,
        "at most 2.5 times the bytes of its input and result",
        "sparse",
        memory,
        most(2.6),
        "by tracemalloc",
        "sparse-compare",
    ),
    "faults.team": Claim(
        "a step of a team over a plain one, 8 hosts",
        FAULTS,
        "a step of VGG-16 at 1 % takes 1.9 +- 1.0 % longer with T = 200",
        "elastic",
        survival,
        [(0.9, 1.15)],
        "100 steps in place of 400, and cores that are shared",
        "elastic",
    ),
    "accuracy.lstm": Claim(
        "perplexity minus dense's after 198 steps, and bytes in per cent of dense's",
        ACCURACY,
        "19.5 18.4 | -6.4 -4.1",
        "lstm",
        score,
        [(-10, -1), (1.0, 1.5)],
        "one seed of two; they leave a plateau at other steps",
        "accuracy-adam",
    ),
    "accuracy.vit": Claim(
        "accuracy minus dense's, and bytes in per cent of dense's",
        ACCURACY,
        "seeds 21 to 23: dense 97.8 97.5 95.6 %, `elect` 95.0 98.9 96.4 for 8.9 of 311 MB",
        "vit",
        score,
        [(-0.04, 0.04), (2.5, 3.0)],
        "one seed of three, which differ by 4 points",
        "accuracy-adam",
    ),
    "pages": Claim(
        "pages of whose Python some block prints something else, and pages that print what they show",
        "docs/tutorials/one-process.md",
        "oktopk 12,136 bytes",
        "pages",
        tests,
        [(0, 0), (15, math.inf)],
        "each page says how far its numbers may differ",
        "the pages",
    ),
    "gpu.launches": Claim(
        "algorithms and rules that wait, launch or copy more or less on a pretended device, and those that do not",
        COSTS,
        "| oktopk | 4 | 12 | 4 | 11 | 22 |",
        "launches",
        tests,
        [(0, 0), (15, math.inf)],
        "counted",
        "the test",
    ),
}
