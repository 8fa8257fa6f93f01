"""Draw the figures of the pages anew.

python runs/figures.py [NAME ...]             from the checkout
"""

from __future__ import annotations

import subprocess
import sys

RESULTS, PAGES = "docs/results", "docs/explanation"
STRIP = "sparse_mpi bench trace --ranks 4 --n 12 --density 0.25 --step 1"


def draw(record: str, title: str, *more: str) -> list[str]:
    """Return the module and words that draw a record, under a title that says the point."""
    return ["sparse_mpi", "bench", "draw", f"{RESULTS}/{record}.json", "--title", title, *more]


# Each figure: the module and its words, to which `--plot FIGURE`, or the ending of the words, is added
FIGURES = {
    f"{RESULTS}/trace-p8.svg": "sparse_mpi bench trace --algorithms dense oktopk".split(),
    f"{PAGES}/step-oktopk.svg": f"{STRIP} --algorithms oktopk --strip".split(),
    f"{PAGES}/step-gtopk.svg": f"{STRIP} --algorithms gtopk --strip".split(),
    f"{PAGES}/architecture.svg": ["tests.house.architecture"],
    f"{PAGES}/fsdp-lanes.svg": ["runs.fsdp_gpt2"],
    f"{PAGES}/step-elect.svg": f"runs.steps --draw {RESULTS}/steps.json".split(),
    f"{RESULTS}/best-vgg16.svg": draw(
        "compare-vgg16", "Sparse sums are faster on all three links, most on the slow one"
    ),
    f"{RESULTS}/accuracy-vgg.svg": draw(
        "accuracy-vgg", "Elect: no gap to dense was found, with 1/80 of the bytes", "--kind", "gaps"
    ),
    f"{RESULTS}/accuracy-gpt2.svg": draw("accuracy-gpt2", "Elect in every step is nearest to dense", "--kind", "gaps"),
    f"{RESULTS}/sparse-compare.svg": draw(
        "sparse-compare",
        "auto is the fastest where there is much to add up (above), not where there is little",
        *("--only", "uniform", "kmers", "pagerank", "histograms"),
    ),
    f"{RESULTS}/volume-vgg.svg": draw("volume-vgg", "Bytes of oktopk, spardl and micro hardly grow with the ranks"),
    f"{RESULTS}/predict-held-out.svg": draw(
        "predict-held-out",
        "Predictions are off by 7 to 17 % in the median",
        "--only",
        "100mbit",
        "500mbit",
        "1gbit",
        "5gbit",
    ),
    f"{RESULTS}/slow-networks.svg": draw(
        "slow-networks", "On 10 Mbit/s sparse local steps (/8) are far ahead of dense ones", "--only", "10mbit"
    ),
}


def main(names: list[str]) -> None:
    """Draw the figures whose paths have one of ``names`` in them, or all."""
    for figure, words in FIGURES.items():
        if not names or any(name in figure for name in names):
            option = [] if words[-1] == "--strip" else ["--plot"]
            subprocess.run([sys.executable, "-m", *words, *option, figure], check=True)
            print(figure, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
