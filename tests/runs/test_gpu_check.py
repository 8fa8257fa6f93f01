"""The command that proves everything on a machine with a GPU: on one without, pretended."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from runs.gpu_check import __main__ as gpu_check
from runs.gpu_check.__main__ import Outcome, Stage, main, page, remaining, stages, tried
from runs.gpu_check.stages import MARGIN
from runs.gpu_check.verdicts import verdicts
from sparse_mpi import Layout, World
from sparse_mpi.algorithms import ALGORITHMS
from sparse_mpi.cli.launch.find import LaunchError
from sparse_mpi_bench.candidates import Candidate
from sparse_mpi_bench.commands import bench_steps
from sparse_mpi_bench.commands.bench_steps import checked, on_gpu

from .. import gpu
from ..launch import ROOT, launch, needs_mpi

FACTS = {"pretended": False, "gpu": "NVIDIA H100 80GB HBM3", "source": "abc", "versions": {"cupy": "14"}}
FACTS |= {"mpi": {"library": "Open MPI v5", "launcher": "mpiexec"}}


def python(code, seconds=20.0, needs="", name="one", mpi=False):
    return Stage(name, seconds / MARGIN, "all of it", (sys.executable, "-c", code), needs, mpi)


def record(date, *rows, measured=None, **facts):
    """The record of one call with stages ``(name, state)``."""
    made = [Outcome(name, state, 1.0, f"said {date}", "python", date)._asdict() for name, state in rows]
    return {"calls": [FACTS | {"date": date} | facts], "stages": made, "measured": measured or {}}


def states(one):
    return {stage["name"]: (stage["state"], stage["call"]) for stage in one["stages"]}


@pytest.fixture
def three(monkeypatch):
    """Three stages of a second by their estimates, the second of which fails once and the third needs an MPI."""
    monkeypatch.setattr(gpu_check, "hardware", lambda: None)
    line = SimpleNamespace(words=["mpiexec"], library=SimpleNamespace(version="Open MPI v5"))
    monkeypatch.setattr(gpu_check, "build", lambda *arguments: line)
    flaky = "import pathlib; p = pathlib.Path('{out}/been'); p.exists() or p.touch() or exit('no')"
    note = "import pathlib; pathlib.Path('{out}/a.json').write_text('[1]')"

    def found(out, pretend):
        codes = {"a": note, "b": flaky, "c": "print('well')"}
        made = [python(code.format(out=out), 2, name=name, mpi=name == "c") for name, code in codes.items()]
        return [stage._replace(margin=60.0) for stage in made]  # on a busy machine too

    monkeypatch.setattr(gpu_check, "stages", found)


def check(out, *options):
    status = main(["--out", str(out), *options])
    return status, json.loads((out / "gpu-check.json").read_text())


@pytest.mark.parametrize(
    ("stage", "state", "why"),
    [
        (python("print('first'); print('well')"), "passed", "well"),
        (python("raise SystemExit('no')"), "failed", "no"),
        (python("print('well\\n[host:12] 3 more processes have sent help message')"), "passed", "well"),
        (python("print('well\\n\\x1b[0m\\x1b[0m')"), "passed", "well"),
        (python("", needs="nothing is there"), "skipped", "nothing is there"),
    ],
)
def test_a_stage_says_what_became_of_it(tmp_path, stage, state, why):
    outcome = tried(stage, tmp_path, os.environ)
    assert (outcome.name, outcome.state, outcome.why) == ("one", state, why)
    assert (tmp_path / "one.txt").exists() == (state != "skipped")


def test_a_stage_that_takes_too_long_is_ended_with_all_that_it_started(tmp_path):
    number = tmp_path / "number"
    child = f"import subprocess; subprocess.run(['sh', '-c', 'echo $$ > {number}; exec sleep 600'])"
    outcome = tried(python(child, seconds=1), tmp_path, os.environ)
    assert outcome.state == "out of time" and outcome.seconds < 600
    while number.exists() and number.read_text():  # unless this machine is so busy that it was not started
        with suppress(psutil.NoSuchProcess):
            if psutil.Process(int(number.read_text())).status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.01)
                continue
        break


def test_every_stage_states_its_estimate_and_may_take_twice_as_long(tmp_path):
    """The basis is a sum of seconds, which is the estimate."""
    for pretend in (False, True):
        found = stages(tmp_path, pretend)
        assert len({stage.name for stage in found}) == len(found)
        for stage in found:
            counted = [float(part.split()[-1]) for part in stage.basis.split(", ")]
            assert stage.limit == (20 if pretend else 2) * stage.estimate > 0 and sum(counted) == stage.estimate, stage
        assert sum(stage.estimate for stage in found) <= 20 * 60


def test_the_tests_that_need_a_gpu_are_all_in_the_named_files():
    """A folder is named where its fixtures bring the marker; of those that import a fixture, the file is."""
    named = [ROOT / name for name in gpu.FILES]
    marked = [file for file in (ROOT / "tests").rglob("test_*.py") if "pytest.mark.gpu" in file.read_text()]
    assert all(path.exists() for path in named) and len(marked) > 4
    outside = [file for file in marked if not any(file.is_relative_to(path) for path in named)]
    assert outside == [file for file in outside if file.name == "test_gpu_check.py"]


def test_without_an_mpi_the_stages_that_need_one_are_skipped_by_name(tmp_path, three, monkeypatch, capsys):
    def refuse(*arguments):
        raise LaunchError("mpi4py is not installed")

    monkeypatch.setattr(gpu_check, "build", refuse)
    _, found = check(tmp_path, "--only", "a", "c")
    assert [(row["name"], row["state"]) for row in found["stages"]] == [("a", "passed"), ("c", "skipped")]
    assert found["stages"][1]["why"].startswith("needs an MPI: mpi4py is not installed")
    assert "Skipped, so not shown: c." in capsys.readouterr().out


def test_another_call_goes_on_with_what_has_not_passed(tmp_path, three, capsys):
    """Within a budget of nothing all is left; then one fails; then only that one is run, and the records are one."""
    status, first = check(tmp_path, "--budget", "0")
    assert status == 0 and [row["state"] for row in first["stages"]] == ["left"] * 3
    assert "Left for another call: a, b, c." in capsys.readouterr().out
    status, second = check(tmp_path)
    assert status == 1 and [row["state"] for row in second["stages"]] == ["passed", "failed", "passed"]
    (tmp_path / "a.txt").unlink()
    status, third = check(tmp_path)
    assert status == 0 and [row["state"] for row in third["stages"]] == ["passed"] * 3
    assert not (tmp_path / "a.txt").exists() and third["measured"] == {"a": [1]}
    check(tmp_path, "--only", "a")
    assert (tmp_path / "a.txt").exists()


@pytest.mark.parametrize(
    ("change", "left"),
    [({}, ["warm", "c"]), ({"source": "new"}, ["a", "warm", "c"]), ({"gpu": "NVIDIA H200"}, ["a", "warm", "c"])],
)
def test_what_has_passed_counts_for_the_same_sources_on_the_same_gpu(change, left):
    found = [python("", name=name) for name in ("a", "warm", "c")]
    before = record("1", ("a", "passed"), ("warm", "passed"), ("c", "failed"))
    assert [stage.name for stage in remaining(found, before, FACTS | change, None)] == left
    assert [stage.name for stage in remaining(found, before, FACTS | change, ["a"])] == ["a"]
    done = record("1", ("a", "passed"), ("warm", "passed"), ("c", "passed"))
    assert (remaining(found, done, FACTS | change, None) == []) == (not change)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{}", "must be a record of this command, of this release; name another --out"),
        ("no json", "must be a record of this command"),
        (
            json.dumps(record("1", pretended=True)),
            "is of a pretended GPU, and this call is of a real one; name another",
        ),
    ],
)
def test_another_record_is_not_overwritten(tmp_path, three, text, says):
    (tmp_path / "gpu-check.json").write_text(text)
    with pytest.raises(SystemExit, match=f"gpu-check: .*gpu-check.json {says}"):
        check(tmp_path)
    assert (tmp_path / "gpu-check.json").read_text() == text


@pytest.mark.parametrize(("body", "status"), [("pass", 0), ("pytest.skip('no device')", 1)], ids=["passes", "skips"])
def test_tests_of_which_none_passed_have_failed(tmp_path, body, status):
    (tmp_path / "test_one.py").write_text(f"import pytest\ndef test_one():\n    {body}\n")
    command = ("-m", "tests.gpu", "--no-pools", "--rootdir", str(tmp_path), "-c", os.devnull, str(tmp_path))
    assert launch(None, *command).returncode == status


def test_a_test_that_hangs_and_a_file_that_cannot_be_imported_fail_and_the_others_are_run(tmp_path):
    (tmp_path / "test_two.py").write_text("import nothing_of_this_name\n")
    body = "import threading\ndef test_one():\n    threading.Event().wait()\ndef test_two():\n    pass\n"
    (tmp_path / "test_one.py").write_text(body)
    words = ("--limit", "2", "--rootdir", str(tmp_path), "-c", os.devnull, str(tmp_path))
    done = launch(None, "-m", "tests.gpu", *words)
    assert done.returncode == 1 and "1 failed, 1 passed, 1 error" in done.stdout, done.stdout
    assert "test_one takes more than 2 s" in done.stdout and 'test_one.py", line 3 in test_one' in done.stdout


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("share", [0.0, 0.5, 2.0])
def test_results_of_a_gpu_may_differ_as_far_as_the_algorithm_declares(device, monkeypatch, name, share):
    """By a share of the bound; where that is the bit, by the last bits. Both laws must hold whatever it is."""
    declared, plain = ALGORITHMS[name]().traits.device_difference, bench_steps.to_host
    off = np.float32(1 + share * (declared or 1e-6))

    def shifted(x):
        return plain(x) if isinstance(x, np.ndarray) else plain(x) * off

    monkeypatch.setattr(bench_steps, "to_host", shifted)

    def run(comm):
        base = on_gpu(np.random.default_rng(comm.rank).standard_normal(5000, np.float32), comm)
        return checked([Candidate(name)], Layout.of(5000), 0.01, base, comm)[name]

    found = World(2).run(run)[0]
    assert found["good"] is (share == 0 or (share < 1 and declared > 0)) and found["bound"] == declared


@needs_mpi
@pytest.mark.jobs
@pytest.mark.parametrize(
    "only",
    [["allreduce-2"], pytest.param([], marks=pytest.mark.full("all stages take two minutes"))],
    ids=["some", "all"],
)
@pytest.mark.timeout(600)
def test_without_a_gpu_the_stages_are_taken_on_a_pretended_one(tmp_path, only, capsys):
    status = main(["--pretend", "--out", str(tmp_path), *(["--only", *only] if only else [])])
    found = json.loads((tmp_path / "gpu-check.json").read_text())
    assert status == 0 and {stage["state"] for stage in found["stages"]} <= {"passed", "skipped"}, found["stages"]
    assert set(only or {stage.name for stage in stages(tmp_path, True)}) == states(found).keys()
    assert found["measured"]["allreduce-2"]["ranks"] == 2 and found["calls"][0]["pretended"] is True
    assert found["calls"][0]["mpi"].keys() == {"library", "launcher"}
    assert page(found) in capsys.readouterr().out


def test_records_of_other_folders_are_merged(tmp_path, three):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    (tmp_path / "one" / "gpu-check.json").write_text(
        json.dumps(record("1", ("select", "passed"), measured={"select": {"cases": []}}))
    )
    (tmp_path / "two" / "gpu-check.json").write_text(json.dumps(record("2", ("tests", "failed"))))
    status, found = check(tmp_path / "out", "--merge", str(tmp_path / "one"), str(tmp_path / "two"), "--budget", "0")
    expected = {"tests": ("failed", "2"), "select": ("passed", "1")}
    assert status == 1 and expected.items() <= states(found).items() and found["measured"] == {"select": {"cases": []}}


def test_times_are_judged_on_large_vectors_and_four_ranks():
    """By the bandwidth of the copy, which moves 12 bytes an element: 4.08 and 12.08 are needed at 1 %."""
    methods = {"copy": 12.0, "select": 4.5, "accumulate + select": 16.0, "top-k of rows": 3.0, "torch.topk": 50.0}
    methods |= {"torch.topk of rows": 12.0}
    case = {"n": 133_500_000, "density": 0.01, "methods": {name: [ms / 1e3] * 6 for name, ms in methods.items()}}
    steps = {"dense": {"step": 2.0}, "oktopk": {"step": 1.0}, "elect": {"step": 4.0}}
    records = {"select": {"cases": [case, case | {"n": 14_728_266}]}, "allreduce-4": {"results": steps}}
    rows = [[cell.strip() for cell in line.split("|")[2:5]] for line in verdicts(records, FACTS["gpu"])[2:]]
    assert [(found, good) for found, _, good in rows] == [
        ("4.500 ms, 1.10 x", "yes"), ("16.000 ms, 1.32 x", "no"), ("11.1 x", "yes"), ("4.0 x", "no"),
        ("2.00 x as fast", "yes"), ("0.50 x as fast", "no"),
    ]  # fmt: skip
    assert (
        rows[0][1] == "4.080 ms: 4.08 bytes an element at the copy's 0.13 TB/s; 0.163 ms at the data sheet's 3.35 TB/s"
    )
    assert "data sheet" not in "".join(verdicts(records, "a GPU of another kind")) and verdicts({}) == []
