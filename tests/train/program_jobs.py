"""The training programs, each with an algorithm of its own, as jobs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..launch import launch
from ..prefork import copied

PROGRAMS = {
    "vgg": ["vgg"],
    "resnet": ["resnet"],
    "lstm speech": ["lstm", "--task", "speech"],
    "lstm text": ["lstm", "--task", "text"],
    "transformer": ["transformer"],
    "bert pretrain": ["bert", "--task", "pretrain"],
    "bert squad": ["bert", "--task", "squad"],
    "gpt2": ["gpt2"],
    "vit": ["vit"],
}
NEEDS = {"lstm speech": "espeakng_loader"}  # the module without which a program cannot be run
ALGORITHM = {
    "vgg": "oktopk",
    "resnet": "adtopk",
    "lstm speech": "topka",
    "lstm text": "gtopk",
    "transformer": "gaussiank",
    "bert pretrain": "topkdsa",
    "bert squad": "powersgd",
    "gpt2": "acpsgd",
    "vit": "dense-bf16",
}


def trained(asked: Mapping[str, Sequence[str]], folder: Path, ranks: int) -> list[dict[str, Any]]:
    """Return the records of all programs in ``asked`` with the algorithms there, in one start of mpiexec.

    See `tests.train.every_algorithm`.
    """
    words = [[",".join(algorithms), *PROGRAMS[name]] for name, algorithms in asked.items()]
    together = " + ".join(map(" ".join, words)).split()
    done = launch(ranks, *copied("-m", "tests.train.every_algorithm", str(folder), *together), seconds=600)
    assert done.returncode == 0, f"{done.stdout[-1000:]}{done.stderr[-4000:]}"
    lines = (folder / "records.jsonl").read_text().splitlines()
    names = [name for name, algorithms in asked.items() for _ in algorithms]
    return [{"program": name} | json.loads(line) for name, line in zip(names, lines, strict=True)]
