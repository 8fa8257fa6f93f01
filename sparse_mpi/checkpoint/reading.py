"""Loading a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sparse_mpi.checkpoint import manifest
from sparse_mpi.checkpoint.manifest import MANIFEST, MODEL, Entry
from sparse_mpi.checkpoint.together import together
from sparse_mpi.checkpoint.trees import load_tree
from sparse_mpi.checks import converted
from sparse_mpi.comm import as_comm
from sparse_mpi.comm.consistency import tell


class Checkpoint(NamedTuple):
    """A checkpoint, as read by rank r of P."""

    path: Path  #: its folder
    step: int  #: after which it was written
    identity: dict[str, Any]  #: the ``identity`` given to `save`
    model: bytes  #: the same on every rank
    states: list[Any]  #: of the old ranks r, r + P, r + 2 P, ...: on the same number of ranks, this rank's own
    ranks: int  #: that wrote it


def load(place: Path | str, comm: object) -> Checkpoint:
    """Read a checkpoint, on any number of ranks; collective.

    Rank 0's ``place`` counts: a checkpoint's folder, or a folder of checkpoints, for the newest.

    Raises:
        CheckpointError: there is none, or a file is missing, damaged or of another format; names the file and the
            checkpoint before.
    """
    comm = as_comm(comm)
    lead, path, text, advice = comm.rank == 0, Path(), "", ""
    with together(comm, "no checkpoint can be read", "look at that folder"):
        if lead:
            path, advice = _chosen(converted("place", "a path", Path, place))
    path, advice = Path(tell(comm, str(path))), tell(comm, advice)
    words = f"checkpoint {path} cannot be used", advice
    with together(comm, *words):
        if lead:
            if odd := [file for file in path.iterdir() if not (file.is_file() or file.is_dir())]:  # as a pipe
                raise ValueError(f"{odd[0]} is no file")
            text = (path / MANIFEST).read_text(encoding="utf-8")
            manifest.loads(text, path / MANIFEST)
    found = manifest.loads(tell(comm, text), path / MANIFEST)
    model, states = b"", []
    with together(comm, *words):
        if lead:
            _verify(path / MODEL, found.files[MODEL])
            model = (path / MODEL).read_bytes()
        for rank in range(comm.rank, found.ranks, comm.size):
            name = manifest.rank_name(rank, found.ranks)
            _verify(path / name, found.files[name])
            states.append(load_tree(path / name))
    model = comm.bcast(np.frombuffer(model, np.uint8)).tobytes()
    return Checkpoint(path, found.step, found.identity, model, states, found.ranks)


def _chosen(place: Path) -> tuple[Path, str]:
    within = manifest.complete(place)
    if not within and not manifest.NAME.fullmatch(place.name):
        return place, "name a checkpoint's folder (step-...), or one that has some"
    path = within[-1] if within else place
    others = manifest.complete(path.parent)
    older = others[: others.index(path)] if path in others else others
    return path, f"resume from {older[-1]}" if older else "there is none before it; start anew"


def _verify(path: Path, expected: Entry) -> None:
    size = path.stat().st_size
    if size != expected.bytes:
        raise ValueError(f"{path} has {size} bytes instead of {expected.bytes}")
    if manifest.examine(path) != expected:
        raise ValueError(f"{path} was altered after it was written")
