"""Draw the figures of the pages anew, for light and dark pages.

python runs/figures.py [NAME ...]             from the checkout

 `word2vec.svg` has no record: docs/results/README.md has its command.
"""

from __future__ import annotations

import subprocess
import sys

RESULTS, PAGES, GUIDES = "docs/results", "docs/explanation", "docs/guides"
DRAW = "sparse_mpi draw"
STRIP = "sparse_mpi trace --ranks 4 --n 12 --density 0.25 --step 1"
TRACE = "sparse_mpi trace --algorithms dense topka topkdsa gtopk oktopk spardl"
# Each figure: the module and its words, to which `--plot FIGURE`, or what ends the words, is added
FIGURES = {
    f"{RESULTS}/best-vgg16.svg": f"{DRAW} {RESULTS}/compare-vgg16.json --kind best",
    f"{RESULTS}/accuracy-vgg.svg": f"{DRAW} {RESULTS}/accuracy-vgg.json --kind gaps",
    f"{RESULTS}/accuracy-lstm.svg": f"{DRAW} {RESULTS}/accuracy-lstm.json --kind gaps",
    f"{RESULTS}/residual-vgg.svg": f"{DRAW} {RESULTS}/residual-vgg.json --kind curves",
    f"{RESULTS}/trace-p8.svg": TRACE,
    f"{PAGES}/step-oktopk.svg": f"{STRIP} --algorithms oktopk --strip",
    f"{PAGES}/step-gtopk.svg": f"{STRIP} --algorithms gtopk --strip",
    f"{PAGES}/architecture.svg": "tests.house.architecture",
    f"{PAGES}/fsdp-lanes.svg": "runs.fsdp_gpt2",
    f"{PAGES}/step-elect.svg": f"runs.steps --draw {RESULTS}/steps.json",
    f"{GUIDES}/histograms.svg": f"runs.keyed --draw {RESULTS}/keyed.json --kinds histograms",
    f"{GUIDES}/kmers.svg": f"runs.keyed --draw {RESULTS}/keyed.json --kinds kmers",
}
for name in (
    *("compare-vgg16", "sparse-compare", "volume-vgg", "predict-held-out"),
    *("budget-alternating", "slow-networks", "changing-link"),
):
    FIGURES[f"{RESULTS}/{name}.svg"] = f"{DRAW} {RESULTS}/{name}.json"


def main(names: list[str]) -> None:
    """Draw the figures whose paths have one of ``names`` in them, or all."""
    for figure, words in FIGURES.items():
        if not names or any(name in figure for name in names):
            option = [] if words.endswith("--strip") else ["--plot"]
            subprocess.run([sys.executable, "-m", *words.split(), *option, figure], check=True)
            print(figure, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
