"""What an algorithm sends on P ranks of a `World`, counted, beside what its formula allows."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from sparse_mpi.algorithms import Algorithm
from sparse_mpi.analysis.gradients import Gradients
from sparse_mpi.analysis.recording import Call, RecordingComm
from sparse_mpi.analysis.selections import watched
from sparse_mpi.comm import Comm, Traffic
from sparse_mpi.comm.world import World
from sparse_mpi.reducer import SparseAllreduce
from sparse_mpi.reducer.report import StepReport
from sparse_mpi.sparse import Layout

WORD = 4  # bytes: the papers' unit
PAIR, VALUE = 8, 4  # bytes of float32 entries of fewer than 2^31 elements, as `Algorithm.bound` counts them
CHECKED = 16  # bytes of the agreement with which every step begins
TOLERANCE = 1 + 1e-9


class Phase(NamedTuple):
    """What the calls of one purpose send in a step."""

    words: float  # payload, mean over ranks and steps
    most_words: float  # of a rank in a step
    control: float  # bytes, mean
    messages: float  # most of a rank in a step


@dataclass(frozen=True)
class Volume:
    """What was counted; words are 4 bytes of payload a rank and step. Formulas include the agreement of a step."""

    algorithm: str
    ranks: int
    n: int
    k: int
    steps: int
    words: float  # mean over ranks and steps
    between: float  # of these, words for ranks of other nodes
    most_words: float
    control: float  # bytes, mean
    most_control: float
    messages: float  # most of a rank in a step, those of control too
    imbalance: float  # payload of the busiest rank over the mean, mean over the steps
    selected: float  # entries a rank selects, over k
    total: float  # entries of the result, over k
    fill_in: float | None  # entries that the ranks select together, each counted once, over k
    formula_words: float
    formula_control: float
    formula_messages: float
    lowest: float  # bytes, 8k(P-1)/P
    slowest: Traffic  # of the rank that sends most, mean over the steps
    phases: dict[str, Phase]

    @property
    def within(self) -> bool:
        """Whether no rank sent more than the formula allows."""
        return (
            self.most_words <= self.formula_words * TOLERANCE
            and self.messages <= self.formula_messages * TOLERANCE
            and self.most_control <= self.formula_control * TOLERANCE
        )

    def record(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {
            "within": self.within,
            "phases": {name: phase._asdict() for name, phase in self.phases.items()},
        }


class _Ran(NamedTuple):
    """What one rank knows after a run, an entry a counted step."""

    k: int
    reports: list[StepReport]
    phases: list[dict[str, Traffic]]
    between: list[float]  # bytes


def count(
    algorithm: Algorithm,
    name: str,
    gradients: Gradients,
    ranks: int,
    k: int,
    steps: int,
    warmup: int,
    progress: Callable[[], None] = lambda: None,
    ranks_per_node: int = 1,
) -> Volume:
    """Run ``warmup`` + ``steps`` steps with error feedback, and count the latter; ``progress`` is called after each.

    So many consecutive ranks are taken to be a node.
    """
    union, observed = watched(algorithm, gradients.size, ranks)

    def run(comm: Comm) -> _Ran:
        recording = RecordingComm(comm)
        reducer = SparseAllreduce(gradients.size, k=k, comm=recording, algorithm=observed)
        ran = _Ran(reducer.k, [], [], [])
        for step in range(warmup + steps):
            recording.record.clear()
            reducer.step(gradients.at(step, comm.rank))
            assert reducer.report is not None
            ran.reports.append(reducer.report)
            ran.phases.append(_by_phase(recording))
            ran.between.append(sum(leaving(call, comm.rank, ranks_per_node) for call in recording.record))
            if comm.rank == 0:
                progress()
        return _Ran(ran.k, ran.reports[warmup:], ran.phases[warmup:], ran.between[warmup:])

    ran = World(ranks).run(run)
    return _summary(algorithm, name, gradients.size, ran, [] if union is None else union.counts[warmup:])


def formula(algorithm: Algorithm, n: int, k: int, ranks: int) -> tuple[float, float, float]:
    """Words of payload, bytes of control and messages that one rank may send in a step, the agreement included."""
    bound = algorithm.bound(Layout.of(n), k, ranks)
    checks = 2 * CHECKED * (ranks - 1) // ranks
    words = bound.payload(PAIR, VALUE) / WORD
    return words, bound.control + checks, bound.messages + 2 * (ranks - 1).bit_length()


def leaving(call: Call, rank: int, ranks_per_node: int) -> float:
    """Bytes of payload that ``rank`` has for other nodes in ``call``.

    Where the call does not tell who gets what, because all get the same, they are spread evenly over the others.
    """
    receivers = np.array(list(call.to) or [member for member in call.members if member != rank], np.int64)
    weights = np.array(list(call.to.values()) or [1] * len(receivers), np.float64)
    away = receivers // ranks_per_node != rank // ranks_per_node
    return call.counted.sent * float(weights[away].sum() / weights.sum()) if call.counted.sent else 0.0


def gigabytes(algorithm: Algorithm, gradients: Gradients, ranks: int) -> float:
    """Memory that ``count`` needs, about: residuals, with gradients added and without, gradients where each is an array
    of its own, and two more where a vector is sent in pieces or in another type."""
    n = gradients.size
    bound = algorithm.bound(Layout.of(n), 1, ranks)
    copied = (bound.pairs > 0 and bound.values >= n) or bound.extra >= n
    return 4e-9 * n * ranks * (2 + (not gradients.shared) + 2 * copied)


def merged(algorithm: Algorithm, n: int, k: int, ranks: int) -> float:
    """Pairs that all ranks together receive, and have to merge, in a step; by the formula."""
    return ranks * algorithm.bound(Layout.of(n), k, ranks).pairs


def _by_phase(recording: RecordingComm) -> dict[str, Traffic]:
    added: dict[str, Traffic] = {}
    for call in recording.record:
        added[call.phase] = added.get(call.phase, Traffic()) + call.counted
    return added


def _summary(algorithm: Algorithm, name: str, n: int, ran: list[_Ran], covered: list[int]) -> Volume:
    """The numbers of all ranks in one record."""
    ranks, k, steps = len(ran), ran[0].k, len(ran[0].reports)
    reports = [report for rank in ran for report in rank.reports]
    traffic = [report.traffic for report in reports]
    sent = [[rank.reports[step].traffic.sent for rank in ran] for step in range(steps)]
    words, control, messages = formula(algorithm, n, k, ranks)
    busiest = max(ran, key=lambda rank: sum(r.traffic.sent + r.traffic.control for r in rank.reports))
    return Volume(
        name,
        ranks,
        n,
        k,
        steps,
        words=statistics.mean(t.sent for t in traffic) / WORD,
        between=statistics.mean(sent for rank in ran for sent in rank.between) / WORD,
        most_words=max(t.sent for t in traffic) / WORD,
        control=statistics.mean(t.control for t in traffic),
        most_control=max(t.control for t in traffic),
        messages=max(t.messages for t in traffic),
        imbalance=statistics.mean(max(step) * ranks / sum(step) if sum(step) else 1.0 for step in sent),
        selected=statistics.mean(report.selected for report in reports) / k,
        total=statistics.mean(report.total for report in reports) / k,
        fill_in=statistics.mean(covered) / k if covered else None,
        formula_words=words,
        formula_control=control,
        formula_messages=messages,
        lowest=8 * k * (ranks - 1) / ranks,
        slowest=_mean([report.traffic for report in busiest.reports]),
        phases=_phases(ran),
    )


def _mean(traffic: list[Traffic]) -> Traffic:
    """Whole bytes and messages, rounded up."""
    summed = sum(traffic[1:], traffic[0])
    sent, received, messages, control = (
        -(-part // len(traffic)) for part in (summed.sent, summed.received, summed.messages, summed.control)
    )
    return Traffic(sent, received, messages, control, summed.seconds / len(traffic))


def _phases(ran: list[_Ran]) -> dict[str, Phase]:
    """By phase, in the order in which they come."""
    steps = [step for rank in ran for step in rank.phases]
    found = {}
    for name in dict.fromkeys(name for step in steps for name in step):
        sent = [step.get(name, Traffic()) for step in steps]
        found[name] = Phase(
            statistics.mean(t.sent for t in sent) / WORD,
            max(t.sent for t in sent) / WORD,
            statistics.mean(t.control for t in sent),
            max(t.messages for t in sent),
        )
    return found
