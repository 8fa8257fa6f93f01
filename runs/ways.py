"""Measure ``sparse_mpi/predict/ways.json``: bytes and seconds of each algorithm's step, a minute on idle cores.

    python -m runs.ways [WAY ...]
    python -m runs.ways --fit compare.json ...

The second fits the cluster `TYPICAL` to records of emulated hosts, and prints it. The ratio of measured to predicted
steps of each way is stored with the way. Records are of `bench network`, 2, 4 and 8 ranks, at 100mbit, 1gbit and 5gbit,
with `bench steps` of all these ways: 300,000 entries at 1 %, 3 million at 2 and 0.2 %.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import sparse_mpi.predict.ways as ways
from sparse_mpi.cli.progress import progress
from sparse_mpi.cli.records import provenance
from sparse_mpi.reduction.arguments import algorithm_spelled
from sparse_mpi_bench.analysis.measured_ways import measure
from sparse_mpi_bench.calibration import fit as calibration
from sparse_mpi_bench.candidates import everything

FILE = Path(ways.__file__).with_name("ways.json")
DIGITS = 4


def rounded(x: object) -> object:
    """Return numbers with a few digits, in lists."""
    if isinstance(x, (list, tuple)):
        return [rounded(part) for part in x]
    return float(f"{x:.{DIGITS}g}") if isinstance(x, float) else x


def write(record: dict[str, Any]) -> None:
    """Write the file, a line a way."""
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(of)}" for name, of in record["ways"].items())
    head = json.dumps({name: of for name, of in record.items() if name != "ways"})
    FILE.write_text(f'{head[:-1]}, "ways": {{\n{lines}\n}}}}\n')


def fit(record: dict[str, Any], files: list[str]) -> None:
    """Fit to measured steps; store each way's ratio, and print the cluster."""
    for of in record["ways"].values():
        of.pop("longer", None)
    write(record)
    found = calibration.fit([exchange for file in files for exchange in calibration.read(file)])
    for name, of in record["ways"].items():
        of["longer"] = rounded(found.longer(name))
    write(record)
    print(found.cluster)


def main() -> None:
    """Measure the named ways, or all, and write the file after each."""
    record = json.loads(FILE.read_text()) if FILE.exists() else {"ways": {}}
    if sys.argv[1:2] == ["--fit"]:
        fit(record, sys.argv[2:])
        return
    record |= {name: provenance()[name] for name in ("cpu", "date", "versions")}
    for name in progress(sys.argv[1:] or everything(), "measuring"):
        sent, *computing, _ = measure(algorithm_spelled(name))
        record["ways"][name] = {"computing": rounded(computing), "sent": rounded([tuple(of) for of in sent])}
        write(record)


if __name__ == "__main__":
    main()
