"""The throughput benchmark, as a user starts it: tiny, under mpiexec and without."""

from __future__ import annotations

import json
import re

import pytest

from sparse_mpi.algorithms.powersgd import PowerSGD
from sparse_mpi.sparse import Layout
from sparse_mpi.tools.bench.models import vgg16

from ..launch import launch, needs_mpi

TINY = ("--batch-size", "2", "--image-size", "8", "--warmup", "1", "--rounds", "2", "--iterations", "2")
HANDSHAKE = 16  # bytes a rank sends in a step, of two, to make sure that both do the same


@pytest.mark.full("a benchmark of a whole model")
@needs_mpi
def test_two_ranks_compare_algorithms_and_leave_a_record(tmp_path):
    file = tmp_path / "r.json"
    options = ("--rank", "2", "--plans", "sparse", "best", "--json", str(file))
    done = launch(2, "train/throughput.py", *TINY, *options, seconds=300)
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^([\w ]+\w) +([\d.]+) \+- ([\d.]+) +([\d.]+) +([\d.]+) ", done.stdout, re.MULTILINE)
    candidates = ["dense", "powersgd", "acpsgd", "plan sparse", "plan best"]
    assert [name for name, *_ in rows] == candidates and rows[0][3] == "1.00"
    assert "round 2/2, plan best: 25/25 after" in done.stderr
    record = json.loads(file.read_text())
    assert record["ranks"] == 2 and record["options"]["rank"] == 2 and record["versions"]["mpi"]
    results = record["algorithms"]
    assert all(len(r["rounds"]) == 2 and r["images_per_second"] == sum(r["rounds"]) / 2 for r in results.values())
    predicted = {name for name, r in results.items() if r["predicted_seconds"]}
    assert predicted == {"dense", "plan sparse", "plan best"} and all(r["step_seconds"] > 0 for r in results.values())
    layout = Layout.of([shape for _, shape in vgg16()])
    sent = {name: r["bytes_per_step_and_rank"] for name, r in results.items()}
    assert sent["dense"] == 4 * layout.size + HANDSHAKE
    assert sent["powersgd"] == PowerSGD(rank=2).bound(layout, 1, 2).payload(8, 4) + HANDSHAKE
    assert sent["acpsgd"] < 0.6 * sent["powersgd"]


def test_what_cannot_be_done_is_said_in_a_line():
    done = launch(None, "train/throughput.py", "--algos", "dense", "oktopk", "--rank", "2")
    says = "--rank: has no effect on dense, oktopk; leave it out"
    assert done.returncode != 0 and says in done.stderr and "Traceback" not in done.stderr
