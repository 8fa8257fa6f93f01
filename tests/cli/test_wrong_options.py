"""A wrong option of any command is one line: its name, what it must be, what came, an example; the exit status is 2."""

from __future__ import annotations

import argparse
import re

import pytest

from sparse_mpi.__main__ import main
from sparse_mpi.cli import values
from sparse_mpi.cli.values import Value

from ..launch import launch, needs_mpi
from .parsers import ROOT, parsers, programs

TEXTS = ("word", "-1", "0", "0.5", "nan", "inf", "", "no/such/file", "3furlongs", "two\nlines")
NEVER = ""  # a good value of no option
UNITS = "second|Gbit/s|bytes|GB|epochs|rate|norm|momentum|decay|factor|score|pairs|ranks|times|share"  # of numbers


@pytest.fixture(params=programs())
def parser_list(request, monkeypatch):
    monkeypatch.chdir(ROOT)
    return parsers(request.param, monkeypatch)


def values_of(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return the options and arguments that take values, but not those that take what is left for another program."""
    return [action for action in actions_of(parser) if action.nargs not in (0, argparse.REMAINDER)]


def actions_of(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in parser._actions if not isinstance(action, argparse._SubParsersAction)]


def complaint(parser: argparse.ArgumentParser, action: argparse.Action, text: str, capsys) -> str:
    """Return the lines about a value; "" if it is taken."""
    dashes = [] if parser.get_default(values.WORDS) is not None else ["--"]  # behind which are another program's words
    words = [f"{action.option_strings[-1]}={text}"] if action.option_strings else [*dashes, text]
    try:
        parser.parse_known_args(words)
    except SystemExit as ended:
        assert ended.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    return said.err


def test_every_wrong_value_is_one_line_with_an_example(parser_list, capsys):
    for parser in parser_list:
        for action in values_of(parser):
            assert isinstance(action.type, Value) or action.choices, f"{parser.prog} {action.dest} takes anything"
            name = action.option_strings[-1] if action.option_strings else str(action.metavar or action.dest)
            for text in TEXTS:
                said = complaint(parser, action, text, capsys)
                if "argument" not in said or "required" in said:
                    assert text != NEVER, f"{parser.prog} {name} takes {text!r}"
                    continue
                assert said.count("\n") == 1 and said.startswith(f"{parser.prog}: error: argument "), said
                assert re.search(rf"{re.escape(name)}(?!\w).*: .*\bmust |expected", said) and all(
                    word in said for word in text.split()
                ), said
                assert "must" not in said or re.search(r"for example \S|did you mean \S", said), said
                assert "Traceback" not in said and "usage" not in said


def test_examples_are_good(parser_list, tmp_path, monkeypatch, capsys):
    """What a line proposes is taken, but for names of files, which are of nobody's machine."""
    for parser in parser_list:
        for action in values_of(parser):
            said = complaint(parser, action, "", capsys)
            found = re.search(r"for example (.*)", said)
            if found and "that is there" not in said and "a file" not in said:
                for text in found[1].split() if action.nargs in ("+", "*") else [found[1]]:
                    again = complaint(parser, action, text, capsys)
                    assert "error: argument" not in again or "required" in again, again


def test_help_tells_what_every_option_is(parser_list, capsys):
    for parser in parser_list:
        with pytest.raises(SystemExit) as ended:
            parser.parse_known_args(["--help-all" if "--help-all" in parser.format_help() else "--help"])
        assert ended.value.code == 0 and parser.description, parser.prog
        shown = " ".join(capsys.readouterr().out.split())
        assert "usage:" in shown
        for action in actions_of(parser):
            text = action.help or ""
            if action.help is argparse.SUPPRESS:
                continue
            assert len(text) > 5, f"{parser.prog} {action.dest} has no help"
            if action.option_strings and action.nargs not in (0, argparse.REMAINDER) and not action.required:
                assert "default" in text, f"{parser.prog} {action.dest} does not tell its default: {text}"
            if action.type in (values.number, values.positive, values.finite):
                assert re.search(UNITS, text), f"{parser.prog} {action.dest} does not tell its unit: {text}"


def test_unknown_options_have_the_nearest_spelling(parser_list, capsys):
    for parser in parser_list:
        spellings = [name for action in actions_of(parser) for name in action.option_strings]
        options = [name for name in spellings if len(name) > 6 and re.match("--(?!help)", name)]
        if options:
            with pytest.raises(SystemExit):
                parser.parse_args([options[0] + "q"])
            said = capsys.readouterr().err
            assert f"did you mean {options[0]}?" in said or "required" in said, said


def test_misspelled_names_have_the_nearest_spelling(parser_list, capsys):
    """Algorithms, commands and whatever else is one of several."""
    for parser in parser_list:
        for action in actions_of(parser):
            for name in [name for name in map(str, action.choices or ()) if len(name) > 4]:
                misspelled = name[:2] + name[3] + name[2] + name[4:]
                if misspelled != name:
                    words = [action.option_strings[-1]] if action.option_strings else []
                    with pytest.raises(SystemExit):
                        parser.parse_known_args([*words, misspelled])
                    assert f"; did you mean {name}?" in capsys.readouterr().err, (parser.prog, action.dest, name)


ADVISE = "predict advise --n 1000 --ranks 2"
COMBINATIONS = {
    "bench steps --algorithms topka:rank=3": "topka has no option rank",
    "bench volume --keyed --gradients opposed": "--gradients goes without --keyed",
    "bench volume --keyed --algorithms oktopk": "--algorithms must be one of auto, split",
    "bench network --ranks 2 4 --every 3s --rate 1gbit,2gbit": "--every takes one of --ranks and of --rate, got 2",
    "bench network --json f.json -- train/vgg.py": "take bench steps or bench sparse after a --",
    "bench network --rate 1gbit,50mbit": "--every must say how long each of the rates 1gbit,50mbit holds",
    "bench network --rate 1gbit --every 3s": "--every needs several rates",
    "bench sparse --fill-in 2 2": "must have different names, got fill-in 2 twice",
    "bench steps --algorithms dense --wires packed": "--wires must be accepted by one of dense",
    "bench steps --model vgg16 --n 3": "argument --n: not allowed with argument --model",
    "predict advise --model gtp2 --rate 1gbit": "--model: must be a known model or module:Name, got gtp2",
    "predict advise --model json:dumps --rate 1gbit": "--model must be, or make without arguments, a torch module",
    "predict advise --ranks 8": "the following arguments are required: --rate",
    "run nowhere.py": "there is no program nowhere.py",
    "run -n 2 python x.py --steps 3": "there is no program python; name the file alone: x.py --steps 3",
    "run -m nowhere": "there is no module nowhere",
    "run -n 2": "which program?",
    "run -n 2 -m": "-m needs the name of a module",
    "bench kernels --density 0.7": "--density must be in (0, 0.5], got 0.7",
    "bench sparse --data docs": "--data docs must be a folder with rank-0.npz",
    "predict networks": "networks was removed in 0.4.0: ask predict advise for each --rate and --ranks",
    "predict advise --ranks 12 --ranks-per-node 8 --rate 1gbit": "--ranks must fill nodes of 8 ranks",
    f"{ADVISE} --rate 1gbit --algorithms powersgd": "--algorithms must not have powersgd without shapes; name a model",
    "bench calibrate setup.cfg": "setup.cfg must be a record that bench steps",
    f"{ADVISE} --rate 1gbit --from setup.cfg": "setup.cfg must be a fit of python -m sparse_mpi bench calibrate",
    "bench trace --n 100 --strip s.svg": "--strip takes one of --algorithms",
    "bench trace --ranks 8 --n 12 --strip s.svg": "--strip takes one of --algorithms",
    "bench trace --algorithms topka gtopk --strip s.svg": "--strip takes one of --algorithms",
    "plan": "the following arguments are required: --model",
    "plan --model vgg16 --planner greedy": "planner was removed in 0.4.0",
    "bench network --trace setup.cfg --every 3s -- bench kernels": "--trace has all changes: leave --every out",
    "bench network --trace setup.cfg --rate 1gbit,2gbit -- bench kernels": "--trace has all changes",
    "bench draw setup.cfg --plot f.svg": "must be a record that a command wrote with --json",
    "bench draw setup.cfg --plot f.svg --kind pie": "must be one of compare, sparse",
    "bench draw docs/results/slow-networks.json --plot f.svg --kind gaps": "there is race, got gaps",
    "bench draw docs/results/slow-networks.json --plot f.svg --only 9gbit": "--only must name none, 10mbit",
    "bench draw docs/results/volume-vgg.json docs/results/compare-vgg16.json --plot f.svg": "of one kind",
    "bench draw docs/results/predict-held-out.json docs/results/predict-held-out.json --plot f.svg": "one record",
    "bench": "required: WHAT",
    "bench compare examples/distributed.py --lr 1": "behind --",
    "bench compare --algorithms elect examples/distributed.py": "the script first",
    "bench network --rate 1gbit,50mbit --every 1s --chaos kinds=link": "leave --every and --trace out",
}


@pytest.mark.parametrize("line", COMBINATIONS)
def test_what_does_not_go_together_is_one_line_before_anything_starts(line, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit) as ended:
        main(line.split())
    said = capsys.readouterr()
    assert ended.value.code == 2 and said.out == "" and said.err.count("\n") == 1
    command = " ".join(word for word in line.split()[:2] if not word.startswith("-"))
    assert COMBINATIONS[line] in said.err and said.err.startswith("python -m sparse_mpi"), said.err
    assert command.split()[0] in said.err.partition("error:")[0]


@needs_mpi
@pytest.mark.jobs
def test_of_several_ranks_one_says_it():
    done = launch(3, "-m", "sparse_mpi", "bench", "steps", "--steps", "0")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("argument --steps: must be an integer >= 1, got 0; for example ") == 1
