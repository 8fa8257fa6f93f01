"""The doctor: healthy, with made-up findings, and with children that crash, hang and talk nonsense."""

from __future__ import annotations

import json

import pytest

from sparse_mpi.__main__ import main
from sparse_mpi.cli import doctor
from sparse_mpi.cli.doctor import findings, interfaces, probes
from sparse_mpi.cli.doctor.findings import Finding
from sparse_mpi.cli.doctor.probes import ChildExit

from ..launch import launch, needs_mpi

HEALTHY = {
    "host": "a",
    "versions": {"python": "3.12.0", "numpy": "2.4.0", "numba": "0.68", "cupy": "14.0"},
    "cores": [0, 1],
    "all cores": 2,
    "threads": 1,
    "gpus": ["H, driver 1, 80 GiB"],
    "launcher": {"OMPI_COMM_WORLD_SIZE": "2"},
    "settings": {},
    "rank": 0,
    "size": 2,
    "vendor": "Open MPI",
    "mpi": "Open MPI v5",
    "survives": False,
    "interface": "eth0",
    "rate": 25_000,
    "ports": [],
    "library": "Open MPI v5",
    "standard": "3.1",
    "thread level": "multiple",
    "device pointers": False,
    "device pointers because": "nobody says so",
}


def job(*changes: dict) -> list[dict]:
    """The facts of as many ranks, each healthy but for its changes."""
    return [HEALTHY | {"rank": rank} | change for rank, change in enumerate(changes)]


def about(found: list[Finding], subject: str) -> Finding:
    (one,) = [finding for finding in found if finding.about == subject]
    return one


@pytest.mark.parametrize(
    ("program", "ended", "says"),
    [
        ("import os; os.abort()", "crashed", "SIGABRT"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "crashed", "SIGSEGV"),
        ("import time; time.sleep(60)", "hung", "no answer in 0.5 s"),
        ("raise ValueError('no device')", "failed", "ValueError: no device"),
        ("print('ready')", "failed", "printed 'ready' where a JSON object was expected"),
        ("", "failed", "printed '' where"),
        ("print('ready'); print('{\"a\": 1}')", "well", ""),
    ],
)
def test_how_a_child_ends(program, ended, says):
    outcome = probes.run(["-c", program], 0.5 if ended == "hung" else 60)
    assert outcome.ended == ended and outcome.says.startswith(says)
    assert outcome.result == ({"a": 1} if ended == "well" else {})


def test_a_child_is_no_rank_of_the_parents_job(monkeypatch):
    for name in ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "OMPI_MCA_btl"):
        monkeypatch.setenv(name, "7")
    outcome = probes.run(["-c", "import json, os; print(json.dumps(dict(os.environ)))"], 60, {"MORE": "1"})
    inherited = {name for name, value in outcome.result.items() if value == "7"}
    assert inherited == {"OMPI_MCA_btl"} and outcome.result["MORE"] == "1"


@pytest.mark.thin(1)
@pytest.mark.parametrize("takes", [True, False])
@pytest.mark.parametrize("program", ["import os; os.abort()", "import time; time.sleep(60)", "import nowhere"])
def test_a_child_that_ends_badly_is_a_finding(monkeypatch, takes, program):
    """Broken only if MPI, or the user, had promised that it works."""
    monkeypatch.setattr(probes, "DEVICE_MESSAGE", ["-c", program])
    finding = probes.device_message(HEALTHY | {"device pointers": takes}, seconds=2)
    assert finding.grade == ("broken" if takes else "fine")
    assert any(word in finding.says for word in ("crashed (SIGABRT)", "hung (no answer in 2 s)", "failed (ModuleNot"))
    assert ("SPARSE_MPI_CUDA_AWARE=0" in finding.remedy) == takes


def test_device_pointers_that_cannot_be_tested():
    assert "not tested: no GPU" in probes.device_message(HEALTHY | {"gpus": []}).says
    assert "not tested: no CuPy" in probes.device_message(HEALTHY | {"versions": {}}).says
    nonsense = probes.device_message(HEALTHY | {"device pointers": None, "device pointers because": "got 'yes'"})
    assert nonsense.grade == "broken" and "got 'yes'" in nonsense.says


@pytest.mark.parametrize(
    ("changes", "says", "remedy"),
    [
        ({}, "compiled already, in /cache", ""),
        ({"compiled": 4}, "4 functions compiled just now, kept in /cache", ""),
        ({"compiled": 4, "writable": False}, "in each process anew: /cache", "export NUMBA_CACHE_DIR"),
        ({"compiled": 4, "folders": []}, "in each process anew: no folder", "export NUMBA_CACHE_DIR"),
        ({"writable": False}, "compiled already", ""),
    ],
)
def test_what_first_steps_cost(changes, says, remedy):
    result = {"seconds": {"import": 0.25, "elect": 1.5}, "compiled": 0, "folders": ["/cache"], "writable": True}
    finding = probes.judge_first_step(ChildExit("well", "", result | changes))
    assert finding.says.startswith("first steps: 1.8 s (import 0.2 s, elect 1.5 s)") and says in finding.says
    assert finding.remedy.startswith(remedy) and (finding.grade == "advice") == bool(remedy)


OPEN_MPI_SAYS = """
[a:1] select: initializing btl component self
[a:1] select: init of component self returned success
[a:1] select: initializing btl component ofi
[a:1] select: init of component ofi returned failure
[a:1] select: initializing btl component tcp
[a:1] btl:tcp: 0x1: if eth1 kidx 4 cnt 0 addr 10.0.0.1 IPv4 bw 100 lt 100
[a:1] select: init of component tcp returned success
[a:1] select: component ob1 selected
"""


@pytest.mark.parametrize(
    ("log", "library", "transport"),
    [
        (OPEN_MPI_SAYS, "Open MPI v5", "ob1 with self, tcp (eth1)"),
        (
            "[a:1] mca:base:select:(  mtl) Selected component [ofi]\n[a:1] select: component cm selected\n",
            "",
            "cm with ofi",
        ),
        ("[a:1] select: component ucx selected\n", "Open MPI v5", "ucx"),
        (
            "==== libfabric provider: tcp - 10.0.0.0/24",
            "MPICH Version: 4\nMPICH Device:    ch4:ofi\n",
            "ch4:ofi, provider tcp",
        ),
        ("", "MPICH Device: ch4:ucx", "ch4:ucx"),
        ("[0] MPI startup(): libfabric provider: mlx", "Intel(R) MPI Library 2021.18", "mlx"),
        ("", "Open MPI v5", None),
    ],
)
def test_a_transport_is_what_an_mpi_says_at_its_start(log, library, transport):
    assert interfaces.transport(log, library) == transport


def test_the_network_is_named_and_unknown_parts_are_said_to_be_unknown():
    two = interfaces.network(job({}, {"host": "b", "rate": 0}), "ucx").says
    assert two == "transport ucx; interface eth0, 25 Gbit/s (rank 0); eth0, rate unknown (rank 1)"
    one = interfaces.network(job({"interface": None, "rate": 0, "ports": ["mlx5_0 port 1, 100 Gb/sec"]}), None).says
    assert one.startswith(
        "transport unknown; one host, messages stay in memory; towards others interface unknown, rate"
    )
    assert one.endswith("; mlx5_0 port 1, 100 Gb/sec")


def test_ranks_that_differ_are_named():
    ranks = job({}, {}, {"host": "b", "versions": HEALTHY["versions"] | {"numpy": "1.26"}})
    (different,) = findings.versions(ranks)
    assert different.grade == "advice" and "numpy 2.4.0 (ranks 0, 1); 1.26 (rank 2)" in different.says
    assert "ranks differ in numpy" in different.remedy and "not installed: torch" in different.says
    assert "a (ranks 0, 1); b (rank 2)" in about(findings.launch(ranks), "ranks").says
    assert findings.said([1] * 20 + [2]).endswith("0, 1, 2, 3, 4, 5, 6, 7 and 12 more); 2 (rank 20)")
    assert about(findings.launch(job({}, {"mpi": "MPICH 4"})), "MPI").grade == "broken"


@pytest.mark.parametrize(
    ("vendor", "settings", "remedy"),
    [
        ("Open MPI", {"SLURM_JOB_ID": "1"}, "srun --mpi=pmix"),
        ("MPICH", {"SLURM_JOB_ID": "1"}, "srun --mpi=pmi2"),
        ("MPICH", {}, "the mpiexec that belongs to it"),
    ],
)
def test_singletons_are_broken(vendor, settings, remedy):
    lonely = job({"size": 1, "vendor": vendor, "settings": settings, "launcher": {"SLURM_STEP_NUM_TASKS": "4"}})
    finding = about(findings.launch(lonely), "ranks")
    assert finding.grade == "broken" and finding.says.startswith("singletons") and remedy in finding.remedy
    assert about(findings.launch(job({"size": 1, "launcher": {"PMI_SIZE": "1"}})), "ranks").grade == "fine"


def test_too_many_ranks_and_threads_for_a_host():
    assert [finding.grade for finding in findings.cores(job({}, {}))] == ["fine"]
    remedies = [finding.remedy for finding in findings.cores(job({"threads": 2}, {}, {"host": "b"}))]
    assert remedies == ["", "export OMP_NUM_THREADS=1"]
    crowd = job({}, {}, {})
    assert findings.cores(crowd)[1].remedy == "export OMPI_MCA_mpi_yield_when_idle=1"
    told = {"settings": {"OMPI_MCA_mpi_yield_when_idle": "1", "OMP_NUM_THREADS": "1"}}
    (only,) = findings.cores(job(told, told, told))
    assert "1 of 2 usable cores, OMP_NUM_THREADS=1" in only.says


def test_an_mpi_that_does_not_start(monkeypatch, capsys):
    monkeypatch.setattr(probes, "START_MPI", ["-c", "import os; os.abort()"])
    monkeypatch.setattr(probes, "first_step", lambda rank: Finding("kernels", "none"))
    for name in doctor.LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    assert main(["doctor"]) == 1
    printed = capsys.readouterr().out
    assert "! MPI: importing mpi4py crashed: SIGABRT" in printed and "1 broken (!)" in printed


def test_one_process_is_enough():
    done = launch(None, "-m", "sparse_mpi", "doctor", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(done.stdout)
    subjects = [finding["about"] for finding in record["findings"]]
    assert {
        "versions",
        "MPI",
        "ranks",
        "network",
        "thread level",
        "kernel threads",
        "kernels",
        "GPU",
        "device pointers",
    } <= set(subjects)
    assert len(record["ranks"]) == 1 and record["ranks"][0]["size"] == 1


@needs_mpi
def test_rank_0_speaks_for_all():
    done = launch(2, "-m", "sparse_mpi", "doctor", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(done.stdout)
    assert [rank["rank"] for rank in record["ranks"]] == [0, 1]
    assert about([Finding(**finding) for finding in record["findings"]], "ranks").says.startswith("2 ranks on ")


@pytest.mark.parametrize(
    ("takes", "message", "grade", "remedy"),
    [
        (True, True, "fine", ""),
        (True, False, "broken", "export SPARSE_MPI_CUDA_AWARE=0"),
        (False, True, "advice", "export SPARSE_MPI_CUDA_AWARE=1"),
        (False, False, "fine", ""),
    ],
)
def test_what_a_device_message_shows(takes, message, grade, remedy):
    outcome = ChildExit("well", "", {"bytes": 1 << 20, "message": message, "allreduce": True})
    finding = probes.judge_device_message(outcome, takes, "nobody says so")
    assert finding.grade == grade and remedy in finding.remedy
    assert ("wrong bytes (message)" in finding.says) == (not message) and probes.SHOWS in finding.says
