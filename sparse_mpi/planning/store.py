"""Files of plans, readable JSON with a version and a hash of the content, and plans as algorithms."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from hashlib import blake2b
from os import PathLike
from pathlib import Path
from typing import Any

from sparse_mpi.algorithms.hybrid import Fused, Hybrid
from sparse_mpi.planning.base import Plan, PlannedPart
from sparse_mpi.reduction.arguments import algorithm_spelled

FORMAT, VERSION = "sparse_mpi plan", 2
ANEW = "make it anew with `python -m sparse_mpi plan --out`"
FLAT = re.compile(r"\[\n\s+([^][{}]*?)\n\s+\]")  # a list of numbers that json.dumps has put on several lines


def dumps(plan: Plan) -> str:
    content = asdict(plan)
    data = {"format": FORMAT, "version": VERSION, "hash": _hash(content), "plan": content}
    return FLAT.sub(lambda found: f"[{' '.join(found[1].split())}]", json.dumps(data, indent=1)) + "\n"


def loads(text: str | bytes, name: str = "the text") -> Plan:
    """Return the plan in the text of the file ``name``.

    Raises ValueError: ``text`` is no plan, of another version, or altered.
    """
    try:
        data = json.loads(text)
    except ValueError as problem:
        raise ValueError(f"{name} must be JSON, but {problem}; {ANEW}") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ValueError(f"{name} must be a {FORMAT}, but is none; {ANEW}")
    if data.get("version") != VERSION:
        raise ValueError(f"{name} must have version {VERSION} of the format, got {data.get('version')!r}; {ANEW}")
    try:
        content = data["plan"]
        intact = data["hash"] == _hash(content)
        tensors = {name: tuple(shape) for name, shape in content["tensors"].items()}
        parts = tuple(PlannedPart(**part | {"tensors": tuple(part["tensors"])}) for part in content["parts"])
        plan = Plan(**content | {"tensors": tensors, "parts": parts})
    except (AttributeError, KeyError, TypeError, ValueError):
        intact = False
    if not intact:
        raise ValueError(f"{name} was altered: its content is not what its hash was made of; {ANEW}")
    return plan


def save(plan: Plan, path: str | PathLike[str]) -> None:
    Path(path).write_text(dumps(plan), encoding="utf-8")


def load(path: str | PathLike[str]) -> Plan:
    """Read a file of a plan; raise the errors of `loads`, and OSError."""
    return loads(Path(path).read_bytes(), str(path))


def _hash(content: Any) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return blake2b(canonical.encode(), digest_size=8).hexdigest()


def check(plan: Plan, tensors: Iterable[tuple[str, Sequence[int]]], ranks: int) -> None:
    """Raise unless ``plan`` was made for this job.

    Raises ValueError: it is for other tensors (the message names the first) or another number of ranks.
    """
    planned, here = (
        [f"{name} {'x'.join(map(str, shape)) or 'scalar'}" for name, shape in of]
        for of in (plan.tensors.items(), tensors)
    )
    for number in range(max(len(planned), len(here))):
        was, is_now = (of[number] if number < len(of) else "absent" for of in (planned, here))
        if was != is_now:
            raise ValueError(
                f"plan must be for the tensors of this model, but tensor {number} is {was} in the plan and {is_now} "
                f"here; plan anew for this model"
            )
    if plan.ranks != ranks:
        raise ValueError(
            f"plan must be for {ranks} ranks, got one for {plan.ranks}, where other things pay; plan anew on {ranks}"
        )


def algorithm_of(plan: Plan) -> Hybrid:
    """Return the algorithm that carries out ``plan``.

    Its ``repr`` names every tensor, so that ranks with different plans refuse to start.

    Raises ValueError: a part names no algorithm.
    """
    return Hybrid(tuple(Fused(algorithm_spelled(part.algorithm), part.tensors, part.share) for part in plan.parts))
