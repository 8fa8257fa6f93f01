"""``bench calibrate``: fits to what was measured, and how good predictions and advice are."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from sparse_mpi.__main__ import main
from sparse_mpi.comm.world import World
from sparse_mpi.predict import fitted
from sparse_mpi.predict.cluster import TYPICAL
from sparse_mpi_bench.calibration import fit as calibration
from sparse_mpi_bench.calibration.fit import MeasuredStep, Prediction
from sparse_mpi_bench.commands import bench_calibrate

TRUTH = replace(TYPICAL, message=9e-5, speed=1.5, crowding=0.3)
RATES = {"100mbit": 0.1, "1gbit": 1.0}
CANDIDATES = ("dense", "topka", "oktopk packed", "micro")


def job(ranks, rate, off=1.0, n=400_000):
    """A record of what candidates take on a cluster that obeys the model but for a factor."""
    results = {}
    for name in CANDIDATES:
        told = calibration.predict(MeasuredStep(name, ranks, n, 0.01, 1.0, 2, rate, RATES.get(rate)), TRUTH)
        results[name] = {"step": off * told.step}
    options = {"density": 0.01, "model": None, "n": n, "gbit": RATES.get(rate)}
    return {"rate": rate, "ranks": ranks, "options": options, "cpus": 2, "results": results}


@pytest.fixture
def compared(tmp_path):
    file = tmp_path / "compare.json"
    file.write_text(
        json.dumps({"jobs": [job(p, rate, n=n) for p in (2, 4, 8) for rate in RATES for n in (10**5, 10**6)]})
    )
    return str(file)


def test_few_ranks_predict_many(compared, tmp_path, capsys):
    file = tmp_path / "check.json"
    assert main(["bench", "calibrate", compared, "--ranks", "8", "--json", str(file)]) == 0
    printed = capsys.readouterr().out
    assert "fitted to P = 2, 4" in printed and "right, within 10% of the fastest: 4 of 4" in printed
    record = json.loads(file.read_text())
    assert all(of["median step error"] < 0.05 for of in record["rates"].values()) and len(record["cases"]) == 16


def test_the_rate_is_fitted_where_records_do_not_tell_it(compared):
    known = [of._replace(gbit=None) for of in calibration.read(compared) if of.rate == "100mbit"]
    assert calibration.fit(known).cluster.beta == pytest.approx(8e-8, rel=0.15)


def test_advice_with_a_fit_is_of_cores_and_has_its_errors(compared, tmp_path, capsys):
    file = str(tmp_path / "fit.json")
    assert main(["bench", "calibrate", compared, "--json", file]) == 0
    known = calibration.fit(calibration.read(compared))
    longer = {way: known.longer(way) for way in ("dense", "topka", "oktopk:wire=packed", "micro")}
    assert fitted.read(file) == (replace(known.cluster), pytest.approx(longer), pytest.approx(known.errors))
    assert main(["predict", "advise", "--n", "1000000", "--ranks", "8", "--rate", "300mbit", "--from", file]) == 0
    assert "Assumed: fitted to --from" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["predict", "advise", "--rate", "1gbit", "--from", file, "--on", "h100"])
    assert "--on must be cpu with a fit, whose steps were measured on cores, got h100" in capsys.readouterr().err


def test_records_that_are_none_are_refused(tmp_path):
    file = tmp_path / "r.json"
    for wrong, match in (({"jobs": [job(1, "1gbit")]}, "2 ranks or more, got 1"), ({}, "must be a record that bench")):
        file.write_text(json.dumps(wrong))
        with pytest.raises(ValueError, match=match):
            calibration.read(file)
    file.write_text(json.dumps({"jobs": [job(2, "1gbit", off=0.0)]}))
    with pytest.raises(ValueError, match="steps of more than 0 seconds"):
        calibration.read(file)
    file.write_text(json.dumps({"jobs": [job(2, "1gbit"), job(4, "1gbit")]}))
    known = calibration.read(file)
    with pytest.raises(ValueError, match="must be some of those measured, 2, 4, got 8"):
        calibration.held_out(known, [8])
    with pytest.raises(ValueError, match="must leave some to fit to"):
        calibration.held_out(known, [2, 4])
    with pytest.raises(ValueError, match="must be 3 or more, got 2"):
        calibration.fit(known[:2])


def test_without_records_the_network_is_measured(capsys, monkeypatch):
    monkeypatch.setattr(bench_calibrate, "measure", lambda comm, sizes: [1e-5 + 1e-9 * size for size in sizes])
    World(1).run(lambda comm: monkeypatch.setattr(bench_calibrate, "comm_of_job", lambda: comm))
    assert main(["bench", "calibrate"]) == 0
    assert "10 us a message, 1 GB/s; --rate 8gbit --latency 10" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["bench", "calibrate", "--plot", "errors.png"])
    assert "--plot draws predictions" in capsys.readouterr().err


def prediction(candidate, step, told, rate="1gbit", ranks=8):
    return Prediction(MeasuredStep(candidate, ranks, 10, 0.01, step, 2, rate=rate), told)


def test_advice_is_judged_by_what_was_measured():
    predictions = [
        prediction("dense", 1.0, 1.0),
        prediction("topka", 0.5, 0.4),
        prediction("micro", 0.4, 0.5),
        prediction("dense", 1.0, 1.0, "100gbit"),
        prediction("topka", 1.2, 0.97, "100gbit"),
    ]
    first, second = calibration.judged(predictions)
    assert first.advised.measured.candidate == "topka" and first.regret == pytest.approx(0.25)
    assert second.advised.measured.candidate == "dense" and second.regret == 0
    with pytest.raises(ValueError, match="must have measured dense"):
        calibration.judged(predictions[1:3])
