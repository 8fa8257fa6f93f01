"""The figure of ``bench volume``."""

from __future__ import annotations

from collections.abc import Sequence

from sparse_mpi.analysis.volume import WORD, Volume
from sparse_mpi.cli.figures import matplotlib, save


def draw(volumes: Sequence[Volume], file: str) -> None:
    """Draw bytes over k and messages, of the rank that sends most, over P; formulas as thin lines of the same colour.

    Raises:
        SystemExit: matplotlib is not installed, or does not know the extension.
    """
    figures, maps = matplotlib("figure"), matplotlib().colormaps
    figure = figures.Figure(figsize=(12.5, 5), layout="constrained")
    size, number = figure.subplots(1, 2)
    for index, name in enumerate(dict.fromkeys(v.algorithm for v in volumes)):
        chosen = sorted((v for v in volumes if v.algorithm == name), key=lambda v: v.ranks)
        ranks, colour = [v.ranks for v in chosen], maps["tab20" if index >= 10 else "tab10"](index)
        size.loglog(ranks, [(v.most_words * WORD + v.most_control) / v.k for v in chosen], "o-", c=colour, label=name)
        allowed = [(v.formula_words * WORD + v.formula_control) / v.k for v in chosen]
        size.loglog(ranks, allowed, c=colour, linewidth=0.7)
        number.loglog(ranks, [v.messages for v in chosen], "o-", c=colour, label=name)
        number.loglog(ranks, [v.formula_messages for v in chosen], c=colour, linewidth=0.7)
    lowest = {v.ranks: v.lowest / v.k for v in volumes}
    size.loglog(sorted(lowest), [lowest[ranks] for ranks in sorted(lowest)], "k:", label="8(P-1)/P")
    ticks = sorted(lowest)
    for axes, what in ((size, "bytes of a rank and step, over k"), (number, "messages of a rank and step")):
        axes.set(xlabel="P", title=what, xticks=ticks)
        axes.set_xticks(ticks, [str(ranks) for ranks in ticks])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    figure.legend(*size.get_legend_handles_labels(), loc="outside right upper", fontsize="small")
    save(figure, file)
