"""Check what a plan or a profile must fulfil beyond the types of its fields."""

from __future__ import annotations

from collections import Counter

from sparse_mpi.algorithms import ALGORITHMS
from sparse_mpi.tools.plan.base import Part, Plan, Profile, Tensor


def wrong_with_plan(plan: Plan) -> str | None:
    """Return what is wrong with the plan, or None."""
    if plan.ranks < 1 or not 0 < plan.density <= 1:
        return f"ranks must be at least 1 and density in (0, 1], got {plan.ranks} and {plan.density}"
    placed = Counter(number for part in plan.parts for number in part.tensors)
    if strange := sorted(set(placed) - set(range(len(plan.tensors)))):
        return f"tensor {strange[0]} is in a part, but there are only {len(plan.tensors)}"
    for number, (name, _) in enumerate(plan.tensors):
        if placed[number] != 1:
            return f"every tensor must be in one part, but {name} is in {placed[number] or 'none'}"
    problems = (_wrong_with_part(plan, part) for part in plan.parts)
    return next((f"part {number}: {problem}" for number, problem in enumerate(problems) if problem), None)


def wrong_with_profile(profile: Profile) -> str | None:
    """Return what is wrong with the profile, or None."""
    if profile.ranks < 1 or not 0 < profile.density <= 1:
        return f"ranks must be at least 1 and density in (0, 1], got {profile.ranks} and {profile.density}"
    if not profile.tensors:
        return "there must be a tensor"
    times = [profile.before, profile.backward, profile.update, profile.network.alpha, profile.network.beta]
    times += [tensor.ready for tensor in profile.tensors]
    for option in profile.options:
        times += [cost for phase in (option.select, option.exchange, option.merge) for cost in vars(phase).values()]
    if min(times) < 0:
        return f"times and costs must not be negative, got {min(times)}"
    for tensor in profile.tensors:
        if tensor.size < 1:
            return f"{tensor.name} must have elements, got the shape {list(tensor.shape)}"
    return None


def _wrong_with_part(plan: Plan, part: Part) -> str | None:
    """Return what is wrong with a part, whose tensors are known to exist, or None."""
    elements = sum(Tensor(*plan.tensors[number]).size for number in part.tensors)
    if part.option not in ALGORITHMS:
        return f"algorithm must be one of {', '.join(ALGORITHMS)}, got {part.option}"
    if not part.tensors or list(part.tensors) != sorted(part.tensors):
        return f"tensors must be some, in ascending order, got {list(part.tensors)}"
    if not 1 <= part.k <= elements:
        return f"k must be in [1, {elements}], the number of its elements, got {part.k}"
    if not 1 <= part.partitions <= part.k:
        return f"partitions must be in [1, {part.k}], its k, got {part.partitions}"
    return None
