"""Sparse data on a device: exchanged and combined in host memory, and copied back.

Arrays cross the bus once each way, on the caller's current stream. The host waits once, for the copies to pinned
memory. Combining takes any NumPy ufunc and type of numbers, for which devices have no kernels.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from sparse_mpi import arrays
from sparse_mpi.sparse import SparseVector


class HostInput(NamedTuple):
    host: Any  # the input, of the same kind
    back: Callable[[Any], Any]  # brings a result of that kind to the data's device
    memory: str  # the data's memory: "host" or "device"
    error: Exception | None = None  # error of the copy to host memory

    def read(self) -> Any:
        """Return the data in host memory, or raise the copy's error, inside all ranks' agreement."""
        if self.error is not None:
            raise self.error
        return self.host


class _Kind(NamedTuple):
    parts: tuple[Any, ...]  # the arrays
    make: Callable[..., Any]  # makes this kind of data of its arrays in host memory
    back: Callable[[Any], Any]  # makes a result in host memory this kind of data, on the device of the arrays


def to_host_input(x: object, array: bool = False) -> HostInput:
    """Return sparse data, or an ``array``, in host memory: ``x`` itself unless entirely on a device.

    Copies follow the work on the current stream; the host waits once.
    """
    try:
        kind = _Kind((x,), lambda host: host, lambda result: _up(result, x)) if array else _kind(x)
        if kind is None or not all(map(arrays.is_on_device, kind.parts)):
            return HostInput(x, lambda result: result, "host")
        place, make_back = kind.parts[0], kind.back

        def back(result: object) -> object:
            with arrays.on_stream_of(place):
                return make_back(result)

        with arrays.on_stream_of(place):
            return HostInput(kind.make(*_down(kind.parts)), back, "device")
    except Exception as error:
        if isinstance(error, ValueError):  # SciPy's, which checks coordinates
            error = ValueError(f"x must be a valid {type(x).__name__}, got one in which {error}")
        return HostInput(None, lambda result: result, "host", error)


def _kind(x: object) -> _Kind | None:
    if isinstance(x, SparseVector):
        return _Kind(
            (x.indices, x.values),
            lambda indices, values: SparseVector(indices, values, x.size),
            lambda result: SparseVector(_up(result.indices, x.indices), _up(result.values, x.values), x.size),
        )
    if isinstance(x, tuple) and len(x) == 2:
        return _Kind(x, lambda *parts: parts, lambda result: tuple(map(_up, result, x)))
    cupyx, scipy = sys.modules.get("cupyx.scipy.sparse"), sys.modules.get("scipy.sparse")
    if cupyx is not None and scipy is not None and cupyx.issparse(x):
        return _of_cupyx(x, scipy)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return _of_torch(x, torch)
    return None


def _of_cupyx(x: Any, scipy: Any) -> _Kind | None:
    if x.format == "coo":
        return _Kind((x.data, x.row, x.col), lambda data, *at: scipy.coo_matrix((data, at), x.shape), type(x))
    if x.format in ("csr", "csc"):
        made = scipy.csr_matrix if x.format == "csr" else scipy.csc_matrix
        return _Kind((x.data, x.indices, x.indptr), lambda *parts: made(parts, x.shape), type(x))
    return None


def _of_torch(x: Any, torch: Any) -> _Kind | None:
    if x.layout not in (torch.sparse_coo, torch.sparse_csr):
        return None
    coo = x.layout == torch.sparse_coo
    made = torch.sparse_coo_tensor if coo else torch.sparse_csr_tensor

    def parts_of(tensor: Any) -> tuple[Any, ...]:
        if coo:
            return tensor._indices(), tensor._values()
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()

    def make(*parts: Any, **options: bool) -> Any:
        return made(*parts, tuple(x.shape), check_invariants=False, **options)

    parts = parts_of(x)

    def back(result: object) -> Any:
        coalesced = {"is_coalesced": True} if coo else {}
        return make(*[_up(part.numpy(), parts[0]) for part in parts_of(result)], **coalesced)

    return _Kind(parts, make, back)


def _down(parts: Sequence[Any]) -> list[Any]:
    there = [_flat(part) for part in parts]
    library = arrays.namespace(there[0])
    stream = library.cuda.get_current_stream()
    host = [np.frombuffer(library.cuda.alloc_pinned_memory(max(a.nbytes, 1)), a.dtype, a.size) for a in there]
    for a, room in zip(there, host, strict=True):
        if a.size:
            a.get(stream=stream, out=room, blocking=False)
    stream.synchronize()
    return [_shaped(room, part) for room, part in zip(host, parts, strict=True)]


def _flat(x: Any) -> Any:
    """Return a flat CuPy array of a device array, or of a tensor's bytes."""
    if arrays.is_device(x):
        return x.reshape(-1)
    return arrays.enter(_viewed(x.detach().resolve_conj().resolve_neg().reshape(-1), sys.modules["torch"].uint8))


def _shaped(host: np.ndarray, x: Any) -> Any:
    if arrays.is_device(x):
        return host.reshape(x.shape)
    return _viewed(sys.modules["torch"].from_numpy(host), x.dtype).reshape(tuple(x.shape))


def _viewed(flat: Any, kind: Any) -> Any:
    if flat.stride(0) != 1:  # torch takes one element or none for contiguous, whatever the stride
        flat = flat.clone(memory_format=sys.modules["torch"].contiguous_format)
    return flat.view(kind)


def _up(host: np.ndarray, caller: Any) -> Any:
    cupy = sys.modules["cupy"]  # the library that brought the caller's data down
    if arrays.is_device(caller):
        return cupy.asarray(host)
    torch = sys.modules["torch"]
    numbers = np.ascontiguousarray(host)
    kind = torch.from_numpy(np.empty(0, host.dtype)).dtype
    there = arrays.leave(cupy.asarray(numbers.reshape(-1).view(np.uint8)), caller)
    return _viewed(there, kind).reshape(host.shape)
