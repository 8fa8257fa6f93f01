"""What all figures of the commands need: matplotlib, and a file that it can write."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def matplotlib(part: str = "") -> Any:
    """Return matplotlib, or a ``part`` of it.

    Raises:
        SystemExit: it is not installed.
    """
    try:
        return import_module(f"matplotlib.{part}".rstrip("."))
    except ImportError:
        raise SystemExit("--plot needs matplotlib: pip install matplotlib") from None


def save(figure: Any, file: str) -> None:
    """Write it, in the format that the name of ``file`` says.

    Raises:
        SystemExit: there is no such format.
    """
    try:
        figure.savefig(file, dpi=120)
    except ValueError as problem:
        raise SystemExit(f"--plot: {problem}") from None
