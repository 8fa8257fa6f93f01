"""The figures of ``predict``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sparse_mpi.analysis.advice import Verdict
from sparse_mpi.analysis.calibration import Check, Prediction
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


def draw_check(checks: Sequence[Check], verdicts: Sequence[Verdict], file: str) -> None:
    """Draw predicted over measured milliseconds, exchanges above and steps below, a panel a rate, a colour a candidate.

    On the line they are equal. A ring marks what is advised for a job.

    Raises:
        SystemExit: matplotlib is not installed, or does not know the extension.
    """
    figure = matplotlib("figure").Figure(figsize=(3.6 * len(checks) + 2.5, 7.4), layout="constrained")
    panels = figure.subplots(2, len(checks), squeeze=False)
    names = dict.fromkeys(of.measured.candidate for check in checks for of in check.predictions)
    colours = {name: _colour(index) for index, name in enumerate(names)}
    advised = {(of.job, of.advised.measured.candidate) for of in verdicts}
    for column, check in zip(panels.T, checks, strict=True):
        for axes, what, error in zip(
            column, ("exchange", "step"), (check.median_error, check.median_step_error), strict=True
        ):
            pairs = [_pair(of, what) for of in check.predictions]
            ends = [min(map(min, pairs)), max(map(max, pairs))]
            axes.loglog(ends, ends, c="grey", linewidth=0.8)
            for of, (x, y) in zip(check.predictions, pairs, strict=True):
                axes.loglog(x, y, "o", c=colours[of.measured.candidate], markersize=5)
                if what == "step" and (of.measured.job, of.measured.candidate) in advised:
                    axes.loglog(x, y, "o", c="black", mfc="none", markersize=10)
            axes.set_title(f"{check.rate}, {what}, median error {error:.0%}".lstrip(", "), fontsize="small")
            _plain_numbers(axes)
        column[1].set_xlabel("measured, ms")
    for row in panels:
        row[0].set_ylabel("predicted, ms")
    dots = [
        matplotlib("lines").Line2D([], [], marker="o", linestyle="", c=c, label=name) for name, c in colours.items()
    ]
    figure.legend(handles=dots, loc="outside right upper", fontsize="small")
    save(figure, file)


def _pair(of: Prediction, what: str) -> tuple[float, float]:
    """Return measured and predicted milliseconds."""
    if what == "step":
        return 1e3 * of.measured.step, 1e3 * of.step
    return 1e3 * of.measured.seconds, 1e3 * of.seconds


def _plain_numbers(axes: Any) -> None:
    """Write 1, 2, 5 and so on at both logarithmic axes."""
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(matplotlib("ticker").LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:g}")
        axis.set_tick_params(labelsize="x-small")
    axes.minorticks_off()
    axes.grid(alpha=0.3)


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
