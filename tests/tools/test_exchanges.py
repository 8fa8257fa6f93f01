"""``predict --from``: what was measured on few ranks predicts what was measured on more, as far as the model holds."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from sparse_mpi.network.cluster import Cluster
from sparse_mpi.network.simulator import Message, Program, Round, simulate
from sparse_mpi.tools.analysis import calibration, steps
from sparse_mpi.tools.cli import main

TRUTH = Cluster(alpha=1e-4, beta=8e-9, others=0.5, message=3e-5, byte=1e-9, polling=0.25, speed=1.5)
RATES = {"100mbit": 0.1, "1gbit": 1.0}
BURSTS = {"100mbit": 12_500, "1gbit": 125_000}
CANDIDATES = {"dense": (4e6, 0.0), "topka": (8e4, 5e-3), "oktopk packed": (2e4, 8e-3)}  # bytes and seconds of a rank


def made_up(name, n, density, ranks):
    """A step in which ranks compute, then send to each other in turns."""
    length, computing = CANDIDATES[name.replace(":wire=", " ")]
    messages = [Message(rank, (rank + 1) % ranks, length) for _ in range(ranks - 1) for rank in range(ranks)]
    turns = [
        [Round(0.0, (turn * ranks + rank,), (turn * ranks + (rank - 1) % ranks,)) for turn in range(ranks - 1)]
        for rank in range(ranks)
    ]
    return Program([[Round(computing * (1 + 0.2 * rank)), *turn] for rank, turn in enumerate(turns)], messages)


@pytest.fixture(autouse=True)
def programs(monkeypatch):
    monkeypatch.setattr(steps, "program", made_up)


def measured(ranks, rate, truth=TRUTH, off=1.0):
    """What candidates take on a cluster that obeys the model but for a factor."""
    there = replace(truth.on(RATES[rate], BURSTS[rate]), cores=2.0, node=ranks) if rate else replace(truth, cores=2.0)
    found = {}
    for name in CANDIDATES:
        outcome = simulate(made_up(name, 0, 0, ranks), replace(there, node=ranks))
        found[name] = {"exchange": off * min(outcome.exchanges), "step": off * outcome.step, "bytes": 1.0}
    return found


def write(file, record):
    file.write_text(json.dumps(record))
    return str(file)


def job(ranks, rate, off=1.0):
    options = {"density": 0.01, "model": None, "n": 1000, "gbit": RATES[rate]}
    results = measured(ranks, rate, off=off)
    links = {"measured": {"burst": BURSTS[rate]}} if rate else {}
    return {"rate": rate, "ranks": ranks, "options": options, "cpus": 2, "results": results, **links}


@pytest.fixture
def compared(tmp_path):
    """A record as `bench compare --json` writes it; at 1gbit 8 ranks take 1.25 times as long as they should."""
    jobs = [job(p, rate, 1.25 if (rate, p) == ("1gbit", 8) else 1) for p in (2, 4, 8) for rate in RATES]
    return write(tmp_path / "compare.json", {"options": {}, "cpus": 2, "jobs": jobs})


def test_a_fit_explains_what_it_was_made_of_and_finds_what_dominates(compared):
    known, others = calibration.held_out(calibration.read(compared), [8])
    found = calibration.fit(known)
    assert found.ranks == [2, 4] and found.cluster.speed * (1 + found.cluster.others / 2) > 1
    assert max(abs(of.step_error) for of in found.predictions) < 0.05
    told = calibration.by_rate(calibration.predict(e, found.cluster) for e in others)
    assert max(calibration.median_errors(told["100mbit"])) < 0.1
    assert 0.1 < calibration.median_errors(told["1gbit"])[1] < 0.3


@pytest.mark.parametrize("name", ["speed", "message", "alpha", "others"])
def test_one_unknown_number_is_recovered(compared, name):
    known = [e for e in calibration.read(compared) if e.ranks < 8]
    start = replace(TRUTH, **{name: getattr(TRUTH, name) * 5})

    def loss(cluster):
        predictions = [calibration.predict(exchange, cluster) for exchange in known]
        return sum(abs(of.error) + abs(of.step_error) for of in predictions)

    found = calibration.nearest(start, [name], loss)
    assert getattr(found, name) == pytest.approx(getattr(TRUTH, name), rel=0.05)


def test_the_fit_of_few_ranks_is_compared_with_more_and_drawn(compared, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    file, plot = tmp_path / "c.json", tmp_path / "c.svg"
    options = ["--from", compared, "--check-ranks", "8", "--advise", "--json", str(file), "--plot", str(plot)]
    assert main(["predict", *options]) == 0
    printed, drawn = capsys.readouterr().out, plot.read_text()
    assert printed.startswith("fitted to P = 2, 4: a message takes") and printed.count("median error") == 2
    assert "right, within 10% of the fastest: 2 of 2" in printed
    record = json.loads(file.read_text())
    assert set(record["rates"]) == set(RATES) and len(record["cases"]) == 6 and len(record["advice"]) == 2
    assert Cluster(**record["cluster"]).speed > 0
    assert all(text in drawn for text in ("100mbit, exchange: median error", "1gbit, step", "packed"))


@pytest.mark.parametrize("candidates", ["algorithms", "results"], ids=["allreduce", "interleaved"])
def test_a_record_a_number_of_ranks(tmp_path, capsys, candidates):
    files = []
    for ranks in (2, 3, 4):
        record = {"ranks": ranks, "options": {"density": 0.01, "n": 1000}, "cpus": 2, candidates: measured(ranks, "")}
        files.append(write(tmp_path / f"p{ranks}.json", record))
    assert main(["predict", "--from", *files[:2], files[0], "--check", files[2]]) == 0
    assert "fitted to P = 2, 3" in capsys.readouterr().out
    assert all(e.longest == (candidates == "algorithms") for e in calibration.read(files[0]))


def test_the_length_of_a_model_and_the_format_of_all_are_read(tmp_path):
    of = {"exchange": 1.0, "step": 2.0, "bytes": 3.0}
    options = {"density": 0.01, "model": "vgg16", "n": None, "wire": "packed"}
    record = {"ranks": 2, "cpus": 2, "options": options, "algorithms": {"topka": of, "dense": of, "powersgd": of}}
    found = calibration.read(write(tmp_path / "a.json", record))
    assert [e.spelled for e in found] == ["topka:wire=packed", "dense"] and found[0].n == 14_728_266


@pytest.mark.parametrize(
    "record",
    [
        [],
        {"ranks": 4},
        {"jobs": [{"rate": "1gbit", "ranks": 2}]},
        {"ranks": 2, "options": {"density": 1, "n": 9}, "results": {"dense": {"bytes": None, "exchange": 1}}},
        {"ranks": 2, "cpus": 2, "options": {"density": 1}, "results": {"dense": {"step": 1, "exchange": 1}}},
    ],
    ids=str,
)
def test_a_file_of_another_kind_is_named(tmp_path, record):
    with pytest.raises(ValueError, match="bad.json must be a record that bench allreduce, bench interleaved"):
        calibration.read(write(tmp_path / "bad.json", record))


def test_exchanges_that_took_no_time_and_those_of_one_rank_are_refused(tmp_path):
    base = {"cpus": 2, "options": {"density": 0.01, "n": 9}}
    nothing = {"dense": {"bytes": 8, "exchange": 0.0, "step": 1.0}}
    with pytest.raises(ValueError, match="must have exchanges of more than 0 seconds, got .*dense"):
        calibration.read(write(tmp_path / "zero.json", {"ranks": 2, "results": nothing} | base))
    with pytest.raises(ValueError, match="must be of 2 ranks or more, got 1; run it under mpiexec"):
        calibration.read(write(tmp_path / "one.json", {"ranks": 1, "results": nothing} | base))


def test_six_numbers_need_six_exchanges(compared):
    with pytest.raises(ValueError, match="exchanges to fit to must be 6 or more, got 5"):
        calibration.fit(calibration.read(compared)[:5])
    rateless = [exchange._replace(gbit=None) for exchange in calibration.read(compared)[:6]]
    with pytest.raises(ValueError, match="exchanges to fit to must be 7 or more, got 6"):
        calibration.fit(rateless)


@pytest.mark.parametrize(("known", "left"), [(6, ["crowding", "slice"]), (7, ["slice"]), (8, [])])
def test_no_more_numbers_are_fitted_than_there_are_exchanges(compared, monkeypatch, known, left):
    asked = []
    monkeypatch.setattr(calibration, "nearest", lambda start, names, loss: asked.extend(names) or start)
    found = calibration.fit(calibration.read(compared)[:known]).cluster
    assert len(asked) == known and [name for name in calibration.FITTED if name not in asked] == left
    assert found == calibration.START


def test_what_a_byte_takes_is_fitted_where_no_rate_is_known(compared, monkeypatch):
    asked = []
    monkeypatch.setattr(calibration, "nearest", lambda start, names, loss: asked.extend(names) or start)
    calibration.fit([exchange._replace(gbit=None) for exchange in calibration.read(compared)[:7]])
    assert asked == [*calibration.FITTED[:6], "beta"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["16"], "ranks must be some of those measured, 2, 4, 8, got 16"),
        (["2", "4", "8"], "ranks must leave some to fit to"),
    ],
)
def test_wrong_calls_say_what_is_right(compared, options, says):
    with pytest.raises(SystemExit) as stop:
        main(["predict", "--from", compared, "--check-ranks", *options])
    assert says in str(stop.value)


def test_bursts_are_those_of_the_record(tmp_path):
    """A record of before they were told is of links that let 128 KiB pass, or a millisecond's worth if that is more."""
    old = job(2, "100mbit") | {"measured": {"gbit": 0.1}}
    fast = {**old, "options": old["options"] | {"gbit": 9.0}}
    for of, expected in ((job(2, "100mbit"), 12_500), (old, 128 << 10), (fast, 1_125_000)):
        assert {exchange.burst for exchange in calibration.read(write(tmp_path / "jobs.json", {"jobs": [of]}))} == {
            expected
        }
