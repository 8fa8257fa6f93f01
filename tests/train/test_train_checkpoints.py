"""Where checkpoints go, what they are of, and when none may be written: all ranks alike.

--flush: what ranks still owe after the last step is applied once, counted, and not a second time when resumed.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from sparse_mpi import World
from sparse_mpi.checkpoint import latest
from sparse_train.ranks.job import JobError, Preempted
from sparse_train.records.metrics import Metrics
from sparse_train.trainer.checkpoints import check_identity

from .small_program import LOG, PROGRAM, Struck, records, train

pytestmark = pytest.mark.usefixtures("no_signals")


def test_ranks_whose_clocks_differ_write_into_one_folder(tmp_path, monkeypatch):
    """Each names the default folder of results after the time at which it was started."""
    monkeypatch.chdir(tmp_path)
    args = [PROGRAM.parse([*LOG, "--checkpoint-every", "4", "--max-steps", "4"]) for _ in range(2)]
    for rank, each in enumerate(args):
        each.out = Path(f"run-{rank}")
        each.checkpoint_dir = each.out / "checkpoints"
    World(2).run(lambda comm: PROGRAM.train(args[comm.rank], comm))
    assert latest("run-0/checkpoints").name == "step-00000004" and not Path("run-1").exists()
    assert {each.out for each in args} == {Path("run-0")}


@pytest.mark.parametrize("there", ["checkpoints", "records"])
def test_a_fork_leaves_the_results_of_another_run_alone(there, tmp_path):
    train(1, tmp_path / "a", "--checkpoint-every", "2", "--max-steps", "2")
    train(1, tmp_path / "b", "--max-steps", "3", *(["--checkpoint-every", "3"] if there == "checkpoints" else []))
    before = (tmp_path / "b" / "metrics.jsonl").read_text()
    fork = ["--resume", str(tmp_path / "a"), "--max-steps", "4", "--checkpoint-every", "1", "--keep", "1"]
    elsewhere = ["--out", str(tmp_path / "c"), "--checkpoint-dir", str(tmp_path / "b" / "checkpoints")]
    for options in ([], elsewhere if there == "checkpoints" else []):
        with pytest.raises(JobError, match=f"b.* has {there} of another run.*choose another folder"):
            train(2, tmp_path / "b", *fork, *options)
    assert (tmp_path / "b" / "metrics.jsonl").read_text() == before
    if there == "checkpoints":
        assert latest(tmp_path / "b" / "checkpoints").name == "step-00000003"


def test_a_run_may_be_resumed_where_it_is_however_it_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    every = ["--checkpoint-every", "1", "--max-steps"]
    train(1, Path("a"), *every, "1")
    for limit, place in ((2, "a"), (3, "a/checkpoints"), (4, "a/checkpoints/step-00000003"), (5, str(tmp_path / "a"))):
        assert train(1, tmp_path / "a", *every, str(limit), "--resume", place).steps == limit
    assert [record["resumed"]["step"] for record in records(tmp_path / "a", "resume")] == [1, 2, 3, 4]


def finite(folder: Path) -> bool:
    weights = torch.load(latest(folder / "checkpoints") / "model.bin", weights_only=True)["model"]
    return all(bool(weight.isfinite().all()) for weight in weights.values())


@pytest.mark.parametrize("every", [1, 3])
def test_what_has_diverged_is_not_written(every, tmp_path, monkeypatch):
    """After step 1 it is the weights alone that are NaN; the loss is known by step 3."""
    train(2, tmp_path, "--checkpoint-every", "1", "--max-steps", "4")
    monkeypatch.setattr("sparse_train.trainer.loop.learning_rate", lambda *_: math.inf)
    with pytest.raises(JobError, match="training diverged in epoch 2: .* try a lower --lr"):
        train(2, tmp_path, "--checkpoint-every", str(every), "--resume", "--keep", "1")
    assert latest(tmp_path / "checkpoints").name == "step-00000004" and finite(tmp_path)


def test_an_epoch_that_was_not_told_is_told_on_more_ranks(tmp_path):
    """The new ranks have done nothing in it, in no time."""
    train(1, tmp_path, "--checkpoint-every", "1", "--max-steps", "5")
    (step,) = {path for path in (tmp_path / "checkpoints").iterdir() if path.name.endswith("5")}
    outcome = train(4, tmp_path, "--resume", str(step), "--max-steps", "1")
    (told,) = records(tmp_path, "epoch")
    assert outcome.steps == 1 and told["seconds"] > 0 and told["items_per_second"] > 0


def test_a_checkpoint_of_other_data_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(Struck, "fingerprint", "one")
    train(1, tmp_path, "--checkpoint-every", "1", "--max-steps", "1")
    monkeypatch.setattr(Struck, "fingerprint", "other")
    with pytest.raises(JobError, match="is of a run with data fingerprint one, but this one has other"):
        train(1, tmp_path, "--resume")


def test_a_checkpoint_of_0_3_names_the_release_that_converts_it():
    saved = {"feedback": "residual", "second_moment": True, "arrival": False}
    wanted = {"feedback": "residual", "momentum_by": "second-moment"}
    with pytest.raises(ValueError, match=r"with momentum_by None, .* of sparse_mpi 0\.3 .* once with that of 0\.4"):
        check_identity(Path("step"), saved, wanted)


def test_other_options_than_before_are_told(tmp_path, capsys):
    train(2, tmp_path, "--checkpoint-every", "1", "--max-steps", "1")
    train(2, tmp_path, "--resume", "--max-steps", "2", "--checkpoint-every", "2", "--log-every", "1")
    assert "other options" not in capsys.readouterr().out
    train(2, tmp_path, "--resume", "--max-steps", "3", "--lr", "0.1", "--batch-size", "5", "--epochs", "3")
    said = [line for line in capsys.readouterr().out.splitlines() if "other options" in line]
    assert said == ["with other options than before: batch_size 5 instead of 10, lr 0.1 instead of 0.2"]


@pytest.mark.parametrize("end", [JobError, Preempted])
def test_records_are_closed_however_a_run_ends(end, tmp_path, monkeypatch):
    closed, close = [], Metrics.close
    monkeypatch.setattr(Metrics, "close", lambda self: closed.append(close(self)))

    def broken(self):
        raise end("enough")

    monkeypatch.setattr("sparse_train.trainer.loop.Training._save", broken)
    with pytest.raises(end):
        train(1, tmp_path)
    assert len(closed) == 1


FLUSHED = {
    "buckets": ["--bucket-mb", "0.0002"],
    "dgc": ["--momentum-by", "corrected"],
    "adam": ["--optimizer", "adam", "--lr", "0.01"],
    "warming up": ["--dense-warmup", "6"],
    "local steps": "--local-steps 3 --algo oktopk --wire packed+int8 --outer-momentum 0.9".split(),
}


def epochs(folder):
    """Return the megabytes of each epoch: those of a mean step, times its steps."""
    return [epoch["mb_sent"] * 4 for epoch in records(folder, "epoch")]


@pytest.mark.parametrize("what", FLUSHED)
def test_a_flush_is_recorded_counted_and_resumed(what, tmp_path):
    """4 steps an epoch on 2 ranks; it goes on from the middle of the last epoch, and from the end."""
    options = [*FLUSHED[what], "--checkpoint-every", "10"]
    plain = train(2, tmp_path / "plain", *options)
    straight = train(2, tmp_path / "straight", *options, "--flush")
    assert plain.digest != straight.digest and straight.identical and straight.steps == plain.steps == 12
    (flush,) = records(tmp_path / "straight", "flush")
    assert not records(tmp_path / "plain", "flush") and flush["step"] == 12 and flush["mb_sent"] > 0
    *same, without = epochs(tmp_path / "plain")
    *also, flushed = epochs(tmp_path / "straight")
    assert also == same and flushed == pytest.approx(without + flush["mb_sent"], rel=1e-6)
    for step in ("step-00000010", "step-00000012"):
        checkpoint = tmp_path / "straight" / "checkpoints" / step
        resumed = train(2, tmp_path / step, *options, "--flush", "--resume", str(checkpoint))
        assert (resumed.digest, resumed.score) == (straight.digest, straight.score)
    assert not records(tmp_path / "step-00000012", "flush")


def test_a_run_that_ends_in_an_epoch_is_flushed_before_its_checkpoint(tmp_path):
    options = ["--flush", "--max-steps", "6", "--checkpoint-every", "3"]
    straight = train(2, tmp_path / "straight", *options)
    for size in (2, 3):
        resumed = train(size, tmp_path / str(size), *options, "--resume", str(tmp_path / "straight"))
        assert resumed.identical and (size == 3 or resumed.digest == straight.digest)
    assert not records(tmp_path / "2", "flush")
