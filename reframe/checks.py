"""Checks of a site, for ReFrame: ranks start, both laws hold, and a step of a sparse and a dense sum takes so long.

    pip install ReFrame-HPC
    reframe -c reframe -r                                              on this machine, by its local scheduler
    reframe -C site.py -c reframe --system mysite:compute -r           as jobs of a partition
    reframe -c reframe -r -S ranks=16 -S Step.model=bert-base          with other numbers

Where the launcher of a partition is `local`, `python -m sparse_mpi run` starts the ranks, on one machine; else that
launcher does (srun, mpirun, ...). README.md in this folder has a configuration of a site.
"""

from __future__ import annotations

import sys
from typing import Any

import reframe.utility.sanity as sn
from reframe.core.builtins import performance_function, run_after, run_before, sanity_function, variable

import reframe as rfm

# What a step of `Step` takes: for a partition the reference, and the least and the most of it, as shares. A site adds a
# line for its own. Times of the entry for all others are recorded and judge nothing.
REFERENCES: dict[str, dict[str, tuple[float, float | None, float | None, str]]] = {
    "generic:default": {"ratio": (3.3, -0.6, None, "times")},  # docs/results/compare-vgg16.json, 4 ranks, 10 Gbit/s
    "*": {"dense": (0, None, None, "ms"), "oktopk": (0, None, None, "ms"), "ratio": (0, None, None, "times")},
}
NUMBER = r"([\d.,]+)"


class RanksCheck(rfm.RunOnlyRegressionTest):
    """A program on ``ranks`` MPI ranks; the Python that runs ReFrame is that of the ranks unless ``python`` says so."""

    ranks = variable(int, value=4)
    python = variable(str, value=sys.executable)
    words = variable(list, value=[])  # of the command, after `python`
    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    time_limit = "10m"

    @run_before("run")
    def start_ranks(self) -> None:
        """Let the launcher of the partition start the ranks, or `sparse_mpi run` where it has none."""
        self.num_tasks = self.ranks
        self.executable = self.python
        starter = ["-m", "sparse_mpi", "run", "-n", str(self.ranks)] if self.is_local_launcher() else []
        self.executable_opts = [*starter, *self.words]

    def is_local_launcher(self) -> bool:
        """Tell if the partition's launcher starts one process."""
        return self.current_partition.launcher_type.registered_name == "local"


@rfm.simple_test
class Doctor(RanksCheck):
    """As many ranks as were asked for look at this installation, and find nothing broken."""

    descr = "doctor"
    words = ["-m", "sparse_mpi", "doctor"]

    @sanity_function
    def is_healthy(self) -> Any:
        """Return whether all ranks are there, and nothing is broken."""
        return sn.all(
            [
                sn.assert_found(rf"ranks: {self.ranks} ranks on", self.stdout),
                sn.assert_found(r"(?m)^0 broken \(!\)", self.stdout),
            ]
        )


@rfm.simple_test
class Laws(RanksCheck):
    """Both laws hold for all algorithms on all ranks, in the first steps of a small vector."""

    descr = "laws"
    words = ["laws.py"]

    @run_after("init")
    def follow(self) -> None:
        """Wait until ranks start at all."""
        self.depends_on("Doctor")

    @sanity_function
    def hold(self) -> Any:
        """Return whether each rank says so of as many algorithms as the others."""
        said = sn.extractall(r"rank (\d+) of (\d+): (\S+) keeps both laws", self.stdout, (1, 2, 3))
        return sn.assert_true(self.is_complete(said), "a rank has not said of each algorithm that it keeps both laws")

    @sn.deferrable
    def is_complete(self, said: Any) -> bool:
        """Tell if what the ranks said is the product of all ranks and algorithms."""
        lines = set(said)
        names = {name for _, _, name in lines}
        return len(names) > 10 and lines == {
            (str(rank), str(self.ranks), name) for rank in range(self.ranks) for name in names
        }


@rfm.simple_test
class Step(RanksCheck):
    """Steps of Ok-Topk and of a dense sum, in turns on the same gradients, on the network between the ranks."""

    descr = "step"
    model = variable(str, value="vgg16")
    density = variable(float, value=0.01)
    reference = REFERENCES

    @run_after("init")
    def set_words(self) -> None:
        """Say what is measured, once the laws hold and no other check takes the cores."""
        self.depends_on("Laws")
        asked = ["--model", self.model, "--density", str(self.density), "--steps", "10", "--warmup", "6"]
        self.words = ["-m", "sparse_mpi", "bench", "interleaved", "--algorithms", "oktopk", "--wires", "own", *asked]

    @sanity_function
    def is_measured(self) -> Any:
        """Return whether both have a row, measured on all ranks."""
        rows = [sn.assert_found(rf"(?m)^{name} +{NUMBER}", self.stdout) for name in ("oktopk", "dense")]
        return sn.all([sn.assert_found(rf"P = {self.ranks};", self.stdout), *rows])

    @performance_function("ms")
    def dense(self) -> Any:
        """Return milliseconds of a dense sum."""
        return self.milliseconds("dense")

    @performance_function("ms")
    def oktopk(self) -> Any:
        """Return milliseconds of a step of Ok-Topk, selection and merging included."""
        return self.milliseconds("oktopk")

    @performance_function("times")
    def ratio(self) -> Any:
        """Return how many times as long as a step of Ok-Topk the dense sum takes."""
        return self.milliseconds("dense") / self.milliseconds("oktopk")

    def milliseconds(self, name: str) -> Any:
        """Return the first number of a row."""
        return sn.extractsingle(rf"(?m)^{name} +{NUMBER}", self.stdout, 1, lambda text: float(text.replace(",", "")))
