"""The figure of ``bench select``."""

from __future__ import annotations

import statistics
from typing import Any

from sparse_mpi.cli.figures import matplotlib, save


def draw(record: dict[str, Any], file: str) -> None:
    """Draw nanoseconds an element over n, a panel for each density, on the most threads that were measured.

    Raises:
        SystemExit: matplotlib is not installed.
    """
    figures = matplotlib("figure")
    most = max(case["threads"] for case in record["cases"])
    cases = [case for case in record["cases"] if case["threads"] == most]
    densities = sorted({case["density"] for case in cases})
    figure = figures.Figure(figsize=(4.6 * len(densities) + 2, 4.4), layout="constrained")
    panels = figure.subplots(1, len(densities), sharey=True, squeeze=False)[0]
    for axes, density in zip(panels, densities, strict=True):
        chosen = [case for case in cases if case["density"] == density]
        sizes = [case["n"] for case in chosen]
        for name in chosen[0]["methods"]:
            per_element = [1e9 * statistics.median(case["methods"][name]) / case["n"] for case in chosen]
            floor = name in ("read", "copy")
            others = name.startswith("torch") or name == "argpartition"
            axes.loglog(sizes, per_element, "k:" if floor else ".--" if others else ".-", label=name)
            if floor:
                axes.annotate(name, (sizes[0], per_element[0]), xytext=(0, 3), textcoords="offset points")
        axes.set(title=f"density {density:g}", xlabel="n")
    panels[0].set_ylabel(f"ns an element, {most} threads")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", fontsize="small")
    save(figure, file)
