"""The figure of ``predict``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module

from sparse_mpi.analysis.prediction import Predicted
from sparse_mpi.costs import Network


def draw(predicted: Sequence[Predicted], given: Mapping[str, Network], heading: str, file: str) -> None:
    """Milliseconds over P, a panel a network; hollow where an algorithm's formula was used.

    Raises:
        SystemExit: matplotlib is not installed, or does not know the extension.
    """
    try:
        figures, maps = import_module("matplotlib.figure"), import_module("matplotlib").colormaps
    except ImportError:
        raise SystemExit("--plot needs matplotlib: pip install matplotlib") from None
    figure = figures.Figure(figsize=(4.6 * len(given) + 2, 4.8), layout="constrained")
    figure.suptitle(heading, fontsize="medium")
    panels = figure.subplots(1, len(given), sharey=True, squeeze=False)[0]
    ticks = sorted({of.ranks for of in predicted})
    for axes, (title, network) in zip(panels, given.items(), strict=True):
        for index, name in enumerate(dict.fromkeys(of.algorithm for of in predicted)):
            chosen = sorted((of for of in predicted if of.algorithm == name), key=lambda of: of.ranks)
            colour = maps["tab20" if index >= 10 else "tab10"](index)
            seconds = [1e3 * network.seconds(of.traffic) for of in chosen]
            axes.loglog([of.ranks for of in chosen], seconds, c=colour, label=name)
            for of, value in zip(chosen, seconds, strict=True):
                axes.plot(of.ranks, value, "o", c=colour, mfc=colour if of.counted else "white", markersize=5)
        axes.set(title=title, xlabel="P")
        axes.set_xticks(ticks, [str(ranks) for ranks in ticks], fontsize="small")
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("ms")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", fontsize="small")
    try:
        figure.savefig(file, dpi=120)
    except ValueError as problem:
        raise SystemExit(f"--plot: {problem}") from None
