"""A plan: the tensors of a gradient in parts, each fused into one vector, with an algorithm.

`algorithms.hybrid` carries a plan out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

DENSE = "dense"  # a job without a plan: float32, all elements
PARTIAL = "partial"  # the way that leaves small tensors dense


@dataclass(frozen=True)
class PlannedPart:
    algorithm: str  #: name as a command line spells it
    tensors: tuple[int, ...]  #: their numbers, ascending
    share: float = 1.0  #: fraction of the k entries of a step; dense algorithms ignore it


@dataclass(frozen=True)
class Plan:
    """The fastest of several ways to reduce a gradient, and the seconds of each."""

    tensors: dict[str, tuple[int, ...]]  #: their shapes by name, in the order of the flat gradient
    ranks: int
    density: float
    way: str  #: an algorithm that reduces all tensors, or `PARTIAL`
    parts: tuple[PlannedPart, ...]  #: parts in the order in which they are reduced; every tensor is in one
    seconds: dict[str, float]  #: time of a reduction by each way that was measured, on the slowest rank

    @property
    def explanation(self) -> str:
        """Return one line about the plan and its gain over dense."""
        dense, here = self.seconds[DENSE], self.seconds[self.way]
        if self.way == DENSE:
            best = min(self.seconds, key=self.seconds.__getitem__)
            return f"leave it dense: a reduction takes {dense:.4g} s, at best {self.seconds[best]:.4g} s by {best}"
        sizes = [math.prod(shape) for shape in self.tensors.values()]
        part = self.parts[-1]
        share, kept = sum(sizes[number] for number in part.tensors) / sum(sizes), len(sizes) - len(part.tensors)
        return (
            f"{part.algorithm} for {len(part.tensors)} of {len(sizes)} tensors, {100 * share:.3g} % of the elements"
            f"{'; the others stay dense' if kept else ''}. A reduction takes {here:.4g} s, dense {dense:.4g} s "
            f"({dense / here:.2f} times as long)."
        )
