"""The training programs, and an algorithm of its own for each."""

from __future__ import annotations

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
