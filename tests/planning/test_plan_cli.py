"""``python -m sparse_mpi plan``, from a profile."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from sparse_mpi.__main__ import main
from sparse_mpi.comm import NullComm
from sparse_mpi.comm.runtime import LAUNCHERS
from sparse_mpi.planning import store
from sparse_mpi.planning.planners import PLANNERS, best

from .profiles import worked


@pytest.fixture
def profile(tmp_path, monkeypatch):
    """A profile file, and no launcher."""
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "profile.json"
    store.save(worked(), path)
    return str(path)


def test_plans_and_writes(profile, tmp_path, capsys):
    out, copy = tmp_path / "plan.json", tmp_path / "copy.json"
    assert main(["plan", "--profile", profile, "--out", str(out), "--save-profile", str(copy)]) == 0
    assert store.load(out) == best(worked()) and store.load(copy, store.Profile) == worked()
    printed = capsys.readouterr().out
    assert "2 tensors, 150 elements, density 0.1, P = 4\n" in printed
    assert "   1  topka              2           150            15          1\n" in printed
    assert "sparse: topka for 2 of 2 tensors, 100 % of the elements." in printed


def test_compares_all_planners(profile, capsys):
    assert main(["plan", "--profile", profile, "--compare", "--planner", "partial"]) == 0
    lines = capsys.readouterr().out.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("planner "))
    rows = [line.split() for line in lines[first + 1 : first + 1 + len(PLANNERS)]]
    assert [row[0] for row in rows] == [*PLANNERS]
    assert rows[0][1:] == ["20.5", "7.5", "1", "100.00", "1.000"] and rows[1][1:] == ["17", "2", "1", "0.00", "0.829"]


def test_another_density_than_the_profile_was_measured_for(profile, tmp_path):
    out = tmp_path / "plan.json"
    assert main(["plan", "--profile", profile, "--density", "0.5", "--planner", "sparse", "--out", str(out)]) == 0
    assert store.load(out) == PLANNERS["sparse"](replace(worked(), density=0.5))
    assert [part.k for part in store.load(out).parts] == [75]


def test_an_altered_profile_and_several_ranks_are_refused(profile, tmp_path, monkeypatch):
    altered = tmp_path / "altered.json"
    altered.write_text(open(profile).read().replace('"ranks": 4', '"ranks": 5'))
    with pytest.raises(SystemExit, match="altered.json was altered"):
        main(["plan", "--profile", str(altered)])
    monkeypatch.setenv(LAUNCHERS[0], "4")
    with pytest.raises(SystemExit, match=f"--profile plans in one process, got several .{LAUNCHERS[0]}.; leave"):
        main(["plan", "--profile", profile])


@pytest.mark.parametrize("rank", [0, 1])
def test_measures_on_all_ranks_and_prints_on_the_first(rank, tmp_path, capsys, monkeypatch):
    calls = []

    def measure(tensors, density, comm, **options):
        calls.append((len(tensors), density, comm.size, options))
        return worked(tensors=tensors)

    monkeypatch.setitem(sys.modules, "sparse_mpi.planning.measure", SimpleNamespace(measure=measure))
    monkeypatch.setattr("sparse_mpi.planning.plan_command.comm_of_job", lambda: NullComm(4, rank))
    saved = tmp_path / "profile.json"
    options = ["--model", "vgg16", "--backward", "0.5", "--update", "0.1", "--save-profile", str(saved)]
    assert main(["plan", *options]) == 0
    assert calls == [(54, 0.01, 4, {"before": 0.0, "backward": 0.5, "update": 0.1, "progress": True})]
    assert ("54 tensors, 14,728,266 elements" in capsys.readouterr().out) == saved.exists() == (rank == 0)
