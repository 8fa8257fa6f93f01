"""What a run leaves behind: a file of JSON lines, TensorBoard events, and a plot."""

from __future__ import annotations

import json
import math
from argparse import Namespace
from importlib import import_module
from pathlib import Path
from typing import Any

from sparse_mpi.comm import Comm
from sparse_mpi.provenance import provenance

FILE = "metrics.jsonl"


class Metrics:
    """The records of a run, written as they come.

    Args:
        folder: made if need be; holds ``metrics.jsonl`` and TensorBoard's events. None records nothing.

    Raises:
        OSError: the folder cannot be made or written to.
    """

    def __init__(self, folder: Path | None) -> None:
        self._file = self._board = None
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / FILE).open("w")
        try:
            self._board = import_module("torch.utils.tensorboard").SummaryWriter(str(folder))
        except ImportError:
            print("no TensorBoard events, because the package tensorboard is not installed")

    def write(self, event: str, **values: Any) -> None:
        """Append ``{"event": event, **values}``; TensorBoard gets the numbers of what has a ``step``."""
        if self._file is None:
            return
        print(json.dumps({"event": event, **values}), file=self._file, flush=True)
        if self._board is not None and "step" in values:
            for name, value in values.items():
                if isinstance(value, (int, float)):
                    self._board.add_scalar(f"{event}/{name}", value, values["step"])

    def close(self) -> None:
        """Finish the files."""
        if self._file is not None:
            self._file.close()
        if self._board is not None:
            self._board.close()


def record(args: Namespace, comm: Comm, **more: Any) -> Metrics:
    """The metrics of this run, in ``args.out``, with its configuration first; on ranks but 0 they go nowhere.

    Raises:
        ImportError: a plot is wanted and matplotlib is not installed.
        OSError: the folder cannot be made or written to.
    """
    if args.plot or args.timeline:
        plotting()
    metrics = Metrics(args.out if comm.rank == 0 else None)
    options = {name: str(value) if isinstance(value, Path) else value for name, value in vars(args).items()}
    metrics.write("config", **(options | more), ranks=comm.size, **provenance())
    return metrics


def plot(folder: Path) -> Path:
    """Draw loss, headline and traffic over steps from the records in ``folder``, as ``plot.png`` there.

    Raises:
        ImportError: matplotlib is not installed.
    """
    config, *records = (json.loads(line) for line in (folder / FILE).read_text().splitlines())
    steps, epochs = _columns(records, "step"), _columns(records, "epoch")
    figure = plotting().Figure(figsize=(12, 3.6), layout="constrained")
    headline = config["headline"]
    loss, score, traffic = figure.subplots(1, 3)
    loss.plot(steps["step"], steps["loss"], linewidth=0.7, alpha=0.6, label="training, rank 0")
    loss.plot(epochs["step"], epochs["test_loss"], marker=".", label="test")
    for label, name in (("training", headline), ("test", f"test_{headline}")):
        if name in epochs:  # not every task has its score in training
            score.plot(epochs["step"], epochs[name], marker=".", label=label)
    traffic.plot(steps["step"], steps["mb_sent"], linewidth=0.7, alpha=0.6, label="rank 0")
    traffic.plot(epochs["step"], epochs["mb_sent"], marker=".", label="mean of ranks")
    traffic.set_ylim(bottom=0)
    for axes, title in ((loss, "loss"), (score, headline), (traffic, "MB sent per step and rank")):
        axes.set(title=title, xlabel="step")
        axes.legend()
    figure.suptitle("{algo} on {data}, {ranks} ranks, k = {k:,} of {parameters:,}".format(**config))
    figure.savefig(folder / "plot.png", dpi=120)
    return folder / "plot.png"


def plotting() -> Any:
    """The module that draws.

    Raises:
        ImportError: matplotlib is not installed.
    """
    try:
        return import_module("matplotlib.figure")
    except ImportError:
        raise ImportError("--plot needs matplotlib: pip install matplotlib") from None


def _columns(records: list[dict[str, Any]], event: str) -> dict[str, list[float]]:
    chosen = [r for r in records if r["event"] == event]
    names = dict.fromkeys(name for r in chosen for name in r)
    return {name: [r.get(name, math.nan) for r in chosen] for name in names}
