"""``--plot`` of the commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sparse_mpi.tools.cli.parsing import Refused
from sparse_mpi.tools.figures.style import Look, write


def save(make: Callable[[Look], Any], file: Path) -> None:
    """Write the figure that ``make`` draws, as `sparse_mpi.tools.figures.style.write` does.

    Raises:
        Refused: matplotlib is not installed or does not know the format, or the file cannot be written.
    """
    try:
        write(make, file)
    except (ImportError, ValueError) as problem:
        raise Refused(f"--plot: {problem}") from None
    except OSError as problem:
        raise Refused(f"--plot {file} cannot be written: {problem.strerror}; name another file") from None
