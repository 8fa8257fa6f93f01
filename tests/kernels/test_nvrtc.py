"""NVIDIA's runtime compiler takes the CUDA sources as the product has them compiled, for every GPU since Volta."""

from __future__ import annotations

import ctypes
import importlib.util
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from sparse_mpi.kernels import adam
from sparse_mpi.kernels.base import SCALED

from ..fakes import fake_cuda
from ..fakes.fake_array import install
from ..ptx.nvrtc import ADDED, architectures, nvrtc, ptx_of

SOURCES = Path(importlib.util.find_spec("sparse_mpi.kernels").origin).parent / "cuda"
CAPABILITIES = (70, 75, 80, 86, 89, 90, 100, 120)  # Volta, Turing, Ampere, Ada, Hopper, Blackwell and its small one
ALIKE = pytest.mark.full("as the others")
TIER = {90: ()} | dict.fromkeys((70, 80, 100), (ALIKE,))  # of the others make test-all has two marks
ONLY_SO = "rcp.approx.ftz.f64"  # within `log` of float64, of a number near 2; PTX has it in no other form
FLUSHING = "-ftz=true"  # by CuPy, to every RawModule of source code
MESSAGES = {"SCALED": SCALED, "CHUNK": 32, "MESSAGES": 31}
ADAM = {name: number for number, name in enumerate(adam.NAMES)}
ADAM |= {"COLUMNS": adam.COLUMNS, "NADAM": adam.NADAM, "RMSPROP": adam.RMSPROP}
PARTS = {"DIGIT": 11, "RUN": 64, "PLACE": "unsigned short"}
# What each source is compiled with besides, by those who start its kernels
VARIANTS = {
    "select.cu": [{"INDEX": "int32", "ROUNDS": 8}, {"INDEX": "int64", "ROUNDS": 8}]
    + [{"INDEX": "int32", "ROUNDS": 8, "GRADIENT": gradient} for gradient in ("float32", "float16", "uint16")]
    + [{"INDEX": "int32", "ROUNDS": 8, "SQUARES": 1} | more for more in ({}, {"GRADIENT": "float32"})],
    "count.cu": [{}],
    "largest.cu": [{"INDEX": index, "DIGIT": 11} for index in ("int32", "int64")]
    + [{"INDEX": index, "DIGIT": 11, "threads": 1024} for index in ("int32", "int64")],
    "parts.cu": [PARTS | {"INDEX": index} for index in ("int32", "int64")]
    + [PARTS | {"INDEX": "int32", "IN_SHARED": 1, "threads": 1024} | more for more in ({}, {"PLACE": "unsigned"})]
    + [PARTS | {"INDEX": "int32", "GRADIENT": gradient} for gradient in ("float32", "float64", "float16", "uint16")],
    "moments.cu": [{}],
    "dense.cu": [{}, {"threads": 1024}],
    "adam.cu": [{"INDEX": "int32", "KIND": kind} | ADAM for kind in range(3)] + [{"INDEX": "int64", "KIND": 0} | ADAM],
    "accumulate.cu": [{"GRADIENT": gradient} for gradient in ("float32", "float64", "float16", "uint16")],
    "sketch.cu": [{"threads": 1024, "ROWS": 128}],
    "sparse.cu": [{"INDEX": index} for index in ("int16", "int32", "int64")],
    "votes.cu": [{"INDEX": index, "NUMBER": "int64"} | MESSAGES for index in ("int32", "int64")]
    + [{"INDEX": "int32", "NUMBER": "int32"} | MESSAGES],
    "bits.cu": [{"INDEX": index} | MESSAGES | many for index in ("int32", "int64") for many in ({}, {"MANY": 1})],
    "levels.cu": [{"INDEX": index, "threads": SCALED} | MESSAGES for index in ("int32", "int64")],
}
# Fences of kernels whose blocks tell others by one word that many are there
FENCES = {"count": 1, "keep_largest": 3}
HALF_TOO, HALVES = ("select.cu", "count.cu", "moments.cu"), ("float16", "uint16")
SINGLE_ONLY = ("bits.cu", "levels.cu")


class Compiling:
    """CuPy that compiles for a device of a capability, and loads nothing; ``ptx`` has what came of each source."""

    def __init__(self, library: ctypes.CDLL, capability: int) -> None:
        self.library, self.target, self.ptx = library, f"-arch=compute_{capability}", []

    def compile_using_nvrtc(self, code, options=(), arch=None, filename="kern.cu"):
        """``cupy.cuda.compiler``'s."""
        assert arch is None  # that of the current device
        self.ptx.append(ptx_of(self.library, code, (*options, self.target, ADDED)))
        return self.ptx[-1].encode(), None

    def RawModule(self, *, code=None, path=None, options=()):
        """``cupy.RawModule``, which loads what it is given or compiles it in its own way."""
        if code is not None:
            self.compile_using_nvrtc(code, (*options, FLUSHING))
        return SimpleNamespace(get_function=lambda name: path)


@pytest.fixture
def compiling(request, monkeypatch, tmp_path):
    """The product's way from a source to a kernel, with `Compiling` at its end."""
    library, capability = nvrtc(), request.param
    if library is None:
        pytest.skip("no NVRTC here: pip install nvidia-cuda-nvrtc-cu12")
    if capability not in architectures(library):
        pytest.skip(f"this NVRTC compiles for {sorted(architectures(library))}, not for {capability}")
    made = Compiling(library, capability)
    install(monkeypatch)
    cuda = fake_cuda.install_kernels(monkeypatch)
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cuda.cupy.cuda, "compiler", made)
    monkeypatch.setattr(cuda.cupy, "RawModule", made.RawModule)
    made.kernel = cuda.kernel
    return made


def assert_in_order(ptx: str) -> None:
    """What no run shows: a device may round the sum of a product alone, and other blocks see words in another order."""
    for name, body in re.findall(r"\.entry (\w+)\((.*?)\n}", ptx, re.DOTALL):
        products = set(re.findall(r"\bmul\.f(?:32|64)\s+(%\w+)", body))
        sums = re.findall(r"\b(?:add|sub)\.f(?:32|64)\s+%\w+,([^;]*);", body)
        assert not [of for of in sums if products & set(re.findall(r"%\w+", of))], f"{name} may be fused"
        assert name == "moments" or "fma" not in body, name
        assert body.count("membar") == FENCES.get(name, 0), f"{name}: a fence too few or too many"


def test_every_source_is_compiled_here():
    assert {file.name for file in SOURCES.glob("*.cu")} == {"types.cu", "radix.cu", *VARIANTS}


@pytest.mark.parametrize(
    "compiling",
    [pytest.param(capability, marks=TIER.get(capability, (ALIKE, ALIKE))) for capability in CAPABILITIES],
    indirect=True,
)
@pytest.mark.parametrize("others", [False, pytest.param(True, marks=pytest.mark.full("the same sources as float32"))])
@pytest.mark.parametrize("source", VARIANTS)
def test_nvrtc_takes_the_sources_and_flushes_no_subnormal_numbers(source, others, compiling):
    if others and source in SINGLE_ONLY:
        pytest.skip("is compiled for float32 alone")
    for macros in VARIANTS[source]:
        halves = HALVES if source in HALF_TOO and not {"GRADIENT", "SQUARES"} & macros.keys() else ()
        for real in ("float64", *halves) if others else ("float32",):
            compiling.kernel("", source, **{"REAL": real, **macros})
            assert ".ftz" not in compiling.ptx[-1].replace(ONLY_SO, "")
            assert Path(compiling.kernel("", source, **{"REAL": real, **macros})).read_text() == compiling.ptx[-1]
            assert_in_order(compiling.ptx[-1])
    assert ".target" in compiling.ptx[-1]


@pytest.mark.parametrize("compiling", [90], indirect=True)
def test_what_cupy_compiles_from_source_does_flush_them(compiling):
    """So that looking for ``.ftz`` tells something."""
    macros = {"REAL": "float32", "GRADIENT": "float32", "THREADS": 256}
    code = (SOURCES / "types.cu").read_text() + (SOURCES / "accumulate.cu").read_text()
    compiling.RawModule(code=code, options=tuple(f"-D{macro}={value}" for macro, value in macros.items()))
    assert ".ftz" in compiling.ptx[-1]
