"""Arrays of NumPy, CuPy and torch: the only file that tells them apart.

Inside the library an array is NumPy's (host) or CuPy's (device). A torch tensor enters as a view of the same memory,
and results leave as tensors on the same device. CuPy and torch are looked up only if the caller has imported them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, lru_cache
from math import isfinite
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeGuard, TypeVar
from weakref import finalize

import numpy as np

HALF_KINDS = ("float16", "bfloat16")
FLOATS = ("float32", "float64", *HALF_KINDS)
SHARED_BYTES = 1 << 20  # least size of arrays that torch allocates where torch's tensors are reduced
FIBONACCI = np.uint32(2654435769)  # 2^32 over the golden ratio: its multiples are spread evenly
_FLOAT32, _FLOAT64, _INT32, _INT64 = map(np.dtype, ("float32", "float64", "int32", "int64"))
_CONSTANTS: dict[tuple[int, int], Any] = {}  # the device copies of `constant`, by identity and device
# An array inside the library: NumPy's, or CuPy's, which has no types of its own and the same methods. A torch tensor
# becomes one by `enter`
Array: TypeAlias = np.ndarray

if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultTypeVar

    A = DefaultTypeVar("A", default=Array, covariant=True)
else:
    A = TypeVar("A", covariant=True)  # a caller's arrays


class Flattens(Protocol[A]):
    """A caller's array of any library, which gives a flat one of the same library."""

    def reshape(self, size: int, /) -> A: ...


def _is_torch(x: object) -> TypeGuard[Any]:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def is_device(x: object) -> TypeGuard[Any]:
    cupy = sys.modules.get("cupy")
    return cupy is not None and isinstance(x, cupy.ndarray)


def is_on_device(x: object) -> bool:
    """Tell if ``x`` is in a GPU's memory, and CuPy is installed to work on it."""
    return is_device(x) or (_is_torch(x) and x.device.type == "cuda" and _cupy() is not None)


def namespace(x: Array) -> ModuleType:
    return np if isinstance(x, np.ndarray) or not is_device(x) else sys.modules["cupy"]


def to_host(x: Array) -> np.ndarray:
    """Return ``x`` in host memory: itself if it is there, else a copy made after the current stream's work."""
    return x if isinstance(x, np.ndarray) or not is_device(x) else sys.modules["cupy"].asnumpy(x)


def like(host: Array, x: Array) -> Array:
    """Return ``host`` in the library of ``x``: itself for NumPy, a copy on the device for CuPy."""
    return host if isinstance(x, np.ndarray) or not is_device(x) else sys.modules["cupy"].asarray(host)


def constant(host: np.ndarray, x: Array) -> Array:
    """Return ``host``, which must never change, in the library of ``x``; a device keeps its copy while it lives."""
    if isinstance(x, np.ndarray) or not is_device(x):
        return host
    key = id(host), x.device.id
    if key not in _CONSTANTS:
        made = like(host, x)
        synchronize(made)  # other streams will read it
        _CONSTANTS[key] = made
        finalize(host, _CONSTANTS.pop, key, None)
    return _CONSTANTS[key]


def synchronize(x: Array) -> None:
    """Wait until the current stream has finished writing ``x``, since MPI knows nothing of streams."""
    if not isinstance(x, np.ndarray) and is_device(x):
        sys.modules["cupy"].cuda.get_current_stream().synchronize()


def synchronize_device(x: object) -> None:
    """Wait for all streams on the device of ``x``, so that any may read it."""
    if is_device(x):
        x.device.synchronize()


def on_stream_of(x: object) -> AbstractContextManager[Any]:
    """Make the device of ``x`` current, and let CuPy work on the caller's stream: for a torch tensor, on torch's.

    CuPy then takes long arrays from torch's memory: neither library can use the other's freed memory.
    """
    if isinstance(x, np.ndarray) or not is_on_device(x):
        return nullcontext()
    return x.device if is_device(x) else _on_torch_stream(x)


@contextmanager
def _on_torch_stream(x: Any) -> Iterator[None]:
    cupy = sys.modules["cupy"]
    stream = sys.modules["torch"].cuda.current_stream(x.device).cuda_stream
    on_stream = _stream_over(cupy, x.device.index, stream)
    allocator = _allocator(cupy, cupy.cuda.get_allocator())
    with cupy.cuda.Device(x.device.index), on_stream, cupy.cuda.using_allocator(allocator):
        yield


@lru_cache(maxsize=16)
def _allocator(cupy: ModuleType, short: Callable[[int], Any]) -> Callable[[int], Any]:
    """Return an allocator on CuPy's current stream: long arrays from torch's memory, others from ``short``.

    Arrays may outlive the context.
    """
    torch = sys.modules["torch"]

    def take(size: int, device: int) -> int:
        return torch.cuda.caching_allocator_alloc(size, device, cupy.cuda.get_current_stream().ptr)

    def give_back(pointer: int, device: int) -> None:
        if not sys.is_finalizing():
            torch.cuda.caching_allocator_delete(pointer)

    long = cupy.cuda.PythonFunctionAllocator(take, give_back).malloc

    def allocate(size: int) -> Any:
        return long(size) if size >= SHARED_BYTES else short(size)

    return allocate


class _Foreign(NamedTuple):
    pointer: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.pointer


@cache
def _stream_over(cupy: ModuleType, device: int | None, pointer: int) -> Any:
    """Return CuPy's stream over another library's, on the current device."""
    if hasattr(cupy.cuda.Stream, "from_external"):  # CuPy 14 or later
        return cupy.cuda.Stream.from_external(_Foreign(pointer))
    return cupy.cuda.ExternalStream(pointer)


def _cupy() -> ModuleType | None:
    try:
        import cupy
    except ImportError:
        return None
    return cupy


def describe(x: object) -> str:
    if hasattr(x, "dtype") and hasattr(x, "shape"):
        return f"{type(x).__module__.split('.')[0]} {_dtype_name(x.dtype)} {tuple(x.shape)}"
    return f"{type(x).__name__}"


@lru_cache(maxsize=64)
def _dtype_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")  # NumPy makes it up slowly


def check(x: object, argument: str) -> None:
    """Raise TypeError unless ``x`` is an array that this library takes; ImportError where that needs CuPy.

    RuntimeError as in `refuse_capture`.
    """
    if type(x) is np.ndarray and _dtype_name(x.dtype) in FLOATS:  # the rest need not be looked at
        return
    if not (isinstance(x, np.ndarray) or is_device(x) or _is_torch(x)):
        raise TypeError(
            f"{argument} must be a NumPy or CuPy array or a torch tensor, got {describe(x)}; "
            f"convert it first, for example with numpy.asarray({argument}, dtype='float32')"
        )
    check_plain(x, argument)
    check_place(x, argument)
    refuse_capture(x, argument)
    if _dtype_name(x.dtype) not in FLOATS:
        raise TypeError(
            f"{argument} must be of dtype {', '.join(FLOATS)}, got {_dtype_name(x.dtype)}; "
            f"convert it first, for example {argument}.astype('float32')"
        )


def check_plain(x: object, argument: str) -> None:
    """Raise TypeError if ``x`` is a masked array or tensor: masked values would count."""
    masked = isinstance(x, np.ma.MaskedArray) or (_is_torch(x) and type(x).__name__ == "MaskedTensor")
    if masked:
        raise TypeError(f"{argument} must not be masked, got a {type(x).__name__}; fill it, for example x.filled(0)")


def check_place(x: object, argument: str) -> None:
    """Raise TypeError or ImportError if ``x`` is a torch tensor where neither NumPy nor CuPy can work on it."""
    if not _is_torch(x):
        return
    if x.device.type not in ("cpu", "cuda"):
        raise TypeError(
            f"{argument} must be on the CPU or a CUDA device, got {x.device}; move it with {argument}.cpu()"
        )
    if x.device.type == "cuda" and _cupy() is None:
        raise ImportError(
            f"{argument} must be on the CPU where CuPy is not installed, got {x.device}; "
            f"install cupy-cuda13x (cupy-cuda12x with CUDA 12), or pass {argument}.cpu()"
        )


def refuse_capture(x: Any, argument: str) -> None:
    """Raise RuntimeError if ``x`` is on a device, and the current stream is being captured into a graph."""
    if isinstance(x, np.ndarray) or not is_on_device(x):
        return
    if is_device(x):
        captured = sys.modules["cupy"].cuda.get_current_stream().is_capturing()
    else:
        captured = sys.modules["torch"].cuda.is_current_stream_capturing()
    if captured:
        raise RuntimeError(
            f"{argument} must not be reduced while its stream is captured into a CUDA graph, it is: reductions wait "
            "for counts, graphs do not; capture forward and backward passes alone, and reduce after each replay"
        )


def address(x: Any) -> int:
    return x.data.ptr if is_device(x) else x.ctypes.data


def enter(x: Any) -> Array:
    """Return ``x`` as a flat NumPy or CuPy array ``(n,)``, in the memory of ``x`` if that is contiguous.

    The dtype stays, but bfloat16, which NumPy and CuPy lack, becomes its bit patterns in uint16.
    """
    if isinstance(x, np.ndarray) or not _is_torch(x):
        flat = x.reshape(-1)
        return flat.view(np.uint16) if _dtype_name(x.dtype) == "bfloat16" else flat
    flat = x.detach().reshape(-1)
    brain = _dtype_name(x.dtype) == "bfloat16"
    if brain:
        flat = flat.view(sys.modules["torch"].int16)
    if flat.device.type == "cpu":
        host = flat.numpy()
        return host.view(np.uint16) if brain else host
    device = sys.modules["cupy"].from_dlpack(flat)
    return device.view(np.uint16) if brain else device


def widened(x: Array) -> Array:
    """Return an array of `enter`, with half precision widened to float32."""
    if x.dtype == np.uint16:
        return namespace(x).left_shift(x, 16, dtype=np.uint32).view(np.float32)
    return x.astype(np.float32) if x.dtype == np.float16 else x


def finite(x: Array) -> bool:
    wide = x if x.dtype.itemsize > 2 else widened(x)
    with np.errstate(over="ignore", invalid="ignore"):
        # The sum of their squares is not finite either, and is made in one pass, by BLAS
        return isfinite(float(wide.dot(wide))) or bool(namespace(wide).isfinite(wide).all())


def wide_type(x: Array) -> np.dtype:
    return _FLOAT64 if x.dtype is _FLOAT64 or x.dtype == np.float64 else _FLOAT32


def bits_type(x: Array) -> np.dtype:
    """Return the integer type of magnitudes of ``x``: int64 for float64, int32 for narrower (widened) types."""
    return _INT64 if x.dtype is _FLOAT64 or x.dtype == np.float64 else _INT32


@cache
def mantissa_bits(dtype: np.dtype) -> int:
    """Return the bits of the mantissa: two to their power is an octave in magnitude bits."""
    return int(np.finfo(dtype).nmant)


def magnitude_bits(x: Array) -> Array:
    """Return |x| as integers that order like magnitudes, with Inf above every number and NaN above Inf.

    These are the bit patterns without the sign, int32 or int64.
    """
    return x.view(np.int64) & (2**63 - 1) if x.dtype == np.float64 else x.view(np.int32) & (2**31 - 1)


def fractions(x: Array) -> Array:
    """Return 16 hash bits of integers, by Fibonacci hashing: in uint32, as parts of 2^16."""
    return (x.astype(np.uint32) * FIBONACCI) >> np.uint32(16)


def first_of(rounds: Array, number: int) -> Array:
    """Return each round's first of ``number`` receivers, by a hash: a remainder would take four times as long."""
    return ((fractions(rounds) * np.uint32(number)) >> np.uint32(16)).astype(rounds.dtype)


@lru_cache(maxsize=64)
def index_dtype(size: int) -> np.dtype:
    """Return the type of indices: int32 if it holds all of a vector of length ``size``, else int64."""
    return np.dtype(np.int32 if size <= 2**31 - 1 else np.int64)


def leave(a: Any, caller: Flattens[A]) -> A:
    """Return ``a`` as a writable array of the caller's library: the inverse of `enter`.

    It shares the memory of ``a``; a read-only ``a``, as ranks of a `World` share it, is copied.
    """
    if isinstance(a, np.ndarray) and not a.flags.writeable:
        a = a.copy()
    if isinstance(caller, np.ndarray) or not _is_torch(caller):
        return a
    torch = sys.modules["torch"]
    return torch.from_dlpack(a) if is_device(a) else torch.from_numpy(a)


def as_tensors(state: Any) -> Any:
    """Return a nested state with torch tensors, for `torch.load`, in place of NumPy arrays."""
    import torch

    if isinstance(state, dict):
        return {key: as_tensors(value) for key, value in state.items()}
    if type(state) in (list, tuple):
        return type(state)(map(as_tensors, state))
    if isinstance(state, np.ndarray):
        return torch.from_numpy(state if state.flags.writeable else state.copy())
    return state.item() if isinstance(state, np.generic) else state


def bytes_of(x: Any) -> memoryview | None:
    """Return the bytes of an array or tensor, in C order and host memory; None for others."""
    if _is_torch(x):
        torch = sys.modules["torch"]
        return x.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
    if not isinstance(x, np.ndarray) or x.dtype.hasobject:
        return None
    return np.ascontiguousarray(x).reshape(-1).view(np.uint8).data


def as_arrays(state: Any) -> Any:
    """Invert `as_tensors`."""
    if isinstance(state, Mapping):
        return {key: as_arrays(value) for key, value in state.items()}
    if type(state) in (list, tuple):
        return type(state)(map(as_arrays, state))
    try:
        return state.detach().cpu().numpy() if _is_torch(state) else state
    except TypeError:
        return state
