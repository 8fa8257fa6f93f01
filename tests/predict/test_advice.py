"""Advice: dense where it is fast enough, sparse on slow links."""

from __future__ import annotations

import pytest

from sparse_mpi.predict import advice
from sparse_mpi.predict.advice import Off, Offer, TrainingJob
from sparse_mpi.predict.cluster import TYPICAL

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
