"""Messages between `python -m sparse_mpi run` and its ranks, through a folder."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

FOLDER = "SPARSE_MPI_RUN_FOLDER"  # the variable with the folder
METRICS = "SPARSE_MPI_METRICS_DIR"  # the variable with the folder of metrics
RANGES = "SPARSE_MPI_RANGES"  # anything but 0: ranges in profiles
ALGORITHM = "SPARSE_MPI_ALGORITHM"  # set by `bench compare`: overrules the algorithm of a script
OBSERVED = {METRICS, RANGES, ALGORITHM}  # reducers are observed where one of these is set
PATIENCE = 3.0  # seconds that a rank waits for another one to end the job with the same error


def first_to_say(text: str) -> bool:
    """Return False if another process of `run`'s job has asked for the same ``text`` before."""
    folder, own = os.environ.get(FOLDER), str(os.getpid())
    if not folder:
        return True
    said = Path(folder) / f"said-{hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()[:16]}"
    with suppress(OSError):  # it is there, or the folder is not, as on another host
        said.symlink_to(own)  # has its content from the start
    return not said.is_symlink() or os.readlink(said) == own
