"""Saving a checkpoint."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from sparse_mpi.checkpoint import manifest
from sparse_mpi.checkpoint.manifest import MANIFEST, MODEL, REPLACED, UNFINISHED, Entry, Manifest
from sparse_mpi.checkpoint.together import CheckpointError, texts_of, together
from sparse_mpi.checkpoint.trees import dump_tree
from sparse_mpi.checks import check_whole, converted
from sparse_mpi.comm import as_comm
from sparse_mpi.comm.consistency import same_on_all_ranks, tell


def save(
    folder: Path | str, step: int, identity: Mapping[str, Any], model: Any, state: Any, comm: object, keep: int = 2
) -> Path:
    """Write a checkpoint, or leave everything as it was; collective.

    Args:
        folder: folder of one job's checkpoints, which its ranks share; made if need be. Rank 0's counts.
        step: training step; names the checkpoint, and replaces one of the same name.
        identity: JSON values about the run; `load` hands them back for the caller to compare.
        model: bytes or a buffer, of rank 0; ignored on other ranks.
        state: this rank's state: dicts, lists, tuples, numbers, strings, NumPy arrays and torch tensors.
        comm: mpi4py communicator, process group or `Comm`.
        keep: number of checkpoints that stay, this one included; older ones go once it is on the disk.

    Returns its folder.

    Raises:
        TypeError, ValueError: step is no whole number from 0, keep none from 1, the ranks' values differ, or the folder
            is none; raised on every rank.
        CheckpointError: a rank could not write; names rank, file and cause. Older checkpoints are as they were.
    """
    comm = as_comm(comm)
    lead, before, about = comm.rank == 0, [], dict[str, Any]()
    with same_on_all_ranks(comm) as say:
        check_whole("step", step, 0)
        check_whole("keep", keep, 1)
        if lead:
            about = converted("identity", "a dict of JSON values", _plain, identity)
            model = converted("model", "bytes or a buffer", lambda given: memoryview(given), model)
            before = _before(converted("folder", "a path", Path, folder))
        say(call="save", step=step, keep=keep)
    folder, step = Path(tell(comm, str(folder))), int(step)
    partial, place = folder / f"{UNFINISHED}{manifest.folder_name(step)}", folder / manifest.folder_name(step)
    intact = tell(comm, f"{before[-1]} is intact" if before else "there is no earlier one")
    words = f"the checkpoint of step {step} was not written", f"{intact}; make room, or choose another folder"
    try:
        with together(comm, *words):
            if lead:
                _begin(folder, partial)
        with together(comm, *words):
            own = _write(partial / manifest.rank_name(comm.rank, comm.size), lambda file: dump_tree(state, file))
            model_entry = _write(partial / MODEL, lambda file: file.write(model)) if lead else None
        written = [Entry(*json.loads(text)) for text in texts_of(comm, json.dumps(own))]
        entries = {manifest.rank_name(rank, comm.size): entry for rank, entry in enumerate(written)}
        with together(comm, *words):
            if model_entry is not None:
                number = 1 + max([int(n) for n in map(manifest.number_of, before) if n < math.inf], default=0)
                described = Manifest(number, step, comm.size, about, {MODEL: model_entry, **entries})
                _write(partial / MANIFEST, lambda file: file.write(manifest.dumps(described).encode()))
                _finish(partial, place)
    except CheckpointError:
        if lead:
            shutil.rmtree(partial, ignore_errors=True)
        comm.barrier()
        raise
    if lead:
        _remove_older([path for path in before if path != place], keep)
    comm.barrier()
    return place


def _plain(identity: Mapping[str, Any]) -> dict[str, Any]:
    json.dumps(found := dict(identity))
    return found


def _before(folder: Path) -> list[Path]:
    """Return the checkpoints in ``folder``, once replaced ones have their names back."""
    try:
        for path in manifest.complete(folder):
            if path != manifest.place_of(path):
                path.rename(manifest.place_of(path))
        return manifest.complete(folder)
    except OSError:  # `save` will fail to write to it, too
        return []


def _begin(folder: Path, partial: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob(f"{UNFINISHED}*"):
        if leftover.is_dir() and not leftover.is_symlink():
            shutil.rmtree(leftover)
        else:  # not a job's folder
            leftover.unlink()
    partial.mkdir()


def _write(path: Path, write: Callable[[BinaryIO], object]) -> Entry:
    try:
        with path.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        return manifest.examine(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _finish(partial: Path, place: Path) -> None:
    """Give the folder its name, on the disk as well; one of that name makes room."""
    _sync(partial)
    replaced = place.with_name(f"{REPLACED}{place.name}")
    if place.exists():
        place.rename(replaced)
    try:
        partial.rename(place)
    except OSError:
        if replaced.exists():
            replaced.rename(place)
        raise
    _sync(place.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def _remove_older(before: list[Path], keep: int) -> None:
    """Remove damaged checkpoints, and all but the newest ``keep - 1``, but none of another version."""
    numbers = {path: manifest.number_of(path, foreign=-1) for path in before}
    whole = [path for path in before if 0 < numbers[path] < math.inf]
    stay = whole[-(keep - 1) :] if keep > 1 else []
    for path in before:
        if numbers[path] > 0 and path not in stay:
            doomed = path.with_name(f"{UNFINISHED}removed-{path.name}")  # at no time half a checkpoint
            with suppress(OSError):  # A folder that cannot be removed stays
                shutil.rmtree(path.rename(doomed), ignore_errors=True)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
