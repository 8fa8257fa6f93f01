"""Turn a caller's arguments into objects of the library, or raise an error with a remedy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from sparse_mpi.algorithms import ALGORITHMS, Algorithm
from sparse_mpi.algorithms.base import DENSITY
from sparse_mpi.checks import Registry, check_range, check_shown, check_whole, meant
from sparse_mpi.feedback import FEEDBACKS, Feedback
from sparse_mpi.select import SELECTORS, Selector
from sparse_mpi.sparse import Layout
from sparse_mpi.wire import WIRES, Wire

MOMENT_DENSITY = 0.021  # elect with second moments sends the bytes of its usual density without
PUBLISHED = "published"  # the option that takes the settings of a published program


def resolve_k(size: int, k: int | None, density: float | None, usual: float = DENSITY) -> int:
    """Return the number of entries, in 1..n, for ``k``, ``density`` or by default the ``usual`` density."""
    if k is not None and density is not None:
        raise ValueError(f"give k or density, not both, got k={k!r} and density={density!r}")
    if k is not None:
        check_whole("k", k, 1, remedy="for a share of n use density, to sum everything algorithm='dense'")
        return min(int(k), size)
    density = usual if density is None else density
    check_range("density", density, "(0, 1]", "0.01 keeps one entry in a hundred")
    # A small tensor has one entry too where its share rounds to none
    return max(1, min(size, round(density * size)))


def usual_density(algorithm: str | Algorithm, second_moment: bool = False) -> float:
    if second_moment:
        return MOMENT_DENSITY
    # Unknown names take the common density: `make_algorithm` reports them
    try:
        return make_algorithm(algorithm, {}).traits.usual_density
    except (TypeError, ValueError):
        return DENSITY


def takes(algorithm: str, option: str, value: object = None) -> bool:
    if not any(field.init and field.name == option for field in fields(ALGORITHMS[algorithm])):
        return False
    try:
        make_algorithm(algorithm, {} if value is None else {option: value})
    except (TypeError, ValueError):
        return False
    return True


def ignores_k(algorithm: str) -> bool:
    # The bounds tell without a trial, for the fewest and for all entries, on as few ranks as exchange anything
    made, layout = make_algorithm(algorithm, {}), Layout.of(1000)
    return made.bound(layout, 1, 2) == made.bound(layout, 1000, 2)


def make_selector(selector: str | Selector) -> Selector:
    return _named("selector", selector, SELECTORS, Selector)


def make_wire(wire: str | Wire) -> Wire:
    return _named("wire", wire, WIRES, Wire)


def _named(argument: str, given: object, registry: Registry, kind: type) -> Any:
    """Return the instance of a name, or the given one."""
    found = registry[given] if isinstance(given, str) else given
    if isinstance(given, str) and isinstance(found, type):
        found = found()
    # A class has the members of a protocol such as Wire too, and would pass the second test
    if isinstance(found, type) or not isinstance(found, kind):
        raise TypeError(f"{argument} must be a name or an instance, got {given!r}; names: {', '.join(registry)}")
    check_shown(argument, found)
    return found


def make_algorithm(algorithm: str | Algorithm, options: dict[str, Any]) -> Algorithm:
    """Return the algorithm of a name in `ALGORITHMS` with ``options``, or the given instance.

    The options ``selector`` and ``wire`` are a name, an instance, or None for the default. ``published`` names a
    workload of `published.published` ("" for the only one); other options change its settings.

    Raises:
        ValueError: no algorithm has that name, or an option has a bad value.
        TypeError: the algorithm has no such option or cannot work with that selector, options are given beside an
            instance, or ``algorithm`` is neither a name nor an instance that shows its hyperparameters in its repr.
    """
    makers: dict[str, Callable[[Any], object]] = {"selector": make_selector, "wire": make_wire}
    # None stands for the algorithm's own selector or wire. The caller's dict stays as it is
    options = {name: value for name, value in options.items() if name not in makers or value is not None}
    kind: Any = ALGORITHMS[algorithm] if isinstance(algorithm, str) else algorithm
    if not (isinstance(algorithm, str) and isinstance(kind, type)):
        made = _named("algorithm", kind, ALGORITHMS, Algorithm)
        if options:
            raise TypeError(f"options {sorted(options)} must be given to the instance {algorithm!r} itself")
        return made
    # All options but `published` are fields: it names the workload whose settings the others change
    workload = options.pop(PUBLISHED, None)
    if workload is not None:
        from sparse_mpi.algorithms.published import published

        kind = published(kind, workload)
    declared = [field.name for field in fields(kind) if field.init]
    if unknown := sorted(set(options) - set(declared)):
        has = f"it has: {', '.join(declared) or 'none'}{meant(unknown[0], declared)}"
        raise TypeError(f"{algorithm} has no option {', '.join(unknown)}; {has}")
    options |= {name: makers[name](value) for name, value in options.items() if name in makers}
    return _named("algorithm", kind(**options) if workload is None else replace(kind, **options), ALGORITHMS, Algorithm)


def words(text: str) -> list[str]:
    """Return the name and the options in the text of an algorithm; ``module:Name`` stays together."""
    found: list[str] = []
    for word in text.split(":"):
        option, _, name = found[-1].rpartition("=") if found else ("algorithm", "", "")
        registry = {"": ALGORITHMS, "selector": SELECTORS, "wire": WIRES}.get(option)
        # A word without "=" is the second half of a name, or the option that takes a published program's settings
        if found and registry is not None and "=" not in word and name not in registry and word != PUBLISHED:
            found[-1] += f":{word}"
        else:
            found.append(word)
    return found


def spelled(text: str, source: str = "") -> tuple[str, dict[str, Any]]:
    """Parse a command line's algorithm, ``oktopk:wire=packed:radix=32``, to name and options.

    A published program's settings are ``oktopk:published=vgg``, or ``gtopk:published`` without a choice.

    Raises:
        ValueError: an unknown algorithm or option, or a bad value, behind ``source``.
    """
    name, *given = words(text)
    options: dict[str, Any] = {}
    for word in given:
        # A word without "=" has the value "", which is the only workload of `published`
        option, _, value = word.partition("=")
        options[option] = _number(value)
    try:
        # Made to be checked alone: the caller makes an instance where it needs one
        make_algorithm(name, options)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{source}{error}") from None
    return name, options


def algorithm_spelled(text: str) -> Algorithm:
    return make_algorithm(*spelled(text))


def _number(text: str) -> int | float | str:
    # int comes first, for float would take whole numbers too
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text


def can_carry(algorithm: str | Algorithm, options: dict[str, Any]) -> bool:
    """Tell if ``algorithm`` with ``options`` can add up a second vector beside the gradient."""
    try:
        return make_algorithm(algorithm, options).traits.carries
    except (TypeError, ValueError):  # which the reducer will report
        return False


def check_second_moment(second_moment: float, algorithm: Algorithm) -> None:
    """Raise TypeError or ValueError unless a second moment with this beta can travel with entries of ``algorithm``."""
    check_range("second_moment", second_moment, "[0, 1)", "0.999 is Adam's, None keeps none")
    if not algorithm.traits.carries:
        able = ", ".join(name for name, kind in ALGORITHMS.items() if kind().traits.carries)
        raise ValueError(
            f"algorithm must carry a second moment beside its values, as {able} does with packed wires, got "
            f"{algorithm!r}; use it, or second_moment=None"
        )


def make_feedback(feedback: str | Feedback, clip_norm: float | None) -> Feedback:
    """Return a feedback rule by name, or the given instance; check ``clip_norm``."""
    made: Feedback = _named("feedback", feedback, FEEDBACKS, Feedback)
    if clip_norm is not None:
        check_range("clip_norm", clip_norm, "(0, inf)", "None clips nothing")
    return made
