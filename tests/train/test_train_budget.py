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


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (("--budget", "5"), "argument --budget: must be a number above 0 with a unit such as '5MB/s'"),
        (("--budget", "0MB/s"), "argument --budget: must be above 0"),
        (("--step-seconds", "0"), "argument --step-seconds: must be a number > 0"),
        (("--step-seconds", "soon"), "argument --step-seconds: must be a number"),
        (("--budget", "5MB/s", "--k", "5"), "argument --budget: cannot be combined with --k"),
        (("--step-seconds", "1", "--density", "0.1"), "argument --step-seconds: cannot be combined with --density"),
        (("--budget", "5MB/s", "--plan", "auto"), "cannot be combined with --plan"),
        (("--budget", "5MB/s", "--density-warmup", "4"), "cannot be combined with --density-warmup"),
        (("--budget", "5MB/s", "--dense-warmup", "4"), "cannot be combined with --dense-warmup"),
        (("--budget", "5MB/s", "--elastic"), "cannot be combined with --elastic"),
    ],
)
def test_options_that_make_no_sense_are_refused(given, error, capsys):
    with pytest.raises(SystemExit):
        options(*given)
    assert error in capsys.readouterr().err


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
