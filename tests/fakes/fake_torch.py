"""torch pretended on a device: tensors that say they are there, compute on the CPU, and are as strict as CUDA's.

A tensor on the host that meets one on the device raises, unless it is a scalar or an index; so does NumPy. What makes
the host wait is recorded by the `fake_device`: ``item``, ``cpu``, a boolean mask, and so on. Autocast does nothing, and
what autograd does beneath Python, the sums of gradients above all, happens in plain tensors; hooks on gradients find
them on the device, and are called by the one thread that torch has for it, which all threads of a process share.
"""

from __future__ import annotations

import functools
from concurrent.futures import Future
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Thread, current_thread
from types import SimpleNamespace

import torch
from torch import nn

from .fake_device import DEVICE, SelectedDevice, TorchStream

T = torch.Tensor
PLAIN_TO = T.to
WAITING = {T.item, T.tolist, T.__bool__, T.__int__, T.__float__, T.__index__, T.nonzero, torch.nonzero, T.masked_select}
WAITING |= {T.equal, torch.equal}
CROSSING = {T.copy_, T.__getitem__, T.__setitem__, torch._C.TensorBase.__getitem__, torch._C.TensorBase.__setitem__}
# Functions of sequences, whose lengths are on the host
ASKED: list[int] = []  # bytes that were fetched, one entry for each time that torch made the host wait
OF_LENGTHS = {"_pack_padded_sequence", "_pad_packed_sequence", "lstm", "ctc_loss"}
FACTORIES = "arange as_tensor empty eye full linspace ones rand randint randn randperm tensor zeros".split()


class CudaTensor(T):
    """A torch tensor that says it is on the device."""

    device = property(lambda self: torch.device("cuda", DEVICE.here))
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if "device" in kwargs:
            kwargs["device"] = None if on_device(kwargs["device"]) else kwargs["device"]
        if function is T.view_as and plain(args[0]):
            return args[0].view(args[1].shape)
        found = list(tensors((args, kwargs)))
        of_lengths = getattr(function, "__name__", "") in OF_LENGTHS
        strangers = [x for x in found if plain(x) and x.dim() and (x.is_floating_point() or not of_lengths)]
        if strangers and function not in CROSSING:
            raise RuntimeError(f"Expected all tensors to be on the same device: {function.__name__}")
        masks = function in CROSSING and any(x.dtype == torch.bool for x in tensors(args[1:2]))
        if function in WAITING or masks:
            waited(sum(x.nbytes for x in found[:1]))
        if function is T.copy_:
            crossed(*found[:2])
        DEVICE.stream(DEVICE.torch[-1]).work.finish()  # torch comes after what its stream has been told
        with torch._C.DisableTorchFunctionSubclass():
            result = function(*args, **kwargs)
        return on(result, numbers=not of_lengths)

    def numpy(self, *, force=False):
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")

    __array__ = numpy

    def __reduce_ex__(self, protocol):
        """As a plain tensor: what is pickled is loaded to the CPU."""
        return host(self).__reduce_ex__(protocol)

    def __deepcopy__(self, memo):
        made = on(self.detach().clone())
        return nn.Parameter(made, self.requires_grad) if isinstance(self, nn.Parameter) else made

    def record_stream(self, stream):
        pass


def plain(x: T) -> bool:
    """Whether a tensor is on the host."""
    return not isinstance(x, CudaTensor)


def on_device(device) -> bool:
    """Whether an argument of torch's names the device."""
    return device is not None and torch.device(device).type == "cuda"


def tensors(tree):
    if isinstance(tree, T):
        yield tree
    elif isinstance(tree, dict):
        yield from tensors(list(tree.values()))
    elif isinstance(tree, (tuple, list)):
        for part in tree:
            yield from tensors(part)


def on(tree, numbers: bool = True):
    if isinstance(tree, T):
        return cast(tree, CudaTensor) if plain(tree) and (numbers or tree.is_floating_point()) else tree
    if isinstance(tree, (tuple, list)):
        parts = [on(part, numbers) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return tree


def host(x: CudaTensor) -> T:
    """The memory behind a tensor on the device, as a plain tensor."""
    with torch._C.DisableTorchFunctionSubclass():
        return cast(x, T)


def cast(x: T, kind: type) -> T:
    """A tensor as one of another class; a sparse one has no memory of its own."""
    return x.as_subclass(kind) if x.layout == torch.strided else T._make_subclass(kind, x)


def waited(size: int) -> None:
    """The host waits for the current stream of torch, and fetches so many bytes."""
    ASKED.append(size)
    stream = DEVICE.stream(DEVICE.torch[-1])
    stream.synchronize()
    if size:
        DEVICE.copied("host", SimpleNamespace(nbytes=size))


def crossed(to: T, source: T) -> None:
    """What ``copy_`` moves over the bus, if anything."""
    if plain(to) and not plain(source):
        waited(source.nbytes)
    elif plain(source) and not plain(to):
        DEVICE.copied("device", SimpleNamespace(nbytes=source.nbytes))


def move(x: T, *args, **kwargs) -> T:
    """``Tensor.to``."""
    if args and isinstance(args[0], T):
        device, dtype = args[0].device, args[0].dtype
    else:
        device, dtype = torch._C._nn._parse_to(*args, **{k: v for k, v in kwargs.items() if k != "copy"})[:2]
    here = "cpu" if plain(x) else "cuda"
    there = here if device is None else device.type
    if there == "meta" or x.device.type == "meta":
        return PLAIN_TO(x, *args, **kwargs)
    options = {} if dtype is None else {"dtype": dtype}
    copied = kwargs.get("copy", False) or here != there
    moved = PLAIN_TO(x if plain(x) else host(x), copy=copied, **options) if options or copied else x
    if here == there == "cpu":
        return moved
    if there == "cpu":
        waited(x.nbytes)
        return moved
    if here == "cpu":
        DEVICE.copied("device", SimpleNamespace(nbytes=x.nbytes))
    return on(moved)


def place(module: nn.Module, device=None, dtype=None) -> nn.Module:
    """``Module.to`` of a device; parameters that are shared stay so."""
    if not on_device(device):
        return PLAIN_PLACE(module, device, dtype)
    moved: dict[int, T] = {}
    for part in module.modules():
        for table in (part._parameters, part._buffers):
            for name, x in table.items():
                if x is not None and id(x) not in moved:
                    there = move(x.detach(), device, dtype if x.is_floating_point() else None)
                    moved[id(x)] = nn.Parameter(there, x.requires_grad) if isinstance(x, nn.Parameter) else there
                if x is not None:
                    table[name] = moved[id(x)]
        if isinstance(part, nn.RNNBase):
            part._init_flat_weights()
    return module


PLAIN_PLACE = nn.Module.to


def factory(make):
    """A function that makes tensors, where it is told to, on the device."""

    @functools.wraps(make)
    def call(*args, device=None, **kwargs):
        if on_device(device):
            return on(make(*args, **kwargs))
        return make(*args, **kwargs) if device is None else make(*args, device=device, **kwargs)

    return call


def assembled(make):
    """A function that makes a sparse tensor of others, where these are."""

    @functools.wraps(make)
    def call(*parts, **options):
        found = list(tensors(parts))
        if all(map(plain, found)):
            return make(*parts, **options)
        if any(map(plain, found)):
            raise RuntimeError(f"Expected all tensors to be on the same device: {make.__name__}")
        return on(make(*[host(part) if isinstance(part, T) else part for part in parts], **options))

    return call


def hook_on(x: T, hook):
    """``Tensor.register_post_accumulate_grad_hook``: a backward pass calls hooks with the pretence switched off."""

    def call(parameter: T) -> None:
        with torch._C._EnableTorchFunction():
            if not plain(parameter) and parameter.grad is not None:
                parameter.grad = on(parameter.grad)
            hook(parameter)

    return PLAIN_HOOK(x, call)


PLAIN_HOOK = T.register_post_accumulate_grad_hook


class Autograd(Thread):
    """The thread of torch that goes through the backward passes of a device, one after the other."""

    def __init__(self) -> None:
        super().__init__(name="autograd of the device", daemon=True)
        self.given: SimpleQueue = SimpleQueue()

    def run(self) -> None:
        while True:
            future, work = self.given.get()
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)
            del future, work  # or they would live until the next pass

    def call(self, work):
        """What ``work()`` returns, called on this thread."""
        number = DEVICE.number

        def on_its_device():
            DEVICE.number = number  # torch has a thread for each device, where that is current
            return work()

        self.given.put((future := Future(), on_its_device))
        return future.result()


@functools.cache
def autograd() -> Autograd:
    """The thread, once it is needed."""
    thread = Autograd()
    thread.start()
    return thread


def backward(x: T, *args, **options) -> None:
    """``Tensor.backward``."""
    work = functools.partial(PLAIN_BACKWARD, x, *args, **options)
    if plain(x) or current_thread() is autograd():
        return work()
    return autograd().call(work)


PLAIN_BACKWARD = T.backward


class Stream(TorchStream):
    """``torch.cuda.Stream``: one of the fake device's."""

    def __init__(self, device=None) -> None:
        super().__init__(DEVICE.stream(2000 + len(DEVICE.streams)).ptr)

    def wait_stream(self, other: TorchStream) -> None:
        DEVICE.stream(self.cuda_stream).wait_event(DEVICE.stream(other.cuda_stream).record())


class DeviceFuture(torch.futures.Future):
    """``torch.futures.Future`` of tensors on the device: whoever takes its value comes after the stream that set it."""

    __class_getitem__ = classmethod(lambda cls, item: cls)  # in annotations

    def __init__(self, *, devices=None) -> None:
        super().__init__()
        self.devices = devices or []

    def set_result(self, result) -> None:
        self.event = DEVICE.stream(DEVICE.torch[-1]).record()
        super().set_result(result)

    def value(self):
        if self.devices:
            DEVICE.stream(DEVICE.torch[-1]).wait_event(self.event)
        return super().value()


@contextmanager
def entered(stream: TorchStream):
    """``torch.cuda.stream``."""
    with stream:
        yield


def current(device=None) -> Stream:
    """``torch.cuda.current_stream``."""
    found = Stream.__new__(Stream)
    found.cuda_stream = DEVICE.torch[-1]
    return found


def install_torch(monkeypatch, gpus: int = 1) -> None:
    """On top of `fake_array.install`: have torch, too, believe in ``gpus`` of the devices."""
    for name in FACTORIES:
        monkeypatch.setattr(torch, name, factory(getattr(torch, name)))
    for name in ("sparse_coo_tensor", "sparse_csr_tensor"):
        monkeypatch.setattr(torch, name, assembled(getattr(torch, name)))
    monkeypatch.setattr(T, "to", move)
    monkeypatch.setattr(T, "cpu", lambda x: move(x, "cpu"))
    monkeypatch.setattr(T, "cuda", lambda x, *_, **__: move(x, "cuda"))
    monkeypatch.setattr(T, "pin_memory", lambda x: x.clone())
    monkeypatch.setattr(T, "register_post_accumulate_grad_hook", hook_on)
    monkeypatch.setattr(T, "backward", backward)
    monkeypatch.setattr(nn.Module, "to", place)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.futures, "Future", DeviceFuture)
    told = {
        "is_available": lambda: True,
        "device_count": lambda: gpus,
        "set_device": lambda device: SelectedDevice(
            device if isinstance(device, int) else torch.device(device).index or 0
        ).use(),
        "get_device_name": lambda device=None: "a pretended GPU",
        "synchronize": lambda device=None: waited(0),
        "current_stream": current,
        "Stream": Stream,
        "stream": entered,
    }
    for name, value in told.items():
        monkeypatch.setattr(torch.cuda, name, value)
