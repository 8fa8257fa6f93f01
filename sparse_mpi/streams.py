"""Work on a device from another thread: on a stream of its own, in order with the caller's where their data meet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from sparse_mpi import arrays
from sparse_mpi.sparse import SparseVector


class Branch:
    """Begins after what the caller has queued on its stream so far, and goes on beside it.

    Args:
        x: CuPy array or torch tensor on a CUDA device, that the work is about.
        streams: the stream of each device, by its number; what is missing is made.
    """

    def __init__(self, x: Any, streams: dict[int, Any]) -> None:
        import cupy

        self._x, self._cupy = x, cupy
        with arrays.on_stream_of(x):
            self._begun = cupy.cuda.get_current_stream().record()
            self._device = cupy.cuda.Device()
            if self._device.id not in streams:
                streams[self._device.id] = cupy.cuda.Stream(non_blocking=True)
        self._side = streams[self._device.id]
        self._ended: Any = None

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Within, CuPy and torch work on the branch's stream; for the thread that does the work."""
        with ExitStack() as stack:
            stack.enter_context(self._device)
            stack.enter_context(self._side)
            if not arrays.is_device(self._x):
                import torch

                stack.enter_context(torch.cuda.stream(torch.cuda.ExternalStream(self._side.ptr, self._x.device)))
            self._side.wait_event(self._begun)
            yield
            self._ended = self._side.record()

    def join(self, result: Any) -> Any:
        """A copy of ``result`` that belongs to the caller's stream, which from here on comes after the branch.

        The memory of ``result`` is the branch's to use again; it must not do so before the copy is made.
        """
        with arrays.on_stream_of(self._x):
            here = self._cupy.cuda.get_current_stream()
            here.wait_event(self._ended)
            own = _copy(result)
            self._side.wait_event(here.record())
        return own


def branch(x: Any, streams: dict[int, Any]) -> Branch | None:
    """A `Branch` for ``x`` on a CUDA device; None for host memory."""
    on_device = arrays.is_device(x) or getattr(getattr(x, "device", None), "type", "cpu") == "cuda"
    return Branch(x, streams) if on_device else None


def _copy(result: Any) -> Any:
    if isinstance(result, SparseVector):
        return result._replace(indices=_copy(result.indices), values=_copy(result.values))
    return result.copy() if arrays.is_device(result) else result.clone()
