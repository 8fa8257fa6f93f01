"""Steps of Ok-Topk, Elect and Quota beside an add pass of 12 bytes an element, in turns; and where its time goes.

    mpiexec -n 4 python runs/steps.py --json steps.json
    mpiexec -n 4 python runs/steps.py --stacks elect --json after.json
    mpiexec -n 4 python runs/steps.py --bytes elect --json bytes.json
    python runs/steps.py --draw before.json after.json --plot flame.svg

PYTHONPATH=CHECKOUT before the first three measures the library of another checkout.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from types import FrameType
from typing import Any

import numpy as np

import sparse_mpi
from sparse_mpi import SparseAllreduce, kernels
from sparse_mpi.cli.progress import progress
from sparse_mpi.cli.records import provenance
from sparse_mpi_bench.figures.style import SHADES, panels, write

WARM_UP = 6
HOME = f"{Path(sparse_mpi.__file__).parent}{os.sep}"  # of the library, whatever the folder of the checkout is called
SHOWN, NAMED = 0.003, 0.02  # the least shares of a step that have a bar in a figure, and a name
SCATTERED = {"add", "subtract", "gather", "cast_votes", "clear", "add_dealt", "add_in_order"}  # entries by indices
LINE = 64  # bytes that memory moves for an entry by itself
Stack = tuple[str, ...]
Draw = Callable[[int], np.ndarray]  # of that number of float32


def times(comm: Any, draw: Draw, size: int, density: float, steps: int) -> dict[str, dict[str, float]]:
    """Return milliseconds of an add pass and of steps, until all ranks are done: the least and the median."""
    names = ("oktopk", "elect", "quota")
    reducers = {name: SparseAllreduce(size, density=density, algorithm=name) for name in names}
    acc, total = np.zeros(size, np.float32), np.empty(size, np.float32)
    work: dict[str, Callable[[np.ndarray], Any]] = {
        "add": lambda gradient: np.add(acc, gradient, out=acc),
        "allreduce": lambda gradient: comm.Allreduce(gradient, total),
        **{name: reducer.step for name, reducer in reducers.items()},
    }
    taken: dict[str, list[float]] = {name: [] for name in work}
    for step in progress(range(WARM_UP + steps), "steps", comm.rank == 0):
        gradient = draw(size)
        for name in np.random.default_rng(step).permutation(list(work)).tolist():  # what came before leaves caches cold
            comm.Barrier()
            began = perf_counter()
            work[name](gradient)
            comm.Barrier()
            taken[name].append(1e3 * (perf_counter() - began))
    return {name: {"least": min(t[WARM_UP:]), "median": median(t[WARM_UP:])} for name, t in taken.items()}


def stacks(comm: Any, draw: Draw, size: int, density: float, steps: int, algorithm: str) -> dict[str, float]:
    """Return the milliseconds a step that each stack of the library's functions has for itself."""
    reducer = SparseAllreduce(size, density=density, algorithm=algorithm)
    spent: defaultdict[Stack, float] = defaultdict(float)
    paths: list[Stack] = [()]
    last = perf_counter()

    def hook(frame: FrameType, event: str, _: object) -> None:
        nonlocal last
        now = perf_counter()
        spent[paths[-1]] += now - last
        if event == "call":
            ours = frame.f_code.co_filename.startswith(HOME) and not frame.f_code.co_name.startswith("<")
            paths.append((*paths[-1], frame.f_code.co_name) if ours else paths[-1])
        elif event == "return" and len(paths) > 1:
            paths.pop()
        last = perf_counter()

    for step in progress(range(WARM_UP + steps), algorithm, comm.rank == 0):
        gradient = draw(size)
        comm.Barrier()
        last = perf_counter()
        sys.setprofile(hook if step >= WARM_UP else None)
        reducer.step(gradient)
        sys.setprofile(None)
    return {"/".join(path): 1e3 * seconds / steps for path, seconds in spent.items() if path}


def touched(comm: Any, draw: Draw, size: int, density: float, steps: int, algorithm: str) -> dict[str, float]:
    """Return the bytes that each kernel reads and writes in a step, over the bytes of the gradient's entries.

    Arguments and results of a kernel are counted whole, but `SCATTERED` entries of a vector as the cache lines in which
    they lie.
    """
    reducer = SparseAllreduce(size, density=density, algorithm=algorithm)
    moved: defaultdict[str, float] = defaultdict(float)

    def counted(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **options: Any) -> Any:
            found = run(*given, **options)
            seen = [*given, *options.values(), *(found if isinstance(found, tuple) else [found])]
            arrays = [x for x in seen if isinstance(x, np.ndarray)]
            if name in SCATTERED:
                moved[name] += min(LINE * len(arrays[1]), arrays[0].nbytes)
                arrays = arrays[1:]
            twice = arrays[0].nbytes if name == "accumulate_select" else 0  # it is read, and written
            moved[name] += sum(x.nbytes for x in arrays) + twice
            return found

        return call

    passes = vars(kernels.host())
    originals = {name: run for name, run in passes.items() if callable(run) and not name.startswith("_")}
    for step in progress(range(WARM_UP + steps), algorithm, comm.rank == 0):
        if step == WARM_UP:
            passes.update({name: counted(name, run) for name, run in originals.items()})
        reducer.step(draw(size))
    passes.update(originals)
    return {name: spent / steps / size for name, spent in sorted(moved.items(), key=lambda item: -item[1])}


def flame(records: list[dict[str, Any]]) -> Any:
    """Draw a panel for each record: a bar for each function, below it its callees, as wide as their time."""
    figure, axes = panels(len(records), 1, 2.6)
    widest = max(sum(record["stacks"].values()) for record in records)
    for axis, record in zip(axes[:, 0], records, strict=True):
        total: defaultdict[Stack, float] = defaultdict(float)
        for text, spent in record["stacks"].items():
            path = tuple(text.split("/"))
            for depth in range(1, len(path) + 1):
                total[path[:depth]] += spent
        starts: dict[Stack, float] = {(): 0.0}
        for path in sorted(total, key=lambda path: (len(path), path[:-1], -total[path])):
            above, wide = path[:-1], total[path]
            left, starts[above] = starts[above], starts[above] + wide
            starts[path] = left
            if wide < SHOWN * widest:
                continue
            colour = SHADES[1 + len(path) % 2]
            axis.barh(-len(path), wide, 0.92, left, color=colour, edgecolor=axis.get_facecolor(), linewidth=0.5)
            if wide > NAMED * widest:
                room = int(150 * wide / widest)
                axis.text(left + wide / 2, -len(path), path[-1][:room], ha="center", va="center", fontsize=6)
        share = f"{record['algorithm']}, n = {record['n']:,}, {record['ranks']} ranks, rank 0{record.get('told', '')}"
        axis.set(title=f"{share}: {sum(record['stacks'].values()):.1f} ms a step", xlim=(0, widest), yticks=[])
        axis.set(xlabel="milliseconds, waits for other ranks included")
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=14_700_000, help="entries (default: %(default)s)")
    parser.add_argument("--density", type=float, default=0.01, help="(default: %(default)s)")
    parser.add_argument("--steps", type=int, default=40, help="after 6 more (default: %(default)s)")
    parser.add_argument("--stacks", metavar="ALGORITHM", help="tell where the time of its step goes on rank 0")
    parser.add_argument("--bytes", metavar="ALGORITHM", help="count the bytes its kernels touch in a step, on rank 0")
    parser.add_argument("--draw", type=Path, nargs="+", metavar="RECORD", help="records of --stacks, or a list of them")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the record there")
    parser.add_argument("--plot", type=Path, default=Path("flame.svg"), metavar="FILE", help="(default: %(default)s)")
    args = parser.parse_args()
    if args.draw:
        read = [json.loads(file.read_text()) for file in args.draw]
        return write(partial(flame, sum((record.get("stacks_of", [record]) for record in read), [])), args.plot)
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    generator = np.random.default_rng([7, comm.rank])

    def draw(size: int) -> np.ndarray:
        return generator.standard_normal(size, np.float32)

    record: dict[str, Any] = {"n": args.n, "density": args.density, "ranks": comm.size}
    if args.stacks:
        found = stacks(comm, draw, args.n, args.density, args.steps, args.stacks)
        record |= {"algorithm": args.stacks, "stacks": {path: round(spent, 4) for path, spent in found.items()}}
    elif args.bytes:
        found = touched(comm, draw, args.n, args.density, args.steps, args.bytes)
        record |= {"algorithm": args.bytes, "bytes an entry": {name: round(spent, 3) for name, spent in found.items()}}
    else:
        record["ms"] = times(comm, draw, args.n, args.density, args.steps)
    if comm.rank == 0:
        for name, spent in record.get("bytes an entry", {}).items():
            print(f"{name:24} {spent:9.3f} bytes an entry")
        for name, spent in record.get("ms", {}).items():
            print(f"{name:16} {spent['least']:9.3f} {spent['median']:9.3f} ms")
        if args.json:
            args.json.write_text(json.dumps(record | provenance()) + "\n")


if __name__ == "__main__":
    main()
