"""The command line, as a user calls it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

import sparse_mpi
from sparse_mpi.__main__ import main
from sparse_mpi.cli import records
from sparse_mpi.cli.values import Parser
from sparse_mpi.comm import NullComm
from sparse_mpi.predict.models import MODELS
from sparse_mpi.sparse import Layout


@pytest.mark.parametrize(("called", "name"), [("sparse-mpi", "sparse-mpi"), ("__main__.py", "python -m sparse_mpi")])
def test_help_names_the_program_as_it_was_called(called, name, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", [str(tmp_path / called), "--help"])
    for arguments in ([], ["run"], ["bench", "steps"]):
        with pytest.raises(SystemExit):
            main([*arguments, "--help"])
        assert capsys.readouterr().out.startswith(" ".join([f"usage: {name}", *arguments]))
    assert records.command().startswith("sparse-mpi --help" if called == name else "python ")


def test_a_record_is_continued_with_what_is_new(tmp_path):
    file = tmp_path / "record.json"
    for network, ms in (("a", 1), ("b", 2), ("a", 3)):
        rows = [{"network": network, "model": "small", "step": step, "ms": ms} for step in range(2)]
        records.add_measured(file, rows, "network", "model")
    assert [(row["network"], row["ms"]) for row in json.loads(file.read_text())["measured"]] == [
        *(("b", 2), ("b", 2), ("a", 3), ("a", 3))
    ]
    assert sum(line.startswith("{") for line in file.read_text().splitlines()) == 5, "a line for each row"


def test_without_a_command_there_is_help(capsys):
    assert main([]) == 0
    assert capsys.readouterr().out.startswith("usage: ")


def test_the_version_is_that_of_the_package(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0 and capsys.readouterr().out == f"sparse_mpi {sparse_mpi.__version__}\n"


def test_public_names_are_listed_and_found():
    names = dir(sparse_mpi)
    assert {*sparse_mpi.__all__, "DiLoCo", "optim", "ddp"} < set(names) and "import_module" not in names
    assert all(hasattr(sparse_mpi, name) for name in names if name not in ("DiLoCo", "optim", "ddp", "elastic"))


@pytest.mark.parametrize(
    ("given", "answer"),
    [
        ({"algorithm": "okotpk"}, "did you mean oktopk?"),
        ({"algorithm": "oktopk", "wire": "paked"}, "did you mean packed?"),
        ({"algorithm": "oktopk", "perod": 3}, "did you mean period?"),
        ({"feedback": "leeky"}, "did you mean leaky?"),
    ],
)
def test_a_misspelled_name_is_answered_with_the_nearest(given, answer):
    with pytest.raises((TypeError, ValueError), match=re.escape(answer)):
        sparse_mpi.SparseAllreduce(10, k=2, comm=NullComm(2), **given)


@pytest.mark.parametrize(
    ("model", "tensors", "parameters"),
    [
        ("vgg16", 54, 14_728_266),
        ("resnet50", 161, 25_557_032),
        ("bert-base", 199, 109_482_240),
        ("bert-small", 71, 28_763_648),
        ("gpt2", 148, 124_439_808),
    ],
)
def test_models_have_the_published_numbers_of_parameters(model, tensors, parameters):
    """VGG-16 is compared with the program's model in tests/train."""
    shapes = [shape for _, shape in MODELS[model]]
    assert len(shapes) == tensors and Layout.of(shapes).size == parameters
    assert len({name for name, _ in MODELS[model]}) == tensors


def test_whoever_reads_may_have_enough():
    """As `head` has, which goes while there is more to print."""
    command = [sys.executable, "-m", "sparse_mpi", "predict", "advise", "--rate", "1gbit"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        running.stdout.close()
        assert running.stderr.read() == b"" and running.wait(240) == 141


@pytest.mark.parametrize("word", ["draw", "trace", "compare", "gpu-check"])
def test_commands_that_moved_are_named(word, capsys):
    with pytest.raises(SystemExit):
        main([word, "record.json", "--plot", "figure.svg"])
    remedy = "python -m runs.gpu_check" if word == "gpu-check" else f"write bench {word}"
    assert f"{word.replace('-', '_')} was removed in 0.4.0" in (said := capsys.readouterr().err) and remedy in said
    main([])
    assert not re.search(rf"^ +{word} ", capsys.readouterr().out, re.MULTILINE)


def test_a_long_help_is_shown_in_two_parts(capsys, monkeypatch):
    parser = Parser(prog="p", most_used=["--first"])
    parser.add_argument("--first", help="(default: none)")
    parser.add_argument_group("more").add_argument("--second", help="(default: none)")
    shown = {}
    for option in ("--help", "--help-all"):
        with pytest.raises(SystemExit):
            parser.parse_args([option])
        shown[option] = capsys.readouterr().out
        assert "--first" in shown[option] and "--help-all" in shown[option]
    assert "second" not in shown["--help"] and "more" not in shown["--help"] and "--second" in shown["--help-all"]
    for wrong in ("--secnd", "--somethingelse"):
        with pytest.raises(SystemExit):
            parser.parse_args([wrong])
    said = capsys.readouterr().err
    assert "did you mean --second?" in said and "--help-all shows all options" in said


@pytest.mark.parametrize(
    ("typed", "offered", "not_offered"),
    [("", "doctor", "--wire"), ("pre", "predict", "plan"), ("run --el", "--elastic", "--dry-run")],
)
def test_a_shell_is_told_what_may_follow(typed, offered, not_offered, tmp_path):
    pytest.importorskip("argcomplete")
    line, out = f"sparse-mpi {typed}", tmp_path / "offered"
    shell = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_STDOUT_FILENAME": str(out)}
    shell |= {"COMP_LINE": line, "COMP_POINT": str(len(line))}
    subprocess.run([sys.executable, "-m", "sparse_mpi"], env=os.environ | shell, check=True, timeout=60)
    words = [word.strip() for word in out.read_text().split("\n")]
    assert offered in words and not_offered not in words, words
