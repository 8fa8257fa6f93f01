"""The table of ``bench interleaved``, and the numbers in it."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np

from sparse_mpi.network.break_even import FAIR, break_even
from sparse_mpi.tools.bench.comparison import BASELINE, cost, slowest, summarise

LEGEND = (
    "medians of the slowest rank; speedup: over dense, turn by turn; exchange: without waiting for slower ranks;",
    "alone: select and merge in processor time, as on hosts with cores of their own;",
    "even: Gbit/s up to which it is faster than dense, by this machine's compute and by the one alone",
)


def results(measured: list[dict[str, np.ndarray]], alpha: float) -> dict[str, dict[str, Any]]:
    """Summarise every candidate beside the dense sum of its own turns, and dense itself over all turns.

    ``over dense`` is the median over the turns in which both took part. Break-even bandwidths are bits a second; None:
    faster than dense on any network.
    """
    found: dict[str, dict[str, Any]] = {}
    for samples in [{BASELINE: np.concatenate([turns[BASELINE] for turns in measured], 1)}, *measured]:
        dense = summarise(samples[BASELINE])
        for name in samples.keys() - found.keys():
            mine = summarise(samples[name])
            even = {
                title: break_even(cost(mine, alone), cost(dense, alone), alpha)
                for title, alone in (("break even", False), ("break even alone", True))
            }
            found[name] = {
                **mine,
                "over dense": _ratio(samples[name], samples[BASELINE]),
                **{title: None if bandwidth == inf else bandwidth for title, bandwidth in even.items()},
                "steps": slowest(samples[name]).tolist(),
            }
    return dict(sorted(found.items(), key=lambda item: item[1]["step"]))


def _ratio(samples: np.ndarray, baseline: np.ndarray) -> float:
    both = min(samples.shape[1], baseline.shape[1])
    return float(np.median(slowest(samples)[:both] / slowest(baseline)[:both]))


def render(record: dict[str, Any]) -> str:
    """Return the table as text."""
    options = record["options"]
    found = record["results"]
    width = max(map(len, found))
    lines = [
        f"{options['model'] or 'one tensor'}, n = {record['n']:,}, density {options['density']:g}, "
        f"P = {record['ranks']}; {record['cpus']} x {record['cpu']}; "
        f"peak memory of all ranks {record['peak memory'] / 1e9:.1f} GB",
        _fairness(record),
        "",
        f"{'candidate':<{width}} {'step ms':>9} {'speedup':>8} {'select':>8} {'exchange':>9} {'merge':>8} "
        f"{'alone':>8} {'KB/rank':>10} {'msgs':>5} {'even':>9} {'alone':>9}",
    ]
    evens_of = {name: [_gigabits(m["break even"]), _gigabits(m["break even alone"])] for name, m in found.items()}
    evens_of |= {BASELINE: ["-", "-"]}  # nothing breaks even with itself
    for name, m in found.items():
        evens = evens_of[name]
        lines.append(
            f"{name:<{width}} {1e3 * m['step']:9.1f} {1 / m['over dense']:8.2f} {1e3 * m['select']:8.1f} "
            f"{1e3 * m['exchange']:9.1f} {1e3 * m['merge']:8.1f} {1e3 * m['processor']:8.1f} {m['bytes'] / 1e3:10.1f} "
            f"{m['messages']:5.0f} {evens[0]:>9} {evens[1]:>9}"
        )
    return "\n".join([*lines, "", *LEGEND])


def _fairness(record: dict[str, Any]) -> str:
    ratio = record.get("dense over ring")
    if ratio is None:
        return "dense: not compared with its bound; --gbit tells the network's bandwidth"
    verdict = "fair" if ratio <= FAIR else f"above {FAIR:g}: not the network limits it, or it is no fair baseline"
    gbit = record["options"]["gbit"]
    return f"dense: {ratio:.2f} times its ring bound, 2(P-1)/P of its bytes at {gbit:.3g} Gbit/s: {verdict}"


def _gigabits(bandwidth: float | None) -> str:
    return "any" if bandwidth is None else "none" if bandwidth == 0 else f"{bandwidth / 1e9:.3g}"
