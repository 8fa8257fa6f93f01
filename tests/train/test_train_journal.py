"""What a run leaves behind and says: records, the plot, lines of epochs and of the end."""

from __future__ import annotations

from argparse import Namespace

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from sparse_mpi import StepReport, World
from sparse_mpi.comm import Traffic
from sparse_mpi.comm.null import NullComm
from sparse_mpi.predict import advise
from sparse_train.ranks import job
from sparse_train.records.journal import Outcome, conclude, predicted
from sparse_train.records.metrics import Meter, Metrics, Resumed, plot
from sparse_train.trainer.steps import costs

from .small_program import records, train

pytestmark = pytest.mark.usefixtures("no_signals")
DENSE_FIRST = "--algo oktopk --k 7 --max-steps 11 --dense-warmup 4".split()


def test_records_of_a_run_and_its_plot(tmp_path):
    out = tmp_path / "deep" / "run"
    outcome = train(2, out, *DENSE_FIRST, "--check-every", "2", "--log-every", "2")
    steps, epochs = records(out, "step"), records(out, "epoch")
    assert [r["step"] for r in steps] == [1, 3, 5, 7, 9, 11] and [r["step"] for r in epochs] == [4, 8, 11]
    assert [r["selected"] for r in steps[:2]] == [74, 74] and max(r["selected"] for r in steps[2:]) < 20
    assert steps[0]["mb_sent"] >= 74 * 4 / 1e6 and outcome.steps == 11
    assert epochs[2]["test_accuracy"] == outcome.score
    assert plot(out).read_bytes().startswith(b"\x89PNG")


def test_what_is_sent_is_measured_every_few_steps(tmp_path):
    """Dense first steps miss nothing, and entries wait no longer than since then."""
    plain = train(2, tmp_path / "plain", *DENSE_FIRST)
    outcome = train(2, tmp_path, *DENSE_FIRST, "--watch-every", "3")
    watched = records(tmp_path, "watch")
    assert [r["step"] for r in watched] == [3, 6, 9]
    assert (watched[0]["energy"], watched[0]["wait"]) == (pytest.approx(1), 1)
    assert all(0 < r["energy"] <= 1.001 and r["xi"] < 1 and 1 <= r["wait"] < 6 for r in watched[1:])
    assert outcome.digest == plain.digest


def test_different_replicas_are_refused_in_the_end(capsys):
    outcome = Outcome("accuracy", 0.5, 1.0, False, 3, 1.0, 0.3, digest="", mb_sent=2.0, mb_dense=90.0)
    with pytest.raises(job.JobError, match="replicas differ"):
        World(1).run(lambda comm: conclude(outcome, Namespace(out=None, plot=False), comm, Metrics(None, comm)))
    said = capsys.readouterr().out
    assert "replicas DIFFER" in said and "sent 2.0 MB; dense would have sent 90.0 MB, 45.0 times as much" in said


def test_the_end_predicts_steps_at_1_gbit_as_predict_does():
    given = {"algo": "oktopk", "momentum_by": "local", "local_steps": None, "overlap": True}
    given |= dict.fromkeys(("selector", "wire", "residual", "rank"))
    asked = {"on": "cpu", "ranks": 4, "batch_seconds": 0.05, "algorithms": ("oktopk",), "densities": (0.01,)}
    answer = advise(10**7, "1gbit", **asked)

    def line(**changes):
        return predicted(Namespace(**given | changes), 10**7, 0.01, 4, 0.05)

    assert line().startswith("predicted, not measured: at 1 Gbit/s")
    both = f"takes {1e3 * answer.dense.step:,.0f} ms dense and {1e3 * answer.faster[0].step:,.0f} ms as trained"
    assert both in line() and "50 ms of it are computing" in line()
    assert line(local_steps=8) not in ("", line())
    assert "dense" in line(algo="dense") and "as trained" not in line(algo="dense")
    assert not line(algo="plan") + line(rank=4) + line(algo="elect:votes=0.5")


def test_on_a_full_disk_training_goes_on_without_records(tmp_path, capsys):
    """/dev/full takes nothing; the plot is drawn from what was written before, the last line of which may be cut."""
    metrics = Metrics(tmp_path, NullComm())
    metrics.write("config", algo="oktopk", data="digits", ranks=4, k=1, parameters=100, headline="accuracy")
    (tmp_path / "metrics.jsonl").rename(tmp_path / "before.jsonl")
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    metrics = Metrics(tmp_path, NullComm())
    for step in range(3):
        metrics.write("step", step=step, loss=0.5)
    metrics.close()
    warning = capsys.readouterr().err
    assert warning.count("WARNING") == 1 and "metrics.jsonl cannot be written" in warning and "No space left" in warning
    (tmp_path / "before.jsonl").replace(tmp_path / "metrics.jsonl")
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"event": "step", "step": 1, "loss": 0.5, "mb_sent": 1}\n')
        file.write('{"event": "epoch", "step": 1, "accuracy": 1, "test_accuracy": 1, "test_loss": 1, "mb_sent": 1}')
        file.write('\n{"ev')
    assert plot(tmp_path).exists()


def test_tensorboard_gets_the_numbers_of_what_has_a_step_once(tmp_path):
    """A run that is resumed after step 1 takes step 2 again."""
    for resumed in (None, Resumed(1, 0, "", 1)):
        metrics = Metrics(tmp_path, NullComm(), resumed)
        metrics.write("step", step=2, loss=0.5, why="text")
        metrics.close()
        # TensorBoard reads files in the order of their names: those of two processes begin with the second
        for file in tmp_path.glob("events.out.tfevents.*.*"):
            file.rename(file.with_name(f"events.out.tfevents.{1 if resumed is None else 2}"))
    assert len(list(tmp_path.glob("events.*"))) == 2
    events = EventAccumulator(str(tmp_path)).Reload()
    assert sorted(events.Tags()["scalars"]) == ["step/loss", "step/step"]
    assert [(event.step, event.value) for event in events.Scalars("step/loss")] == [(2, 0.5)]


def test_the_scalars_of_a_report_are_those_of_a_step_of_a_program():
    report = StepReport(7, 20, 0.5, 0.25, 0.125, Traffic(sent=4_000_000, messages=3, control=8))
    means = Meter(steps=1, **costs(report)).means()
    scalars = report.scalars()
    assert scalars["mb_sent"] == 4.000008 and len(scalars) == 7
    assert scalars == {name: means[name] for name in scalars}
