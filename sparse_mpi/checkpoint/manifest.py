"""The manifest of a checkpoint, and the search for a folder's newest one."""

from __future__ import annotations

import json
import math
import re
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from sparse_mpi.checks import check_instance, check_whole, converted

FORMAT, VERSION = "sparse_mpi checkpoint", 1
MANIFEST, MODEL = "checkpoint.json", "model.bin"
NAME = re.compile(r"step-\d{8,}")
UNFINISHED = ".unfinished-"  # begins the name of a folder that is being written or removed
REPLACED = f"{UNFINISHED}replaced-"  # and of a whole checkpoint that makes room for another of its step
BLOCK = 1 << 20  # bytes read at a time


class _OtherVersion(ValueError):
    """Raised for a checkpoint of another version of sparse_mpi."""

    def __init__(self, message: str, number: object) -> None:
        super().__init__(message)
        self.number = number if isinstance(number, int) else math.inf


class Entry(NamedTuple):
    """The size and hash that a file must have."""

    bytes: int
    sha256: str


class Manifest(NamedTuple):
    """The content of ``checkpoint.json``."""

    number: int  # counts the checkpoints of a folder: after a return to an earlier step, steps do not tell the newest
    step: int
    ranks: int
    identity: dict[str, Any]
    files: dict[str, Entry]


def folder_name(step: int) -> str:
    return f"step-{step:08d}"


def rank_name(rank: int, ranks: int) -> str:
    return f"rank-{rank:05d}-of-{ranks:05d}.npz"


def examine(path: Path) -> Entry:
    seen = sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            seen.update(block)
    return Entry(path.stat().st_size, seen.hexdigest())


def dumps(manifest: Manifest) -> str:
    files = {name: entry._asdict() for name, entry in manifest.files.items()}
    content = manifest._asdict() | {"files": files}
    return json.dumps({"format": FORMAT, "version": VERSION, "hash": _hash(content), **content}, indent=1) + "\n"


def loads(text: str, path: Path) -> Manifest:
    """Return the manifest in the text of ``path``; _OtherVersion or ValueError if it cannot be used."""
    try:
        data = json.loads(text)
        kind, version, number = data.pop("format"), data.pop("version"), data.get("number")
        if (kind, version) == (FORMAT, VERSION):
            if data.pop("hash") != _hash(data):
                raise ValueError("it was altered after it was written")
            files = {name: Entry(**entry) for name, entry in data["files"].items()}
            return _checked(Manifest(**data | {"files": files}))
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as problem:
        raise ValueError(f"{path} is damaged: {problem}") from None
    known = f"{FORMAT!r} {VERSION} is known here; use the sparse_mpi that wrote it"
    raise _OtherVersion(f"{path} has format {kind!r} {version!r}, but {known}", number)


def _checked(manifest: Manifest) -> Manifest:
    for name, least in (("number", 1), ("step", 0), ("ranks", 1)):
        check_whole(name, getattr(manifest, name), least)
    check_instance("identity", manifest.identity, dict)
    shards = min(manifest.ranks, len(manifest.files))  # the same number of names is worth comparing
    if manifest.files.keys() != {MODEL, *(rank_name(rank, manifest.ranks) for rank in range(shards))}:
        raise ValueError(
            f"files must be {MODEL} and one for each of {manifest.ranks} ranks, got {sorted(manifest.files)}"
        )
    return manifest


def read(checkpoint: Path) -> Manifest:
    """Read the manifest of a checkpoint's folder; OSError or ValueError if it cannot be used."""
    return loads((checkpoint / MANIFEST).read_text(encoding="utf-8"), checkpoint / MANIFEST)


def number_of(checkpoint: Path, foreign: float | None = None) -> float:
    """Return a checkpoint's number; inf if its manifest is unusable, so that no older one counts as newest.

    A checkpoint of another version counts as ``foreign`` (None: its number, too).
    """
    try:
        return read(checkpoint).number
    except _OtherVersion as other:
        return other.number if foreign is None else foreign
    except (OSError, ValueError):
        return math.inf


def complete(folder: Path) -> list[Path]:
    """Return the complete checkpoints in ``folder``, also replaced ones, newest last."""
    found = sorted(folder.iterdir()) if folder.is_dir() else []  # where both names are taken, its own counts
    named = {place_of(path).name: path for path in found}
    whole = [path for name, path in named.items() if NAME.fullmatch(name) and (path / MANIFEST).is_file()]
    return sorted(whole, key=lambda path: (number_of(path), path.name))


def place_of(checkpoint: Path) -> Path:
    """Return the place of a checkpoint, also of a replaced one."""
    return checkpoint.with_name(checkpoint.name.removeprefix(REPLACED))


def latest(folder: Path | str) -> Path | None:
    """Return the newest complete checkpoint in ``folder``, or None."""
    return next(reversed(complete(converted("folder", "a path", Path, folder))), None)


def _hash(content: dict[str, Any]) -> str:
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
