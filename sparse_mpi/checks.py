"""Check arguments, and find what names stand for. Errors name argument, expected and given value."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import cache, wraps
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
ALIKE = 0.65  # of 1, the similarity from which two spellings are the same


def present(value: T | None, why: str) -> T:
    """Return ``value``; RuntimeError if it is None: ``why`` names the missing step."""
    if value is None:
        raise RuntimeError(why)
    return value


def check_switch(name: str, value: object) -> None:
    """Raise TypeError unless ``value`` is True or False: a text such as "no" would count as True."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be True or False, got {value!r}")


def check_whole(
    name: str, value: object, least: int, unit: str = "", remedy: str = "", *, most: int | None = None
) -> None:
    """Raise TypeError or ValueError unless ``value``, for the argument ``name``, is a whole number in [least, most].

    ``unit`` is the noun that it counts, as "steps"; the error ends in the ``remedy``.
    """
    bounds = f"at least {least}" if most is None else f"in [{least}, {most}]"
    bounds, remedy = f"{bounds} {unit}".rstrip(), remedy and f"; {remedy}"
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be a whole number, {bounds}, got {value!r}{remedy}")
    if value < least or (most is not None and value > most):
        raise ValueError(f"{name} must be {bounds}, got {value}{remedy}")


def check_range(name: str, value: object, interval: str, remedy: str = "") -> None:
    """Raise TypeError or ValueError unless ``value``, for the argument ``name``, is a number in ``interval``.

    Intervals are as "[0, 1)", or "(0, inf)" for all finite numbers above 0; NaN is in none.
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
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}{meant(value, choices, False)}")


def check_instance(name: str, value: object, kind: type, remedy: str = "") -> None:
    """Raise TypeError unless ``value`` is an instance of ``kind``, and not the class itself."""
    if isinstance(value, type) or not isinstance(value, kind):
        raise TypeError(f"{name} must be an instance of {kind.__name__}, got {value!r}{remedy and f'; {remedy}'}")


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


@cache
def removed() -> dict[str, list[str]]:
    """Return release and remedy of each argument, option, command and registry entry that was removed."""
    import json  # for errors alone

    return json.loads(Path(__file__).with_name("gone.json").read_text())


def meant(given: object, names: Iterable[str], gone: bool = True) -> str:
    """Return ``"; did you mean oktopk?"`` with the most similar of ``names``, or ``""``.

    With ``gone``, a name in `removed` gets its release and remedy. Options have no dashes.
    """
    name = str(given).lstrip("-").replace("-", "_")
    if gone and name in removed():
        release, remedy = removed()[name]
        return f"; {name} was removed in {release}: {remedy}"
    like = get_close_matches(str(given), list(names), 1, ALIKE)
    return f"; did you mean {like[0]}?" if like else ""


def takes_alias(alias: str, argument: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that gives a keyword ``argument`` the second name ``alias``; TypeError for both."""

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


class Registry(dict[str, Any]):
    """The library's entries by name, which finds others too, but does not list them.

    Others are entry points of installed packages, in the group ``sparse_mpi.algorithms``, ``sparse_mpi.selectors`` or
    ``sparse_mpi.wires``, and ``"module:Name"``, from Python's path or the working directory.

    Args:
        argument: name in errors: ``"algorithm"``, ``"selector"`` or ``"wire"``.
        entries: the library's own, a class or instance by name.
    """

    def __init__(self, argument: str, entries: Mapping[str, object]) -> None:
        super().__init__(entries)
        self.argument = argument

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or (isinstance(name, str) and (":" in name or name in self._installed()))

    def __missing__(self, name: str) -> object:
        """Return another entry; ValueError if there is none."""
        installed = self._installed()
        if name in installed:
            return installed[name].load()
        if ":" in name:
            return loaded(self.argument, name)
        names = [*self, *installed]
        raise ValueError(
            f"{self.argument} must be one of {', '.join(names)}, or module:Name, got {name!r}{meant(name, names)}"
        )

    def _installed(self) -> dict[str, metadata.EntryPoint]:
        return {point.name: point for point in metadata.entry_points(group=f"sparse_mpi.{self.argument}s")}


def loaded(argument: str, name: str) -> object:
    """Return what ``"module:Name"`` names; ValueError if there is none."""
    module, _, attribute = name.partition(":")
    here = os.getcwd()
    sys.path.append(here)
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as problem:  # ValueError: the module's name is empty
        raise ValueError(
            f"{argument} must be module:Name of a module in {here} or Python's path, got {name!r}: {problem}"
        ) from None
    finally:
        sys.path.remove(here)
