"""The command that proves everything on a machine with a GPU: on one without, pretended."""

from __future__ import annotations

import json
import os
import sys
import time

import pytest

from sparse_mpi.cli import gpu_check, main
from sparse_mpi.cli.gpu_check import Outcome, Stage, page, stages, tried

from ..launch import needs_mpi


def python(code, seconds=20.0, needs=""):
    return Stage("one", seconds, (sys.executable, "-c", code), needs)


@pytest.mark.parametrize(
    ("stage", "state", "why"),
    [
        (python("print('first'); print('well')"), "passed", "well"),
        (python("raise SystemExit('no')"), "failed", "no"),
        (python("", needs="nothing is there"), "skipped", "nothing is there"),
    ],
)
def test_a_stage_says_what_became_of_it(tmp_path, stage, state, why):
    outcome = tried(stage, tmp_path, os.environ)
    assert (outcome.name, outcome.state, outcome.why) == ("one", state, why)
    assert (tmp_path / "one.txt").exists() == (state != "skipped")


def test_a_stage_that_takes_too_long_is_ended_with_all_that_it_started(tmp_path):
    child = f"import subprocess; subprocess.run(['sh', '-c', 'sleep 2; touch {tmp_path}/late'])"
    outcome = tried(python(child, seconds=0.5), tmp_path, os.environ)
    assert outcome.state == "out of time" and outcome.seconds < 2
    time.sleep(2)
    assert not (tmp_path / "late").exists()


def test_all_stages_together_take_less_than_ten_minutes(tmp_path):
    for pretend in (False, True):
        found = stages(tmp_path, pretend)
        assert sum(stage.seconds for stage in found) <= 600 and len({stage.name for stage in found}) == len(found)


def test_the_page_says_when_all_was_pretended():
    facts = {"date": "today", "pretended": True, "gpu": None, "versions": {"python": "3", "cupy": None}}
    facts["mpi"] = {"library": "Open MPI v5", "launcher": "mpiexec"}
    text = page([Outcome("doctor", "passed", 1.25, "a | b", "python")], facts)
    assert (
        "Nothing here was run on a GPU" in text and "| doctor | passed | 1.2 | a / b |" in text and "cupy" not in text
    )


def test_unknown_stages_are_refused(tmp_path):
    with pytest.raises(SystemExit, match="--only must name stages, doctor, tests, .*got nonsense"):
        main(["gpu-check", "--pretend", "--out", str(tmp_path), "--only", "nonsense"])


@needs_mpi
@pytest.mark.jobs
@pytest.mark.parametrize(
    "only",
    [["select", "allreduce-2"], pytest.param([], marks=pytest.mark.full("all stages take two minutes"))],
    ids=["some", "all"],
)
@pytest.mark.timeout(600)
def test_without_a_gpu_the_stages_are_taken_on_the_cpu(tmp_path, only, capsys):
    status = main(["gpu-check", "--pretend", "--out", str(tmp_path), *(["--only", *only] if only else [])])
    record = json.loads((tmp_path / "gpu-check.json").read_text())
    states = {stage["name"]: stage["state"] for stage in record["stages"]}
    assert status == 0 and set(states.values()) <= {"passed", "skipped"}, record["stages"]
    assert set(only or {stage.name for stage in stages(tmp_path, True)}) == states.keys()
    assert record["measured"]["allreduce-2"]["ranks"] == 2 and record["pretended"] is True
    assert record["mpi"].keys() == {"library", "launcher"}
    assert gpu_check.page([], record | {"versions": {}}).splitlines()[0] in capsys.readouterr().out


def test_without_a_gpu_a_benchmark_on_one_is_refused():
    with pytest.raises(SystemExit, match="--device gpu needs CuPy and a GPU on every rank"):
        main(["bench", "allreduce", "--device", "gpu", "--n", "100", "--steps", "1", "--warmup", "0"])
