"""The commands of a page that are not run, as the programs that they name are to read them."""

from __future__ import annotations

import re
import runpy
import shlex
import sys
from itertools import takewhile

import pytest

from sparse_mpi.__main__ import main

from .pages import ROOT

COLUMNS = r"(?<=\S)\s{2,}(?:#.*)?"  # what a column of explanations begins with
OPERATORS = ("|", "||", "&&", ">", ";")
GPU_CHECK = "runs.gpu_check"  # a module with a parser of its own
PLACEHOLDER = r"[A-Z]{2,}|\.\.\.|<.*>|\[.*"  # what a reader is to fill in


def help_of(program: str, options: list[str], patch: pytest.MonkeyPatch) -> object:
    """Have a program of `calls` read options, from left to right, and then ``--help``; return its exit status."""
    words = [*options, "--help"]
    patch.setattr(sys, "argv", [program, *words])
    with pytest.raises(SystemExit) as ended:
        if program == "sparse_mpi":
            main(words)
        elif program == GPU_CHECK:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(str(ROOT / program), run_name="__main__")
    return ended.value.code


def calls(code: str) -> list[list[str]]:
    """Return the calls of the package's commands and of programs in ``code``: a name, and its options.

    The name is "sparse_mpi", the path of a program, or "runs.gpu_check". A call that launches another one is two.
    """
    found: list[list[str]] = []
    for line in code.replace("\\\n", " ").splitlines():
        line = re.split(COLUMNS, re.sub(r"^(\s*\$)?\s*", "", re.sub(r"(?<=\S)\s+(?=--?\w)", " ", line)))[0]
        try:
            words = shlex.split(line, comments=True)
            found += split(list(takewhile(lambda word: word not in OPERATORS, words)))
        except ValueError:  # a quotation that goes on in the next line
            continue
    return found


def split(words: list[str]) -> list[list[str]]:
    """Return the calls in the words of one command."""
    for place, word in enumerate(words):
        if word == "sparse-mpi" or word == "sparse_mpi" and words[place - 1] == "-m":
            return of_package(words[place + 1 :])
        if word == GPU_CHECK and words[place - 1] == "-m":
            return [filled(words[place:])]
        if re.fullmatch(r"(?:train|examples|runs)/\w+\.py", word):
            return [] if word.startswith("examples/") else [filled([word, *words[place + 1 :]])]
        if job := re.fullmatch(r"slurm/(\w+)\.sbatch", word):
            return of_job(job[1], words[place + 1 :])
    return []


def of_package(words: list[str]) -> list[list[str]]:
    """Return the call of the package's command, and that of what it launches."""
    launched: list[list[str]] = []
    if words[:1] == ["run"]:
        place = next((at for at, word in enumerate(words) if word.endswith(".py") or word == "-m"), len(words))
        launched, words = [words[place:]], words[:place]
        if place == 1 or not launched[0]:
            words = ["run"]
    elif "--" in words:
        place = words.index("--")
        launched, words = [words[place + 1 :]], words[:place]
    more = [call for rest in launched for call in (split(rest) or (of_package(rest) if rest[:1] == ["bench"] else []))]
    return [filled(["sparse_mpi", *words]), *more]


def of_job(name: str, words: list[str]) -> list[list[str]]:
    """Return the call that the job ``slurm/NAME.sbatch`` makes of the options behind it."""
    if name == "bench":
        return [filled(["sparse_mpi", "bench", "steps", *words])]
    if name == "gpu_check":
        return [filled([GPU_CHECK, *words])]
    program = f"train/{name}.py"
    return [filled([program, *words])] if (ROOT / program).exists() else []


def filled(words: list[str]) -> list[str]:
    """Return a call up to the first thing that its reader has to fill in, and without the option that it is for."""
    place = next((at for at, word in enumerate(words) if re.fullmatch(PLACEHOLDER, word)), None)
    if place is None:
        return words
    return words[: place - words[place - 1].startswith("-")]
