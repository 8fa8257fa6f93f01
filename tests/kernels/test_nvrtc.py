"""NVIDIA's runtime compiler takes the CUDA sources, for every GPU since Volta; it needs none for that."""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
from functools import cache
from pathlib import Path

import pytest

from sparse_mpi.kernels.base import SCALED

SOURCES = Path(importlib.util.find_spec("sparse_mpi.kernels").origin).parent / "cuda"
CAPABILITIES = (70, 75, 80, 86, 89, 90, 100)  # Volta, Turing, Ampere, Ada, Hopper, Blackwell
DAILY = (80, 90)
# What each source is compiled with besides, by those who start its kernels
VARIANTS = {
    "select.cu": [{"INDEX": "int32", "ROUNDS": 8}, {"INDEX": "int64", "ROUNDS": 8}]
    + [{"INDEX": "int32", "ROUNDS": 8, "GRADIENT": gradient} for gradient in ("float32", "float16", "uint16")],
    "histogram.cu": [{"THREADS": 1024}, {"THREADS": 1024, "IN_SHARED": 1}],
    "count.cu": [{}],
    "largest.cu": [{"INDEX": "int32", "DIGIT": 11}]
    + [{"INDEX": index, "DIGIT": 11, "THREADS": 1024} for index in ("int32", "int64")],
    "moments.cu": [{}],
    "dense.cu": [{}],
    "sketch.cu": [{"THREADS": 1024, "ROWS": 128}],
    "sparse.cu": [{"INDEX": "int32"}, {"INDEX": "int64"}],
    "bits.cu": [{"INDEX": index, "SCALED": SCALED} for index in ("int32", "int64")],
    "levels.cu": [{"INDEX": index, "THREADS": SCALED} for index in ("int32", "int64")],
}
HALF_TOO, HALVES = ("select.cu", "count.cu", "histogram.cu", "moments.cu"), ("float16", "uint16")
SINGLE_ONLY = ("bits.cu", "levels.cu")


@cache
def nvrtc() -> ctypes.CDLL | None:
    """Return NVIDIA's compiler; None where it is not installed."""
    spec = importlib.util.find_spec("nvidia.cuda_nvrtc") if importlib.util.find_spec("nvidia") else None
    folders = list(spec.submodule_search_locations or []) if spec else []
    found = [str(file) for folder in folders for file in sorted(Path(folder, "lib").glob("libnvrtc.so*"))]
    name = ctypes.util.find_library("nvrtc") or (found[0] if found else None)
    return ctypes.CDLL(name) if name else None


def architectures(library: ctypes.CDLL) -> set[int]:
    """Return the compute capabilities, times ten, that this version compiles for."""
    count = ctypes.c_int()
    assert library.nvrtcGetNumSupportedArchs(ctypes.byref(count)) == 0
    found = (ctypes.c_int * count.value)()
    assert library.nvrtcGetSupportedArchs(found) == 0
    return set(found)


def compile_for(library: ctypes.CDLL, capability: int, source: str, macros: dict[str, object]) -> None:
    """Compile a source, and raise with NVRTC's log if that fails."""
    code = (SOURCES / "types.cu").read_text() + (SOURCES / source).read_text()
    options = [f"--gpu-architecture=compute_{capability}", "--std=c++17", *(f"-D{k}={v}" for k, v in macros.items())]
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    assert library.nvrtcCreateProgram(ctypes.byref(program), code.encode(), b"kernels.cu", 0, None, None) == 0
    encoded = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    status = library.nvrtcCompileProgram(program, len(options), encoded)
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    assert status == 0, log.value.decode()


def test_every_source_is_compiled_here():
    assert {file.name for file in SOURCES.glob("*.cu")} == {"types.cu", *VARIANTS}


@pytest.mark.parametrize(
    "capability",
    [c if c in DAILY else pytest.param(c, marks=pytest.mark.full("as the others")) for c in CAPABILITIES],
)
@pytest.mark.parametrize("source", VARIANTS)
def test_nvrtc_takes_the_sources(source, capability):
    library = nvrtc()
    if library is None:
        pytest.skip("no NVRTC here: pip install nvidia-cuda-nvrtc-cu12")
    if capability not in architectures(library):
        pytest.skip(f"this NVRTC compiles for {sorted(architectures(library))}, not for {capability}")
    for macros in VARIANTS[source]:
        halves = HALVES if source in HALF_TOO and "GRADIENT" not in macros else ()
        for real in ("float32",) if source in SINGLE_ONLY else ("float32", "float64", *halves):
            compile_for(library, capability, source, {"THREADS": 256, "REAL": real, **macros})
