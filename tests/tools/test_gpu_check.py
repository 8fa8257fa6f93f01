"""The command that proves everything on a machine with a GPU: on one without, pretended."""

from __future__ import annotations

import json
import os
import sys
import time
from argparse import Namespace

import pytest

from sparse_mpi import Layout, World, kernels
from sparse_mpi.tools.cli import gpu_check, main
from sparse_mpi.tools.cli.bench_allreduce import _compared
from sparse_mpi.tools.cli.gpu_check import Outcome, Stage, page, stages, tried, verdicts

from ..fakes.fake_array import WholeArrays
from ..launch import needs_mpi


def python(code, seconds=20.0, needs=""):
    return Stage("one", seconds, (sys.executable, "-c", code), needs)


@pytest.mark.parametrize(
    ("stage", "state", "why"),
    [
        (python("print('first'); print('well')"), "passed", "well"),
        (python("raise SystemExit('no')"), "failed", "no"),
        (python("", needs="nothing is there"), "skipped", "nothing is there"),
    ],
)
def test_a_stage_says_what_became_of_it(tmp_path, stage, state, why):
    outcome = tried(stage, tmp_path, os.environ)
    assert (outcome.name, outcome.state, outcome.why) == ("one", state, why)
    assert (tmp_path / "one.txt").exists() == (state != "skipped")


def test_a_stage_that_takes_too_long_is_ended_with_all_that_it_started(tmp_path):
    child = f"import subprocess; subprocess.run(['sh', '-c', 'sleep 2; touch {tmp_path}/late'])"
    outcome = tried(python(child, seconds=0.5), tmp_path, os.environ)
    assert outcome.state == "out of time" and outcome.seconds < 2
    time.sleep(2)
    assert not (tmp_path / "late").exists()


def test_all_stages_together_take_less_than_ten_minutes(tmp_path):
    for pretend in (False, True):
        found = stages(tmp_path, pretend)
        assert sum(stage.seconds for stage in found) <= 600 and len({stage.name for stage in found}) == len(found)


def test_training_that_must_end_in_the_same_bits_again_is_deterministic(tmp_path):
    training = [stage.command for stage in stages(tmp_path, False) if stage.name.startswith("train-")]
    assert len(training) == 3 and all("--deterministic" in command for command in training)


def test_the_page_says_when_all_was_pretended():
    facts = {"date": "today", "pretended": True, "gpu": None, "versions": {"python": "3", "cupy": None}}
    facts["mpi"] = {"library": "Open MPI v5", "launcher": "mpiexec"}
    text = page([Outcome("doctor", "passed", 1.25, "a | b", "python")], facts)
    assert (
        "Nothing here was run on a GPU" in text and "| doctor | passed | 1.2 | a / b |" in text and "cupy" not in text
    )


def test_times_are_judged_on_large_vectors_and_four_ranks():
    """By the bandwidth of the copy, which moves 12 bytes an element: 4.08 and 12.08 are needed at 1 %."""
    methods = {"copy": 12.0, "select": 4.5, "accumulate + select": 16.0, "top-k of rows": 3.0, "torch.topk": 50.0}
    methods |= {"torch.topk of rows": 12.0}
    case = {"n": 133_500_000, "density": 0.01, "methods": {name: [ms / 1e3] * 6 for name, ms in methods.items()}}
    steps = {"dense": {"step": 2.0}, "oktopk": {"step": 1.0}, "elect": {"step": 4.0}}
    records = {"select": {"cases": [case, case | {"n": 14_728_266}]}, "allreduce-4": {"algorithms": steps}}
    rows = [line.split("|")[2:4] for line in verdicts(records)[2:]]
    assert [(found.strip(), good.strip()) for found, good in rows] == [
        ("1.10 x", "yes"), ("1.32 x", "no"), ("11.1 x", "yes"), ("4.0 x", "no"), ("2.00 x as fast", "yes"),
        ("0.50 x as fast", "no"),
    ]  # fmt: skip
    assert verdicts({}) == []


@pytest.mark.parametrize("name", ["topka", "dense-bf16"])
def test_results_of_a_gpu_that_counts_wrong_are_found_out(device, monkeypatch, name):
    args = Namespace(density=0.01, steps=2, seed=0)

    def compared():
        return World(2).run(lambda comm: _compared(name, Layout.of(5000), args, comm))[0]

    assert compared() == {"laws": "hold", "apart": 0}
    monkeypatch.setattr(kernels, "device", Wrong)
    wrong = compared()
    assert wrong["apart"] > 0.01 if name == "topka" else "lost" in wrong["laws"], wrong


def other(indices, values, k, reuse=False):
    """The first k pairs, whatever their size."""
    return indices[:k], values[:k]


def forgetful(x, values):
    """Nothing left."""
    x.fill(0)


class Wrong(WholeArrays):
    """Kernels of a device that select and subtract wrongly."""

    truncate = staticmethod(other)
    subtract_dense = staticmethod(forgetful)


@needs_mpi
@pytest.mark.jobs
@pytest.mark.parametrize(
    "only",
    [["select", "allreduce-2"], pytest.param([], marks=pytest.mark.full("all stages take two minutes"))],
    ids=["some", "all"],
)
@pytest.mark.timeout(600)
def test_without_a_gpu_the_stages_are_taken_on_a_pretended_one(tmp_path, only, capsys):
    status = main(["gpu-check", "--pretend", "--out", str(tmp_path), *(["--only", *only] if only else [])])
    record = json.loads((tmp_path / "gpu-check.json").read_text())
    states = {stage["name"]: stage["state"] for stage in record["stages"]}
    assert status == 0 and set(states.values()) <= {"passed", "skipped"}, record["stages"]
    assert set(only or {stage.name for stage in stages(tmp_path, True)}) == states.keys()
    assert record["measured"]["allreduce-2"]["ranks"] == 2 and record["pretended"] is True
    assert record["mpi"].keys() == {"library", "launcher"}
    assert gpu_check.page([], record | {"versions": {}}).splitlines()[0] in capsys.readouterr().out
