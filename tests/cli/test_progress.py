"""Progress on a terminal and in a file."""

from __future__ import annotations

import fcntl
import os
import struct
import sys
import termios
import threading
from unittest.mock import Mock

import pytest

from sparse_mpi.cli import progress as module
from sparse_mpi.cli.progress import FIRST, Bar


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(module, "monotonic", lambda: now[0])
    return now


def test_a_file_has_a_line_now_and_then(capsys, clock):
    with Bar(1000, "steps") as bar:
        for _ in range(100):
            bar.update()
            bar.say("loss 2.1")
            clock[0] += 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"steps: 4/1000 after {FIRST:.0f} s, loss 2.1"
    at = [int(line.split(" after ")[1].split()[0]) for line in lines]
    assert at == [*range(3, 64, 5), 69, 75, 82, 89, 97], "less often after a minute, at last every 30 s"


def test_a_step_that_does_not_end_shows_its_time(capsys, clock, monkeypatch):
    begun = Mock()
    monkeypatch.setattr(module, "Thread", begun)

    class Passes(threading.Event):
        def wait(self, timeout):
            clock[0] += timeout
            return self.is_set() or clock[0] > 115

    monkeypatch.setattr(module, "Event", Passes)
    bar = Bar(2, "first step")
    given = begun.call_args.kwargs
    assert given["daemon"], "a program that ends does not wait for it"
    given["target"](*given["args"])
    bar.close()
    assert clock[0] == 115.5
    given["target"](*given["args"])
    assert clock[0] == 116 and capsys.readouterr().err.splitlines() == [
        f"first step: 0/2 after {seconds} s" for seconds in (3, 8, 12)
    ]


def test_other_ranks_show_nothing(capsys, clock):
    bar = Bar(3, "turns", shown=False)
    clock[0] += 100
    bar.update()
    assert not bar.shown and capsys.readouterr() == ("", "")


def test_a_terminal_has_one_line_no_wider_than_it(monkeypatch, capsys, clock):
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    with os.fdopen(theirs, "w") as screen:
        monkeypatch.setattr(sys, "stderr", screen)
        with Bar(5, "epoch 1/12") as bar:
            bar.say("loss 2.111, 20 images/s, 1.04 MB, k 14728, energy 0.93, xi 0.20, waited 31 steps")
            bar.write("epoch 1: a line")
            clock[0] += 1
            bar.update(5)
        written = ""
        while written.count(module.CLEARED) < 4:
            written += os.read(ours, 1 << 16).decode()
    os.close(ours)
    lines = written.split(module.CLEARED)
    assert [line[:16] for line in lines] == ["", "epoch 1/12: 0/5 ", "", "epoch 1/12: 5/5 ", ""], "gone in the end"
    assert "\n" not in written and max(map(len, lines)) == 59
    assert capsys.readouterr().out == "epoch 1: a line\n"
