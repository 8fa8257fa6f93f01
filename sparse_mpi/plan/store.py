"""Plans and profiles as files: JSON that people can read, with the format's version and a hash of the content."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import blake2b
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from sparse_mpi.plan.base import Plan, Profile, Tensor
from sparse_mpi.plan.records import decode, encode, render
from sparse_mpi.plan.soundness import wrong_with_plan, wrong_with_profile

VERSION = 1
WHAT: dict[type, str] = {Plan: "plan", Profile: "profile"}
MAKE = {Plan: "make it anew with `python -m sparse_mpi plan --out`", Profile: "measure it anew with --save-profile"}

T = TypeVar("T", Plan, Profile)


def dumps(plan: Plan) -> str:
    """The text of a plan file."""
    return _dump(plan)


def loads(text: str, name: str = "the text") -> Plan:
    """The plan of a plan file.

    Args:
        name: of the file, for errors.

    Raises:
        ValueError: no JSON, another kind or a newer version of file, an altered one, or a plan that cannot be.
    """
    plan = _load(Plan, text, name)
    if problem := wrong_with_plan(plan):
        raise ValueError(f"{name}: {problem}; {MAKE[Plan]}")
    return plan


def save(plan: Plan, path: str | PathLike[str]) -> None:
    """Write a plan file."""
    Path(path).write_text(dumps(plan), encoding="utf-8")


def load(path: str | PathLike[str]) -> Plan:
    """Read a plan file; errors as with `loads`, and OSError."""
    return loads(_read(path), str(path))


def dumps_profile(profile: Profile) -> str:
    """The text of a profile file."""
    return _dump(profile)


def loads_profile(text: str, name: str = "the text") -> Profile:
    """The profile of a profile file; arguments and errors as with `loads`."""
    profile = _load(Profile, text, name)
    if problem := wrong_with_profile(profile):
        raise ValueError(f"{name}: {problem}; {MAKE[Profile]}")
    return profile


def save_profile(profile: Profile, path: str | PathLike[str]) -> None:
    """Write a profile file."""
    Path(path).write_text(dumps_profile(profile), encoding="utf-8")


def load_profile(path: str | PathLike[str]) -> Profile:
    """Read a profile file; errors as with `loads`, and OSError."""
    return loads_profile(_read(path), str(path))


def digest(record: Plan | Profile) -> str:
    """16 hexadecimal digits that differ between different plans: what ranks compare."""
    return _hash(encode(type(record), record))


def check(plan: Plan, tensors: Sequence[Tensor | tuple[str, tuple[int, ...]]], ranks: int) -> None:
    """Refuse a plan that was made for something else.

    Args:
        plan: what is to be followed.
        tensors: of the job, in the order of the flat gradient; names and shapes are compared.
        ranks: of the job.

    Raises:
        ValueError: other tensors (the message names the first that differs) or another number of ranks.
    """
    job = [(tensor[0], tuple(tensor[1])) for tensor in tensors]
    for number in range(max(len(job), len(plan.tensors))):
        planned, here = (_show(each, number) for each in (plan.tensors, job))
        if planned != here:
            raise ValueError(
                f"plan must be for the tensors of this model, but tensor {number} is {planned} in the plan and {here} "
                f"here; plan anew for this model"
            )
    if plan.ranks != ranks:
        raise ValueError(
            f"plan must be for {ranks} ranks, got one for {plan.ranks}, where other things pay; plan anew on {ranks}"
        )


def _show(tensors: Sequence[tuple[str, tuple[int, ...]]], number: int) -> str:
    if number >= len(tensors):
        return "absent"
    name, shape = tensors[number]
    return f"{name} {'x'.join(map(str, shape)) or 'scalar'}"


def _dump(record: Plan | Profile) -> str:
    content = encode(type(record), record)
    what = WHAT[type(record)]
    return render({"format": f"sparse_mpi {what}", "version": VERSION, "hash": _hash(content), what: content}) + "\n"


def _hash(content: Any) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return blake2b(canonical.encode(), digest_size=8).hexdigest()


def _read(path: str | PathLike[str]) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path} must be JSON, got a file that is no text") from None


def _load(kind: type[T], text: str, name: str) -> T:
    """The record in a file's text, as it was written."""
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
    if data["hash"] != _hash(encode(type(record), record)):
        raise ValueError(f"{name} was altered: its content does not have the hash {data['hash']}; {anew}")
    return record
