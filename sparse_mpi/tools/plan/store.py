"""Files of plans and profiles: readable JSON with the version of the format and a hash of the content."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import blake2b
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from sparse_mpi.tools.plan.base import Plan, Profile, Tensor
from sparse_mpi.tools.plan.plan_records import decode, encode, render
from sparse_mpi.tools.plan.soundness import wrong_with_plan, wrong_with_profile

VERSION = 1
WHAT: dict[type, str] = {Plan: "plan", Profile: "profile"}
MAKE = {Plan: "make it anew with `python -m sparse_mpi plan --out`", Profile: "measure it anew with --save-profile"}

T = TypeVar("T", Plan, Profile)


def dumps(plan: Plan) -> str:
    """Return the text of a plan file."""
    return _dump(plan)


def loads(text: str, name: str = "the text") -> Plan:
    """Return the plan that the text of a plan file holds.

    Args:
        text: content of the file.
        name: name of the file, for errors.

    Raises:
        ValueError: ``text`` is no JSON, another kind of file, of a newer version, altered, or an impossible plan.
    """
    plan = _load(Plan, text, name)
    if problem := wrong_with_plan(plan):
        raise ValueError(f"{name}: {problem}; {MAKE[Plan]}")
    return plan


def save(plan: Plan, path: str | PathLike[str]) -> None:
    """Write a plan file."""
    Path(path).write_text(dumps(plan), encoding="utf-8")


def load(path: str | PathLike[str]) -> Plan:
    """Read a plan file; errors are those of `loads`, and OSError."""
    return loads(_read(path), str(path))


def dumps_profile(profile: Profile) -> str:
    """Return the text of a profile file."""
    return _dump(profile)


def loads_profile(text: str, name: str = "the text") -> Profile:
    """Return the profile that the text of a profile file holds; arguments and errors are those of `loads`."""
    profile = _load(Profile, text, name)
    if problem := wrong_with_profile(profile):
        raise ValueError(f"{name}: {problem}; {MAKE[Profile]}")
    return profile


def save_profile(profile: Profile, path: str | PathLike[str]) -> None:
    """Write a profile file."""
    Path(path).write_text(dumps_profile(profile), encoding="utf-8")


def load_profile(path: str | PathLike[str]) -> Profile:
    """Read a profile file; errors are those of `loads`, and OSError."""
    return loads_profile(_read(path), str(path))


def digest(record: Plan | Profile) -> str:
    """Return 16 hexadecimal digits, a hash of the content, by which ranks compare their plans."""
    return _hash(encode(type(record), record))


def check(plan: Plan, tensors: Sequence[Tensor | tuple[str, tuple[int, ...]]], ranks: int) -> None:
    """Raise unless ``plan`` was made for this job.

    Args:
        plan: is to be carried out.
        tensors: of the job, in the order of the flat gradient; names and shapes are compared.
        ranks: of the job.

    Raises:
        ValueError: the plan is for other tensors, of which the message names the first, or another number of ranks.
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
    """Return name and shape of a tensor, for errors."""
    if number >= len(tensors):
        return "absent"
    name, shape = tensors[number]
    return f"{name} {'x'.join(map(str, shape)) or 'scalar'}"


def _dump(record: Plan | Profile) -> str:
    """Return the text of a file that holds ``record``."""
    content = encode(type(record), record)
    what = WHAT[type(record)]
    return render({"format": f"sparse_mpi {what}", "version": VERSION, "hash": _hash(content), what: content}) + "\n"


def _hash(content: Any) -> str:
    """Return the hash of encoded content, whatever the order of its keys."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return blake2b(canonical.encode(), digest_size=8).hexdigest()


def _read(path: str | PathLike[str]) -> str:
    """Return the text of a file."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path} must be JSON, got a file that is no text") from None


def _load(kind: type[T], text: str, name: str) -> T:
    """Return the record in the text of a file, checked to be just as it was written."""
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
