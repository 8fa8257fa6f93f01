"""Put a plan into words."""

from __future__ import annotations

from sparse_mpi.tools.plan.base import Plan, Profile
from sparse_mpi.tools.plan.planners.base import ROUNDING
from sparse_mpi.tools.plan.planners.single import dense, sparse


def explain(profile: Profile, plan: Plan) -> str:
    """Say what ``plan`` does and gains over all dense and all sparse, or "leave it dense" where that is as fast.

    Args:
        profile: from which the plan was made.
        plan: with overlap or without.
    """
    all_dense = dense(profile, plan.overlap, plan.cpu_lane)
    all_sparse = sparse(profile, plan.overlap, plan.cpu_lane)
    kinds = {option.name: option.dense for option in profile.options}
    names = sorted({part.option for part in plan.parts if not kinds[part.option]})
    alternative = f"all sparse by {all_sparse.parts[0].option} {all_sparse.predicted:.4g} s"
    if all_dense.predicted <= plan.predicted * (1 + ROUNDING):
        this = f", this plan {plan.predicted:.4g} s" if names else ""
        return f"leave it dense: a step is predicted to take {all_dense.predicted:.4g} s so{this}, {alternative}"
    gain = (
        f"A step is predicted to take {plan.predicted:.4g} s, all dense {all_dense.predicted:.4g} s "
        f"({all_dense.predicted / plan.predicted:.2f} times as long), {alternative} "
        f"({all_sparse.predicted / plan.predicted:.2f} times)."
    )
    if not names:
        options = ", ".join(sorted({part.option for part in plan.parts}))
        pieces = sum(part.partitions for part in plan.parts)
        return f"leave it dense, but by {options} in {pieces} piece{'s' * (pieces > 1)}. {gain}"
    picked = [part for part in plan.parts if not kinds[part.option]]
    chosen = [number for part in picked for number in part.tensors]
    elements, k = sum(profile.tensors[number].size for number in chosen), sum(part.k for part in picked)
    rest = "; the others stay dense" if len(chosen) < len(profile.tensors) else ""
    thinner = f" at density {k / elements:.3g}" if k < 0.9 * plan.density * elements else ""
    return (
        f"{plan.planner}: {', '.join(names)} for {len(chosen)} of {len(profile.tensors)} tensors, "
        f"{100 * elements / profile.size:.3g} % of the elements{thinner}{rest}. {gain}"
    )
