"""Faults on purpose: what is asked for, what is drawn, whom it hits, and what is said of real jobs that suffer it."""

from __future__ import annotations

import json
import math
import os
import signal
import statistics
import subprocess
import time
from itertools import islice
from pathlib import Path

import pytest

from sparse_mpi.__main__ import main
from sparse_mpi_bench.chaos.drawing import ChaosSettings, draw, parse
from sparse_mpi_bench.chaos.faults import Chaos, Fault
from sparse_mpi_bench.chaos.job import outcome

from ..launch import ROOT, launch, needs_mpi
from ..prefork import copied


def test_both_spellings_of_kinds_are_one():
    wanted = ChaosSettings(mtti=60, seed=1, kinds=("kill", "freeze", "link"))
    assert parse("mtti=60,seed=1,kinds=kill,freeze,link") == parse("kinds=kill+freeze+link,mtti=60,seed=1") == wanted
    assert parse("after=2.5").after == 2.5 and parse("after=run/first.npz").after == Path("run/first.npz")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("word", "got 'word'"),
        ("mtti=0", "another mtti: it must be a number > 0, got 0"),
        ("mtti=1,mtti=2", "got 'mtti=2'; it is there twice"),
        ("kinds=kill,frieze", "must be some of kill, freeze, link, got kill+frieze"),
        ("kinds=kill,seed=1,freeze", "got 'freeze'"),
        ("sed=1", "got 'sed=1'; did you mean seed?"),
        ("faults=0", "an integer >= 1, got 0"),
        ("record=no/such/folder/file", "another record: it must be a file, in a folder that is there"),
        ("after=", "must be seconds >= 0, or a file that the job writes, got ''"),
    ],
)
def test_what_is_wrong_is_named(text, said):
    with pytest.raises(ValueError, match="chaos must") as refused:
        parse(text)
    assert said in str(refused.value)


def test_a_seed_draws_the_same_faults_and_kinds_leave_instants_and_ranks():
    drawn = list(islice(draw(ChaosSettings(mtti=5, seed=3), 4), 2000))
    assert drawn == list(islice(draw(ChaosSettings(mtti=5, seed=3), 4), 2000))
    assert drawn != list(islice(draw(ChaosSettings(mtti=5, seed=4), 4), 2000))
    others = list(islice(draw(ChaosSettings(mtti=5, seed=3, kinds=("freeze", "link")), 4), 2000))
    assert [fault[:2] for fault in others] == [fault[:2] for fault in drawn]
    assert {fault.kind for fault in others} == {"freeze", "link"} and {fault.rank for fault in drawn} == {0, 1, 2, 3}
    gaps = [b.seconds - a.seconds for a, b in zip(drawn, drawn[1:], strict=False)]
    # Exponential: its mean is its deviation; 2,000 of them are within 10 % (4.5 standard errors), and the seed is fixed
    assert statistics.mean(gaps) == pytest.approx(5, rel=0.1) == statistics.stdev(gaps)
    assert all(0 <= fault.lasts <= 4 for fault in others) and len(list(draw(ChaosSettings(faults=3), 4))) == 3


@pytest.fixture
def children():
    started = []

    def start():
        started.append(subprocess.Popen(["sleep", "60"]))
        return started[-1]

    yield start
    for job in started:
        job.kill()
        job.wait()


def wait_for(condition, seconds=240):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def state(process):
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2][0]


def play(faults, ranks, tell):
    def find():
        return {number: rank.pid for number, rank in enumerate(ranks) if rank.poll() is None}

    chaos = Chaos(faults, find, lambda: True, tell=tell)
    start = time.monotonic()
    for second in chaos.play():
        time.sleep(max(0.0, start + second - time.monotonic()))
    return chaos


def test_faults_hit_the_rank_that_is_meant_and_spare_the_last(children):
    ranks = [children() for _ in range(3)]
    said = []

    def tell(text):
        said.append(text)
        if text.startswith("killed"):
            ranks[int(text.split()[2])].wait()

    wanted = [Fault(0, 1, "kill"), Fault(0.2, 1, "freeze", 1), Fault(0.2, 2, "freeze", math.inf)]
    wanted += [Fault(0.2, 2, "freeze", 9), Fault(0.2, 0, "kill"), Fault(0.4, 2, "kill")]
    chaos = play(wanted, ranks, tell)
    refused = [fault["refused"] for fault in chaos.done]
    assert refused == [None, "it had ended", None, "it was so already", None, "it was the last one"]
    assert [rank.poll() for rank in ranks] == [-signal.SIGKILL, -signal.SIGKILL, None] and chaos.lost == {0, 1}
    wait_for(lambda: state(ranks[2]) == "T")
    assert said[0] == "killed rank 1 after 0.0 s" and len(said) == 6
    assert "as jobs without --elastic do" in outcome(chaos, 3, False, 9, 9)
    assert outcome(chaos, 3, True, 0, 9).endswith(
        "the job went on with 1 of 3 ranks and ended with status 0 after 9.0 s"
    )


def test_a_frozen_rank_goes_on_or_is_counted_as_lost(children):
    ranks = [children() for _ in range(2)]
    said = []

    def tell(text):
        said.append(text)
        if text.startswith("froze rank 1"):  # as other ranks do when their patience is over
            ranks[1].kill()
            ranks[1].wait()
        if text.startswith("froze rank 0"):
            wait_for(lambda: state(ranks[0]) == "T")

    chaos = play([Fault(0, 0, "freeze", 0.1), Fault(0, 1, "freeze", 0.2)], ranks, tell)
    wait_for(lambda: state(ranks[0]) == "S")
    assert said[2:] == ["rank 0 goes on", "rank 1 was ended while it was frozen"] and chaos.lost == {1}
    assert "; rank 1 ended while frozen; the job went on with 1 of 2 ranks" in outcome(chaos, 2, True, 0, 9)


# A user's script: it stops with the step in which a rank is missing
SCRIPT = """
import sys
import time
from pathlib import Path

import numpy as np
from sparse_mpi.fault_tolerance import ElasticAllreduce

reducer = ElasticAllreduce(1000, k=10)
gradient, until = np.ones(1000, np.float32), time.monotonic() + 240
for step in range(100_000):
    gradient[0] = 1e6 if time.monotonic() > until else 0
    total = reducer.step(gradient).to_dense()
    if step == 3:
        Path(sys.argv[1]).touch()
    if total[0] > 1e5 or reducer.ranks < 4:
        break
    time.sleep(0.01)
sys.stdout.write(f"rank done of {reducer.comm.size}\\n")  # in one piece
"""


# A job script: a rank of another job, and the launcher in place of the script
AMONG_OTHERS = """
import os, subprocess, sys
null = subprocess.DEVNULL
other = subprocess.Popen(["sleep", "600"], env={"PMIX_RANK": sys.argv[1]}, stdout=null, stderr=null)
open(sys.argv[2], "w").write(str(other.pid))
os.execv(sys.executable, [sys.executable, *sys.argv[3:]])
"""


@needs_mpi
@pytest.mark.jobs
def test_a_script_survives_a_kill_and_the_record_says_so(tmp_path, survival):
    options = ChaosSettings(mtti=0.2, seed=1, faults=1)
    (planned,) = draw(options, 4)
    (tmp_path / "script.py").write_text(SCRIPT)
    file, ready = tmp_path / "record.json", tmp_path / "ready"
    chaos = f"mtti=0.2,seed=1,faults=1,after={ready},record={file}"
    words = ("-m", "sparse_mpi", "run", "-n", "4", "--elastic", "--chaos", chaos)
    others = ("-c", AMONG_OTHERS, str(planned.rank), str(tmp_path / "other"))
    done = launch(None, *others, *words, *copied(str(tmp_path / "script.py"), str(ready)), seconds=300)
    os.kill(int((tmp_path / "other").read_text()), signal.SIGKILL)  # it lives
    record = json.loads(file.read_text())
    assert (done.returncode, done.stdout.splitlines()) == (0, ["rank done of 3"] * 3), done.stderr
    assert record["cases"] == [planned._asdict() | {"refused": None}] and record["lost"] == [planned.rank]
    assert (record["status"], record["ranks"], record["elastic"], record["settings"]["seed"]) == (0, 4, True, 1)
    assert "--chaos" in record["command"] and record["versions"]["mpi"] and record["versions"]["python"]
    assert f"chaos: killed rank {planned.rank} after {planned.seconds:.1f} s" in done.stderr
    assert "the job went on with 3 of 4 ranks and ended with status 0" in record["outcome"] in done.stderr
    assert f"rank {planned.rank} lost before step" in done.stderr


def test_links_of_no_emulated_hosts_are_refused(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit) as ended:
        main("run -n 2 --chaos kinds=link README.md".split())
    assert ended.value.code == 2 and "--chaos with kinds=link needs emulated hosts" in capsys.readouterr().err
