"""Consistency checks: before the first message, all ranks verify that they will do the same thing.

A mistake on one rank would make the others wait for ever. So every rank states its operation, or its error, in a few
bytes, and all raise if the statements differ.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sparse_mpi.comm.base import Comm, hashed

TEXT_BYTES = 400  # length of each rank's statement in the error message
FLAGS = 4
PARTED = "parted"  # attribute of a `Comm`: what differed, see `together`
NO_WORDS = np.zeros((0, 0), np.int64)


class same_on_all_ranks:
    """A block that prepares a collective operation, and that all ranks leave or none.

        with same_on_all_ranks(comm) as say:
            k = resolve_k(n, k, density)  # may raise, on some ranks or on all
            say(n=n, k=k)

    The body checks and prepares without communicating; ``say``, called once or more, states by name values that must be
    equal on all ranks, with a ``str`` that suits an error message, or a text of `stated`. Every rank must enter the
    block, before the operation's first message. Leaving it is collective and costs one allreduce of 16 bytes (control)
    when all is well.

    Afterwards ``flag`` is the largest of all ranks, below `FLAGS`, and ``rows`` ``(P, words)`` has the ``words`` that
    each rank's body filled in; these cost one allgather instead.

    Raises:
        Exception: the body's error, on the ranks where it was raised.
        ValueError: on the other ranks if the body raised anywhere, and on all where statements differ; the message
            quotes the ranks.
    """

    __slots__ = ("_comm", "_message", "_statement", "flag", "rows", "words")

    def __init__(self, comm: Comm, words: int = 0) -> None:
        self._comm = comm
        self._statement = ""
        self.flag: int = 0
        self._message: np.ndarray | None = np.zeros(1 + words, np.int64) if words else None
        self.words: np.ndarray = NO_WORDS[0:0] if self._message is None else self._message[1:]
        self.rows: np.ndarray = NO_WORDS

    def __enter__(self) -> Callable[..., None]:
        return self._say

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, trace: object) -> None:
        if problem is None:
            self.rows, self.flag = check_consistency(self._comm, self._statement, self.flag, message=self._message)
        # A KeyboardInterrupt, which is no Exception, ends this rank, and sends nothing.
        elif isinstance(problem, Exception):  # the other ranks still have to learn of it
            check_consistency(self._comm, f"{type(problem).__name__}: {problem}", failed=True, message=self._message)

    def _say(self, text: str = "", **facts: object) -> None:
        self._statement += text + stated(**facts) if facts else text


def check_consistency(
    comm: Comm, statement: str, flag: int = 0, failed: bool = False, message: np.ndarray | None = None
) -> tuple[np.ndarray, int]:
    """Raise on every rank unless all state the same; a rank that has ``failed`` states its error instead.

    The ``message`` ``(1 + m,)`` int64, if any, has one word for the comparison and m others. Returns the m words of all
    ranks ``(P, m)``, and the largest ``flag``.
    """
    if apart := comm.attributes.get(PARTED):
        if failed:
            return NO_WORDS, flag
        raise ValueError(apart)
    # Compare: the hash and the flag make one int64.
    digest = hashed(statement)
    mine = FLAGS * digest + flag  # different digests differ by more than flags
    if message is not None:
        message[0] = mine
        said = comm.allgather(message, control=True)
        rows, spread = said[:, 1:], int(said[:, 0].max() - FLAGS * (said[:, 0] // FLAGS).min())
    else:
        # The maximum of the negatives is minus the minimum: one allreduce finds both ends.
        highest, lowest = comm.allreduce(np.array([mine, -FLAGS * digest], np.int64), "max", control=True).tolist()
        rows, spread = NO_WORDS, highest + lowest
    # Where all digests are equal, the remaining difference is the largest flag
    if spread < FLAGS:
        return rows, spread
    # Quote: statements differ, and all ranks know that. So all gather the texts, cut to one length.
    encoded = statement.encode(errors="backslashreplace")  # texts may be half of a character, or names of files
    if len(encoded) > TEXT_BYTES:  # the difference may be behind the cut
        mark = f"... [{digest:x}]".encode()
        encoded = encoded[: TEXT_BYTES - len(mark)] + mark
    text = np.frombuffer(encoded.ljust(TEXT_BYTES), np.uint8)
    # The cut may have left half a character.
    statements = [bytes(row).decode(errors="replace").strip() for row in comm.allgather(text, control=True)]
    problem = f"all ranks must call with the same arguments, but\n{_quote(statements)}"
    if apart is not None:
        comm.attributes[PARTED] = problem
    if not failed:
        raise ValueError(problem)
    return rows, flag


def together(comm: Comm, several: bool) -> None:
    """Have a first difference end all operations of a call that has ``several``, until it says False.

    Other ranks may be in a call of fewer operations, and would leave this one waiting.
    """
    if several:
        comm.attributes[PARTED] = ""
    else:
        comm.attributes.pop(PARTED, None)


def stated(**facts: object) -> str:
    """Return the statement that ``say`` makes of ``facts``, for callers to cache: names of types are slow."""
    return "".join([f"{name}={value} " for name, value in facts.items()])


def tell(comm: Comm, text: str, root: int = 0) -> str:
    """Return rank ``root``'s ``text`` on every rank; other texts are ignored."""
    own = np.frombuffer(text.encode(errors="surrogatepass"), np.uint8)
    return bytes(comm.bcast(own, root, control=True)).decode(errors="surrogatepass")


def _quote(said: list[str]) -> str:
    lines = []
    for text in dict.fromkeys(said):
        ranks = [str(rank) for rank, other in enumerate(said) if other == text]
        shown = ", ".join(ranks[:8]) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
        lines.append(f"  rank{'s' if len(ranks) > 1 else ''} {shown}: {text}")
    return "\n".join(lines)
