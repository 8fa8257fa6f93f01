"""Files of plans and profiles, readable JSON with a version and a hash of the content, and plans as algorithms."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from hashlib import blake2b
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from sparse_mpi.algorithms import ALGORITHMS
from sparse_mpi.algorithms.hybrid import Fused, Hybrid
from sparse_mpi.planning.base import Plan, PlannedPart, Profile, Tensor

VERSION = 1
WHAT: dict[type, str] = {Plan: "plan", Profile: "profile"}
MAKE = {Plan: "make it anew with `python -m sparse_mpi plan --out`", Profile: "measure it anew with --save-profile"}
WIDTH = 120
EXPECTED: dict[Any, str] = {  # the words for a type in errors
    dict: "an object",
    list: "a list",
    str: "a string",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
}

T = TypeVar("T", Plan, Profile)


def dumps(record: Plan | Profile) -> str:
    """Return the text of a file that holds ``record``."""
    content, what = encode(type(record), record), WHAT[type(record)]
    return written({"format": f"sparse_mpi {what}", "version": VERSION, "hash": _hash(content), what: content}) + "\n"


def loads(text: str, name: str = "the text", kind: type[T] = Plan) -> T:  # type: ignore[assignment]
    """Return the plan, or the profile, that the text of the file ``name`` holds.

    Raises ValueError: ``text`` is no JSON, another kind of file, of a newer version, altered, or an impossible plan.
    """
    what, anew = WHAT[kind], MAKE[kind]
    try:
        data = json.loads(text)
    except ValueError as problem:
        raise ValueError(f"{name} must be JSON, but {problem}; {anew}") from None
    if not isinstance(data, dict) or data.get("format") != f"sparse_mpi {what}":
        raise ValueError(f"{name} must be a sparse_mpi {what}, but is none; {anew}")
    version = data.get("version")
    if isinstance(version, int) and version > VERSION:
        raise ValueError(f"{name} has format {version}, newer than {VERSION}, the newest known here; update sparse_mpi")
    if missing := [key for key in ("version", "hash", what) if key not in data]:
        raise ValueError(f"{name} lacks {', '.join(missing)}; {anew}")
    if version != VERSION:
        raise ValueError(f"{name} has format {version!r}, which is none; {anew}")
    record: T
    try:
        record = decode(kind, data[what], what)
    except ValueError as problem:
        raise ValueError(f"{name}: {problem}; {anew}") from None
    if data["hash"] != digest(record):
        raise ValueError(f"{name} was altered: its content does not have the hash {data['hash']}; {anew}")
    if wrong := wrong_with_plan(record) if isinstance(record, Plan) else wrong_with_profile(record):
        raise ValueError(f"{name}: {wrong}; {anew}")
    return record


def save(record: Plan | Profile, path: str | PathLike[str]) -> None:
    """Write a file of a plan or a profile."""
    Path(path).write_text(dumps(record), encoding="utf-8")


def load(path: str | PathLike[str], kind: type[T] = Plan) -> T:  # type: ignore[assignment]
    """Read a file of a plan, or of a profile; errors are those of `loads`, and OSError."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path} must be JSON, got a file that is no text") from None
    return loads(text, str(path), kind)


def digest(record: Plan | Profile) -> str:
    """Return 16 hexadecimal digits, a hash of the content, by which ranks compare their plans."""
    return _hash(encode(type(record), record))


def _hash(content: Any) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return blake2b(canonical.encode(), digest_size=8).hexdigest()


def check(plan: Plan, tensors: Sequence[Tensor | tuple[str, tuple[int, ...]]], ranks: int) -> None:
    """Raise unless ``plan`` was made for this job.

    Raises ValueError: the plan is for other tensors, of which the message names the first, or another number of ranks.
    """
    job = [(tensor[0], tuple(tensor[1])) for tensor in tensors]
    for number in range(max(len(job), len(plan.tensors))):
        planned, here = (
            f"{each[number][0]} {'x'.join(map(str, each[number][1])) or 'scalar'}" if number < len(each) else "absent"
            for each in (plan.tensors, job)
        )
        if planned != here:
            raise ValueError(
                f"plan must be for the tensors of this model, but tensor {number} is {planned} in the plan and {here} "
                f"here; plan anew for this model"
            )
    if plan.ranks != ranks:
        raise ValueError(
            f"plan must be for {ranks} ranks, got one for {plan.ranks}, where other things pay; plan anew on {ranks}"
        )


def algorithm_of(plan: Plan) -> Hybrid:
    """Return the algorithm that carries out ``plan``.

    Its ``repr`` names every tensor, so that ranks with different plans refuse to start. A part gets its share of the
    step's k entries, which is exactly the plan's number where k is the plan's too.
    """
    k = max(1, round(plan.density * sum(math.prod(shape) for _, shape in plan.tensors)))
    return Hybrid(
        tuple(
            Fused(ALGORITHMS[part.option](), part.tensors, min(part.k / k, 1.0), part.partitions) for part in plan.parts
        )
    )


def encode(kind: Any, value: Any) -> Any:
    """Turn ``value``, of type ``kind``, into dicts, lists, strings and numbers; equal values give equal text."""
    if names := _names(kind):
        hints = get_type_hints(kind)
        return {name: encode(hints[name], getattr(value, name)) for name in names}
    if get_origin(kind) is tuple:
        return [encode(each, item) for each, item in zip(_kinds(kind, len(value)), value, strict=True)]
    return kind(value)


def decode(kind: Any, data: Any, where: str) -> Any:
    """Invert `encode`: return the value of type ``kind`` that ``data`` was made of.

    Raises ValueError: a field is missing, unknown or of another type; the message says where.
    """
    if names := _names(kind):
        hints = get_type_hints(kind)
        data = _expect(dict, data, where)
        if missing := [name for name in names if name not in data]:
            raise ValueError(f"{where} lacks {', '.join(missing)}")
        if unknown := sorted(set(data) - set(names)):
            raise ValueError(f"{where} has unknown {', '.join(unknown)}")
        return kind(**{name: decode(hints[name], data[name], f"{where}.{name}") for name in names})
    if get_origin(kind) is tuple:
        data = _expect(list, data, where)
        kinds = _kinds(kind, len(data))
        if len(kinds) != len(data):
            raise ValueError(f"{where} must have {len(kinds)} items, got {len(data)}")
        return tuple(decode(k, item, f"{where}[{i}]") for i, (k, item) in enumerate(zip(kinds, data, strict=True)))
    return _expect(kind, data, where)


def _names(kind: Any) -> tuple[str, ...]:
    """Return the field names of a dataclass or a named tuple, none for any other type."""
    if is_dataclass(kind):
        return tuple(field.name for field in fields(kind))
    return getattr(kind, "_fields", ())


def _kinds(kind: Any, length: int) -> tuple[Any, ...]:
    kinds = get_args(kind)
    return kinds[:1] * length if kinds[1:] == (...,) else kinds


def _expect(kind: Any, data: Any, where: str) -> Any:
    """Return ``data`` if it is of that type; whole numbers count as numbers, true and false do not."""
    accepted = (int, float) if kind is float else kind
    if not isinstance(data, accepted) or (isinstance(data, bool) and kind is not bool):
        raise ValueError(f"{where} must be {EXPECTED[kind]}, got {json.dumps(data)[:40]}")
    if kind is not float:
        return data
    if not abs(data) < 1e308:  # not a number, infinite, or a whole number of hundreds of digits
        raise ValueError(f"{where} must be finite, got {str(data)[:40]}")
    return float(data)


def written(data: Any, indent: int = 0, before: int = 0) -> str:
    """Return JSON for human readers, in which whatever fits into a line stays in it."""
    line = json.dumps(data, allow_nan=False)
    if indent + before + len(line) <= WIDTH or not isinstance(data, (dict, list)):
        return line
    inner, close = "\n" + " " * (indent + 1), "\n" + " " * indent
    if isinstance(data, dict):
        items = [f"{json.dumps(name)}: {written(item, indent + 1, len(name) + 5)}" for name, item in data.items()]
        return "{" + inner + f",{inner}".join(items) + close + "}"
    return "[" + inner + f",{inner}".join(written(item, indent + 1, 1) for item in data) + close + "]"


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


def _wrong_with_part(plan: Plan, part: PlannedPart) -> str | None:
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
