"""What `run` passes on of what a launcher prints."""

from __future__ import annotations

import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparse_mpi.cli.launch.find import OPEN_MPI
from sparse_mpi.cli.launch.start import HELD, LONGEST, Filter, relay

RULE = "-" * 74 + "\n"
ABORT = f"""{RULE}MPI_ABORT was invoked on rank 1 in communicator MPI COMM 3 DUP FROM 0
  Proc: [[47902,1],1]
  Errorcode: 1
{RULE}"""
ENDED = f"""{RULE}prterun has exited due to process rank 1 with PID 0 on node vm calling
"abort". This may have caused other processes in the application to be
terminated by signals sent by prterun (as reported here).
{RULE}"""
STATUS = f"""{RULE}prterun detected that one or more processes exited with non-zero status,
thus causing the job to be terminated. The first process to do so was:

   Process name: [prterun-vm-8069@1,2]
   Exit code:    3
{RULE}"""
KILLED = f"""{RULE}prterun noticed that process rank 1 with PID 77 on node vm exited on
signal 9 (Killed).
{RULE}"""
SAID = {
    ABORT: "",
    ENDED: "rank 1 ended the job\n",
    STATUS: "rank 2 ended with status 3, and the job with it\n",
    KILLED: "rank 1 was ended by signal 9 (Killed), and the job with it\n",
}


def through(text, sizes=(1 << 20,)):
    """What comes of a text that arrives in pieces of these sizes, in turns, and of the end of the stream."""
    data, passed, made, turn = text.encode(), b"", Filter(OPEN_MPI.banners), 0
    while data:
        size = sizes[turn % len(sizes)]
        passed, data, turn = passed + made.feed(data[:size]), data[size:], turn + 1
    return (passed + made.flush()).decode()


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("banner", SAID)
def test_a_banner_becomes_a_line(banner, size):
    assert through(f"before\n{banner}after\n", [size]) == f"before\n{SAID[banner]}after\n"


@given(
    st.lists(st.sampled_from(["text\n", "\r 3 %", RULE, "-", "--\n", "\n", "é", f"x{RULE}", "no mpirun detected\n"])),
    st.lists(st.integers(1, 90), min_size=1),
)
def test_all_else_passes_unchanged(pieces, sizes):
    assert through("".join(pieces), sizes) == "".join(pieces)


def test_what_begins_no_banner_passes_at_once():
    made = Filter(OPEN_MPI.banners)
    assert made.feed(b"\r 10 %|#") == b"\r 10 %|#" and not made.holds
    assert made.feed(b" done") == b" done"
    assert made.feed(b"\n--") == b"\n" and made.holds
    assert made.feed(b" a list\n") == b"-- a list\n"


def test_long_blocks_between_rules_pass():
    text = RULE + "a row\n" * (LONGEST + 1)
    made = Filter(OPEN_MPI.banners)
    assert made.feed(text.encode()).decode() == text


def test_a_rule_of_the_program_passes_though_nothing_follows():
    source, end = os.pipe()
    shown, target = os.pipe()
    thread = threading.Thread(target=relay, args=(source, target, OPEN_MPI.banners))
    thread.start()
    os.write(end, RULE.encode())
    assert os.read(shown, 100).decode() == RULE  # after HELD seconds
    os.close(end)
    thread.join(20 * HELD)
    assert not thread.is_alive()
