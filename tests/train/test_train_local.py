"""--local-steps: what it sends, and what it refuses; `test_train_checkpoints` has it resume to the bit."""

from __future__ import annotations

from importlib import import_module

import pytest

from sparse_train.ranks.job import JobError

from .small_program import records, train

pytestmark = pytest.mark.usefixtures("no_signals")


def test_bytes_are_those_of_the_steps_that_exchange(tmp_path):
    train(2, tmp_path, "--local-steps", "5")
    sent = [record["mb_sent"] > 0 for record in records(tmp_path, "step")]
    assert sent == [step % 5 == 0 for step in range(1, 13)]
    assert records(tmp_path, "config")[0]["local_steps"] == 5


def test_options_may_change_where_a_run_resumes_but_not_the_schedule(tmp_path, capsys):
    options = ["--local-steps", "4", "--checkpoint-every", "1", "--resume"]
    train(2, tmp_path, *options, "--max-steps", "5")
    train(2, tmp_path, *options, "--outer-lr", "0.5", "--max-steps", "7")
    assert "outer_lr 0.5 instead of 1.0" in capsys.readouterr().out
    with pytest.raises(JobError, match="local_steps 4, but this one has 6"):
        train(2, tmp_path, "--local-steps", "6", *options[2:])


def test_the_usual_rate_is_that_of_one_rank():
    """An inner step has the batch of one rank; a step of all has that of all."""
    program = import_module("resnet").PROGRAM
    options = ["--data", "cifar100", "--no-progress"]
    assert program.parse(options).lr_times_ranks and not program.parse([*options, "--local-steps", "4"]).lr_times_ranks
