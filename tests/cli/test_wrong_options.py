"""A wrong option of any command is one line: its name, what it must be, what came, an example; the exit status is 2."""

from __future__ import annotations

import argparse
import re

import pytest

from sparse_mpi.cli import values
from sparse_mpi.cli.values import Value

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
    taking = [action for action in parser._actions if action.nargs not in (0, argparse.REMAINDER)]
    return [action for action in taking if not isinstance(action, argparse._SubParsersAction)]


def complaint(parser: argparse.ArgumentParser, action: argparse.Action, text: str, capsys) -> str:
    """Return the lines about a value; "" if it is taken."""
    words = [f"{action.option_strings[-1]}={text}"] if action.option_strings else ["--", text]
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
            checked = action.choices or isinstance(action.type, Value)
            assert checked, f"{parser.prog} {action.dest} takes anything"
            name = action.option_strings[-1] if action.option_strings else str(action.metavar or action.dest)
            for text in TEXTS:
                said = complaint(parser, action, text, capsys)
                if "argument" not in said or "required" in said:
                    assert text != NEVER, f"{parser.prog} {name} takes {text!r}"
                    continue
                assert said.count("\n") == 1 and said.startswith(f"{parser.prog}: error: argument "), said
                assert re.search(rf"{name}\b.*: .*\bmust |expected", said) and all(
                    word in said for word in text.split()
                ), said
                assert re.search(rf"for example ({name} )?\S", said), said
                assert "Traceback" not in said and "usage" not in said


def test_examples_are_good(parser_list, tmp_path, monkeypatch, capsys):
    """What a line proposes is taken, but for names of files, which are of nobody's machine."""
    for parser in parser_list:
        for action in values_of(parser):
            said = complaint(parser, action, "", capsys)
            value = re.search(r"for example (?:--?\S+ )?(.*)", said)[1]
            if "that is there" not in said and "a file" not in said:
                for text in value.split() if action.nargs in ("+", "*") else [value]:
                    again = complaint(parser, action, text, capsys)
                    assert "error: argument" not in again or "required" in again, again


def test_help_tells_what_every_option_is(parser_list, capsys):
    for parser in parser_list:
        with pytest.raises(SystemExit) as ended:
            parser.parse_known_args(["--help"])
        assert ended.value.code == 0 and parser.description, parser.prog
        shown = " ".join(capsys.readouterr().out.split())
        assert "usage:" in shown
        for action in parser._actions:
            text = parser._get_formatter()._expand_help(action) if action.help else ""
            if action.help is argparse.SUPPRESS or isinstance(action, argparse._SubParsersAction):
                continue
            assert len(text) > 5, f"{parser.prog} {action.dest} has no help"
            if action.option_strings and action.nargs not in (0, argparse.REMAINDER) and not action.required:
                assert "default" in text, f"{parser.prog} {action.dest} does not tell its default: {text}"
            if action.type in (values.number, values.positive, values.finite):
                assert re.search(UNITS, text), f"{parser.prog} {action.dest} does not tell its unit: {text}"


def test_unknown_options_have_the_nearest_spelling(parser_list, capsys):
    for parser in parser_list:
        options = [name for name in parser._option_string_actions if len(name) > 6 and name != "--help"]
        parts = [*parser._actions, *parser._mutually_exclusive_groups]
        if options and not any(part.required for part in parts):
            with pytest.raises(SystemExit):
                parser.parse_args([options[0] + "q"])
            assert f"did you mean {options[0]}?" in capsys.readouterr().err
