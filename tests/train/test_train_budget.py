"""Training by a byte budget: its options, what a run records and draws, and a run that is resumed."""

from __future__ import annotations

import json

import pytest

from sparse_mpi.comm import NullComm
from sparse_train.options.reduction import algorithm_and_options
from sparse_train.records.metrics import BUDGET, plot, record

from .small_training import settings, train
from .test_train_arguments import options


def test_a_budget_takes_the_place_of_the_density():
    args = options("--budget", "5MB/s", "--step-seconds", "0.2")
    assert (args.budget, args.step_seconds, args.density, args.k) == ("5MB/s", 0.2, None, None)
    assert algorithm_and_options(args) == {"algorithm": "elect"}
    args = options("--step-seconds", "2")
    assert (args.budget, args.step_seconds, args.density) == (None, 2.0, None)
    assert options().density == 0.01 and options().budget is None


def test_decisions_are_recorded_and_drawn(tmp_path, no_signals):
    pytest.importorskip("matplotlib")
    comm, args = NullComm(), settings(out=tmp_path, log_every=1)
    args.budget, args.step_seconds = "1MB/s", 0.5
    metrics = record(args, comm, headline="accuracy", algo="topka", data="toy", k=1, parameters=9)
    metrics.close()
    train(comm, settings(log_every=1), tmp_path / "run", budget="1MB/s", step_seconds=0.5, algorithm="topka")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    decided = [line for line in lines if line["event"] == BUDGET]
    assert [line["decision"] for line in decided] == list(range(1, len(decided) + 1))
    assert len(decided) == sum(line["event"] == "step" for line in lines) - 2
    assert {"step", "epoch", "k", "dense", "why", "seconds", "exposed", "mb_sent", "mb_credit", "elapsed"} <= {
        *decided[0]
    }
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    plot(tmp_path)
    assert (tmp_path / "budget.png").read_bytes().startswith(b"\x89PNG")
