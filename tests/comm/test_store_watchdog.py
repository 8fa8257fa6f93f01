"""Jobs over torch.distributed that hang: who waits says so, in which call and for whom."""

from __future__ import annotations

import re
import threading
import time
from itertools import pairwise

import pytest

from sparse_mpi.comm.job.call_log import CALLS, CallLog
from sparse_mpi.comm.job.store_watchdog import SITES, StoreWatchdog
from sparse_mpi.comm.job.watchdog import WATCHDOG_THREAD

from ..launch import launch
from ..prefork import torchrun

pytest.importorskip("torch.distributed")
pytest.importorskip("sparse_mpi.comm.process_group")

ALLREDUCE, SENDRECV, DUPLICATE = map(CALLS.index, ("allreduce", "sendrecv", "duplicate"))
HANGS = """
import sys, time
from pathlib import Path
import numpy as np, torch.distributed as dist
import sparse_mpi
from sparse_mpi.comm.job import store_watchdog

store_watchdog.WORD, store_watchdog.LASTING, store_watchdog.SPEAKING = 0.0, 0.5, 0.5
folder, ends = Path(sys.argv[1]), sys.argv[2] == "ends"
report = store_watchdog.StoreWatchdog._report

def noted(self, *about):
    report(self, *about)
    (folder / ("start" if reducer is None else "step")).touch()

store_watchdog.StoreWatchdog._report = noted
dist.init_process_group("gloo")

def wait(where):
    while dist.get_rank() == 1 and (ends or not (folder / where).exists()):
        time.sleep(0.05)

reducer = None
if ends:
    dist.barrier()  # whoever starts late is not waited for in a call that has a limit
else:
    wait("start")
reducer = sparse_mpi.SparseAllreduce(1000, k=10)
for step in range(3):
    if step == 2:
        wait("step")
    reducer.step(np.ones(1000, np.float32))
dist.barrier()
print("done\\n", end="", flush=True)
"""


def lines_of(done) -> list[str]:
    return [line for line in done.stderr.splitlines() if line.startswith("sparse_mpi: ")]


@pytest.mark.jobs
def test_without_a_limit_one_rank_says_who_waits_for_whom_and_the_job_goes_on(tmp_path):
    """Also for a rank that does not make its communicator."""
    done = launch(None, *torchrun(3, "-c", HANGS, str(tmp_path), "goes on"), SPARSE_MPI_WATCH="1")
    assert done.returncode == 0 and done.stdout.split() == ["done"] * 3, done.stderr
    pattern = r"sparse_mpi: rank [02] of 3 has been in \w+ of reduction 3 for \d+ s, and waits for others: rank 1 left "
    assert any(re.match(pattern, line) for line in lines_of(done)), done.stderr
    said = [line for line in lines_of(done) if "of reduction 2" in line]
    assert said and all(line.endswith("SPARSE_MPI_TIMEOUT would end the job") for line in said)
    assert re.search(r"rank [02] of 3 has been in duplicate for \d+ s, and waits for others: ", done.stderr), (
        done.stderr
    )


@pytest.mark.jobs
def test_a_time_limit_ends_the_job(tmp_path):
    done = launch(None, *torchrun(3, "-c", HANGS, str(tmp_path), "ends"), SPARSE_MPI_TIMEOUT="3")
    assert done.returncode != 0 and "done" not in done.stdout
    text = (
        r"rank [02] of 3 has been in \w+ of reduction 3 for \d+ s, longer than 3 s, and waits for others: rank 1 left "
    )
    assert re.search(text, done.stderr) and "the job ends" in done.stderr, done.stderr


class Store(dict):
    """The calls of torch's store that are made here; each raises once the store is gone."""

    gone = False

    def check(self, keys):
        if self.gone:
            raise RuntimeError("Connection reset by peer")
        return all(key in self for key in keys)

    def set(self, key, value):
        self.check(())
        self[key] = value.encode()

    def add(self, key, number):
        self.check(())
        self[key] = self.get(key, 0) + number
        return self[key]


@pytest.fixture
def jobs(monkeypatch):
    """Makes the watchdogs of a job of three ranks, which poll when told, and whose clock stands still."""
    monkeypatch.setattr(WATCHDOG_THREAD, "add", lambda monitor: None)
    pass_time(monkeypatch, 0)
    ended = []

    def make(timeout: float) -> tuple[Store, list[StoreWatchdog], list[int]]:
        store = Store()
        watchdogs = [
            StoreWatchdog(rank, 3, lambda: store, timeout, lambda r=rank: ended.append(r)) for rank in range(3)
        ]
        return store, watchdogs, ended

    monkeypatch.setattr("sparse_mpi.comm.job.store_watchdog.SPEAKING", 0.0)
    return make


def pass_time(monkeypatch, seconds: float) -> None:
    later = time.time() + seconds
    monkeypatch.setattr("time.time", lambda: later)


def test_the_first_says_who_lacks_and_members_only(jobs, monkeypatch, capsys):
    store, watchdogs, ended = jobs(0.0)
    pair = [watchdog.log.over(6, [0, 2]) for watchdog in watchdogs]
    pair[0].enter(ALLREDUCE)
    for watchdog in watchdogs:
        watchdog.poll()
    assert f"{SITES}/0" not in store  # it has been there for a moment only
    pass_time(monkeypatch, 100)
    for _ in range(2):
        for watchdog in watchdogs:
            watchdog.poll()
    (line,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(
        r"sparse_mpi: rank 0 of 3 has been in allreduce for 100 s, and waits for others: rank 2 has made no call yet; "
        "SPARSE_MPI_TIMEOUT would end the job",
        line,
    )
    assert not ended


def test_a_late_rank_may_have_ended_a_call_or_be_in_another_one(jobs, monkeypatch, capsys):
    _, watchdogs, ended = jobs(30.0)
    whole = [watchdog.log.over(3, range(3)) for watchdog in watchdogs]
    for rank in range(3):
        whole[rank].enter(ALLREDUCE)
    for rank in (0, 1):
        whole[rank].log.leave()
    whole[0].enter(ALLREDUCE)
    pass_time(monkeypatch, 40)
    for watchdog in (watchdogs[1], watchdogs[2], watchdogs[0]):
        watchdog.poll()
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("sparse_mpi: rank 2 of 3 has been in allreduce for 40 s, longer than 30 s")
    assert "rank 1 left allreduce 40 s ago, and has made no call since; rank 2 has been in allreduce" in second
    assert ended == [2, 0]


def test_each_rank_of_a_chain_says_for_whom_it_waits(jobs, monkeypatch, capsys):
    _, watchdogs, _ = jobs(0.0)
    whole = [watchdog.log.over(3, range(3)) for watchdog in watchdogs]
    for rank, source in pairwise(range(3)):
        whole[rank].enter(SENDRECV, source)
    pass_time(monkeypatch, 100)
    for _ in range(2):
        for watchdog in watchdogs:
            watchdog.poll()
    lines = capsys.readouterr().err.splitlines()
    assert [re.search("waits for others: rank (.)", line)[1] for line in lines] == ["1", "2"]


def test_a_store_that_is_gone_or_busy_keeps_nobody_silent(jobs, monkeypatch, capsys):
    store, watchdogs, ended = jobs(5.0)
    watchdogs[0].log.over(3, range(3)).enter(ALLREDUCE)
    watchdogs[1].log.over(3, range(3)).enter(DUPLICATE)
    store.gone = True
    pass_time(monkeypatch, 100)
    for watchdog in watchdogs:
        watchdog.poll()
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" has been in ")[1].split(" for ")[0] for line in lines] == ["allreduce", "duplicate"]
    assert ended == [0, 1]


@pytest.mark.parametrize("name", ["add", "check", "set"])
def test_a_store_that_does_not_answer_keeps_nobody_silent(name, jobs, monkeypatch, capsys):
    """The process that has it may be the one that is frozen."""
    monkeypatch.setattr("sparse_mpi.comm.job.store_watchdog.ANSWER", 0.1)
    store, (_, watchdog, _), ended = jobs(5.0)
    watchdog.log.over(3, range(3)).enter(ALLREDUCE)
    released = threading.Event()
    monkeypatch.setattr(store, name, lambda *about: released.wait(60) and None)
    pass_time(monkeypatch, 100)
    watchdog.poll()
    released.set()
    assert "in allreduce for 100 s, longer than 5 s, and waits for others: rank 0 " in capsys.readouterr().err
    assert ended == [1]


def test_a_log_has_the_longest_call_of_all_threads():
    log = CallLog()
    calls = log.over(1, range(2))
    calls.enter(ALLREDUCE)
    assert log.current_call().inside and log.numbers == {1: 1}
    calls.log.leave()
    assert not log.current_call().inside and str(log.current_call()).startswith("left allreduce")
