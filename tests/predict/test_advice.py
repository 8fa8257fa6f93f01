"""Advice: dense where it is fast enough, sparse on slow links; and how long a recorded run would take."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from sparse_mpi.__main__ import main
from sparse_mpi.predict import advice, trained
from sparse_mpi.predict.advice import Off, Offer, TrainingJob
from sparse_mpi.predict.cluster import TYPICAL, step_time
from sparse_mpi.predict.ways import table

HALF = Off(1.5, 1.5)
NAMES = ["oktopk:wire=packed", "topka"]


def offer(way, step, density=0.01, batch=1.0):
    return Offer(way, density, 1, step, step - batch, Off())


def test_a_tiny_model_on_a_fast_network_stays_dense_and_a_big_one_on_a_slow_one_does_not():
    tiny = advice.advise(TrainingJob(2_000, 4, 0.0), TYPICAL.on(100), names=NAMES)
    assert tiny.best.dense and "leave it dense" in tiny.reason
    big = advice.advise(TrainingJob(400_000, 4, 0.0), TYPICAL.on(0.02), names=NAMES)
    assert not big.best.dense and big.best.density == advice.USUAL
    dense = next(of for of in big.offers if of.dense)
    assert dense.step > 10 * big.best.step and big.offers[0].step <= big.best.step
    assert big.offers == sorted(big.offers, key=lambda of: of.step)


def test_dense_is_left_where_the_batch_takes_most_of_a_step():
    job = TrainingJob(10, 2, 1.0)
    dense = offer("dense", 1.08)
    found = advice.chosen(job, dense, [dense, offer("topka", 1.001)])
    assert found.best is dense and "the batch takes 90% of a step" in found.reason
    close = advice.chosen(TrainingJob(10, 2, 0.0), dense, [dense, offer("topka", 1.04)])
    assert close.best is dense and "no sparse sum makes a step much shorter" in close.reason


def test_the_largest_density_that_is_fast_enough_is_advised_then_local_steps():
    job, dense = TrainingJob(10, 2, 1.0), offer("dense", 9.0)
    some = [offer("a", 1.3, 0.03), offer("a", 1.15, 0.01), offer("a", 1.1, 0.003), offer("b", 1.05, 0.003)]
    found = advice.chosen(job, dense, [dense, *some])
    assert (found.best.way, found.best.density) == ("b", 0.003)
    slow = [dense, offer("a", 5.0, 0.01), offer("a", 3.0, 0.001)]
    found = advice.chosen(job, dense, slow)
    assert (found.best.way, found.best.density, found.best.local_steps) == ("a", 0.01, 64)
    assert found.best.step == pytest.approx(1 + 4 / 64) and "with so many local steps it does" in found.reason
    hopeless = advice.chosen(job, dense, [dense, offer("a", 8.5, 0.01)])
    assert hopeless.best.local_steps == 64 and "it comes nearest" in hopeless.reason


def test_sparse_pays_where_it_does_so_with_the_error_against_it():
    def verdict(dense, sparse, off=HALF, batch=0.0):
        offers = [offer("dense", dense, batch=batch)._replace(off=min(off, HALF))]
        offers.append(offer("topka", sparse, batch=batch)._replace(off=off))
        offers.sort(key=lambda of: of.step)
        return advice.chosen(TrainingJob(10, 2, batch), next(of for of in offers if of.dense), offers).pays

    sure = verdict(4.0, 2.0)
    assert sure.verdict == "sparse" and 1 < sure.low < sure.factor == 2.0 < sure.high
    assert verdict(4.0, 3.5).verdict == "either" and verdict(2.0, 1.99).verdict == "either"
    assert verdict(1.01, 1.001, batch=1.0).verdict == verdict(2.0, 4.0).verdict == "dense"
    assert verdict(2.0, 1.8, Off()).verdict == "sparse"
    gpu = verdict(4.0, 2.0, Off(12.0, 1.5))
    assert gpu.verdict == "either" and gpu.high / gpu.factor < gpu.factor / gpu.low


def metrics(tmp_path, **changed):
    config = {"event": "config", "algo": "topka", "wire": "packed", "parameters": 20_000, "k": 200, "density": 0.01}
    config |= {"ranks": 4, "headline": "accuracy"} | changed
    timed = {"compute_seconds": 0.5, "update_seconds": 0.25}
    epochs = [{"event": "epoch", "step": 10 * e, "test_accuracy": 0.2 * e, **timed} for e in (1, 2, 3)]
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in [config, {"event": "step"}, *epochs]))
    return file


def test_a_recorded_run_takes_its_steps_each_as_long_as_predicted(tmp_path, capsys):
    run = trained.read_run(metrics(tmp_path))
    assert (run.way, run.density, run.batch, run.steps_to(0.4)) == ("topka:wire=packed", 0.01, 0.75, 20)
    on = replace(TYPICAL.on(0.01), alpha=0.01)
    reducing = step_time(run.way, table()[run.way], 20_000, 0.01, 4, on).seconds
    assert trained.run_seconds(run, 0.4, on) == pytest.approx(20 * (0.75 + reducing))
    assert trained.run_seconds(run, 0.4, on, batch=0.0) == pytest.approx(20 * reducing)
    assert main(["predict", "run", str(tmp_path / "metrics.jsonl"), "--score", "0.4", "--rate", "10mbit"]) == 0
    assert "accuracy 0.4 after 20 steps" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"target must be one that the run reaches, accuracy 0.6 at best, got 0.9"):
        run.steps_to(0.9)
    assert run._replace(score="loss").steps_to(0.2) == 10


@pytest.mark.parametrize("changed", [{"parameters": None}, {"algo": "auto", "wire": None}, {"event": "resume"}])
def test_what_is_no_run_is_refused(tmp_path, changed):
    with pytest.raises(ValueError, match=r"metrics.jsonl must be metrics.jsonl of a training program"):
        trained.read_run(metrics(tmp_path, **changed))
