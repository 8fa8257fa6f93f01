"""Packages that some data sets, models and options need, and most runs do not."""

from __future__ import annotations

from importlib import import_module
from typing import Any

SOURCES = {  # packages of modules that the extra train does not bring under their own name
    "sklearn": ("scikit-learn", "'.[digits]'"),
    "PIL": ("pillow", "'.[train]'"),
    "espeakng_loader": ("espeakng-loader", "'.[train]'"),
    "sparse_mpi_bench": ("sparse_mpi_bench", "./bench"),
}


def needed(module: str, what: str) -> Any:
    """Return a module that ``what`` needs, a noun. Raises ImportError: it is not installed; with the remedy."""
    try:
        return import_module(module)
    except ImportError:
        name = module.partition(".")[0]
        package, source = SOURCES.get(name, (name, "'.[train]'"))
        raise ImportError(f"{what} needs {package}; in the checkout: pip install {source}") from None
