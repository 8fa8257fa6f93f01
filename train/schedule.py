"""Learning rate and density over a training run."""

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


def density(epoch: float, final: float, warmup: int | Sequence[float] = 0) -> float:
    """The share of the gradient to reduce ``epoch`` epochs (a fraction within one) into training.

    ``warmup`` lists those of the first epochs, or says in how many of them it falls exponentially from 1 to ``final``,
    as published (Lin et al., ICLR'18): to 0.1 % in 4 epochs, 25, 6.3, 1.6 and 0.4 %.
    """
    number = int(epoch)
    if isinstance(warmup, int):
        return final ** ((number + 1) / (warmup + 1)) if number < warmup else final
    return warmup[number] if number < len(warmup) else final
