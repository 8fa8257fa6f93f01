"""Decide which reducers training uses: those of --algo, or those of a plan, given or made after a few steps."""

from __future__ import annotations

from argparse import Namespace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer

from sparse_mpi.comm import Comm
from sparse_mpi.comm.consistency import tell
from sparse_mpi.comm.network import fit_network
from sparse_mpi.fault_tolerance import team_of
from sparse_mpi.optim import DistributedOptimizer
from sparse_mpi.planning import store
from sparse_mpi.planning.base import Plan, Profile
from sparse_mpi.planning.base import Tensor as Planned
from sparse_mpi.planning.measure import measure
from sparse_mpi.planning.planners import PLANNERS, best, explain
from sparse_mpi.planning.store import algorithm_of
from sparse_mpi.training.reduction import GradientReduction
from sparse_train.options.reduction import AUTO, algorithm_and_options, feedback_options, momentum_line
from sparse_train.ranks.job import agreed
from sparse_train.records.metrics import Stamps


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


class Profiler:
    """A record of how long each phase of a step takes, and when each tensor's gradient is final.

    Args:
        model: its parameters have hooks until `close`.
    """

    def __init__(self, model: nn.Module) -> None:
        named = list(model.named_parameters())
        self._tensors = [(name, tuple(parameter.shape)) for name, parameter in named]
        self._final = [0.0] * len(named)  # in the last backward pass
        self._steps: list[list[float]] = []  # before, backward, update, and when each tensor was ready
        self._hooks = [p.register_post_accumulate_grad_hook(partial(self._stamp, i)) for i, (_, p) in enumerate(named)]

    @property
    def steps(self) -> int:
        return len(self._steps)

    def add(self, stamps: Stamps) -> None:
        backward = stamps.backward - stamps.forward
        ready = [min(max(final - stamps.forward, 0.0), backward) for final in self._final]
        self._steps.append([stamps.forward - stamps.start, backward, stamps.updated - stamps.reduced, *ready])

    def profile(self, density: float, comm: Comm, progress: bool) -> Profile:
        """Return medians of all steps but the first, as means over the ranks, with costs of reductions measured now.

        Collective.
        """
        usual = np.median(self._steps[1:] or self._steps, axis=0)
        before, backward, update, *ready = (comm.allreduce(usual, control=True) / comm.size).tolist()
        tensors = [Planned(*tensor, moment) for tensor, moment in zip(self._tensors, ready, strict=True)]
        return measure(tensors, density, comm, before=before, backward=backward, update=update, progress=progress)

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _stamp(self, number: int, _: Tensor) -> None:
        self._final[number] = perf_counter()


class Planning:
    """The decision which reducer a training step uses, and the plan behind it if there is one.

    With ``--plan auto`` the first steps reduce densely and are profiled; then the job is planned, and a reducer that
    carries out the plan takes over the residual of the dense one.

    Args:
        over: what carries their reductions.
        found: the text of the plan that ``--plan auto`` made before the run was resumed. It is followed on any number
            of ranks.
    """

    def __init__(self, model: nn.Module, args: Namespace, comm: Comm, over: Comm, found: str = "") -> None:
        planning = args.plan == AUTO
        self.plan: Plan | None = store.loads(found) if found and planning else None
        self._args, self._comm, self._over = args, comm, over
        self._model = model
        self._tensors = tuple((name, tuple(p.shape)) for name, p in model.named_parameters())
        self._profiler = Profiler(model) if planning and self.plan is None else None
        if isinstance(args.plan, Path):
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
            how = {"algorithm": algorithm_of(self.plan)}
        elif self._profiler is not None:
            how = {"algorithm": "dense"}  # until there is a plan
        else:
            how = algorithm_and_options(args)
        share = args.k / sum(p.numel() for p in self._model.parameters()) if args.k else args.density or 0.0
        if self._comm.rank == 0 and (line := momentum_line(args, share)):
            print(line)
        team = team_of(self._over)
        how |= {"comm": self._over} if team is None else {"team": team, "copy_every": args.copy_every}
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

    def after(self, stamps: Stamps, reduction: GradientReduction) -> bool:
        """Add a step that is over to the profile; return whether a new plan gives the next step another reducer."""
        if self._profiler is None:
            return False
        self._profiler.add(stamps)
        if self._profiler.steps < self._args.profile_steps:
            return False
        profiler, self._profiler = self._profiler, None
        profiler.close()
        (bucket,) = reduction.buckets
        dense = bucket.reducer
        profile = profiler.profile(dense.k / dense.layout.size, self._comm, self._args.progress)
        self.plan = self._planned(profile)
        agreed(self._comm, lambda: self._save(profile))
        reduction.use(algorithm_of(self.plan))
        return True

    def _planned(self, profile: Profile) -> Plan:
        """Return rank 0's plan.

        Must come from one rank: profiles differ in last bits, and plans made of them might differ in a part.
        """
        text = ""
        if self._comm.rank == 0:
            text = store.dumps({"best": best, **PLANNERS}[self._args.planner](profile))
        return store.loads(tell(self._comm, text))

    def _load(self, file: Path) -> Plan:
        """Return the plan in ``file``.

        Raises OSError: it cannot be read; ValueError: it is damaged, for another model or number of ranks, or with
        overlap.
        """
        plan = store.load(file)
        store.check(plan, self._tensors, self._comm.size)
        if plan.overlap or plan.cpu_lane:
            raise ValueError(
                f"{file} must be a plan without overlap, for reductions follow the backward pass here, got one with; "
                "plan anew"
            )
        return plan

    def _save(self, profile: Profile) -> None:
        if self._comm.rank == 0 and self.plan is not None:
            store.save(self.plan, self._args.out / "plan.json")
            store.save(profile, self._args.out / "profile.json")
            print(explain(profile, self.plan))
