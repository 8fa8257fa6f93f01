"""Decide which reducers training uses: those of --algo, or those of a plan, given or made after a few steps."""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer

from sparse_mpi.algorithms import ALGORITHMS, Algorithm
from sparse_mpi.comm import Comm
from sparse_mpi.comm.consistency import tell
from sparse_mpi.fault_tolerance import team_of
from sparse_mpi.optim import DistributedOptimizer
from sparse_mpi.planning import store
from sparse_mpi.planning.base import Plan, Profile
from sparse_mpi.planning.base import Tensor as Planned
from sparse_mpi.planning.measure import measure
from sparse_mpi.planning.planners import PLANNERS, best, explain
from sparse_mpi.planning.store import algorithm_of
from sparse_mpi.reduction.arguments import algorithm_spelled, takes
from sparse_mpi.training.reduction import GradientReduction
from sparse_mpi.wire import WIRES
from sparse_train.options.reduction import AUTO, algorithm_and_options, budgeted, feedback_options, momentum_line
from sparse_train.ranks.job import agreed
from sparse_train.records.metrics import Stamps


def spelling(algorithm: Algorithm) -> str:
    """Return the text from which `spelled` makes ``algorithm``, whose options but the wire are the defaults.

    Raises ValueError: it has other options than the defaults.
    """
    with_wire = [f"{name}:wire={wire}" for name, wire in product(ALGORITHMS, WIRES) if takes(name, "wire", wire)]
    for text in (*ALGORITHMS, *with_wire):
        if algorithm_spelled(text) == algorithm:
            return text
    raise ValueError(f"algorithm must be one of {', '.join(ALGORITHMS)} with its default options, got {algorithm!r}")


def summary(choices: Sequence[str]) -> str:
    """Return one phrase about all buckets: ``oktopk for 2 of 3 buckets, dense for 1 of 3 buckets``."""
    counts = Counter(choices).most_common()
    if len(counts) == 1:
        return choices[0]
    return ", ".join(f"{choice} for {count} of {len(choices)} buckets" for choice, count in counts)


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
        """Return how many steps were profiled."""
        return len(self._steps)

    def add(self, stamps: Stamps) -> None:
        """Add a step that is over."""
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
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()

    def _stamp(self, number: int, _: Tensor) -> None:
        self._final[number] = perf_counter()


class Planning:
    """The decision which reducer a training step uses, and the plan behind it if there is one.

    With ``--plan auto`` the first steps reduce densely and are profiled; then the job is planned, and a reducer that
    carries out the plan takes over the residual of the dense one. With ``--algo auto`` the library chooses an algorithm
    for each bucket before the first step.

    Args:
        over: what carries their reductions.
        found: the text of the plan that ``--plan auto`` made before the run was resumed. It is followed on any number
            of ranks.
        choices: what ``--algo auto`` chose for each bucket before the run was resumed. It stays.
    """

    def __init__(
        self, model: nn.Module, args: Namespace, comm: Comm, over: Comm, found: str = "", choices: Sequence[str] = ()
    ) -> None:
        planning = args.plan == AUTO
        self.plan: Plan | None = store.loads(found) if found and planning else None
        self._choosing = args.algo == AUTO and not budgeted(args)  # a budget chooses while training runs
        self.choices = list(choices) if self._choosing else []  # by bucket
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
        elif self._profiler is not None or self.choices:
            how = {"algorithm": "dense"}  # until there is a plan, or until the choices of before take over below
        else:
            how = algorithm_and_options(args)
        if self._choosing and not self.choices and self._comm.rank == 0:
            print("--algo auto tries algorithms on the gradient's buckets; a new installation compiles kernels first")
        share = args.k / sum(p.numel() for p in self._model.parameters()) if args.k else args.density or 0.0
        if self._comm.rank == 0 and (line := momentum_line(args, share)):
            print(line)
        team = team_of(self._over)
        how |= {"comm": self._over} if team is None else {"team": team, "copy_every": args.copy_every}
        distributed = DistributedOptimizer(
            optimizer,
            self._model.named_parameters(),
            k=args.k,
            density=args.density,
            budget=args.budget,
            step_seconds=args.step_seconds,
            bucket_cap_mb=args.bucket_mb or None,
            overlap=args.overlap,
            **feedback_options(args),
            **how,
        )
        if self._choosing:
            self._choose(distributed.reduction)
        return distributed

    def _choose(self, reduction: GradientReduction) -> None:
        """Keep what the library has chosen for the buckets, or return to what it chose before the run was resumed.

        Raises ValueError: that is of another number of buckets, or of algorithms that do not exist any more.
        """
        how = "chose" if not self.choices else "goes on with"
        if self.choices:
            reduction.use([algorithm_spelled(choice) for choice in self.choices])
        self.choices = [spelling(algorithm) for algorithm in reduction.algorithms]
        if self._comm.rank == 0:
            print(f"--algo auto {how} {summary(self.choices)}")

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
            text = store.dumps({"best": best, **PLANNERS}[self._args.planner](profile, False, False))
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
                "plan without --overlap and --cpu-lane"
            )
        return plan

    def _save(self, profile: Profile) -> None:
        """Write plan and profile into the folder of the run and print what is planned, on rank 0."""
        if self._comm.rank == 0 and self.plan is not None:
            store.save(self.plan, self._args.out / "plan.json")
            store.save(profile, self._args.out / "profile.json")
            print(explain(profile, self.plan))
