"""NVIDIA's runtime compiler, which needs no GPU: from a CUDA source to PTX."""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
from functools import cache
from pathlib import Path

ADDED = "--device-as-default-execution-space"  # to every compilation, by CuPy


@cache
def nvrtc() -> ctypes.CDLL | None:
    """Return NVIDIA's compiler, of the system or of a wheel for CUDA 12 or 13; None where it is not installed."""
    name = ctypes.util.find_library("nvrtc")
    if name is None:
        parent = importlib.util.find_spec("nvidia")
        roots = [Path(root) for root in parent.submodule_search_locations] if parent else []
        folders = [root / part / "lib" for root in roots for part in ("cu13", "cuda_nvrtc")]
        found = [file for folder in folders for file in sorted(folder.glob("libnvrtc.so*"))]
        if not found:
            return None
        name = str(found[0])
        # The compiler asks for it by its bare name, which finds what is loaded already
        for builtins in sorted(found[0].parent.glob("libnvrtc-builtins.so*")):
            ctypes.CDLL(str(builtins), ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(name)


def architectures(library: ctypes.CDLL) -> set[int]:
    """Return the compute capabilities, times ten, that this version compiles for."""
    count = ctypes.c_int()
    assert library.nvrtcGetNumSupportedArchs(ctypes.byref(count)) == 0
    found = (ctypes.c_int * count.value)()
    assert library.nvrtcGetSupportedArchs(found) == 0
    return set(found)


def version(library: ctypes.CDLL) -> tuple[int, int]:
    numbers = ctypes.c_int(), ctypes.c_int()
    assert library.nvrtcVersion(*map(ctypes.byref, numbers)) == 0
    return numbers[0].value, numbers[1].value


def text_of(program: ctypes.c_void_p, size_of, read) -> str:
    """Return a text that NVRTC has of a program."""
    size = ctypes.c_size_t()
    assert size_of(program, ctypes.byref(size)) == 0
    text = ctypes.create_string_buffer(size.value)
    assert read(program, text) == 0
    return text.value.decode()


def ptx_of(library: ctypes.CDLL, code: str, options: tuple[str, ...]) -> str:
    """Compile a source, and raise with NVRTC's log if that fails."""
    program = ctypes.c_void_p()
    assert library.nvrtcCreateProgram(ctypes.byref(program), code.encode(), b"kernels.cu", 0, None, None) == 0
    encoded = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    status = library.nvrtcCompileProgram(program, len(options), encoded)
    assert status == 0, text_of(program, library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog)
    ptx = text_of(program, library.nvrtcGetPTXSize, library.nvrtcGetPTX)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return ptx
