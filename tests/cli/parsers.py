"""Every parser of the repository, as its own program builds it."""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparse_mpi import __main__ as cli

ROOT = Path(__file__).parents[2]
COMMANDS = "sparse_mpi"
MODULES = ("tests.fault_tolerance.chaos",)
TASKS = {"train/lstm.py": ("speech", "text"), "train/bert.py": ("pretrain", "squad")}  # which of them a parser is for


class Built(Exception):
    """Raised in place of parsing."""


def programs() -> list[str]:
    """Return what builds parsers: the commands, files, and modules of the tests.

    Left out is what no person starts, and tests/slurm/slurm_cluster.py, which runs before anything is installed.
    """
    files = [file for folder in ("train", "examples", "slurm") for file in sorted((ROOT / folder).glob("*.py"))]
    made = ("Parser(", "PROGRAM.run()", "PROGRAM")
    found = [str(file.relative_to(ROOT)) for file in files if any(word in file.read_text() for word in made)]
    return [COMMANDS, *found, *MODULES]


def parsers(program: str, patch: pytest.MonkeyPatch) -> list[argparse.ArgumentParser]:
    if program == COMMANDS:
        return list(_below(cli.parser()))
    lines = [["--task", task] for task in TASKS.get(program, ())] or [[]]
    return [found for words in lines for found in _below(_built(program, words, patch))]


def _built(program: str, words: list[str], patch: pytest.MonkeyPatch) -> argparse.ArgumentParser:
    """Run a program until it would parse its command line; return its parser."""
    built: list[argparse.ArgumentParser] = []
    parse = argparse.ArgumentParser.parse_known_args

    def stop(self: argparse.ArgumentParser, *given: object) -> object:
        if not self.add_help:  # looks which task is meant
            return parse(self, *given)
        built.append(self)
        raise Built

    patch.setattr(argparse.ArgumentParser, "parse_known_args", stop)
    patch.setattr(sys, "argv", [program, *words])
    with pytest.raises(Built):
        if program in MODULES:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(str(ROOT / program), run_name="__main__")
    patch.undo()
    return built[0]


def _below(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        for each in action.choices.values() if isinstance(action, argparse._SubParsersAction) else ():
            yield from _below(each)
