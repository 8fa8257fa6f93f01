"""Decide on the reducers of a training run: by --algo, or by a plan, given or made before the first step."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from sparse_mpi.collectives.network import fit_network
from sparse_mpi.comm import Comm
from sparse_mpi.comm.consistency import tell
from sparse_mpi.fault_tolerance import team_of
from sparse_mpi.optim import DistributedOptimizer
from sparse_mpi.planning import store
from sparse_mpi.planning.base import Plan
from sparse_mpi.planning.measure import measure
from sparse_train.options.reduction import AUTO, algorithm_and_options, feedback_options, momentum_line
from sparse_train.ranks.job import agreed


def advised(model: nn.Module, args: Namespace, comm: Comm) -> str:
    """Return the algorithm that `predict advise` names for ``model`` on the network between the ranks. Collective.

    The network is measured.
    """
    from sparse_mpi.predict.advice import TrainingJob, advise
    from sparse_mpi.predict.cluster import Cluster

    n, network = sum(parameter.numel() for parameter in model.parameters()), fit_network(comm)
    share = args.k / n if args.k else args.density
    way = tell(
        comm, advise(TrainingJob(n, comm.size, 0.0), Cluster(network.alpha, network.beta), None, (share,)).best.way
    )
    if comm.rank == 0:
        print(f"--algo auto takes {way}, which predict advises for {network}")
    return way


class Planning:
    """The decision which reducer a training step uses, and the plan behind it if there is one.

    With ``--plan auto`` the ways to reduce are measured on the job's own ranks. Collective.

    Args:
        over: the communicator of their reductions.
        earlier: the text of the plan that ``--plan auto`` made before the run was resumed. It is followed on any number
            of ranks.
    """

    def __init__(self, model: nn.Module, args: Namespace, comm: Comm, over: Comm, earlier: str = "") -> None:
        self.plan: Plan | None = None
        self._args, self._comm, self._over = args, comm, over
        self._model = model
        if args.plan == AUTO:
            self.plan = store.loads(earlier) if earlier else agreed(comm, self._measured)
        elif args.plan:
            self.plan = agreed(comm, lambda: self._load(args.plan))
            args.density = self.plan.density

    def distribute(self, optimizer: Optimizer) -> Any:
        """Return ``optimizer`` as a `DistributedOptimizer`, with the reducers for the first step; collective.

        A plan reduces the whole gradient after the backward pass; without one there are buckets.

        Raises TypeError, ValueError: bad options, or ranks that differ in them or in the plan; on every rank alike.
        """
        args = self._args
        how: dict[str, Any]
        if self.plan is not None:
            how = {"algorithm": store.algorithm_of(self.plan)}
        else:
            how = algorithm_and_options(args)
        if self._comm.rank == 0 and (line := momentum_line(args, self._density)):
            print(line)
        team = team_of(self._over)
        how |= {"comm": self._over} if team is None else {"comm": team, "copy_every": args.copy_every}
        return DistributedOptimizer(
            optimizer,
            self._model.named_parameters(),
            k=args.k,
            density=args.density,
            bucket_cap_mb=args.bucket_mb or None,
            overlap=args.overlap,
            **feedback_options(args),
            **how,
        )

    @property
    def _tensors(self) -> list[tuple[str, tuple[int, ...]]]:
        return [(name, tuple(parameter.shape)) for name, parameter in self._model.named_parameters()]

    @property
    def _density(self) -> float:
        k, density = self._args.k, self._args.density
        return k / sum(parameter.numel() for parameter in self._model.parameters()) if k else density or 0.0

    def _measured(self) -> Plan:
        plan = measure(self._tensors, self._density, self._comm, progress=self._args.progress)
        if self._comm.rank == 0:
            self._args.out.mkdir(parents=True, exist_ok=True)
            store.save(plan, self._args.out / "plan.json")
            print(plan.explanation)
        return plan

    def _load(self, file: Path) -> Plan:
        """Return the plan in ``file``.

        Raises OSError: it cannot be read; ValueError: it is damaged, for another model or number of ranks.
        """
        plan = store.load(file)
        store.check(plan, self._tensors, self._comm.size)
        return plan
