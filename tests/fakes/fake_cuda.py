"""``cupy.RawModule`` pretended: CUDA sources compiled for the CPU by g++, with ``cuda_emulation.h``, and really run."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path

import numpy as np

from sparse_mpi import kernels

from .fake_device import DEVICE, SelectedDevice, unheld
from .schedule import NOW

HEADER = Path(__file__).with_name("cuda_emulation.h")
COMPILER = shutil.which("g++")
RESIDENT, SEED = 3, 1  # blocks that run at a time; of the order of threads
MOST, MEMORY = 8, 65 << 20  # blocks that run at a time, at most; bytes of each, as the header has them
FLUSH = False  # whether the processor takes subnormal numbers for zero
FREE: list[np.ndarray] = []  # memory of blocks that no launch uses


@functools.cache
def folder() -> Path:
    """Return where compiled sources are kept: beside pytest's cache, or for this process only if that is read-only."""
    kept = Path(__file__).parents[2] / ".pytest_cache" / "cuda-emulation"
    with suppress(OSError):
        kept.mkdir(parents=True, exist_ok=True)
    if os.access(kept, os.W_OK):
        return kept
    made = tempfile.TemporaryDirectory(prefix="cuda-emulation-")
    folder.keep = made  # removed when the process ends
    return Path(made.name)


@functools.cache
def compiler() -> tuple[str, str]:
    """Return the text of the header and the version of the compiler, on which every library depends too."""
    version = subprocess.run([COMPILER, "--version"], capture_output=True, text=True, timeout=100)
    return HEADER.read_text(), version.stdout


def compile_using_nvrtc(code: str, options: tuple[str, ...] = (), arch=None, filename="kern.cu"):
    """``cupy.cuda.compiler``'s: the bytes of a library with a function ``run_KERNEL`` for every kernel."""
    kernels = re.findall(
        r'extern "C" __global__.*?(\w+)\s*\(', re.sub(r"__launch_bounds__\(\w+\)", "", code), re.DOTALL
    )
    code = re.sub(r"extern __shared__ (\w+) (\w+)\[\]", r"static thread_local \1 \2[1 << 16]", code)
    for name in kernels:
        code += f"""
extern "C" void run_{name}(unsigned blocks, int threads, unsigned resident, unsigned seed, bool flush, void** given,
                           char* memory) {{
    auto body = [](void** a) {{ emulated::call(&{name}, a); }};
    emulated::launch(blocks, threads, resident, seed, flush, body, given, memory);
}}
"""
    flags = ["-std=c++17", "-O1", "-ffp-contract=off", "-w", "-shared", "-fPIC", "-pthread"]
    flags += ["-U_FORTIFY_SOURCE"]  # Ubuntu's default ends a program whose jumps change stacks, as those of fibers do
    flags += ["-fno-gnu-unique"]  # or shared memory of inline functions would be one variable in all libraries
    flags += [option for option in options if option.startswith("-D")]
    with tempfile.TemporaryDirectory(dir=folder()) as own:
        source, made = Path(own) / "kernels.cpp", Path(own) / "kernels.so"
        source.write_text(code)
        command = [COMPILER, *flags, "-include", str(HEADER), "-o", str(made), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return made.read_bytes(), None


class Kernel:
    """``cupy.RawKernel``: called with grid, block and arguments, and run by ``run``.

    That gets blocks, threads, bytes of shared memory, the arguments, as numbers and as memory of the host, and which of
    them nobody has written to.
    """

    def __init__(self, run: Callable[..., None]) -> None:
        self.run = run
        self.max_dynamic_shared_size_bytes = 48 << 10

    def __call__(self, grid, block, arguments, *, shared_mem=0):
        assert (
            shared_mem
            <= self.max_dynamic_shared_size_bytes
            <= SelectedDevice.attributes["MaxSharedMemoryPerBlockOptin"]
        )
        # Structures are passed by value, as arrays of one element: what they hold now.
        arguments = [one.reshape(())[()].copy() if isinstance(one, np.ndarray) else one for one in arguments]
        # Device arrays: their memory, as it is after what was queued before.
        arrays = [argument for argument in arguments if not isinstance(argument, np.generic)]
        assert all(array.flags.c_contiguous for array in arrays)
        new = {id(array) for array in arrays if DEVICE.is_new(array._a)}
        DEVICE.work(*(array._a for array in arrays))
        given, told = [], []
        for argument in arguments:
            if isinstance(argument, np.uintp) and (own := DEVICE.pinned_at(int(argument))) is not None:
                # Memory of the host: it has what the kernel writes when the stream has been waited for.
                if not NOW:
                    told.append((own, own.copy()))
                given.append(own if NOW else told[-1][1])
            else:
                given.append(argument if isinstance(argument, np.generic) else unheld(argument._a))
        fresh = [id(argument) in new for argument in arguments]
        DEVICE.stack[-1].do(lambda: self.run(grid[0], block[0], shared_mem, given, fresh))
        for own, written in told:
            DEVICE.stack[-1].queue("host", own, written)


@contextmanager
def memory_of_blocks() -> Iterator[np.ndarray]:
    """Memory of a launch, which later ones use again: the system would have to clear other memory."""
    try:
        own = FREE.pop()
    except IndexError:
        own = np.empty(MOST * MEMORY, np.uint8)
    try:
        yield own
    finally:
        FREE.append(own)


def emulate(function, flush: bool, blocks: int, threads: int, shared_bytes: int, given: list, new: list[bool]) -> None:
    words = [np.array([one.ctypes.data if isinstance(one, np.ndarray) else one]) for one in given]
    pointers = (ctypes.c_void_p * len(words))(*(word.ctypes.data for word in words))
    assert RESIDENT <= MOST
    with memory_of_blocks() as own:
        function(blocks, threads, RESIDENT, SEED, flush or FLUSH, pointers, ctypes.c_void_p(own.ctypes.data))


class RawModule:
    """``cupy.RawModule``. Of source code, CuPy makes one that flushes subnormal numbers, whatever the options say."""

    def __init__(self, *, code: str | None = None, path: str | None = None, options: tuple[str, ...] = ()) -> None:
        assert (code is None) != (path is None)
        self.flush = code is not None
        with tempfile.NamedTemporaryFile() as made:
            if code is not None:
                made.write(compile_using_nvrtc(code, options)[0])
                made.flush()
            self.library = ctypes.CDLL(path or made.name)

    def get_function(self, name: str) -> Kernel:
        return Kernel(functools.partial(emulate, getattr(self.library, f"run_{name}"), self.flush))


def install_kernels(monkeypatch):
    """On top of `fake_array.install`: return the CUDA kernels, imported anew, for they keep the CuPy that they find."""
    monkeypatch.setenv("CUPY_CACHE_DIR", str(folder()))  # what is compiled serves all processes and runs
    monkeypatch.delenv("CUPY_CACHE_IN_MEMORY", raising=False)
    name = "sparse_mpi.kernels.cuda"
    for module in [module for module in sys.modules if module == name or module.startswith(f"{name}.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delattr(kernels, "cuda", raising=False)
    found = import_module(name)
    for module in [module for module in sys.modules if module == name or module.startswith(f"{name}.")]:
        monkeypatch.setitem(sys.modules, module, sys.modules[module])  # gone after the test
    monkeypatch.setattr(kernels, "device", lambda: found)
    return found
