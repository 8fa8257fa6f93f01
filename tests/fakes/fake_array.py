"""CuPy pretended: arrays of the `fake_device`, the functions the library uses, and torch tensors on that device.

Stricter than CuPy. A NumPy array that meets a device array raises, as an operand, as an index or as an argument, and so
does a device array that NumPy is to work on: whatever crosses goes through `asarray`, `asnumpy`, `get`, `set` or a
scalar, and is recorded.
"""

from __future__ import annotations

import operator
import sys
from functools import partialmethod
from types import ModuleType, SimpleNamespace

import numpy as np
import torch

from sparse_mpi import kernels
from sparse_mpi.arrays import index_dtype, magnitude_bits, widened
from sparse_mpi.kernels import array
from sparse_mpi.kernels.base import SCALED, Later

from ..ptx import arithmetic
from . import fake_cuda
from .fake_device import CUDA, DEVICE, TORCH_MEMORY, Device, SelectedDevice, TorchStream, allocate, memory_of, unheld
from .fake_torch import CudaTensor
from .schedule import NOW

# What the library may use of CuPy, where CuPy's function does what NumPy's does
FUNCTIONS = """
abs add all any arange argpartition argsort ascontiguousarray bincount bitwise_and clip concatenate copyto
count_nonzero cumsum diff dot exp flatnonzero floor full isfinite isnan left_shift log matmul maximum
mean minimum nonzero ones packbits partition roll searchsorted sign sort sqrt stack sum take take_along_axis tanh
unique unpackbits where zeros zeros_like
""".split()
COUNTING = {"bincount", "flatnonzero", "nonzero", "unique"}  # as long as what they find
BINARY = "add sub mul truediv floordiv mod pow and_ or_ xor lshift rshift lt le gt ge eq ne matmul".split()
IN_PLACE = {"partition", "sort"}
SHAPING = {"ravel", "reshape", "transpose"}
METHODS = (
    "all any argsort clip cumsum dot max mean min nonzero partition prod ravel reshape sort sum take transpose".split()
)


def host_of(x, memory=lambda x: DEVICE.read(x._a)):
    """The ``memory`` behind an argument, which is read; host arrays are refused."""
    if isinstance(x, ndarray):
        return memory(x)
    if isinstance(x, (tuple, list)):
        return type(x)(host_of(part, memory) for part in x)
    if isinstance(x, dict):
        return {name: host_of(part, memory) for name, part in x.items()}
    if isinstance(x, np.ndarray):
        raise TypeError(f"Unsupported type {type(x)}: a host array where a device array is expected")
    return x


def wrap(result, worked: bool = True):
    """NumPy's result as a device array, scalars too; ``worked`` unless it is a view or not written yet."""
    if isinstance(result, (tuple, list)):
        return type(result)(wrap(part, worked) for part in result)
    if not isinstance(result, (np.ndarray, np.generic, int)):
        return result
    a = np.asarray(result)
    if worked and NOW:
        a, computed = empty(a.shape, a.dtype)._a, a
        a[...] = computed
    if worked:
        DEVICE.work(allocate(a))
    return ndarray._of(a)


def compute(function, *inputs, **options):
    """What the current stream works out: ``function`` of NumPy arrays, as long as its arguments say, not their values.

    Under a schedule it is first told the shapes by zeros.
    """
    given = host_of((inputs, options))
    if not NOW:
        return wrap(function(*given[0], **given[1]))
    like, later = (host_of((inputs, options), memory) for memory in (zeros_like, lambda x: unheld(x._a)))
    with np.errstate(all="ignore"):
        made = empty_of(function(*like[0], **like[1]))
    there = unheld_of(made)
    DEVICE.stack[-1].do(lambda: fill(there, function(*later[0], **later[1])))
    return made


def zeros_like(x: ndarray) -> np.ndarray:
    return np.zeros(x.shape, x.dtype)


def empty_of(result):
    """Device arrays that are like a result, which the current stream is to write."""
    if isinstance(result, (tuple, list)):
        return type(result)(map(empty_of, result))
    a = np.asarray(result)
    made = empty(a.T.shape, a.dtype).T if a.flags.fnc else empty(a.shape, a.dtype)
    DEVICE.work(made._a)
    return made


def unheld_of(made):
    return [*map(unheld_of, made)] if isinstance(made, (tuple, list)) else unheld(made._a)


def fill(there, result) -> None:
    if isinstance(there, list):
        for part, own in zip(there, result, strict=True):
            fill(part, own)
    else:
        there[...] = result


def change(target: ndarray, function, *inputs, **options) -> None:
    """Have the current stream do ``function``, which writes to ``target``."""
    host_of((inputs, options))
    DEVICE.work(target._a)
    given, options = host_of((inputs, options), lambda x: unheld(x._a))
    there = unheld(target._a)
    DEVICE.stack[-1].do(lambda: function(there, *given, **options))


def empty(shape, dtype=float):
    """``cupy.empty``."""
    shape, dtype = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape), np.dtype(dtype)
    return ndarray._of(NOW[0].empty(shape, dtype, DEVICE.stack[-1]) if NOW else allocate(np.empty(shape, dtype)))


def is_mask(key) -> bool:
    """Whether an index is a mask, or holds one."""
    return any(isinstance(part, ndarray) and part.dtype == bool for part in (key if isinstance(key, tuple) else (key,)))


def counted() -> None:
    """The host waits for a number on which the length of a result depends."""
    DEVICE.stack[-1].synchronize()
    DEVICE.copied("host", np.empty(1, np.int64))


def is_view(found, a: np.ndarray) -> bool:
    """Whether NumPy's result is of the memory of ``a``, be it empty."""
    return isinstance(found, np.ndarray) and memory_of(found) is memory_of(a)


class ndarray:
    """``cupy.ndarray``."""

    __hash__ = None
    __array_priority__ = 100

    @classmethod
    def _of(cls, a: np.ndarray) -> ndarray:
        made = cls.__new__(cls)
        made._a = a
        return made

    def __array__(self, *_, **__):
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()`")

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        out = options.pop("out", None)
        assert out is None and method == "__call__", "NumPy works on a device array"
        return compute(ufunc, *inputs, **options)

    def __array_function__(self, function, types, arguments, options):
        raise TypeError(f"numpy.{function.__name__} on a device array; use the functions of namespace(x)")

    flags = property(lambda self: SimpleNamespace(c_contiguous=self._a.flags.c_contiguous, owndata=True))
    T = property(lambda self: wrap(self._a.T, worked=False))
    data = property(lambda self: SimpleNamespace(ptr=self._a.ctypes.data))
    device = property(lambda self: SelectedDevice(DEVICE.device_of(self._a)))

    def __len__(self):
        return len(self._a)

    def __getitem__(self, key):
        if is_mask(key):
            counted()
            return wrap(host_of(self)[host_of(key)])
        found = self._a[host_of(key, zeros_like)]
        if is_view(found, self._a):
            return wrap(found, worked=False)
        return compute(operator.getitem, self, key)

    def __setitem__(self, key, value):
        if is_mask(key) and isinstance(value, ndarray) and value.ndim:
            counted()
        change(self, operator.setitem, key, value)

    def _scalar(self, kind):
        DEVICE.stack[-1].synchronize()
        DEVICE.copied("host", DEVICE.read(self._a))
        return kind(self._a)

    def item(self):
        return self._scalar(np.ndarray.item)

    def view(self, dtype=None):
        return wrap(self._a.view(dtype), worked=False)

    def __deepcopy__(self, _):
        return self.copy()

    def astype(self, dtype, copy=True):
        if not copy and self.dtype == dtype:
            return self
        return compute(arithmetic.converted, self, np.dtype(dtype))

    def copy(self):
        return compute(np.ndarray.copy, self)

    def fill(self, value):
        change(self, np.ndarray.fill, value)

    def get(self, stream=None, order="C", out=None, blocking=True):
        stream = stream or DEVICE.stack[-1]
        out = np.empty(self.shape, self.dtype) if out is None else out
        assert out.flags.c_contiguous and (out.shape, out.dtype) == (self.shape, self.dtype)
        stream.flush("device")
        DEVICE.copied("host", out)
        stream.queue("host", out, DEVICE.read(self._a))
        if blocking:
            stream.synchronize()
        return out

    def set(self, host, stream=None):
        assert type(host) is np.ndarray and (host.shape, host.dtype) == (self.shape, self.dtype)
        DEVICE.copied("device", host)
        DEVICE.touch(self._a, write=True)
        (stream or DEVICE.stack[-1]).queue("device", self._a, host)

    def tobytes(self):
        return self.get().tobytes()

    def tolist(self):
        return self.get().tolist()

    def _handed_out(self) -> np.ndarray:
        if id(memory_of(self._a)) in DEVICE.written:
            DEVICE.early.append(self.nbytes)
        return self._a

    @property
    def __cuda_array_interface__(self):
        return self._handed_out().__array_interface__ | {"version": 3, "stream": None}

    def __dlpack__(self, *, stream=None, max_version=None, **_):
        return self._handed_out().__dlpack__(max_version=max_version)

    def __dlpack_device__(self):
        return self._a.__dlpack_device__()


def _in_place(name: str):
    function = getattr(operator, f"i{name}")

    def work(self, other):
        change(self, function, other)
        return self

    return work


def _method(name: str):
    function = getattr(np.ndarray, name)

    def call(self, *arguments, **options):
        if name in COUNTING:
            counted()
            return wrap(function(host_of(self)))
        if name in SHAPING and is_view(found := function(self._a, *arguments, **options), self._a):
            return wrap(found, worked=False)
        if name in IN_PLACE:
            return change(self, function, *arguments, **options)
        return compute(function, self, *arguments, **options)

    return call


for _name in BINARY:
    _plain, _of = _name.strip("_"), getattr(operator, _name)
    setattr(ndarray, f"__{_plain}__", lambda self, other, of=_of: compute(of, self, other))
    if _name not in ("lt", "le", "gt", "ge", "eq", "ne"):
        setattr(ndarray, f"__r{_plain}__", lambda self, other, of=_of: compute(of, other, self))
        setattr(ndarray, f"__i{_plain}__", _in_place(_plain))
for _of in (operator.neg, operator.abs, operator.invert):
    setattr(ndarray, f"__{_of.__name__}__", lambda self, of=_of: compute(of, self))
for _name in ("dtype", "shape", "ndim", "size", "nbytes", "itemsize"):
    setattr(ndarray, _name, property(lambda self, name=_name: getattr(self._a, name)))
for _name, _kind in {"int": int, "index": int, "float": float, "bool": bool}.items():
    setattr(ndarray, f"__{_name}__", partialmethod(ndarray._scalar, _kind))
for _name in METHODS:
    setattr(ndarray, _name, _method(_name))


def asnumpy(a, stream=None, order="C", out=None, *, blocking=True):
    return a.get(stream, order, out, blocking)


def create(a, dtype=None, copy=True, order="K"):
    """``cupy.array``."""
    if isinstance(a, ndarray):
        return a if not copy and dtype in (None, a.dtype) else compute(np.array, a, dtype, order=order)
    host = np.array(a, dtype, order="C")
    DEVICE.copied("device", host)
    made = empty(host.shape, host.dtype)
    DEVICE.work(made._a, launches=0)
    there = unheld(made._a)
    DEVICE.stack[-1].do(lambda: np.copyto(there, host))
    return made


def asarray(a, dtype=None, order=None):
    return a if isinstance(a, ndarray) and dtype in (None, a.dtype) else create(a, dtype)


def from_dlpack(x):
    """``cupy.from_dlpack``, of a tensor on the device."""
    assert isinstance(x, CudaTensor)
    return wrap(x.as_subclass(torch.Tensor).numpy(), worked=False)


def to_torch(a: ndarray) -> CudaTensor:
    """``torch.from_dlpack``, of a device array."""
    return torch.from_numpy(a._a).as_subclass(CudaTensor)


def _function(name: str):
    function = getattr(np, name)

    def call(*arguments, **options):
        if name in COUNTING:
            counted()
            return wrap(function(*host_of(arguments), **host_of(options)))
        if "out" in options:
            out = options.pop("out")
            change(out, lambda there, *given, **others: function(*given, out=there, **others), *arguments, **options)
            return out
        if name == "copyto":
            return change(arguments[0], function, *arguments[1:], **options)
        if name == "ascontiguousarray":
            own = arguments[0]._a
            if is_view(found := function(own, *arguments[1:], **options), own):
                return wrap(found, worked=False)
        return compute(function, *arguments, **options)

    return call


def top_k(x, k):
    """The kernel of that name, by a sort."""
    columns, values = array.top_k_rows(widened(x)[None], k)
    return columns[0].astype(index_dtype(len(x))), values[0], int(magnitude_bits(values).min())


def largest(x, k, threshold, most, add=None, squares=None):
    """The kernel of that name, by `top_k`."""
    if add is not None:
        array.accumulate(x, add)
    scores = x if squares is None else array.standardized(x, squares)
    indices, values, least = top_k(scores, k)
    return indices, values + x.dtype.type(0), least, int((magnitude_bits(scores) >= threshold).sum())


def select_rows(x, tables, entries):
    """The kernel of that name, row by row."""
    indices, values = np.empty(entries, index_dtype(len(x))), np.empty(entries, x.dtype)
    for start, length, quota, at in np.concatenate(tables).tolist():
        columns, found = array.top_k_rows(x[None, start : start + length], quota)
        indices[at : at + quota], values[at : at + quota] = start + columns[0], found[0]
    return indices, values


def write_int8(messages, values, short):
    """The kernel of that name, by those that it is made of; every block of values is one of a message."""
    values, edges = DEVICE.read(values._a), edges_of(messages)
    indices = np.concatenate([np.arange(entries) + start for entries, start in messages[["entries", "start"]].tolist()])
    codes, scales = array.to_int8(values, indices, edges, short)
    return array.write_messages(messages, indices, codes, scales), array.from_int8(codes, scales, edges)


def read_int8(messages, buffer, size):
    indices, codes, scales = array.read_messages(messages, DEVICE.read(buffer._a), size)
    return indices, array.from_int8(codes.view(np.int8), scales, edges_of(messages))


def edges_of(messages) -> np.ndarray:
    """Where the blocks of values begin that share a scale, and where the last one ends."""
    parts = [first + np.arange(0, entries, SCALED) for first, entries in messages[["first", "entries"]].tolist()]
    return np.append(np.concatenate(parts), messages["entries"].sum()).astype(np.int64)


CHANGING = "accumulate add add_dealt add_in_order subtract subtract_dense clear mark follow_squares".split()


class WholeArrays:
    """The kernels of whole arrays, at work on the memory behind device arrays."""

    def __getattr__(self, name: str):
        def call(*arguments, **options):
            passed = [argument for argument in arguments if isinstance(argument, ndarray)]
            if name in CHANGING:
                given = [one.tolist() if isinstance(one, np.ndarray) else one for one in arguments[1:]]
                return change(*arguments[:1], getattr(array, name), *given, **options)
            DEVICE.stack[-1].work.finish()
            if name == "largest":
                DEVICE.work(passed[0]._a)
            if name in ("select", "merge", "merge_loosely", "merge_runs"):
                counted()
            if name == "select_rows":
                return wrap(select_rows(DEVICE.read(arguments[0]._a), *arguments[1:]))
            if name in ("write_int8", "read_int8"):
                return wrap(globals()[name](*arguments))
            if name in ("largest", "top_k"):
                found = globals()[name](*map(behind, arguments), **{key: behind(x) for key, x in options.items()})
                return *wrap(found[:2]), *(Later(lambda number=number: number) for number in found[2:])
            found = getattr(array, name)(*map(behind, arguments), **{key: behind(x) for key, x in options.items()})
            if name in ("count", "moments", "sketch", "split_counts"):
                return found
            return (*wrap(found[:2]), found[2]) if name == "truncate_least" else wrap(found)

        return call


def behind(x):
    """The memory behind an argument, also in a nested sequence; what is on the host stays as it is."""
    return x if isinstance(x, np.ndarray) else host_of(x)


def install(monkeypatch) -> Device:
    """Have ``import cupy`` find the pretended one, and torch agree; the record starts anew."""
    cupy = ModuleType("cupy")
    cupy.ndarray, cupy.array, cupy.asarray = ndarray, create, asarray
    cupy.asnumpy, cupy.from_dlpack = asnumpy, from_dlpack
    for name in FUNCTIONS:
        setattr(cupy, name, _function(name))
    cupy.empty, cupy.empty_like = empty, lambda x, dtype=None: empty(x.shape, dtype or x.dtype)
    cupy.linalg = SimpleNamespace(qr=lambda a: compute(lambda a: tuple(np.linalg.qr(a)), a))
    cupy.__version__ = "14.2.0"
    cupy.RawModule = fake_cuda.RawModule
    cupy.cuda = CUDA
    CUDA.compiler = SimpleNamespace(compile_using_nvrtc=fake_cuda.compile_using_nvrtc)
    CUDA.nvrtc = SimpleNamespace(getVersion=fake_cuda.compiler)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "cupy.cuda.nccl", SimpleNamespace(available=False))
    monkeypatch.setattr(torch, "from_dlpack", to_torch)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: TorchStream(DEVICE.torch[-1]))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: DEVICE.torch[-1] in DEVICE.captured)
    monkeypatch.setattr(torch.cuda, "caching_allocator_alloc", TORCH_MEMORY.alloc)
    monkeypatch.setattr(torch.cuda, "caching_allocator_delete", TORCH_MEMORY.delete)
    monkeypatch.setattr(torch.cuda, "ExternalStream", TorchStream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    monkeypatch.setattr(kernels, "device", WholeArrays)
    DEVICE.__init__()
    return DEVICE
