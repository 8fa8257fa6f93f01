"""Ways of torch beside ours in `train/rivals.py`."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import rivals

from ..launch import ROOT


def test_ways_are_kinds_with_options_that_are_numbers_or_texts():
    assert rivals.spelled("hook:algorithm=oktopk:density=0.01") == ("hook", {"algorithm": "oktopk", "density": 0.01})
    assert rivals.spelled("averaging:period=8") == ("averaging", {"period": 8})
    for way in ("elect", "powersgd:4", "powersgd-rank=4"):
        with pytest.raises(ValueError, match="must be one of dense, half, .*, or optimizer, with NAME=VALUE"):
            rivals.spelled(way)


@pytest.mark.jobs
@pytest.mark.full("trains by eight ways")
def test_bytes_are_those_of_formulas_and_density_1_trains_as_torch(tmp_path):
    file = tmp_path / "rivals.json"
    ways = ["dense", "half", "powersgd:rank=2:start=2", "averaging:period=4", "hook", "optimizer", "local:sync_every=4"]
    command = [sys.executable, "-m", "sparse_mpi", "run", "-n", "2", "train/rivals.py", "gpt2", "--json", str(file)]
    command += ["--ways", *ways, "hook:algorithm=dense", "--", "--tiny", "--epochs", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    found = {record["way"]: record for record in json.loads(file.read_text())["records"]}
    assert list(found) == [*ways, "hook:algorithm=dense"]
    dense = found["dense"]
    steps, mb = dense["steps"], {way: record["mb_total"] for way, record in found.items()}
    assert mb["half"] == pytest.approx(mb["dense"] / 2, rel=1e-3)
    assert mb["averaging:period=4"] == pytest.approx(mb["dense"] * -(-steps // 4) / steps, rel=1e-3)
    assert mb["powersgd:rank=2:start=2"] < mb["dense"] * 0.2 and mb["hook"] < mb["dense"] * 0.15
    assert found["hook:algorithm=dense"]["loss"] == pytest.approx(
        dense["loss"], rel=5e-3
    )  # its clip is of an estimated norm
    assert all(len(record["epochs"]) == 1 and record["mb_wire"] > record["mb_total"] for record in found.values())
