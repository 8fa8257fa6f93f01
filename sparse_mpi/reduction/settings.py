"""The checked arguments of a reduction: `Settings`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sparse_mpi.algorithms import ALGORITHMS, Algorithm
from sparse_mpi.checks import check_choice
from sparse_mpi.feedback import Feedback
from sparse_mpi.reduction.arguments import check_second_moment, make_algorithm, make_feedback, resolve_k, usual_density
from sparse_mpi.sparse import Layout

DENSE = ALGORITHMS["dense"]()  # sums every entry in dense steps and flushes, whatever the algorithm is


@dataclass(frozen=True)
class Settings:
    """The arguments of a reducer, checked by `make_settings`; see `SparseAllreduce`."""

    layout: Layout
    k: int
    algorithm: Algorithm
    feedback: Feedback  # holds hyperparameters, no arrays
    clip_norm: float | None = None
    nonfinite: str = "keep"
    second_moment: float | None = None

    @property
    def statement(self) -> dict[str, Any]:
        return {
            "n": self.layout.size,
            "layout": self.layout.digest,
            "k": self.k,
            "algorithm": self.algorithm,
            "feedback": self.feedback,
            "clip_norm": self.clip_norm,
            "nonfinite": self.nonfinite,
            "second_moment": self.second_moment,
        }

    def part(self, shapes: object, share: float) -> Settings:
        layout = Layout.of(shapes)
        return replace(self, layout=layout, k=resolve_k(layout.size, None, share))


def make_settings(
    layout: object,
    *,
    k: int | None = None,
    density: float | None = None,
    algorithm: str | Algorithm = "oktopk",
    feedback: str | Feedback = "residual",
    clip_norm: float | None = None,
    nonfinite: str = "keep",
    second_moment: float | None = None,
    **options: object,
) -> Settings:
    check_choice("nonfinite", nonfinite, ("keep", "raise", "skip"))
    shapes = Layout.of(layout)
    rule = make_feedback(feedback, clip_norm)
    chosen = make_algorithm(algorithm, options)
    if second_moment is not None:
        check_second_moment(second_moment, chosen)
    entries = resolve_k(shapes.size, k, density, usual_density(algorithm))
    return Settings(shapes, entries, chosen, rule, clip_norm, nonfinite, second_moment)
