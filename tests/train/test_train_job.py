"""A program as one job: what ranks agree on, and how they share CPUs."""

from __future__ import annotations

import pytest

from sparse_mpi import World
from sparse_train.ranks import job


@pytest.mark.ranks(2, 4)
def test_what_fails_on_one_rank_is_refused_on_all(ranks):
    def load(rank):
        if rank == 1:
            raise FileNotFoundError("no such folder")
        return rank

    def body(comm):
        with pytest.raises(job.JobError) as error:
            job.agreed(comm, lambda: load(comm.rank))
        return str(error.value), job.agreed(comm, lambda: comm.rank)

    for rank, (said, agreed) in enumerate(ranks.run(body)):
        assert ("no such folder" if rank == 1 else "rank 1") in said and agreed == rank


def test_a_failure_without_words_is_a_failure_too():
    def fail():
        raise ValueError

    def body(comm):
        with pytest.raises(job.JobError) as error:
            job.agreed(comm, fail if comm.rank == 0 else lambda: None)
        return str(error.value)

    assert World(2).run(body) == ["ValueError", "stopping because of rank 0; see its error"]


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
