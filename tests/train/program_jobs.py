"""The training programs, and an algorithm of its own for each."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

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


def program_of(name: str) -> tuple[Any, list[str]]:
    """Return a program and its options in tests; skip where what it needs is not installed."""
    if name == "lstm speech":
        pytest.importorskip("espeakng_loader")
    module, *options = PROGRAMS[name]
    return import_module(module).PROGRAM, [*options, "--tiny", "--batch-size", "4"]
