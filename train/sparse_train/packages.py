"""Packages that some data sets and models need, and most runs do not."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def needed(module: str, remedy: str) -> Any:
    """Return the module of this name. Raises ImportError: it cannot be imported; the ``remedy`` is said."""
    try:
        return import_module(module)
    except ImportError:
        raise ImportError(remedy) from None
