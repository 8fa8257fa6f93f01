"""``bench rivals`` starts train/rivals.py of a checkout, on ranks of this machine or on emulated hosts."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace

import pytest

from sparse_mpi.__main__ import main

from ..launch import ROOT


@pytest.mark.parametrize(
    ("options", "command"),
    [
        ([], ["run", "-n", "4", "train/rivals.py", "gpt2", "--", "--tiny"]),
        (["-n", "2", "--rate", "1gbit"], ["bench", "network", "--rate", "1gbit", "--timeout", "86400", "--ranks", "2"]),
    ],
)
def test_the_program_is_started_with_its_words(monkeypatch, options, command):
    seen = []
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(subprocess, "run", lambda words, check: seen.append(words[3:]) or SimpleNamespace(returncode=3))
    assert main(["bench", "rivals", *options, "--", "gpt2", "--", "--tiny"]) == 3
    assert seen[0][: len(command)] == command and seen[0][-3:] == ["gpt2", "--", "--tiny"]


def test_elsewhere_and_without_words_it_is_refused(monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit, match="needs the words of train/rivals.py behind --, for example: bench rivals"):
        main(["bench", "rivals"])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="start it in a checkout"):
        main(["bench", "rivals", "--", "gpt2"])
