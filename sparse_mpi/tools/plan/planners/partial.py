"""Partial sparsification (ADTopk, HPDC'24, DOI 10.1145/3625549.3658678): small tensors stay dense, for the same k."""

from __future__ import annotations

from collections.abc import Iterator

from sparse_mpi.tools.plan.base import Part, Plan, Profile
from sparse_mpi.tools.plan.planners.base import DENSE, Choice, Forecast


def partial(profile: Profile, overlap: bool = False, cpu_lane: bool = False) -> Plan:
    """Leave tensors up to some size dense, and share what is left of k among the others; return the best such plan.

    The entries sent add up to k exactly. In the paper's program they do not, and exceed it by up to 80 %. Dense tensors
    may use up half of k: time alone would starve the others, whose entries are what training waits for.
    """
    forecast = Forecast(profile, overlap, cpu_lane)
    return forecast.plan("partial", min(_divisions(forecast), key=forecast.step))


def _divisions(forecast: Forecast) -> Iterator[list[Part]]:
    """Yield all divisions within the budget, with each sparse option; the first has no dense tensors."""
    sizes = [tensor.size for tensor in forecast.profile.tensors]
    for most in (0, *sorted(set(sizes))):
        small = [number for number, size in enumerate(sizes) if size <= most]
        large = [number for number, size in enumerate(sizes) if size > most]
        k = forecast.profile.k - sum(sizes[number] for number in small)
        if 2 * k < forecast.profile.k or not large:
            return
        dense = [forecast.part(small, Choice(DENSE, 1))] if small else []
        for option in forecast.sparse:
            yield [*dense, Part(option.name, tuple(large), k)]
