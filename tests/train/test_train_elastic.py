"""Training programs that lose ranks: the others go on, agree, and end as a planned departure does."""

from __future__ import annotations

import pytest

from sparse_mpi.checkpoint import latest
from sparse_train.ranks.job import JobError, Preempted

from .small_program import LOG, PROGRAM, outcomes, records

pytestmark = pytest.mark.usefixtures("no_signals")


def train(ranks, folder, *options, leave=None):
    return outcomes(PROGRAM, ranks, folder, *LOG, "--elastic", *options, leave=leave or {})


@pytest.mark.thin(0, call=(0, 2))
@pytest.mark.parametrize("call", range(4))
def test_a_rank_lost_within_any_step_leaves_the_records_to_the_next(call, tmp_path):
    outcomes = train(3, tmp_path, "--epochs", "5", "--max-steps", "8", leave={0: (24, call)})
    assert len(outcomes) == 2 and outcomes[0].digest == outcomes[1].digest and outcomes[0].identical
    assert records(tmp_path, "loss")[0]["lost"] == [0]
    steps = [record["step"] for record in records(tmp_path, "step")]
    assert steps == sorted(set(steps)) and steps[-1] == 8 and len(steps) >= 7
    assert len(records(tmp_path, "config")) == len(records(tmp_path, "final")) == 1


def test_too_few_ranks_write_a_checkpoint_from_which_all_go_on(tmp_path):
    with pytest.raises(Preempted, match="2 ranks are left, fewer than --min-ranks 3"):
        train(3, tmp_path, "--min-ranks", "3", "--checkpoint-every", "100", leave={1: 22})
    assert latest(tmp_path / "checkpoints")
    outcomes = train(3, tmp_path, "--min-ranks", "3", "--checkpoint-every", "100", "--resume")
    assert len(outcomes) == 3 and outcomes[0].identical


@pytest.mark.thin(0, step=(21, 27, 33))
@pytest.mark.parametrize("step", range(18, 40, 3))
def test_a_rank_lost_in_a_checkpoint_has_no_part_in_it(step, tmp_path):
    """Whichever call it is, there is a whole checkpoint of those that are left."""
    outcomes = train(3, tmp_path, "--checkpoint-every", "2", "--max-steps", "6", leave={2: (step, 1)})
    assert len(outcomes) == 2 and outcomes[0].identical
    assert (latest(tmp_path / "checkpoints") / "rank-00001-of-00002.npz").exists()


@pytest.mark.thin(0, step=(20, 26), rank=(0,))
@pytest.mark.parametrize("step", [20, 23, 26, 30])
@pytest.mark.parametrize("rank", [0, 2])
def test_a_spare_takes_a_lost_place_in_training(rank, step, tmp_path):
    outcomes = train(4, tmp_path, "--spares", "1", "--epochs", "5", leave={rank: step})
    assert len(outcomes) == 3 and len({outcome.digest for outcome in outcomes}) == 1
    assert all(outcome.identical and outcome.steps == 10 for outcome in outcomes)
    (loss,) = [record for record in records(tmp_path, "loss") if record["joined"]]
    assert loss["joined"] == [3] and loss["ranks"] == 3
    assert records(tmp_path, "config")[0]["ranks"] == 3


def test_a_run_with_a_spare_is_resumed_to_the_same_bits(tmp_path):
    whole = train(3, tmp_path / "whole", "--spares", "1")
    train(3, tmp_path / "part", "--spares", "1", "--checkpoint-every", "5", "--max-steps", "5")
    rest = train(3, tmp_path / "part", "--spares", "1", "--checkpoint-every", "50", "--resume")
    assert {outcome.digest for outcome in rest} == {outcome.digest for outcome in whole}
    with pytest.raises(JobError, match="--spares must be at most 1, for .* has the residuals of 2 ranks, got 2"):
        train(3, tmp_path / "part", "--spares", "2", "--checkpoint-every", "50", "--resume")


@pytest.mark.parametrize(
    ("option", "says"), [("--min-ranks", "2, the number of ranks"), ("--spares", "1, for one rank must train")]
)
def test_more_ranks_wanted_than_there_are(option, says, tmp_path):
    with pytest.raises(JobError, match=f"{option} must be at most {says}, got 3"):
        train(2, tmp_path, option, "3")
