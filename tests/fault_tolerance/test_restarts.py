"""torchrun's jobs that lose processes and nodes: a few of what `python -m tests.fault_tolerance.restarts` does."""

from __future__ import annotations

import random
from typing import Any

import pytest

from .restarts import draw, lose

pytest.importorskip("torch.distributed")
pytestmark = pytest.mark.jobs
DRAWN = random.Random(75)


def fault(kind: str, node: int = 0, processes: int = 1, after: float = 0.2) -> dict[str, Any]:
    return {"kind": kind, "node": node, "processes": processes, "after": after, "hasty": False}


JOBS = {
    "a process, then a node": {"nodes": [2, 1], "algorithm": "elect", "faults": [fault("process"), fault("node", 1)]},
    "a node joins": {"nodes": [1], "algorithm": "oktopk", "faults": [fault("join", processes=2)]},
}
MORE = {
    "the node with torchrun's store": {"nodes": [1, 2], "algorithm": "oktopk", "faults": [fault("node", 0)]},
    "rank 0, which has the store, freezes": {"nodes": [2], "algorithm": "topka", "faults": [fault("freeze")]},
}
MORE |= {f"drawn {number}": draw(DRAWN) for number in range(12)}


@pytest.mark.parametrize(
    "job", [*JOBS.values(), *(pytest.param(job, marks=pytest.mark.full("as the others")) for job in MORE.values())],
    ids=[*JOBS, *MORE],
)  # fmt: skip
def test_a_job_of_torchrun_ends_as_planned_restarts(job):
    result = lose(job)
    assert result["problem"] is None, str(result)
    assert result["refused"][0] is None, "the first fault finds the job training"
