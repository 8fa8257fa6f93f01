"""Record what entries of the registries do, in the files that tests compare with.

    python -m tests.record NAME...

    python -m tests.record --all

NAME is an algorithm, a feedback rule or a message format, or the first word of a trajectory, such as DiLoCo. Files:

- tests/golden/trajectories.json: the trajectories with NAME in their names;
- docs/reference/gpu-costs.md: the cost of a step on a device, of an algorithm or a feedback rule;
- sparse_mpi/predict/device_costs.json: the part of this cost that predictions need, of an algorithm;
- docs/reference/algorithms.md: the numbers in the last columns, of an algorithm or a message format.

Other entries keep their bytes. Files are written at the end, when everything has run.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from .conftest import ROOT  # before NumPy and torch are imported: it chooses the kernels of recorded bytes

DEVICE_COSTS = ROOT / "sparse_mpi" / "predict" / "device_costs.json"


def with_trajectories(text: str, found: dict[str, Any]) -> str:
    """Return ``trajectories.json`` with these cases."""
    from .golden.trajectories import CASES, machine
    from .tables import inserted

    record, here = json.loads(text), machine()
    record["cases"] = inserted(record["cases"], found, [*CASES])
    if found.keys() == CASES.keys():
        record["machine"] = here
    others = {name: of for name, of in record["elsewhere"].items() if name in CASES and name not in found}
    record["elsewhere"] = others | {name: here for name in found if here != record["machine"]}
    return json.dumps(record, indent=0) + "\n"


def with_cost(text: str, name: str, cost: dict[str, int], order: list[str]) -> str:
    """Return ``device_costs.json`` with the cost of an algorithm."""
    from .tables import inserted

    costs = inserted(json.loads(text), {name: cost}, order)
    return "{\n" + ",\n".join(f" {json.dumps(key)}: {json.dumps(of)}" for key, of in costs.items()) + "\n}\n"


def counted(algorithm: str, feedback: str) -> Any:
    """Return the budget of a step on a pretended device."""
    from .comm.test_device_budget import budget, spent
    from .fakes import fake_array, fake_cuda

    with pytest.MonkeyPatch.context() as patch:
        device = fake_array.install(patch)
        fake_cuda.install_kernels(patch)
        return budget(spent(device, algorithm, feedback))


def known() -> dict[str, list[str]]:
    """Return all names that have records, by what they name."""
    from sparse_mpi import ALGORITHMS, FEEDBACKS
    from sparse_mpi.wire import WIRES

    from .golden.trajectories import CASES

    others = dict.fromkeys(case.split(", ")[0] for case in CASES if case.split(", ")[0] not in ALGORITHMS)
    named = {"algorithms": ALGORITHMS, "feedback rules": FEEDBACKS, "message formats": WIRES, "trajectories": others}
    return {kind: [*names] for kind, names in named.items()}


def check(names: list[str]) -> None:
    """Raise ValueError if a name is not known, its row is not written yet, or a device cannot be pretended."""
    from .fakes.fake_cuda import COMPILER
    from .tables import REFERENCE, table

    every = known()
    for name in names:
        if not any(name in some for some in every.values()):
            named = "; ".join(f"{kind}: {', '.join(some)}" for kind, some in every.items())
            raise ValueError(f"{name} has no records. {named}")
        if COMPILER is None and name in every["algorithms"] + every["feedback rules"]:
            raise ValueError(f"{name} needs g++, with which kernels are run that count what a step costs on a device")
        for kind, of in (("algorithms", "algorithms"), ("wires", "message formats")):
            if name in every[of] and name not in table(REFERENCE, kind):
                page = REFERENCE.relative_to(ROOT)
                raise ValueError(f"{page} has no row of {name} yet: write one, and leave the last cells empty")


def recorded(names: list[str]) -> dict[Path, str]:
    """Return the new texts of all files."""
    from .golden.trajectories import CASES, RECORD
    from .house.test_readme import bounds, bytes_of_a_pair
    from .tables import GPU_COSTS, REFERENCE, with_cells

    algorithms, rules, formats, _ = known().values()
    texts = {file: file.read_text() for file in (RECORD, GPU_COSTS, DEVICE_COSTS, REFERENCE)}
    for name in names:
        if name in algorithms:
            budget = counted(name, "residual")
            cost = {part: getattr(budget, part) for part in ("launches", "waits", "copies")}
            texts[GPU_COSTS] = with_cells(texts[GPU_COSTS], "algorithms", name, budget, algorithms)
            texts[DEVICE_COSTS] = with_cost(texts[DEVICE_COSTS], name, cost, algorithms)
            texts[REFERENCE] = with_cells(texts[REFERENCE], "algorithms", name, bounds(name), algorithms)
        if name in rules:
            texts[GPU_COSTS] = with_cells(texts[GPU_COSTS], "feedback", name, counted("topka", name), rules)
        if name in formats:
            texts[REFERENCE] = with_cells(texts[REFERENCE], "wires", name, bytes_of_a_pair(name), formats)
    cases = [case for case in CASES if set(names) & set(case.split(", "))]
    texts[RECORD] = with_trajectories(texts[RECORD], {case: CASES[case]() for case in cases})
    return texts


def main() -> None:
    from .replaced import replace

    parser = argparse.ArgumentParser(
        prog="python -m tests.record",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--all", action="store_true", help="all names")
    args = parser.parse_args()
    names = [name for some in known().values() for name in some] if args.all else args.names
    try:
        check(names)
    except ValueError as error:
        parser.error(str(error))
    texts = recorded(names)
    changed = {file: text for file, text in texts.items() if text != file.read_text()}
    for file, text in changed.items():
        replace(file, text)
        print(f"recorded in {file.relative_to(ROOT)}")
    if not changed:
        print("all is as it was recorded")


if __name__ == "__main__":
    main()
