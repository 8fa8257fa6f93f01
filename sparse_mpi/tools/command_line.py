"""What programs outside the package share with ``python -m sparse_mpi``: its parser, and its converters of values."""

from __future__ import annotations

from sparse_mpi.tools.cli.parsing import Parser
from sparse_mpi.tools.cli.values import (
    FIGURES,
    SPELLINGS,
    Value,
    algorithm,
    checked,
    every,
    file,
    finite,
    folder,
    integer,
    network,
    new_folder,
    number,
    positive,
    rate,
    record,
    share,
    turns,
)

__all__ = [
    "FIGURES",
    "SPELLINGS",
    "Parser",
    "Value",
    "algorithm",
    "checked",
    "every",
    "file",
    "finite",
    "folder",
    "integer",
    "network",
    "new_folder",
    "number",
    "positive",
    "rate",
    "record",
    "share",
    "turns",
]
