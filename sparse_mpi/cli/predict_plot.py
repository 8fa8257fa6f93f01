"""The figures of ``predict``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sparse_mpi.analysis.exchanges import Check
from sparse_mpi.analysis.prediction import Predicted
from sparse_mpi.cli.figures import matplotlib, save
from sparse_mpi.costs.model import Network


def draw(predicted: Sequence[Predicted], given: Mapping[str, Network], heading: str, file: str) -> None:
    """Draw milliseconds over P, a panel a network; hollow where an algorithm's formula was used.

    Raises:
        SystemExit: matplotlib is not installed, or does not know the extension.
    """
    figure, panels = _panels(len(given), heading)
    ticks = sorted({of.ranks for of in predicted})
    for axes, (title, network) in zip(panels, given.items(), strict=True):
        for index, name in enumerate(dict.fromkeys(of.algorithm for of in predicted)):
            chosen = sorted((of for of in predicted if of.algorithm == name), key=lambda of: of.ranks)
            colour = _colour(index)
            seconds = [1e3 * network.seconds(of.traffic) for of in chosen]
            axes.loglog([of.ranks for of in chosen], seconds, c=colour, label=name)
            for of, value in zip(chosen, seconds, strict=True):
                axes.plot(of.ranks, value, "o", c=colour, mfc=colour if of.counted else "white", markersize=5)
        axes.set(title=title, xlabel="P")
        axes.set_xticks(ticks, [str(ranks) for ranks in ticks], fontsize="small")
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("ms")
    _save(figure, panels, file)


def draw_check(checks: Sequence[Check], file: str) -> None:
    """Draw predicted over measured milliseconds, a panel a rate, a colour a candidate; on the line they are equal.

    Raises:
        SystemExit: matplotlib is not installed, or does not know the extension.
    """
    figure, panels = _panels(len(checks), "exchange of a step, ms")
    names = dict.fromkeys(of.measured.candidate for check in checks for of in check.predictions)
    colours = {name: _colour(index) for index, name in enumerate(names)}
    for axes, check in zip(panels, checks, strict=True):
        both = [1e3 * seconds for of in check.predictions for seconds in (of.seconds, of.measured.seconds)]
        axes.loglog([min(both), max(both)], [min(both), max(both)], c="grey", linewidth=0.8)
        for name, colour in colours.items():
            chosen = [of for of in check.predictions if of.measured.candidate == name]
            x, y = [1e3 * of.measured.seconds for of in chosen], [1e3 * of.seconds for of in chosen]
            axes.loglog(x, y, "o", c=colour, label=name)
        axes.set(title=f"{check.rate}, median error {check.median_error:.0%}".lstrip(", "), xlabel="measured")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(matplotlib("ticker").LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter("{x:g}")
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("predicted")
    _save(figure, panels, file)


def _panels(count: int, heading: str) -> tuple[Any, Any]:
    """Return a figure, and so many panels side by side."""
    figure = matplotlib("figure").Figure(figsize=(4.6 * count + 2, 4.8), layout="constrained")
    figure.suptitle(heading, fontsize="medium")
    return figure, figure.subplots(1, count, sharey=True, squeeze=False)[0]


def _colour(index: int) -> Any:
    return matplotlib().colormaps["tab20" if index >= 10 else "tab10"](index % 20)


def _save(figure: Any, panels: Any, file: str) -> None:
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", fontsize="small")
    save(figure, file)
