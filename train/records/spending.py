"""Records of what a budget decides, and their figure: k, the time of a step and the rate over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sparse_mpi.budget import Decision

EVENT = "budget"
RATE_STEPS = 20  # over which the drawn rate is an average


def record_of(decision: Decision, elapsed: float) -> dict[str, Any]:
    """Return the record of a decision that was made ``elapsed`` seconds after the run began."""
    values = decision._asdict() | {"decision": decision.step, "elapsed": elapsed, "mb_sent": decision.sent / 1e6}
    values["mb_credit"] = values.pop("credit") / 1e6
    return {name: value for name, value in values.items() if name not in ("step", "sent")}


def draw(records: Sequence[Mapping[str, Any]], budget: str | None, seconds: float | None, figure: Any) -> None:
    """Draw the ``records`` of all decisions into an empty ``figure`` of matplotlib, the goals as dashed lines."""
    from matplotlib.ticker import EngFormatter

    elapsed = [record["elapsed"] for record in records]
    entries, times, rates = figure.subplots(3, 1, sharex=True)
    entries.step(elapsed, [record["k"] for record in records], where="post", linewidth=0.8)
    entries.set(yscale="log", ylabel="k")
    times.plot(elapsed, [record["seconds"] for record in records], linewidth=0.8, label="step")
    times.plot(elapsed, [record["exposed"] for record in records], linewidth=0.8, label="waiting for the exchange")
    times.set(ylabel="seconds", ylim=(0, None))
    later = range(RATE_STEPS, len(records))
    sent = [sum(record["mb_sent"] for record in records[at - RATE_STEPS : at]) for at in later]
    took = [elapsed[at] - elapsed[at - RATE_STEPS] for at in later]
    mean = [megabytes / max(spent, 1e-9) for megabytes, spent in zip(sent, took, strict=True)]
    rates.plot(elapsed[RATE_STEPS:], mean, linewidth=0.8, label=f"mean of {RATE_STEPS} steps")
    rates.set(ylabel="MB/s sent", ylim=(0, None), xlabel="seconds since the beginning")
    if seconds is not None:
        times.axhline(seconds, color="gray", linestyle="--", label="wanted")
    if budget is not None:
        rates.set_title(f"budget {budget}", fontsize="small")
    entries.yaxis.set_major_formatter(EngFormatter())
    for axes in (times, rates):
        axes.legend(fontsize="small")


def save(records: Sequence[Mapping[str, Any]], config: Mapping[str, Any], file: Path, figure: Any) -> Path | None:
    """Draw what was decided into ``file`` and return it; None where there was no budget."""
    decided = [record for record in records if record["event"] == EVENT]
    if not decided:
        return None
    draw(decided, config.get("budget"), config.get("step_seconds"), figure)
    figure.savefig(file, dpi=120)
    return file
