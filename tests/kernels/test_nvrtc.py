"""NVIDIA's runtime compiler takes the CUDA sources; it needs no GPU for that."""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
from pathlib import Path

import pytest


def nvrtc():
    """NVIDIA's compiler as a library, which needs no GPU; None where it is not."""
    spec = importlib.util.find_spec("nvidia.cuda_nvrtc") if importlib.util.find_spec("nvidia") else None
    folders = list(spec.submodule_search_locations or []) if spec else []
    found = [str(file) for folder in folders for file in sorted(Path(folder, "lib").glob("libnvrtc.so*"))]
    name = ctypes.util.find_library("nvrtc") or (found[0] if found else None)
    return name and ctypes.CDLL(name)


VARIANTS = {
    "select.cu": [{"INDEX": "int32", "ROUNDS": 8}, {"INDEX": "int64", "ROUNDS": 8}]
    + [{"INDEX": "int32", "ROUNDS": 8, "GRADIENT": gradient} for gradient in ("float32", "float16", "uint16")],
    "histogram.cu": [{"THREADS": 1024}, {"THREADS": 1024, "IN_SHARED": 1}],
    "rows.cu": [{}, {"THREADS": 1024}],
    "moments.cu": [{}],
    "sketch.cu": [{"THREADS": 1024, "ROWS": 128}],
    "sparse.cu": [{"INDEX": "int32"}, {"INDEX": "int64"}],
}


@pytest.mark.parametrize("architecture", ["compute_80", "compute_90"])
@pytest.mark.parametrize("real", ["float32", "float64"])
@pytest.mark.parametrize("source", VARIANTS)
def test_nvrtc_takes_the_sources(source, real, architecture):
    library = nvrtc()
    if library is None:
        pytest.skip("no NVRTC here: pip install nvidia-cuda-nvrtc-cu12")
    folder = Path(importlib.util.find_spec("sparse_mpi.kernels").origin).parent / "cuda"
    code = (folder / "types.cu").read_text() + (folder / source).read_text()
    for macros in VARIANTS[source]:
        defined = {"THREADS": 256, "REAL": real, **macros}
        options = [f"--gpu-architecture={architecture}", "--std=c++17", *(f"-D{k}={v}" for k, v in defined.items())]
        program, size = ctypes.c_void_p(), ctypes.c_size_t()
        assert library.nvrtcCreateProgram(ctypes.byref(program), code.encode(), b"kernels.cu", 0, None, None) == 0
        encoded = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        status = library.nvrtcCompileProgram(program, len(options), encoded)
        library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        library.nvrtcGetProgramLog(program, log)
        assert status == 0, log.value.decode()
