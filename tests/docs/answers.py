"""What `predict advise` answers to the questions of README and *Which algorithm?*, as the tables of these pages.

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


MODELS = {"vgg16": "VGG-16", "resnet50": "ResNet-50", "bert-base": "BERT-base"}
ON_GPUS = {"resnet50": 0.1, "bert-base": 0.15}  # seconds of a batch
README = [
    Question(model, batch, 16, f"{gbit}gbit", "h100")
    for model, batch in ON_GPUS.items()
    for gbit in (1, 10, 25, 100, 400)
]
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


def readme() -> list[str]:
    rates = list(dict.fromkeys(of.rate for of in README))
    lines = [f"| 16 ranks, an H100 each | {' | '.join(map(link, rates))} |", f"| --- |{' --- |' * len(rates)}"]
    for model, batch in ON_GPUS.items():
        cells = [pays(asked(of)) for of in README if of.model == model]
        lines.append(f"| {MODELS[model]}, a batch in {batch:g} s | {' | '.join(cells)} |")
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
    print("\n".join([*readme(), "", *which_one()]))
