"""The view of a running job: numbers that are the reducers' own, who is marked, and that it fits any terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from sparse_mpi import SparseAllreduce, World
from sparse_mpi.__main__ import main
from sparse_mpi.monitor import metrics
from sparse_mpi_bench.analysis.rank_table import STALE, RankRow, Ranks, marked
from sparse_mpi_bench.commands import top
from sparse_mpi_bench.commands.top import COLUMNS, view

from ..launch import ROOT

N, STEPS = 2000, 4
ROW = RankRow(0, "", 7, 10.0, 1e6, None, 0.01, 2.0, 100.0, 100.0, 3.0, 0.001, 0.01, 0.001, 1.0)


@pytest.fixture
def folder(metrics_folder, monkeypatch):
    """Where a job of 3 ranks has written its metrics after each step."""
    monkeypatch.setenv(metrics.JOB, 'night "7"')
    return metrics_folder


def steps_of(comm):
    """Reduce by two reducers, the second one half as often; return what they report and owe."""
    reducers = [SparseAllreduce(N, k=20, comm=comm), SparseAllreduce(3 * N, k=90, comm=comm, algorithm="elect")]
    reports = []
    for step in range(STEPS):
        for number, reducer in enumerate(reducers[: 1 + step % 2]):
            drawn = np.random.default_rng([step, comm.rank, number]).standard_normal(len(reducer.residual))
            reducer.step(drawn.astype(np.float32))
            reports.append(reducer.report)
    norms = [float(np.linalg.norm(reducer.residual)) for reducer in reducers]
    return reports, sum(reducer.report.selected for reducer in reducers), norms


def test_a_row_has_what_the_reducers_of_its_rank_reported(folder):
    done = World(3).run(steps_of)
    ranks = Ranks(folder)
    rows = ranks.rows()
    assert ranks.job == 'night "7"' and [row.rank for row in rows] == [0, 1, 2]
    for row, (reports, selected, norms) in zip(rows, done, strict=True):
        sent = sum(report.traffic.sent + report.traffic.control for report in reports)
        assert (row.step, row.sent_total, row.sent) == (STEPS, sent, sent / STEPS)
        assert row.messages == sum(report.traffic.messages for report in reports) / STEPS
        assert row.exchange == pytest.approx(sum(report.exchange_seconds for report in reports) / STEPS)
        assert row.density == pytest.approx(selected / (4 * N))
        assert row.residual == pytest.approx(np.linalg.norm(norms), rel=1e-5)
        assert 0 < row.per_second and row.age < 60
    fastest = min(row.exchange for row in rows)
    assert [row.waits for row in rows] == pytest.approx([row.exchange - fastest for row in rows])


def prometheus(steps, wall, exchange, sent):
    """What a rank writes, as far as it matters here."""
    given = {"steps_total": steps, "wall_seconds_total": wall, "exchange_seconds_total": exchange}
    given |= {"sent_bytes_total": sent, "control_bytes_total": 0, "elements": 10, "density_ratio": 0.1}
    others = ("received_bytes_total", "messages_total", "select_seconds_total", "merge_seconds_total", "residual_norm")
    lines = [f'sparse_mpi_{name}{{job="j",rank="0",reducer="0"}} {value}' for name, value in given.items()]
    return "\n".join([*lines, *(f'sparse_mpi_{name}{{job="j",rank="0",reducer="0"}} 0.0' for name in others), ""])


def test_rates_are_those_between_the_last_two_times_that_a_rank_has_written(tmp_path):
    file, ranks = tmp_path / "sparse_mpi-j-0.prom", Ranks(tmp_path, clock=lambda: 2000.0)

    def row(when, *numbers):
        file.write_text(prometheus(*numbers))
        os.utime(file, (when, when))
        return ranks.rows()[0]

    first = row(1000, 1, 0.0, 5.0, 300)
    assert (first.per_second, first.exchange, first.sent, first.age, first.state) == (None, 5, 300, 1000, "stale")
    second = row(1990, 11, 20.0, 10.0, 1300)  # ten steps in twenty seconds
    assert (second.per_second, second.exchange, second.sent, second.sent_total) == (0.5, 0.5, 100, 1300)
    assert (second.state, ranks.rows()[0]) == ("", second)  # nothing new changes nothing
    again = row(1995, 3, 4.0, 3.0, 600)  # the job has begun anew
    assert (again.step, again.per_second, again.exchange) == (3, 0.5, 1)
    slow = row(1995 - STALE, 4, 104.0, 4.0, 700)  # a step takes longer than that
    assert slow.state == "" and slow.per_second == 0.01


@pytest.mark.thin(0)
@pytest.mark.parametrize("part", range(10))
def test_ranks_whose_files_are_whole_are_shown_beside_damaged_ones(folder, part):
    World(1).run(steps_of)
    (file,), shown = folder.iterdir(), Counter()
    whole, other = file.read_bytes(), file.with_name("sparse_mpi-other.prom")
    for number in range(300):
        rng, data = np.random.default_rng([part, number]), bytearray(whole.replace(b'rank="0"', b'rank="1"'))
        for at in rng.integers(len(data), size=rng.integers(1, 4)):
            data[at] = rng.choice([rng.integers(256), *b'0-.9e\n"'])
        data += data[: rng.integers(len(data))] if number % 7 == 0 else b""
        other.write_bytes(data[: rng.integers(len(data))] if number % 3 == 0 else data)
        ranks = Ranks(folder)
        lines = [line.text for line in view(ranks, folder, 200, 24)]
        assert any(re.match(rf" +0 (slow|stale)? +{STEPS} ", line) for line in lines), lines
        shown[len(ranks.rows()), len(ranks.damaged)] += 1
    assert shown.keys() <= {(1, 0), (1, 1), (2, 0)} and min(shown[1, 1], shown[2, 0]) > 20, shown
    other.unlink()
    os.mkfifo(other)
    assert len(Ranks(folder).rows()) == 1


def test_the_rank_that_all_wait_for_is_marked():
    rows = [ROW._replace(rank=rank, exchange=0.01 + 0.05 * (rank != 2)) for rank in range(4)]
    assert [row.state for row in marked(rows)] == ["", "", "slow", ""]
    assert [row.waits for row in marked(rows)] == pytest.approx([0.05, 0.05, 0, 0.05])
    even = [ROW._replace(rank=rank, exchange=0.01 + 0.0001 * rank) for rank in range(4)]
    assert {row.state for row in marked(even)} == {""}
    gone = [row._replace(state="stale", age=99.0, exchange=0.0) if row.rank == 0 else row for row in rows]
    assert [row.state for row in marked(gone)] == ["stale", "", "slow", ""]  # a rank without news is not waited for
    late = [row._replace(age=9.0, exchange=0.0) if row.rank == 0 else row for row in rows]
    assert [row.state for row in marked(late)] == ["", "", "slow", ""]  # nor is one whose numbers are of another time
    assert marked(gone)[0].waits is marked(late)[0].waits is None and marked([ROW]) == [ROW]


def test_lines_fit_any_terminal_and_marked_ranks_are_always_shown(tmp_path):
    many = [ROW._replace(rank=rank, state={77: "slow", 90: "stale"}.get(rank, "")) for rank in range(100)]
    given = SimpleNamespace(job="a job", damaged=(), rows=lambda: many)
    for width in range(10, 240):
        lines = view(given, tmp_path, width, 24)
        assert max(len(line.text) for line in lines) <= width and len(lines) <= 23
        assert [line.style for line in lines].count(top.STYLES["slow"]) == 1
    shown = [line.text for line in view(given, tmp_path, 80, 24)]
    assert shown[0] == "a job: 100 ranks, 1 without news, step 7, all wait for rank 77"
    assert shown[-1] == "and 82 more ranks, none of them slow or stale"
    narrow, wide = (view(given, tmp_path, width)[2].text.split() for width in (80, 200))
    assert {"rank", "step", "steps/s", "sent", "waits", "density", "residual"} <= set(narrow) < set(wide)
    assert len(view(given, tmp_path)) == 103 and all(column.title in " ".join(wide) for column in COLUMNS)


def test_a_view_that_is_printed_once(folder, capsys, monkeypatch):
    assert main(["top", str(folder), "--once"]) == 1 and "no metrics in" in capsys.readouterr().out
    World(2).run(steps_of)
    monkeypatch.setenv(metrics.JOB, "other")
    World(2).run(steps_of)
    for file in folder.glob("*other*.prom"):
        os.utime(file, (time.time() + 5,) * 2)
    for words, job in ((["--once"], "other"), ([], "other"), (["--job", 'night "7"'], 'night "7"')):
        assert main(["top", *words]) == 0  # stdout is no terminal here, and the variable names the folder
        said = capsys.readouterr().out.splitlines()
        assert said[0].startswith(f"{job}: 2 ranks, step {STEPS}") and len(said) == 5
    monkeypatch.delenv(metrics.DIRECTORY)
    with pytest.raises(SystemExit) as ended:
        main(["top"])
    assert ended.value.code == 2 and "which job?" in capsys.readouterr().err


def test_without_rich_it_is_said_what_to_install(folder, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with pytest.raises(top.Refused, match=r"pip install rich, or take --once"):
        top.watch(lambda width, height: [], 1.0)


def test_the_view_ends_with_its_terminal(monkeypatch):
    screen, shown = pty.openpty()
    with os.fdopen(shown) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        with top._keys() as pressed:
            os.write(screen, b"x")
            assert pressed(10) == "x" and pressed(0) == ""
            os.close(screen)
            assert pressed(10) == "q"


@pytest.mark.jobs
@pytest.mark.parametrize(("columns", "end"), [(80, "q"), (200, signal.SIGINT)])
def test_a_job_is_shown_live_until_a_key_or_a_signal_ends_the_view(tmp_path, columns, end):
    pytest.importorskip("rich")
    screen, shown = pty.openpty()
    fcntl.ioctl(shown, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    before, text = termios.tcgetattr(shown), ""
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    command = [sys.executable, "-m", "sparse_mpi", "top", str(tmp_path), "--every", "0.2"]
    terminal = {"env": kept | {"TERM": "xterm-256color"}, "stdin": shown, "stdout": shown, "stderr": shown}
    with subprocess.Popen(command, cwd=ROOT, **terminal) as process:
        for steps in (41, 97):
            (tmp_path / "sparse_mpi-j-0.prom").write_text(prometheus(steps, steps, 1.0, 300))
            while not re.search(rf" 0 +{steps} ", text):
                assert select.select([screen], [], [], 240)[0] and process.poll() is None, text[-3000:]
                text += os.read(screen, 1 << 16).decode()
        os.write(screen, end.encode()) if isinstance(end, str) else process.send_signal(end)
        assert process.wait(240) == 0
    while select.select([screen], [], [], 0.2)[0]:
        text += os.read(screen, 1 << 16).decode()
    assert termios.tcgetattr(shown) == before and text.endswith("\x1b[?1049l"), text[-99:]
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text.replace("\x1b[H", "\n").replace("\r", ""))
    assert max(map(len, plain.split("\n"))) <= columns and "residual" in plain
    assert ("exchange ms" in plain, "written" in plain) == (columns == 200, columns == 200)
    os.close(screen)
    os.close(shown)
