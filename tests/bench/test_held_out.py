"""The set-ups of runs/held_out.py: drawn by a seed, within bounds, and measured once each however often it is cut."""

from __future__ import annotations

import json

import pytest

from runs import held_out
from sparse_mpi.__main__ import parser
from sparse_mpi.predict import rates

RESULT = {"results": {"dense": {"step": 2.0}, "oktopk": {"step": 1.0}}, "measured": {"remark": None}}


def test_set_ups_are_those_of_the_seed_and_lie_within_bounds():
    drawn = held_out.draw(40, 1, "5gbit")
    assert drawn == held_out.draw(40, 1, "5gbit") != held_out.draw(40, 2, "5gbit")
    assert [each.number for each in drawn] == list(range(40))
    assert {each.ranks for each in drawn} == set(range(2, 9))
    assert all(0.001 <= each.density <= 0.03 and each.dense <= held_out.DENSE for each in drawn)
    assert all((each.model in held_out.SHAPES) != (each.n is not None and 1e5 <= each.n <= 1.5e7) for each in drawn)
    assert max(rates.parse(each.rate) for each in drawn) <= 5 * 10**9
    assert len({each.rate for each in drawn}) == 6 and {each.model for each in drawn} == {*held_out.SHAPES, None}


def test_the_command_of_a_set_up_is_one_of_ours(tmp_path):
    for each in held_out.draw(6, 1, "20gbit"):
        words = each.command(tmp_path / "record.json", 30)
        network = parser().parse_args(words[words.index("bench") :])
        args = parser().parse_args(network.command[1:])
        assert (network.ranks, network.rate, args.density) == ([each.ranks], [each.rate], each.density)
        assert (args.model, args.n) == (each.model, each.n)


def test_what_was_measured_is_not_measured_again(tmp_path, monkeypatch, capsys):
    measured = []

    def measure(set_up, busy, seconds, timeout):
        measured.append((set_up.number, busy))
        if set_up.number == 1:
            return "it was cut"
        return RESULT | {"set-up": held_out.asdict(set_up), "busy": busy}

    monkeypatch.setattr(held_out, "measure", measure)
    file = str(tmp_path / "held.json")
    assert held_out.main([file, "--set-ups", "4", "--first", "2"]) == 1  # one failed
    assert held_out.main([file, "--set-ups", "4", "--first", "1", "--busy", "2"]) == 0
    assert measured == [(0, 0), (1, 0), (0, 2)]
    monkeypatch.setattr(held_out, "measure", lambda *args: RESULT | {"set-up": held_out.asdict(args[0]), "busy": 0})
    assert held_out.main([file, "--set-ups", "4"]) == 0
    jobs = json.loads((tmp_path / "held.json").read_text())["jobs"]
    assert [(job["set-up"]["number"], job["busy"]) for job in jobs] == [(0, 0), (0, 2), (1, 0), (2, 0), (3, 0)]
    assert "no record: it was cut" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        held_out.main([file, "--seed", "2"])
    assert "name another file" in capsys.readouterr().err
