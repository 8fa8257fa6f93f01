"""The learning rate over a training run."""

from __future__ import annotations

from collections.abc import Sequence


def learning_rate(
    epoch: float,
    peak: float,
    ranks: int,
    warmup_epochs: float = 0,
    milestones: Sequence[float] = (),
    factor: float = 0.1,
) -> float:
    """The rate ``epoch`` epochs (a fraction within one) into training.

    It climbs in a line from ``peak / ranks`` to ``peak`` during ``warmup_epochs``, and is multiplied by
    ``factor`` at each of ``milestones`` (epochs).
    """
    if epoch < warmup_epochs:
        return peak / ranks + (peak - peak / ranks) * epoch / warmup_epochs
    return peak * factor ** sum(epoch >= milestone for milestone in milestones)
