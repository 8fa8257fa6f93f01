"""Check arguments. Errors name the argument, the expected and the given value, and a remedy."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
ALIKE = 0.65  # of 1, the similarity from which two spellings are the same
# Arguments, options and entries of registries that were removed: the release, and the remedy
GONE: dict[str, tuple[str, str]] = {
    "agree": ("0.4.0", "write bench steps --check --device gpu"),
    "arrival": ("0.4.0", "write --momentum-by arrival"),
    "auto": ("0.4.0", "ask `python -m sparse_mpi predict advise` which algorithm to name"),
    "budget": ("0.4.0", "let a sparse_mpi.contrib.ByteBudget say the density of the next step"),
    "check_every": ("0.4.0", "leave it out, and set the attribute check_every of the result, in steps"),
    "cold": ("0.4.0", "give `doctor --compile` an empty folder as NUMBA_CACHE_DIR"),
    "compare": ("0.4.0", "write bench compare for a script, bench network --rate 1gbit -- bench steps for steps alone"),
    "draw": ("0.4.0", "write bench draw"),
    "fragment_alpha": ("0.4.0", "leave it out; it is the argument fragment_update_alpha of DiLoCo"),
    "fragment_delay": ("0.4.0", "leave it out; it is the argument fragment_sync_delay of DiLoCo"),
    "fragments": ("0.4.0", "leave it out; it is an argument of DiLoCo"),
    "exchange": ("0.4.0", "leave it out; topkdsa splits by regions"),
    "gpu_check": ("0.4.0", "in a checkout, python -m runs.gpu_check"),
    "in_place": ("0.4.0", "leave it out; gradients join the residual as they are reduced"),
    "job": ("0.4.0", "docs/explanation/faults.md says what to do about each line of a rank that waits"),
    "lag": ("0.4.0", "leave it out; electing ahead of the gradient was no faster"),
    "max_oversubscribe": ("0.4.0", "leave it out; more ranks than cores are only warned of"),
    "memory": ("0.4.0", "write --feedback"),
    "metrics": ("0.4.0", "make the folder, and name it in the variable SPARSE_MPI_METRICS_DIR"),
    "mode": ("0.4.0", "leave it out; micro goes by a threshold, and interleaved selection alternates"),
    "no_arrival": ("0.4.0", "write --momentum-by local"),
    "no_second_moment": ("0.4.0", "write --momentum-by arrival"),
    "refresh": ("0.4.0", "published=vgg has Ok-Topk's stale thresholds, as have PublishedOkTopk and StaleSelector"),
    "residual": ("0.4.0", "leave it out; senders store entries missing in the result; on sorted shards take elect"),
    "second_moment": ("0.4.0", "write --momentum-by second-moment"),
    "sparse_compare": ("0.4.0", "write bench network --ranks 4 8 --rate 1gbit -- bench sparse"),
    "sparse_volume": ("0.4.0", "write bench volume --keyed"),
    "step_seconds": ("0.4.0", "give k or density"),
    "team": ("0.4.0", "give the Team as comm="),
    "threshold_period": ("0.4.0", "give it beside published=vgg, or to PublishedOkTopk"),
    "trace": ("0.4.0", "write bench trace"),
    "zero_copy": ("0.4.0", "leave it out; gradients join the residual as they are reduced"),
    **dict.fromkeys(("allreduce", "interleaved"), ("0.4.0", "write bench steps")),
    **dict.fromkeys(("ef21", "sa_pef"), ("0.4.0", "use feedback='residual'; it was no gain over that")),
    **dict.fromkeys(("cpu_lane", "planner", "profile_steps"), ("0.4.0", "leave it out; plans take the fastest way")),
    **dict.fromkeys(("networks", "run"), ("0.4.0", "ask predict advise for each --rate and --ranks")),
    **dict.fromkeys(("profile", "save_profile"), ("0.4.0", "start `plan` under mpiexec; it measures and plans")),
}


def present(value: T | None, why: str) -> T:
    """Return ``value``; RuntimeError if it is None: ``why`` names the missing step."""
    if value is None:
        raise RuntimeError(why)
    return value


def check_switch(name: str, value: object) -> None:
    """Raise TypeError unless ``value`` is True or False: a text, for example "no", would count as True."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be True or False, got {value!r}")


def check_whole(
    name: str, value: object, least: int, unit: str = "", remedy: str = "", *, most: int | None = None
) -> None:
    """Raise TypeError or ValueError unless ``value``, for the argument ``name``, is a whole number in [least, most].

    ``unit`` is the noun that it counts, for example "steps"; the error ends in the ``remedy``.
    """
    bounds = f"at least {least}" if most is None else f"in [{least}, {most}]"
    bounds, remedy = f"{bounds} {unit}".rstrip(), remedy and f"; {remedy}"
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be a whole number, {bounds}, got {value!r}{remedy}")
    if value < least or (most is not None and value > most):
        raise ValueError(f"{name} must be {bounds}, got {value}{remedy}")


def check_range(name: str, value: object, interval: str, remedy: str = "") -> None:
    """Raise TypeError or ValueError unless ``value``, for the argument ``name``, is a number in ``interval``.

    Intervals are written like "[0, 1)", or "(0, inf)" for all finite numbers above 0; NaN is in none.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name} must be a number in {interval}, got {value!r}")
    low, high = map(float, interval[1:-1].split(","))
    above = low <= value if interval[0] == "[" else low < value
    below = value <= high if interval[-1] == "]" else value < high
    if not (above and below):
        raise ValueError(f"{name} must be in {interval}, got {value}{remedy and f'; {remedy}'}")


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise ValueError unless ``value`` is one of the texts ``choices``."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}{meant(value, choices, {})}")


def check_instance(name: str, value: object, kind: type) -> None:
    """Raise TypeError unless ``value`` is an instance of ``kind``, and not the class itself."""
    if isinstance(value, type) or not isinstance(value, kind):
        raise TypeError(f"{name} must be an instance of {kind.__name__}, got {value!r}")


def check_shown(name: str, value: object) -> None:
    """Raise TypeError if the repr of ``value``, by which ranks compare arguments, has a memory address."""
    if re.search(" at 0x[0-9a-fA-F]+", repr(value)):
        raise TypeError(
            f"{name} must have a repr that says its hyperparameters, for ranks compare it, got {value!r}; decorate "
            f"the class with @dataclass, or give it a __repr__"
        )


def converted(name: str, what: str, make: Callable[[Any], T], value: object) -> T:
    """Return ``make(value)``; if that fails, TypeError: ``name`` must be ``what``."""
    try:
        return make(value)
    except Exception as problem:
        raise TypeError(f"{name} must be {what}, got {value!r:.80}") from problem


def meant(given: object, names: Iterable[str], gone: Mapping[str, tuple[str, str]] = GONE) -> str:
    """Return ``"; did you mean oktopk?"`` with the most similar of ``names``, or ``""``.

    A name in ``gone`` gets the release of its removal, and the remedy. An option's name is without dashes.
    """
    removed = str(given).lstrip("-").replace("-", "_")
    if removed in gone:
        release, remedy = gone[removed]
        return f"; {removed} was removed in {release}: {remedy}"
    like = get_close_matches(str(given), list(names), 1, ALIKE)
    return f"; did you mean {like[0]}?" if like else ""


def takes_alias(alias: str, argument: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator by which a keyword ``argument`` has a second name ``alias``; TypeError if both are given."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def translated(*args: Any, **kwargs: Any) -> R:
            if alias in kwargs:
                if argument in kwargs:
                    raise TypeError(
                        f"{function.__qualname__}() takes {argument} or {alias}, not both, "
                        f"got {argument}={kwargs[argument]!r} and {alias}={kwargs[alias]!r}"
                    )
                kwargs[argument] = kwargs.pop(alias)
            return function(*args, **kwargs)

        return translated

    return decorate
