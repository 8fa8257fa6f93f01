"""``bench published``: what the model says of the headlines that papers report, beside what they say."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from textwrap import wrap
from typing import NamedTuple

from sparse_mpi.cli import options
from sparse_mpi.cli.benchmark import Benchmark, Output
from sparse_mpi.cli.table import Column, Table
from sparse_mpi.predict.cluster import GPUS, Cluster, step_time
from sparse_mpi.predict.ways import table
from sparse_mpi_bench.analysis.reported import HEADLINES, Headline, Workload

MESSAGE = 1e-6  # seconds of processor time at either end: assumed
UNTOLD = "p100"  # where a source does not tell the GPU
NEAR = 0.3


class ModelledHeadline(NamedTuple):
    """A headline and what the model says."""

    headline: Headline
    published: tuple[float, float] | None  # ratios, least and most, of programs that work on copies in host memory
    ours: tuple[float, float] | None  # of ours, which select on the GPU

    @property
    def near(self) -> str:
        """Say how near the greatest ratio of programs as published comes."""
        if self.published is None:
            return "not told" if self.headline.network is None else "shapes"
        off = self.published[1] / self.headline.ratios[1]
        return f"{off:.2f}" + ("" if abs(off - 1) <= NEAR else " !")


def held(headline: Headline) -> ModelledHeadline:
    """Return what the model says of a headline, where its source tells the link and the table has the ways."""
    known = {headline.algorithm, *headline.against} <= set(table())
    if headline.network is None or not known:
        return ModelledHeadline(headline, None, None)
    plain = Cluster(headline.network.alpha, headline.network.beta, message=MESSAGE, node=headline.ranks_per_node)
    gpu = GPUS[(headline.gpu or UNTOLD).lower()]

    def seconds(name: str, work: Workload, ours: bool) -> float:
        on = plain if not ours or name == "dense" else Cluster(plain.alpha, plain.beta, message=MESSAGE, gpu=gpu)
        copies = 0.0 if ours else 8 * work.n / gpu.bus  # of the whole gradient, down and up again
        found = step_time(name, table()[name], work.n, work.density or 1.0, headline.ranks, on)
        return (work.compute or 0.0) + found.seconds + copies

    def ratios(ours: bool) -> tuple[float, float]:
        found = [
            seconds(other, work, ours) / seconds(headline.algorithm, work, ours)
            for work in headline.workloads
            for other in headline.against
        ]
        return min(found), max(found)

    return ModelledHeadline(headline, ratios(False), ratios(True))


def _published(args: argparse.Namespace) -> Iterator[Output]:
    found = [held(headline) for headline in HEADLINES]
    rows = Table(
        Column("", -38, lambda of: f"{of.headline.algorithm} over {', '.join(of.headline.against)}"[:38]),
        Column("P", 4, lambda of: of.headline.ranks),
        Column("reported", 13, lambda of: _span(of.headline.ratios)),
        Column("as published", 13, lambda of: _span(of.published)),
        Column("over", 9, "near"),
        Column("as ours", 13, lambda of: _span(of.ours)),
    )
    told = dict.fromkeys(
        f"P = {of.ranks}, {of.workloads[0].model}: {of.source}. Not told: {of.untold}" for of in HEADLINES
    )
    yield "\n".join(
        [
            "how many times as long a step takes with others: reported; by the model of programs that work on copies",
            "in host memory; what that is over the greatest reported (! beyond 30 %); by the model of ours on a GPU",
            "",
            *rows.lines(found),
            "",
            *(line for note in told for line in wrap(note, 118)),
        ]
    )
    cases = [{"reported": of.headline.ratios, "published": of.published, "ours": of.ours} for of in found]
    yield {"cases": [of.headline._asdict() | case for of, case in zip(found, cases, strict=True)]}


def _span(ratios: tuple[float, float] | None) -> str:
    if ratios is None:
        return "-"
    low, high = ratios
    return f"{low:.2f}" if low == high else f"{low:.2f} - {high:.2f}"


PUBLISHED = Benchmark(
    "published",
    help="what the model says of the headlines that papers report",
    description="Ok-Topk on Piz Daint, ADTopk's logs, ACP-SGD and gTopk: reported, and by this model.",
    options=(options.json("also write all numbers"),),
    measure=_published,
)
