"""Training goes on from a checkpoint: to the same bits on as many ranks, legally on others, and after a kill -9."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from sparse_mpi.checkpoint import CheckpointError, latest
from sparse_mpi.collectives.network import Network
from sparse_train.ranks.job import JobError
from sparse_train.records.metrics import FILE, Resumed, retain
from sparse_train.trainer import checkpoints

from ..launch import launch, needs_mpi
from ..prefork import copied, torchrun
from .small_program import LOG, PROGRAM, records, train

pytestmark = pytest.mark.usefixtures("no_signals")


def lasting(record: dict) -> dict:
    """Return the values that do not depend on the clock."""
    return {name: value for name, value in record.items() if "second" not in name}


OPTIONS = {
    "oktopk": [],
    "gmc": ["--momentum-by", "global", "--dense-warmup", "3"],
    "density warm-up": ["--density-warmup", "2"],
    "adam": ["--optimizer", "adam", "--lr", "0.01", "--algo", "elect", "--dense-warmup", "3"],
    "selector": ["--algo", "topkdsa", "--selector", "random", "--clip-norm", "1"],
}


@pytest.mark.thin(0, size=(3,))  # four training runs each
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("what", OPTIONS)
def test_a_resumed_run_ends_in_the_same_bits_and_records(size, what, tmp_path):
    """It stops in the middle of an epoch, and again between two; 8 steps an epoch on one rank, 2 on three."""
    options = OPTIONS[what]
    straight = train(size, tmp_path / "straight", *options)
    for steps in (["--max-steps", "3"], ["--max-steps", "4"], []):
        resumed = train(size, tmp_path / "resumed", *options, *steps, "--checkpoint-every", "2", "--resume")
    assert resumed.digest == straight.digest and resumed.score == straight.score and resumed.steps == straight.steps
    for event in ("step", "epoch"):
        expected, resumed = (records(tmp_path / name, event) for name in ("straight", "resumed"))
        assert list(map(lasting, resumed)) == list(map(lasting, expected))
    assert [r["resumed"]["step"] for r in records(tmp_path / "resumed", "resume")] == [3, 4]
    assert len(records(tmp_path / "resumed", "final", "config")) == 2
    assert sorted(p.name for p in (tmp_path / "resumed" / "checkpoints").iterdir())[-1] == f"step-{straight.steps:08d}"


def test_a_run_goes_on_on_other_numbers_of_ranks(tmp_path):
    """8 images a rank and epoch at 1 rank, 2 at 4: epochs have 8, 2, 4 and 1 steps."""
    options = ["--momentum-by", "global", "--checkpoint-every", "1", "--check-every", "1", "--resume"]
    for size, limit, steps in ((1, 5, 5), (4, 2, 2), (2, 7, 7), (8, 3, 3)):
        outcome = train(size, tmp_path, *options, "--max-steps", str(limit))
        assert outcome.identical and outcome.steps == steps
    last = records(tmp_path, "resume")[-1]
    assert last["ranks"] == 8 and (last["resumed"]["step"], last["resumed"]["before"]) == (1, 7)
    steps = [record["step"] for record in records(tmp_path, "step", "epoch", "checkpoint")]
    assert steps == sorted(steps) and steps[-1] == 3


def test_a_dense_warm_up_may_end_between_or_beyond_checkpoints(tmp_path):
    """4 steps an epoch on 2 ranks, 8 on one; on both sides of the boundary, which may have moved meanwhile."""
    warm, every = "--dense-warmup", ["--checkpoint-every", "1", "--check-every", "1", "--resume"]
    for size, limit, steps in ((2, 3, "3"), (1, 6, "6"), (1, 7, "0"), (2, 4, "9"), (4, 3, "1")):
        outcome = train(size, tmp_path, *every, warm, steps, "--max-steps", str(limit))
        assert outcome.identical and outcome.steps == limit


def test_the_plan_of_plan_auto_survives(tmp_path, monkeypatch):
    """It depends on the clock: a resumed run must not plan anew, on any number of ranks."""
    options = ["--plan", "auto", "--checkpoint-every", "5"]
    train(2, tmp_path, *options, "--max-steps", "5")
    assert (tmp_path / "plan.json").exists()
    monkeypatch.setattr("sparse_train.trainer.planning.measure", lambda *args, **options: pytest.fail("planned anew"))
    for size in (2, 3):
        outcome = train(size, tmp_path / str(size), *options, "--resume", str(tmp_path))
        assert outcome.identical


def test_algo_auto_takes_what_is_advised_and_a_resumed_run_keeps_it(tmp_path, monkeypatch, capsys):
    """It depends on the clock: a resumed run must not ask anew, on any number of ranks."""
    options = ["--algo", "auto", "--checkpoint-every", "5"]
    monkeypatch.setattr("sparse_train.trainer.planning.fit_network", lambda comm: Network.of(0.01, 100))
    train(2, tmp_path / "run", *options, "--max-steps", "5")
    (config,) = records(tmp_path / "run", "config")
    assert config["algo"] != "auto" and f"--algo auto takes {config['algo']}, which" in capsys.readouterr().out
    monkeypatch.setattr("sparse_train.trainer.planning.fit_network", lambda comm: pytest.fail("asked anew"))
    for size in (2, 3):
        assert train(size, tmp_path / str(size), *options, "--resume", str(tmp_path / "run")).identical


def test_nothing_to_resume_is_said_and_training_starts(tmp_path, capsys):
    assert train(2, tmp_path, "--resume", "--max-steps", "1").steps == 1
    assert f"nothing to resume in {tmp_path / 'checkpoints'} yet: starting from scratch" in capsys.readouterr().out


REFUSED = [
    ("--algo", "topka", "with algo elect, but this one has topka"),
    ("--density", "0.1", "with density 0.2, but this one has 0.1"),
    ("--k", "9", "with k None, but this one has 9"),
    ("--feedback", "none", "with feedback residual, but this one has none"),
    ("--selector", "exact", "with selector None, but this one has exact"),
    ("--optimizer", "adam", "with optimizer sgd, but this one has adam"),
    ("--seed", "2", "with seed 1, but this one has 2"),
]


def test_a_checkpoint_of_another_run_is_refused_and_left_alone(tmp_path):
    train(2, tmp_path, "--checkpoint-every", "2", "--max-steps", "2")
    for option, value, message in REFUSED:
        with pytest.raises(JobError, match=f"step-00000002 is of a run {message}; resume with what it was saved with"):
            train(2, tmp_path, "--resume", option, value)
    with pytest.raises(JobError, match="checkpoints has checkpoints of an earlier run: --resume it, or choose another"):
        train(2, tmp_path, "--checkpoint-every", "2")
    (tmp_path / "empty").mkdir()
    with pytest.raises(JobError, match="empty cannot be used"):
        train(2, tmp_path / "other", "--resume", str(tmp_path / "empty"))


def test_training_goes_on_where_no_checkpoint_can_be_written(tmp_path, monkeypatch, capsys):
    straight, write = train(2, tmp_path / "straight"), checkpoints.checkpoint.save

    def full(folder, step, *rest):
        if step == 8:
            raise CheckpointError("the checkpoint of step 8 was not written: rank 1: No space left on device")
        return write(folder, step, *rest)

    monkeypatch.setattr(checkpoints.checkpoint, "save", full)
    outcome = train(2, tmp_path / "full", "--checkpoint-every", "4", "--max-steps", "8")
    assert outcome.steps == 8 and "WARNING: the checkpoint of step 8 was not written" in capsys.readouterr().err
    written = {record["step"]: "error" in record for record in records(tmp_path / "full", "checkpoint")}
    assert written == {4: False, 8: True} and latest(tmp_path / "full" / "checkpoints").name == "step-00000004"
    assert train(2, tmp_path / "full", "--resume").digest == straight.digest


@pytest.mark.parametrize(
    ("now", "step", "expected"),
    [(4, 8, [1, 4, 5, 8]), (8, 16, [2, 8, 10, 16]), (1, 1, [1, 1, 1, 1]), (3, 6, [1, 3, 4, 6])],
)
def test_records_are_renumbered_for_other_numbers_of_ranks(now, step, expected, tmp_path, capsys):
    """Steps 1, 4, 5 and 8 of epochs of 4; a run that goes on at step 8 has epochs of ``now`` steps."""
    saved = [{"event": "step", "step": number} for number in (1, 4, 5, 8, 9)]
    lines = [*map(json.dumps, saved), '{"event": "st']  # in the midst of which the job was killed
    (tmp_path / FILE).write_text("\n".join(lines))
    retain(tmp_path / FILE, Resumed(step, 1, "", 8, (now, 4)))
    assert [record["step"] for record in records(tmp_path, "step")] == expected
    assert "steps 9 to 9 are on record beyond the checkpoint, and are trained again" in capsys.readouterr().out


RESOLVED = {
    "default": (["--out", "a"], None, "a", "a/checkpoints"),
    "requeued": (["--out", "a", "--resume"], checkpoints.NEWEST, "a", "a/checkpoints"),
    "run": (["--resume", "run"], Path("run/checkpoints"), "run", "run/checkpoints"),
    "one": (["--resume", "run/checkpoints/step-00000007"], Path("run/checkpoints/step-00000007"), "run", None),
    "fork": (["--out", "b", "--resume", "run"], Path("run/checkpoints"), "b", "b/checkpoints"),
    "apart": (["--out", "a", "--checkpoint-dir", "c", "--resume"], checkpoints.NEWEST, "a", "c"),
}


@pytest.mark.parametrize("what", RESOLVED)
def test_where_results_go(what, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("run/checkpoints/step-00000007").mkdir(parents=True)
    options, resume, out, folder = RESOLVED[what]
    args = PROGRAM.parse(options)
    assert (args.resume, args.out, args.checkpoint_dir) == (resume, Path(out), Path(folder or "run/checkpoints"))


def start(folder: Path, *options: str, **variables: str):
    options = ("--out", str(folder), *LOG, "--checkpoint-every", "7", *options)
    return launch(2, *copied("-m", "tests.train.small_program", *options), **variables)


@needs_mpi
@pytest.mark.jobs
@pytest.mark.timeout(300)
def test_a_job_killed_while_it_trains_is_resumed_to_the_same_bits(tmp_path):
    """Kill -9 of all ranks of MPI after the checkpoint of step 7 and before the 10th of 12 steps; World goes on."""
    train(2, tmp_path / "straight")
    killed = start(tmp_path / "killed", "--resume", STRIKE=f"9 -1 {int(signal.SIGKILL)}")
    assert killed.returncode != 0 and latest(tmp_path / "killed" / "checkpoints").name == "step-00000007"
    train(2, tmp_path / "killed", "--checkpoint-every", "7", "--resume")
    (expected,), (ended,) = records(tmp_path / "straight", "final"), records(tmp_path / "killed", "final")
    assert ended["digest"] == expected["digest"] and ended["steps"] == 12
    steps = [[lasting(r) for r in records(tmp_path / name, "step", "epoch")] for name in ("straight", "killed")]
    assert steps[0] == steps[1]


@pytest.mark.jobs
def test_torchrun_restarts_a_job_which_ends_in_the_same_bits(tmp_path):
    """Kill -9 of one of 2 processes after the checkpoint of step 2 and before the 4th of 12 steps, as on a World."""
    train(2, tmp_path / "straight")
    options = ("--out", str(tmp_path / "restarted"), *LOG, "--checkpoint-every", "2", "--resume")
    command = torchrun(2, "-m", "tests.train.small_program", *options, restarts=1)
    strike = f"3 1 {int(signal.SIGKILL)}"
    done = launch(None, *command, seconds=240, STRIKE=strike, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"resuming from {tmp_path / 'restarted' / 'checkpoints' / 'step-00000002'}") == 1
    straight, restarted = (records(tmp_path / name, "step", "epoch", "final") for name in ("straight", "restarted"))
    assert restarted[-1]["digest"] == straight[-1]["digest"] and restarted[-1]["steps"] == 12
    assert list(map(lasting, restarted[:-1])) == list(map(lasting, straight[:-1]))


@pytest.mark.full("a job that is killed is resumed in the test beside")
@needs_mpi
@pytest.mark.jobs
def test_a_job_that_is_told_to_end_leaves_a_checkpoint_and_says_so(tmp_path):
    stopped = start(tmp_path, STRIKE=f"2 1 {int(signal.SIGUSR1)}")
    assert stopped.returncode == 75, stopped.stderr
    checkpoint = tmp_path / "checkpoints" / "step-00000005"
    assert f"stopped after step 5 as told; --resume {checkpoint} goes on from there" in stopped.stdout
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["step-00000005"]
