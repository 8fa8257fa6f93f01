"""A program as one job: how it starts and ends, what ranks agree on, and how they share CPUs."""

from __future__ import annotations

import pytest

from sparse_mpi import World
from sparse_train.ranks import job

from ..launch import launch, needs_mpi
from .small_program import refusals


@pytest.mark.ranks(2, 4)
def test_what_fails_on_one_rank_is_refused_on_all(ranks):
    def load(rank):
        if rank == 1:
            raise FileNotFoundError("no such folder")
        return rank

    for rank, said in enumerate(refusals(ranks, lambda comm: job.agreed(comm, lambda: load(comm.rank)))):
        assert ("no such folder" if rank == 1 else "rank 1") in said
    assert ranks.run(lambda comm: job.agreed(comm, lambda: comm.rank)) == list(range(ranks.size))


def test_a_failure_without_words_is_a_failure_too():
    def fail():
        raise ValueError

    said = refusals(World(2), lambda comm: job.agreed(comm, fail if comm.rank == 0 else lambda: None))
    assert said == ["ValueError", "stopping because of rank 0; see its error"]


@pytest.mark.parametrize(
    ("cpus", "threads"),
    [([{0, 1, 2, 3}] * 2, [2, 2]), ([{0, 1}, {2, 3}], [2, 2]), ([{5}] * 3, [1, 1, 1]), ([{0, 1, 2}], [3])],
)
def test_ranks_share_the_cpus_they_run_on(monkeypatch, cpus, threads):
    def body(comm):
        monkeypatch.setattr(job, "allowed_cpus", lambda: sorted(cpus[comm.rank]))
        return job.threads_per_rank(comm)

    assert World(len(cpus)).run(body) == threads


class OutOfMemoryError(RuntimeError):
    """As torch and CuPy each have one of this name."""


def test_a_gpu_whose_memory_is_full_says_where_and_what_to_lower():
    def widen():
        raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nIncluding others")

    with pytest.raises(OutOfMemoryError) as error:
        widen()
    said = job.out_of_memory(error.value)
    assert "full in widen (test_train_job.py): CUDA out of memory. Tried to allocate 2.00 GiB.; lower --batch" in said
    assert job.out_of_memory(ValueError("of another kind")) == ""


JOB = """
import sys
sys.path.insert(0, "train")
from sparse_train.ranks.job import run

def program(args, comm):
    if comm.rank == 1:
        raise KeyError("broken on one rank")
    comm.barrier()

run(program, None)
"""


@needs_mpi
def test_an_unexpected_error_on_one_rank_ends_the_job_with_its_traceback():
    done = launch(2, "-c", JOB)
    assert done.returncode != 0 and "Traceback" in done.stderr and "KeyError: 'broken on one rank'" in done.stderr


def test_processes_that_mpi_does_not_know_of_are_refused():
    done = launch(None, "-c", JOB, PMI_SIZE="2")
    assert done.returncode != 0 and "singletons" in done.stderr and "Traceback" not in done.stderr
