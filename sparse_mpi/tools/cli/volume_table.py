"""The tables of ``bench volume``."""

from __future__ import annotations

from sparse_mpi.tools.analysis.volume import WORD, Volume

RATIOS = """\
words: 4 bytes of payload a rank and step, mean over ranks and steps; between: those of them that are for other nodes;
most: of any rank in any step; formula: what the algorithm's bound allows a rank; /low: mean bytes of payload and
control over 8k(P-1)/P; balance: the busiest rank's payload over the mean; fill-in: entries the ranks select together,
each counted once, over k; control in bytes; formulas include the agreement with which a step begins"""


def title() -> str:
    """Return the head of the table of `row`s."""
    return (
        f"{'algorithm':<26} {'P':>5} {'k':>8} {'words':>11} {'between':>11} {'most':>11} {'formula':>11} {'/low':>7} "
        f"{'control':>8} {'formula':>8} {'msgs':>6} {'formula':>8} {'balance':>8} {'sel/k':>6} {'total/k':>8} "
        f"{'fill-in':>8}"
    )


def row(v: Volume) -> str:
    """Return the row of one algorithm on one number of ranks."""
    low = f"{(v.words * WORD + v.control) / v.lowest:7.3f}" if v.lowest else f"{'-':>7}"
    fill = f"{v.fill_in:8.2f}" if v.fill_in is not None else f"{'-':>8}"
    return (
        f"{v.algorithm:<26} {v.ranks:>5} {v.k:>8} {v.words:>11.0f} {v.between:>11.0f} {v.most_words:>11.0f} "
        f"{v.formula_words:>11.0f} {low} {v.control:>8.0f} {v.formula_control:>8.0f} {v.messages:>6.0f} "
        f"{v.formula_messages:>8.0f} {v.imbalance:>8.3f} {v.selected:>6.3f} {v.total:>8.3f} "
        f"{fill}{'' if v.within else ' !'}"
    )


def phases(v: Volume) -> str:
    """Return which calls of an algorithm send what, in the order of a step."""
    wide = max([len(name) for name in v.phases], default=0)
    lines = [f"{f'{v.algorithm}, P = {v.ranks}':<{wide}} {'words':>11} {'most':>11} {'control':>9} {'msgs':>6}"]
    lines += [
        f"{name:<{wide}} {phase.words:>11.0f} {phase.most_words:>11.0f} {phase.control:>9.0f} {phase.messages:>6.0f}"
        for name, phase in v.phases.items()
    ]
    return "\n".join(lines)
