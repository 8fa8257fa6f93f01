"""Local steps, and a sparse exchange of the model's movement every H steps: `DiLoCo`.

Each rank takes H steps of its own. Then the *outer gradient*, parameters at the last synchronisation minus parameters
now, is reduced, and an outer optimizer moves the *global* parameters along its mean (DiLoCo, arXiv:2311.08105).
*Fragments* of the model take turns, and are reduced behind the next steps (Streaming DiLoCo, arXiv:2501.18512). With
sparse outer gradients and error feedback this is SparseLoCo (arXiv:2508.15706). Names are torchft's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from time import perf_counter
from typing import Any

from torch import nn
from torch.optim import Optimizer

from sparse_mpi.algorithms import Algorithm
from sparse_mpi.checks import check_choice, check_shown, check_whole
from sparse_mpi.comm.consistency import check_consistency, same_on_all_ranks
from sparse_mpi.feedback import Feedback
from sparse_mpi.monitor.step_report import StepReport, combined
from sparse_mpi.reduction import SparseAllreduce
from sparse_mpi.reduction.arguments import usual_density
from sparse_mpi.reduction.settings import make_settings
from sparse_mpi.training.broadcasts import broadcast_parameters
from sparse_mpi.training.diloco_arguments import Schedule, cut, order_groups, trained_parameters
from sparse_mpi.training.diloco_loads import LoadedWeights, crc_of
from sparse_mpi.training.diloco_snapshot import DiLoCoSnapshot
from sparse_mpi.training.door import Door
from sparse_mpi.training.fragment import Fragment
from sparse_mpi.training.hooks import Hooks, nested
from sparse_mpi.training.live_ranks import LiveRanks, ranks_given, refuse_copy
from sparse_mpi.training.named_gradients import NamedGradients, in_one_order
from sparse_mpi.training.optimizer_rule import momentum_rule
from sparse_mpi.training.own_step import Unstepped
from sparse_mpi.training.sgd_steps import along_gradients

WITHIN = "weights must not be loaded within globally(), behind which a rank has its own again; load them behind it"


class DiLoCo(Door):
    """Local steps of ``inner_optimizer``, and joint steps of ``outer_optimizer`` on all ranks.

    Making one is collective. Every rank must take the same number of steps: a loss scaler that skips one on some ranks
    would make the others wait. docs/guides/local-steps.md has a training loop.

    Args:
        model: the same on all ranks; parameters and buffers become rank 0's, buffers each rank's own again from then
            on. Parameters that need gradients now are shared; make another `DiLoCo` when others are unfrozen. Weights
            that all ranks load, also in part, become global ones, for which nothing is owed.
        inner_optimizer: any torch optimizer of the model's parameters that reduces nothing.
        outer_optimizer: another such one, for the global parameters; usual is SGD with Nesterov's momentum of 0.9 and a
            rate of 0.7.
        sync_every: H, inner steps between two synchronisations of a fragment; a multiple of ``fragments``.
        density, algorithm, feedback, clip_norm, options: arguments of `SparseAllreduce` for outer gradients, also ``k``
            and ``nonfinite``. Feedback ``"leaky"`` is SparseLoCo's; ``"residual"`` loses nothing.
        fragments: parts of the model, of about the same size, synchronised in turns.
        fragment_sync_delay: inner steps in which an outer gradient is reduced in the background; fewer than
            ``sync_every / fragments``. With 0 all wait for it.
        fragment_update_alpha: share of its own parameters that a rank mixes into arriving global ones; with 0 the inner
            steps of the delay are lost. The share counts again in the next outer gradient, and in a sparse one waits in
            the residual too: use it with dense ones only. None, beyond torchft, adds the change of the global
            parameters: the steps of the delay count once.
        dense_steps: number of dense first synchronisations of each fragment.
        comm: ranks, see `DistributedOptimizer`; a `Team` takes options of `ElasticAllreduce`. Steps of a lost rank
            since its last outer gradient are lost.

    Attributes:
        steps, synchronizations: numbers of inner steps, and of synchronisations of fragments, so far.
        check_every: one in so many synchronisations of a fragment asserts both laws, 0 for never.
        seconds: time of synchronisation in the last inner step.

    Raises:
        TypeError, ValueError: bad arguments, or arguments that differ between ranks; raised on every rank.
    """

    __reduce_ex__ = refuse_copy

    def __init__(
        self,
        model: nn.Module,
        inner_optimizer: Optimizer,
        outer_optimizer: Optimizer,
        sync_every: int,
        *,
        density: float | None = None,
        algorithm: str | Algorithm = "elect",
        feedback: str | Feedback = "residual",
        clip_norm: float | None = None,
        fragments: int = 1,
        fragment_sync_delay: int = 0,
        fragment_update_alpha: float | None = 0.0,
        dense_steps: int = 0,
        comm: object = None,
        **options: Any,
    ) -> None:
        transport, team, survival = ranks_given(comm, options)
        reduced = dict[str, Any](density=density, algorithm=algorithm, feedback=feedback, clip_norm=clip_norm)
        schedule = Schedule(sync_every, fragments, fragment_sync_delay, fragment_update_alpha)
        with same_on_all_ranks(transport) as say:
            parameters = trained_parameters(model, inner_optimizer, outer_optimizer)
            schedule.check(len(parameters))
            check_shown("outer_optimizer", outer_optimizer)
            check_whole("dense_steps", dense_steps, 0, "steps")
            check_choice("nonfinite", options.get("nonfinite", "keep"), ("keep", "raise"))
            momentum_rule(outer_optimizer, feedback, "local")  # raises where both have a momentum
            settings = make_settings(sum(p.numel() for p in parameters.values()), **reduced, **options)
            say(
                **settings.statement,
                **schedule._asdict(),
                outer_optimizer=repr(outer_optimizer),
                dense_steps=dense_steps,
            )
        # A parameter without elements has nothing to share
        parameters = in_one_order({name: p for name, p in parameters.items() if p.numel()}, transport)
        for optimizer in (inner_optimizer, outer_optimizer):
            order_groups(optimizer, model, transport)
        # Background work has its own communicator, or with a team the one that can shrink
        ranks = LiveRanks(transport.duplicate(yield_cpu=fragment_sync_delay > 0) if team is None else transport, team)
        share = settings.k / settings.layout.size if "k" in options else density
        share = usual_density(settings.algorithm) if share is None else share
        gradients = NamedGradients(parameters, settings, share, ranks, survival=survival)
        super().__init__(gradients, outer_optimizer, dense_steps=dense_steps)
        # All start from rank 0's values, which fragments then copy as the global parameters
        broadcast_parameters(model.state_dict(), comm=transport)
        self.fragments: list[Fragment] = [
            Fragment(gradients.adopt(names), outer_optimizer)
            for names in cut(parameters, min(fragments, len(parameters)))
        ]
        self.inner, self.outer = inner_optimizer, outer_optimizer
        self._loads = LoadedWeights(model, parameters.values())
        self._snapshot = DiLoCoSnapshot(gradients, self.fragments, inner_optimizer, outer_optimizer, schedule._asdict())
        self._schedule = schedule
        self.synchronizations: int = 0
        self.seconds: float = 0.0
        self._reports: list[StepReport | None] = []  # of the synchronisations in the last inner step
        self._hooks = [
            inner_optimizer.register_step_pre_hook(lambda *_: self._take_loaded()),
            inner_optimizer.register_step_post_hook(self._stepped),
        ]
        self._unstepped = Unstepped("as inner_optimizer")
        self._passes = Hooks(self._unstepped.arrived)
        for parameter in parameters.values():
            self._passes.add(parameter)

    def __enter__(self) -> DiLoCo:
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def detach(self) -> None:
        """Follow the inner optimizer no longer, and drop work under way: `synchronize` before. Collective."""
        super().detach()
        self._remove()

    def _remove(self) -> None:
        self._loads.remove()
        for hook in self._hooks:
            hook.remove()
        self._passes.remove()

    @property
    def reducers(self) -> list[SparseAllreduce]:
        """Return the reducer of each fragment."""
        return [fragment.reducer for fragment in self.fragments]

    @property
    def _number(self) -> int:
        return max(0, self.steps - 1) // self._schedule.sync_every

    @property
    def report(self) -> StepReport | None:
        """Return this rank's report of synchronisations in the last inner step or call, if any."""
        return combined(self._reports)

    @contextmanager
    def globally(self) -> Iterator[None]:
        """Have the model hold the global parameters, equal on all ranks, in this context.

        For an evaluation or saving. Afterwards the model has this rank's own parameters again, to the bit.
        """
        self._take_loaded()
        with ExitStack() as stack:
            self._loads.refused = WITHIN
            stack.callback(setattr, self._loads, "refused", "")
            for fragment in self.fragments:
                stack.callback(fragment.adopt, fragment.local())
                fragment.adopt(fragment.common)
            yield

    def synchronize(self) -> None:
        """Synchronise every fragment that has moved, whatever its turn. Collective.

        Afterwards all ranks have the global parameters; residuals remain, see `flush`.

        Raises:
            ValueError: the ranks have taken different numbers of steps; raised on every rank.
        """
        self._synchronize("synchronize")

    def _synchronize(self, call: str) -> None:
        self._take_loaded()
        self.gradients.live.ask(lambda comm: check_consistency(comm, f"call={call} steps={self.steps}"))
        self._reports = []
        for fragment in self.fragments:
            # Under way: apply it as if it were due
            if fragment.taken is not None:
                self._apply(fragment, self._schedule.fragment_update_alpha)
            # Moved since its last outer gradient: reduce another one, and wait for it
            if fragment.prepared < self.steps:
                fragment.prepare(self.steps, **self.options)
                self._apply(fragment, 0.0)
            fragment.adopt(fragment.common)

    def flush(self, step: bool = True) -> None:
        """Synchronise, and step once along the residuals of all ranks, see `Door.flush`. Collective.

        Where ``step`` is False, the outer optimizer's parameters have ``.grad`` then.
        """
        self._synchronize("flush")
        super().flush(step)

    def _step_along(self) -> None:
        with along_gradients(self.outer):
            super()._step_along()
        # No rank has moved since it has synchronised
        for fragment in self.fragments:
            fragment.adopt(fragment.common)

    def _fill(self) -> None:
        self.synchronizations += len(self.fragments)
        for fragment in self.fragments:
            fragment.flush(self.options["check"])
            self._reports.append(fragment.reducer.report)

    def _stepped(self, inner: Optimizer, *_: object) -> None:
        if nested(inner):
            return
        self._unstepped.stepped()
        # All ranks do the same after the same step of the inner optimizer, and need not ask
        began = perf_counter()
        self.steps += 1
        self._reports = []
        turn, late = divmod(self.steps, self._schedule.turn)
        number = (turn - 1) % self._schedule.fragments
        # There may be fewer fragments than turns, where parameters have no elements
        for fragment in self.fragments[number : number + 1]:
            # A fragment leaves in its turn, and is applied after the delay; before the first turn there is none
            if not late:
                fragment.prepare(self.steps, **self.options)
            if late == self._schedule.fragment_sync_delay and fragment.taken is not None:
                self._apply(fragment, self._schedule.fragment_update_alpha)
        self.seconds = perf_counter() - began

    def _take_loaded(self) -> None:
        """Go on from weights that all ranks have loaded since the last step."""
        if loaded := self._loads.taken():
            for fragment in self.fragments:
                fragment.begin_anew(loaded)
            bits = [crc_of(fragment.common) for fragment in self.fragments]
            self.gradients.live.ask(lambda comm: check_consistency(comm, f"call=model.load_state_dict weights={bits}"))

    def _apply(self, fragment: Fragment, alpha: float | None) -> None:
        fragment.apply(alpha)
        self.synchronizations += 1
        self._reports.append(fragment.reducer.report)

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state without the model's buffers, as plain values and tensors; between steps.

        Waits for an outer gradient under way. Rank 0's state alone has the values equal on all ranks.
        """
        self._take_loaded()
        return self._snapshot.taken(self.steps, self.synchronizations)

    def take_over(self, states: Sequence[dict[str, Any]], ranks: int) -> None:
        """Restore the states of ``ranks`` ranks, on any number P of ranks. Collective.

        On another number all start from the global parameters. The old ranks' movement since then joins their
        residuals, scaled by the ratio of the numbers of ranks; a feedback rule without residuals loses it. New ranks
        have rank 0's inner optimizer.

        Args:
            states: states of old ranks r, r + P, r + 2 P, ... on rank r, as `checkpoint.load` deals them out.
            ranks: number of old ranks.

        Raises:
            ValueError: a state is of other fragments or another schedule, or as for `SparseAllreduce.take_over`; raised
                on every rank.
        """
        self.steps, self.synchronizations = self._snapshot.deal(states, ranks)
        self._loads.taken()  # the states are of all weights
        same = ranks == self.gradients.live.comm.size
        for fragment in [fragment for fragment in self.fragments if fragment.taken is not None and not same]:
            self._apply(fragment, 0.0)
