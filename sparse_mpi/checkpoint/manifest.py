"""What a checkpoint consists of, and which of a folder's checkpoints is the newest."""

from __future__ import annotations

import json
import math
import re
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

FORMAT, VERSION = "sparse_mpi checkpoint", 1
MANIFEST, MODEL = "checkpoint.json", "model.bin"
NAME = re.compile(r"step-\d{8,}")
BLOCK = 1 << 20  # bytes read at a time


class Entry(NamedTuple):
    """What a file must be like."""

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
    """Of the checkpoint of that step."""
    return f"step-{step:08d}"


def rank_name(rank: int, ranks: int) -> str:
    """Of the file of one rank."""
    return f"rank-{rank:05d}-of-{ranks:05d}.npz"


def examine(path: Path) -> Entry:
    """Size and hash of a file.

    Raises:
        OSError: it cannot be read.
    """
    seen, size = sha256(), 0
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            seen.update(block)
            size += len(block)
    return Entry(size, seen.hexdigest())


def dumps(manifest: Manifest) -> str:
    """The text of ``checkpoint.json``."""
    files = {name: entry._asdict() for name, entry in manifest.files.items()}
    content = manifest._asdict() | {"files": files}
    return json.dumps({"format": FORMAT, "version": VERSION, "hash": _hash(content), **content}, indent=1) + "\n"


def loads(text: str, path: Path) -> Manifest:
    """The inverse of `dumps`.

    Args:
        path: of the file, for errors.

    Raises:
        ValueError: no manifest, one of another version, or an altered one.
    """
    try:
        data = json.loads(text)
        kind, version, known = data.pop("format"), data.pop("version"), data.pop("hash")
    except (ValueError, KeyError, AttributeError, TypeError):
        raise ValueError(f"{path} is damaged") from None
    if kind != FORMAT or version != VERSION:
        raise ValueError(
            f"{path} has format {kind!r} {version!r}, but {FORMAT!r} {VERSION} is known here; "
            "use the sparse_mpi that wrote it"
        )
    if known != _hash(data):
        raise ValueError(f"{path} was altered after it was written")
    return Manifest(**data | {"files": {name: Entry(**entry) for name, entry in data["files"].items()}})


def read(checkpoint: Path) -> Manifest:
    """The manifest of a checkpoint's folder.

    Raises:
        OSError, ValueError: there is none that can be used.
    """
    return loads((checkpoint / MANIFEST).read_text(encoding="utf-8"), checkpoint / MANIFEST)


def number_of(checkpoint: Path) -> float:
    """The number of a checkpoint, infinite if its manifest cannot be used: nobody may take an older one unawares."""
    try:
        return read(checkpoint).number
    except (OSError, ValueError):
        return math.inf


def complete(folder: Path) -> list[Path]:
    """The checkpoints in ``folder``, newest last; what a killed job left half-written is none."""
    found = folder.iterdir() if folder.is_dir() else []
    whole = [path for path in found if NAME.fullmatch(path.name) and (path / MANIFEST).is_file()]
    return sorted(whole, key=lambda path: (number_of(path), path.name))


def latest(folder: Path | str) -> Path | None:
    """The newest complete checkpoint in ``folder``, or None."""
    return next(reversed(complete(Path(folder))), None)


def _hash(content: dict[str, Any]) -> str:
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
