"""What `predict advise` answers to the questions of *Which algorithm?* and *Rivals*, as the tables of these pages.

python -m tests.docs.answers    # prints both, for the pages
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sparse_mpi.predict import advise


class Question(NamedTuple):
    model: str
    batch: float  # seconds
    ranks: int
    rate: str
    on: str


MODELS = {"vgg16": "VGG-16", "resnet50": "ResNet-50", "bert-base": "BERT-base", "gpt2": "GPT-2 small"}
RIVALS = [
    *(Question("vgg16", 0.3, 8, rate, "cpu") for rate in ("100mbit", "1gbit", "10gbit")),
    Question("gpt2", 0.2, 8, "1gbit", "cpu"),
    *(Question("gpt2", 0.2, 8, rate, "h100") for rate in ("1gbit", "10gbit", "100gbit")),
    *(Question("bert-base", 0.15, ranks, "10gbit", "h100") for ranks in (4, 16)),
    Question("resnet50", 0.1, 16, "10gbit", "h100"),
]
LOW_RANK = "powersgd:rank=4"
ON_CORES = [
    *(Question("vgg16", 0.3, 8, rate, "cpu") for rate in ("10mbit", "30mbit", "100mbit", "300mbit", "1gbit", "10gbit")),
    *(Question("vgg16", 0.3, ranks, rate, "cpu") for ranks in (4, 64) for rate in ("100mbit", "1gbit", "10gbit")),
]
MORE_GPUS = [
    *(Question("bert-base", 0.15, p, rate, "h100") for p in (4, 64) for rate in ("10gbit", "25gbit", "100gbit")),
    *(Question("vgg16", 0.05, 16, rate, "h100") for rate in ("1gbit", "10gbit", "100gbit")),
]


def asked(question: Question) -> dict[str, Any]:
    model, batch, ranks, rate, on = question
    return advise(model, rate, ranks=ranks, batch_seconds=batch, on=on).record()


def pays(record: dict[str, Any]) -> str:
    """Return the verdict and, where sparse sums may pay, by how much."""
    factor = record["factor"]
    return record["verdict"] + ("" if record["verdict"] == "dense" else f", {factor:.{0 if factor >= 10 else 1}f}x")


def link(rate: str) -> str:
    return rate.replace("gbit", " Gbit/s").replace("mbit", " Mbit/s")


def rivals() -> list[str]:
    lines = [f"| model, batch | ranks | on | link | dense | bfloat16 | `elect` | `{LOW_RANK}` | `elect` pays |"]
    lines += ["| --- | ---: | --- | --- | ---: | ---: | ---: | ---: | --- |"]
    for model, batch, ranks, rate, on in RIVALS:
        answer = advise(model, rate, ranks=ranks, batch_seconds=batch, on=on, algorithms=[LOW_RANK]).record()
        low = next(of["step"] for of in answer["faster"] if of["way"] == LOW_RANK)
        steps = [*(answer[name]["step"] for name in ("dense", "bfloat16", "default")), low]
        times = " | ".join(f"{1e3 * step:,.0f}" for step in steps)
        lines.append(f"| {MODELS[model]}, {batch:g} s | {ranks} | {on} | {link(rate)} | {times} | {pays(answer)} |")
    return lines


def which_one() -> list[str]:
    lines = [
        "| model, batch | ranks | on | link | dense, ms | bfloat16 | `elect` | pays | if you can lose points |",
        "| --- | ---: | --- | --- | ---: | ---: | ---: | --- | --- |",
    ]
    for question in [*ON_CORES, *MORE_GPUS]:
        record = asked(question)
        best = record["advised"]
        way = f"{1e3 * best['step']:,.0f} by `{best['way']}`, {100 * best['density']:g} %" if best else ""
        asked_of = f"{MODELS[question.model]}, {question.batch:g} s | {question.ranks} | {question.on}"
        times = " | ".join(f"{1e3 * record[name]['step']:,.0f}" for name in ("dense", "bfloat16", "default"))
        lines.append(f"| {asked_of} | {link(question.rate)} | {times} | {pays(record)} | {way} |")
    return lines


if __name__ == "__main__":
    print("\n".join([*which_one(), "", *rivals()]))
