"""``predict --from``: what was measured on few ranks predicts what was measured on more, as far as the model holds."""

from __future__ import annotations

import json

import pytest

from sparse_mpi.analysis import exchanges
from sparse_mpi.cli import main
from sparse_mpi.costs.model import Network

TRUTH = {"100mbit": Network(2e-4, 8e-8), "1gbit": Network(5e-5, 8e-9)}


def measured(ranks, truth, off=1.0):
    """Candidates on a network that obeys the model but for a factor."""
    traffic = {"dense": (2 * ranks, 4e6), "topka": (ranks, 8e4 * ranks), "oktopk packed": (3 * ranks, 2e5)}
    return {
        name: {"messages": m, "bytes": b, "exchange": off * (truth.alpha * m + truth.beta * b)}
        for name, (m, b) in traffic.items()
    }


def write(file, record):
    file.write_text(json.dumps(record))
    return str(file)


@pytest.fixture
def compared(tmp_path):
    """A record as `bench compare --json` writes it; at 1gbit 8 ranks take 1.25 times as long as they should."""
    jobs = [
        {"rate": rate, "ranks": ranks, "results": measured(ranks, truth, 1.25 if (rate, ranks) == ("1gbit", 8) else 1)}
        for ranks in (2, 4, 8)
        for rate, truth in TRUTH.items()
    ]
    return write(tmp_path / "compare.json", {"options": {}, "jobs": jobs})


def test_alpha_and_beta_are_found_for_every_rate(compared, tmp_path, capsys):
    file = tmp_path / "c.json"
    assert main(["predict", "--from", compared, "--check-ranks", "8", "--json", str(file)]) == 0
    printed = capsys.readouterr().out
    assert "100mbit: fitted to P = 2, 4: 200 us a message, 0.0125 GB/s" in printed
    assert "1gbit: fitted to P = 2, 4: 50 us a message, 0.125 GB/s" in printed
    assert printed.count("+0%") + printed.count("-0%") == printed.count("-20%") == 3
    assert "median error without sign: 0%" in printed and "median error without sign: 20%" in printed
    record = json.loads(file.read_text())
    for rate, truth in TRUTH.items():
        assert record["rates"][rate]["alpha"] == pytest.approx(truth.alpha)
        assert record["rates"][rate]["beta"] == pytest.approx(truth.beta)
    errors = {(case["candidate"], case["rate"]): case["error"] for case in record["cases"]}
    assert errors["oktopk packed", "1gbit"] == pytest.approx(-0.2) and len(errors) == 6
    assert errors["dense", "100mbit"] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("candidates", ["algorithms", "results"], ids=["allreduce", "interleaved"])
def test_a_record_a_number_of_ranks(tmp_path, capsys, candidates):
    truth = Network(2e-5, 1e-9)
    files = [
        write(tmp_path / f"p{ranks}.json", {"ranks": ranks, candidates: measured(ranks, truth)}) for ranks in (2, 4, 8)
    ]
    assert main(["predict", "--from", *files[:2], "--check", files[2]]) == 0
    assert "exchanges: fitted to P = 2, 4: 20 us a message, 1 GB/s" in capsys.readouterr().out
    assert main(["predict", "--from", *files, "--check-ranks", "8"]) == 0
    assert "exchanges: fitted to P = 2, 4: 20 us a message, 1 GB/s" in capsys.readouterr().out


def test_predicted_over_measured_is_drawn(compared, tmp_path):
    matplotlib = pytest.importorskip("matplotlib")
    plot = tmp_path / "c.svg"
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        assert main(["predict", "--from", compared, "--check-ranks", "4", "8", "--plot", str(plot)]) == 0
    drawn = plot.read_text()
    assert all(text in drawn for text in ("100mbit, median error 0%", "1gbit, median error", "oktopk packed"))


@pytest.mark.parametrize(
    "record",
    [
        [],
        {"ranks": 4},
        {"jobs": [{"rate": "1gbit", "ranks": 2}]},
        {"ranks": 2, "results": {"dense": {"messages": 1, "bytes": None, "exchange": 1}}},
        {"ranks": 2, "results": {"dense": {"messages": 1, "exchange": 1}}},
    ],
    ids=str,
)
def test_a_file_of_another_kind_is_named(tmp_path, record):
    with pytest.raises(ValueError, match="bad.json must be a record that bench allreduce, bench interleaved"):
        exchanges.read(write(tmp_path / "bad.json", record))


def test_exchanges_that_took_no_time_and_those_of_one_rank_are_refused(tmp_path):
    nothing = {"dense": {"messages": 1, "bytes": 8, "exchange": 0.0}}
    with pytest.raises(ValueError, match="must have exchanges of more than 0 seconds, got .*dense"):
        exchanges.read(write(tmp_path / "zero.json", {"ranks": 2, "results": nothing}))
    with pytest.raises(ValueError, match="must be of 2 ranks or more, got 1; run it under mpiexec"):
        exchanges.read(write(tmp_path / "one.json", {"ranks": 1, "results": nothing}))


def test_two_numbers_need_two_exchanges_at_the_same_rate():
    few, other = exchanges.Exchange("a", 2, 1, 1, 1.0, "1gbit"), exchanges.Exchange("b", 8, 1, 1, 1.0, "1gbit")
    with pytest.raises(ValueError, match="must be 2 or more at rate 1gbit, got 1"):
        exchanges.check([few, few._replace(rate="none")], [other])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--from", "a.json"], "--from FILE ... goes with --check FILE or with --check-ranks P"),
        (["--check", "a.json"], "--from FILE ... goes with --check FILE or with --check-ranks P"),
        (["--from", "a.json", "--check", "b.json", "--check-ranks", "8"], "--from FILE ... goes with --check FILE or"),
        (["--from", "setup.cfg", "--check", "setup.cfg"], "setup.cfg must be a record that bench allreduce"),
        (["--from", "{compared}", "--check-ranks", "16"], "ranks must be some of those measured, 2, 4, 8, got 16"),
        (["--from", "{compared}", "--check-ranks", "2", "4", "8"], "ranks must leave some to fit to"),
    ],
)
def test_wrong_calls_say_what_is_right(compared, options, says):
    with pytest.raises(SystemExit) as stop:
        main(["predict", *(option.format(compared=compared) for option in options)])
    assert says in str(stop.value.code)
