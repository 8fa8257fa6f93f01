"""Figures of a training run: how it learns, and what a budget decides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from sparse_mpi.tools.figures.labels import name_lines
from sparse_mpi.tools.figures.style import Look, matplotlib, panels

RATE_STEPS = 20  # over which the drawn rate is an average
Records = Sequence[dict[str, Any]]


def run(records: Records, look: Look) -> Any:
    """Draw loss, headline and traffic over steps; ``records`` are the lines of ``metrics.jsonl``."""
    config = records[0]
    steps, epochs = columns(records, "step"), columns(records, "epoch")
    heading = "{algo} on {data}, {ranks} ranks, k = {k:,} of {parameters:,}".format(**config)
    shown, axes = panels(1, 3, 2.4, heading)
    loss, score, traffic = axes[0]
    headline = config["headline"]
    fine, colours = {"linewidth": 0.5, "color": look.colours[0]}, (look.colours[0], look.ink)
    loss.plot(steps["step"], steps["loss"], label="training", **fine)
    loss.plot(epochs["step"], epochs["test_loss"], "o-", label="test", color=look.ink)
    for (label, name), colour in zip((("training", headline), ("test", f"test_{headline}")), colours, strict=True):
        if name in epochs:  # not every task has its score in training
            score.plot(epochs["step"], epochs[name], "o-", label=label, color=colour)
    traffic.plot(steps["step"], steps["mb_sent"], label="rank 0", **fine)
    traffic.plot(epochs["step"], epochs["mb_sent"], "o-", label="mean of ranks", color=look.ink)
    traffic.set_ylim(bottom=0)
    for panel, title in ((loss, "loss"), (score, headline), (traffic, "MB sent per step and rank")):
        panel.set(title=title, xlabel="step")
        name_lines(panel)
    return shown


def budget(records: Records, look: Look) -> Any:
    """Draw k, the time of a step and the rate over time, with what was wanted, from all decisions of a budget."""
    config, decisions = records[0]["config"], records[0]["decisions"]
    elapsed = [decision["elapsed"] for decision in decisions]
    shown, axes = panels(3, 1, 1.7, sharex=True)
    entries, times, rates = axes[:, 0]
    entries.step(elapsed, [decision["k"] for decision in decisions], where="post", color=look.colours[0], linewidth=1)
    entries.set(yscale="log", title="k")
    entries.yaxis.set_major_formatter(matplotlib("ticker").EngFormatter())
    for label, field, colour in (("step", "seconds", look.colours[0]), ("waiting", "exposed", look.colours[1])):
        times.plot(elapsed, [decision[field] for decision in decisions], linewidth=1, label=label, color=colour)
    if config.get("step_seconds") is not None:
        times.plot(elapsed, [config["step_seconds"]] * len(elapsed), color=look.ink, linewidth=1, label="wanted")
    times.set(title="seconds of a step, and of these waiting for the exchange", ylim=(0, None))
    later = range(RATE_STEPS, len(decisions))
    sent = [sum(decision["mb_sent"] for decision in decisions[at - RATE_STEPS : at]) for at in later]
    took = [elapsed[at] - elapsed[at - RATE_STEPS] for at in later]
    mean = [megabytes / max(spent, 1e-9) for megabytes, spent in zip(sent, took, strict=True)]
    rates.plot(elapsed[RATE_STEPS:], mean, linewidth=1, color=look.colours[0])
    given = f", budget {config['budget']}" if config.get("budget") else ""
    rates.set(title=f"MB/s sent, mean of {RATE_STEPS} steps{given}", ylim=(0, None))
    rates.set_xlabel("seconds since the beginning")
    name_lines(times)
    return shown


def columns(records: Records, event: str) -> dict[str, list[float]]:
    """Return the values of all records of one kind, by name."""
    chosen = [record for record in records if record["event"] == event]
    names = dict.fromkeys(name for record in chosen for name in record)
    return {name: [record.get(name, math.nan) for record in chosen] for name in names}
