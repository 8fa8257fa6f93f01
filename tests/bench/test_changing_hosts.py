"""Emulated hosts whose links change: what they give in each phase, and jobs that go on."""

from __future__ import annotations

import json
import subprocess
import time
from fractions import Fraction

import pytest

from sparse_mpi.__main__ import main
from sparse_mpi_bench.emulation.hosts import emulate
from sparse_mpi_bench.emulation.links import Links, RatePlayer
from sparse_mpi_bench.emulation.probe import _pair
from sparse_mpi_bench.emulation.schedule import DOWN, Schedule

from ..launch import needs_mpi

GBIT, SLOW = 10**9, 10_000_000

# All ranks add up until the record has as many lines as the last argument says, and then once more
ADDING = """
import sys
from pathlib import Path
import numpy as np
from mpi4py import MPI
comm, file, lines = MPI.COMM_WORLD, Path(sys.argv[1]), int(sys.argv[2])
x, total, last = np.arange(20_000.0), np.empty(20_000), False
while not last:
    last = comm.bcast(file.read_text().count("\\n") >= lines)
    comm.Allreduce(x, total)
    assert (total == comm.size * x).all()
print("added", flush=True)
"""


def queues(hosts, host, link):
    return subprocess.check_output(["tc", "-n", hosts.name(host), "qdisc", "show", "dev", link], text=True)


def test_links_have_the_rate_of_each_phase(possible):
    """From faster to slower and back, by a limit at either end; one slow link leaves the others alone."""
    with emulate(3, None) as hosts:
        links = Links(hosts)
        links.change((None,) * 3)
        assert "tbf" not in queues(hosts, 1, "eth0")
        for slow, rates in ((1, (SLOW, GBIT, None)), (0, (None,) * 3), (2, (None, SLOW, None))):
            links.change(rates)
            assert [host for host in (1, 2, 3) if "rate 10Mbit" in queues(hosts, host, "eth0")] == [slow] * bool(slow)
            assert slow == 0 or 0 < _pair(hosts, 0.5).rate < 2 * SLOW


def test_a_course_leaves_out_what_is_over(possible, capfd):
    """Where the machine was late, the links get the rates of now; each rate that they got is told."""
    starts = tuple(map(Fraction, ("0", "0.001", "0.002", "3600")))
    schedule = Schedule(starts, ((GBIT,) * 2, (DOWN,) * 2, (SLOW,) * 2, (GBIT,) * 2))
    with emulate(2, GBIT) as hosts:
        links = Links(hosts)
        steps = RatePlayer(links, schedule).play()
        assert next(steps) == 0.001
        time.sleep(0.1)  # longer than the next phase
        assert next(steps) == 3600 and links.rates == (SLOW, SLOW)
    error = capfd.readouterr().err
    assert "links go from 1gbit to 10mbit; hosts have sent" in error and "down" not in error


@needs_mpi
@pytest.mark.jobs
def test_a_job_survives_changing_links_and_a_second_without(possible, tmp_path, capfd):
    """Its results are right, and the record says what the links did and carried."""
    program, record = tmp_path / "adding.py", tmp_path / "links.jsonl"
    program.write_text(ADDING)
    options = ["--ranks", "3", "--rate", "1gbit,20mbit,down,100mbit", "--every", "1s", "--log", str(record)]
    assert main(["bench", "network", *options, "--timeout", "150", "--", str(program), str(record), "5"]) == 0
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert [line["event"] for line in lines] == ["start", *["change"] * (len(lines) - 2), "end"]
    seen = [line["rates"] for line in lines]
    assert seen[:5] == [[bits] * 3 for bits in (GBIT, 20_000_000, 0, 100_000_000, GBIT)]
    seconds = [line["seconds"] for line in lines]
    assert seconds == sorted(seconds) and all(at >= due for due, at in enumerate(seconds[:5]))
    assert lines[0]["sent"] == lines[0]["received"] == [0, 0, 0]
    assert min(lines[-1]["sent"]) > 2 * 2 / 3 * 160_000  # of one sum at least
    for before, after in zip(lines, lines[1:], strict=False):
        sent = sum(after["sent"]) - sum(before["sent"])
        assert sent >= 0 and (before["rates"] != [0] * 3 or sent < 1_000_000)  # in the instants of the changes
    said = capfd.readouterr()
    assert said.out.count("added") == 3 and "3 hosts, 1gbit: measured" in said.out
    assert "links go from 20mbit to down; hosts have sent " in said.err and "in all" in said.err
