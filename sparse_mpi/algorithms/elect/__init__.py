"""Elect: ranks vote sparsely for entries, and then all of them add exact values of those that are elected.

Costs k(P-1)/P times c votes, one index and two values: with c = 0.42, votes of about 1.6 bytes and packed indices
9.7k(P-1)/P bytes in float32, 5.7 in bfloat16 and 3.7 in int8; 2(P - 1) + 3 ceil(log2 P) messages in a steady step, or
about 4 sqrt(P) + 5 ceil(log2 P) where there are many ranks and few votes. Returns between 0.9k and k entries, fewer
only where no more entries have votes: the largest sums of votes. Keeps n + n/P numbers on each rank.

Ok-Topk sums an entry over those ranks only that selected it. Here a rank's selection is no more than a vote, which can
be few and coarsely rounded, and where enough of them meet every rank gives all that it has. So an entry takes more of
the gradient with it, and nothing lingers of what was decided: all ranks clear the same entries. MiCRO (`micro.py`) does
that too, but one rank decides for all.

Votes are remembered until their entry is elected: a rank does not repeat itself, but says what has changed since. So
a vote is worth as much as several that are forgotten, and even an entry that few ranks would ever put among their
largest is elected in time, if all of them together have much of it. Without error feedback the old votes for an entry
are of gradients that are gone, which costs a twentieth of the energy.
"""

from __future__ import annotations

from sparse_mpi.algorithms.elect.elect import Elect, ElectState

__all__ = ["Elect", "ElectState"]
