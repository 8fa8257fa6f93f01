"""When gradients change fast, and so more of them should be sent: `CriticalRegime`.

Accordion (Agarwal et al., MLSys 2021) compresses little in the critical phases of training, at its beginning and after
changes, which it knows by the gradient's norm: it changes by half or more from one time to the next. Instead of two
levels there is a continuous one here.
"""

from __future__ import annotations

import math
from typing import Any

WINDOW = 20  # steps whose norms are averaged, and compared with those of as many before
CRITICAL = 0.5  # the relative change of the norm that Accordion calls critical


class CriticalRegime:
    """A measure of how fast gradients change, in [0, 1]: 1 is critical, as training is until there is a comparison."""

    def __init__(self) -> None:
        self.value = 1.0
        self._sum, self._count = 0.0, 0
        self._before: float | None = None

    def add(self, norm: float) -> None:
        """Enter the gradient's norm in a step; one that is 0 or not finite says nothing."""
        if not 0 < norm < math.inf:
            return
        self._sum, self._count = self._sum + norm, self._count + 1
        if self._count == WINDOW:
            mean = self._sum / WINDOW
            if self._before is not None:
                self.value = min(1.0, abs(mean - self._before) / self._before / CRITICAL)
            self._before, self._sum, self._count = mean, 0.0, 0

    def state(self) -> dict[str, Any]:
        """Return what `load` takes."""
        return {"value": self.value, "sum": self._sum, "count": self._count, "before": self._before}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a `state`."""
        self.value, self._before = state["value"], state["before"]
        self._sum, self._count = state["sum"], state["count"]
