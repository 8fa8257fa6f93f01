"""A cluster fitted to measured steps, as the workbench's `bench calibrate` writes it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from sparse_mpi.predict.cluster import TYPICAL, Cluster

ALL = ""  # the key of the error of all algorithms together


class FittedCluster(NamedTuple):
    """A cluster that explains measured steps, and how well it does."""

    cluster: Cluster
    longer: dict[str, float]  # times as long as explained steps of a way (oktopk:wire=packed) were, in the median
    errors: dict[str, float]  # algorithm, or `ALL` -> relative error that nine of ten steps do not exceed

    def error(self, way: str) -> float:
        """Return the relative error of a way's algorithm if measured often enough, else of all."""
        return self.errors.get(way.split(":")[0], self.errors[ALL])


def read(file: str | Path) -> FittedCluster:
    """Return the fit that ``bench calibrate --json`` wrote.

    Raises ValueError: ``file`` is none.
    """
    try:
        record = json.loads(Path(file).read_text())
        numbers: dict[str, Any] = {name: float(of) for name, of in record["cluster"].items()}
        longer, errors = ({name: float(of) for name, of in record[what].items()} for what in ("longer", "errors"))
        return FittedCluster(replace(TYPICAL, **numbers), longer, errors | {ALL: errors[ALL]})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{file} must be a fit of python -m sparse_mpi bench calibrate RECORD --json fit.json, got {error!r}"
        ) from None
