"""Progress on a terminal, also on that of `run`, and in a file."""

from __future__ import annotations

import fcntl
import os
import struct
import termios
from contextlib import contextmanager

import pytest

from sparse_mpi.cli import progress as module
from sparse_mpi.cli.progress import FIRST, Bar
from sparse_mpi.comm.job import launcher


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
    assert at == [3, 8, 13, 18, 23, 29, 37, 47, 59, 74, 93], "less often as work goes on, at last every 30 s"


def test_other_ranks_show_nothing(capsys, clock):
    bar = Bar(3, "turns", shown=False)
    clock[0] += 100
    bar.update()
    assert not bar.shown and capsys.readouterr() == ("", "")


@contextmanager
def pseudo_terminal(columns):
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    try:
        yield ours, os.ttyname(theirs)
    finally:
        os.close(ours)
        os.close(theirs)


def test_a_bar_is_as_wide_as_the_terminal_of_run_at_most(monkeypatch, tmp_path, capsys):
    """The stderr of a rank is a pipe, but `run` tells of its terminal."""
    pytest.importorskip("tqdm")
    with pseudo_terminal(60) as (shown, path):
        monkeypatch.setenv(launcher.FOLDER, str(tmp_path))
        monkeypatch.setenv(launcher.TERMINAL, path)
        with Bar(5, "epoch 1/12") as bar:
            bar.say("loss 2.111, 20 images/s, 1.04 MB, k 14728, energy 0.93, xi 0.20, waited 31 steps")
            bar.write("epoch 1: a line")
            bar.update(5)
        written = os.read(shown, 1 << 16).decode()
    assert "epoch 1/12:   0%|" in written and "\n" not in written.strip()
    assert max(len(line) for line in written.split("\r")) <= 60
    assert capsys.readouterr() == ("epoch 1: a line\n", "")


def test_of_ranks_with_the_same_error_one_says_it(monkeypatch, tmp_path):
    assert launcher.first_to_say("error") and launcher.first_to_say("error")  # without `run`
    monkeypatch.setenv(launcher.FOLDER, str(tmp_path))
    assert launcher.first_to_say("error") and launcher.first_to_say("error")  # a process may say it again
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert not launcher.first_to_say("error") and launcher.first_to_say("another")
    monkeypatch.setenv(launcher.FOLDER, str(tmp_path / "not here"))
    assert launcher.first_to_say("error")
