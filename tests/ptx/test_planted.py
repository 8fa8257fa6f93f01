"""Defects that are planted into the sources are found; without them there is none. `mutants` has the table."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from sparse_mpi.kernels.base import MalformedMessage

from ..fakes import fake_cuda
from ..kernels.on_cuda import put, thresholds
from . import device
from .device import RECORD
from .mutants import CHANCE, DIES, PLANTED, count, select
from .test_kernels import check_code

WAYS = AssertionError, MalformedMessage  # in which defects end, a `Fault` among them
WORKS = dict.fromkeys(mutant.work for mutant in PLANTED.values())

ALWAYS = (  # of the others make test-all plants each
    "no barrier before counts are added up",
    "a look-back that is not volatile",
    "a whole tile where it is not",
    "vectors at any address",
    "bins that nobody clears",
    "bits that are set without atomics",
    "NaN that is rounded",
    "squares that are rounded with what is added",
)
REST = pytest.mark.full("as those")


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in ALWAYS else REST) for name in PLANTED])
def test_what_is_planted_is_found(name, compiled_anew):
    mutant = PLANTED[name]
    with pytest.raises(WAYS, match=mutant.tells):
        mutant.work(compiled_anew({mutant.old: mutant.new}))
        for launch in RECORD:
            check_code(launch.kernel)


@pytest.mark.full("so that the table is true")
@pytest.mark.skipif(fake_cuda.COMPILER is None, reason="emulating CUDA needs g++")
@pytest.mark.parametrize("name", [name for name in PLANTED if PLANTED[name].emulated != CHANCE])
@pytest.mark.usefixtures("device")
def test_what_the_emulator_makes_of_it(name, monkeypatch, tmp_path):
    mutant = PLANTED[name]
    cuda = fake_cuda.install_kernels(monkeypatch)
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path))
    compiled = fake_cuda.compile_using_nvrtc
    changed = SimpleNamespace(
        compile_using_nvrtc=lambda code, *rest: compiled(code.replace(mutant.old, mutant.new), *rest)
    )
    monkeypatch.setattr(cuda.cupy.cuda, "compiler", changed)
    with pytest.raises(WAYS) if mutant.emulated == DIES else nullcontext():
        mutant.work(cuda)


@pytest.mark.parametrize("where", [device.install, fake_cuda.install_kernels], ids=["interpreted", "emulated"])
@pytest.mark.parametrize("work", [pytest.param(one, marks=() if one in (select, count) else REST) for one in WORKS])
@pytest.mark.usefixtures("interpreted")
def test_what_is_compiled_as_it_is_runs(work, where, monkeypatch):
    if where is fake_cuda.install_kernels and fake_cuda.COMPILER is None:
        pytest.skip("emulating CUDA needs g++")
    work(where(monkeypatch))


BY_FLOATS = {  # as it was once, for numbers that are not negative
    "    const uint32 sign = (uint32)(x.bits & 0x8000u) << 16, rest": "    const uint32 sign = 0, rest",
    "return real_of((int32)(sign | wide));": "return real_of((int32)(rest << 13)) * real_of((254 - 15) << 23);",
}


@pytest.mark.parametrize("ftz", [True, False])
@pytest.mark.parametrize("parts", [BY_FLOATS, {}], ids=["by-floats", "by-integers"])
def test_halves_are_lost_where_they_are_widened_by_way_of_subnormal_numbers(parts, ftz, compiled_anew):
    """And where CuPy's option takes these for zero: not by way of integers, nor without the option."""
    halves = np.arange(1, 0x7C00, dtype=np.uint16).view(np.float16)
    cuda = compiled_anew(parts, f"-ftz={str(ftz).lower()}")
    found = cuda.select(put(cuda, halves), 0, len(halves))[1].get()
    lost = (halves < 2.0**-14) & (ftz and parts is BY_FLOATS)
    assert (found == np.where(lost, 0, halves)).all()


def test_sums_lose_subnormal_numbers_by_that_option(compiled_anew):
    tiny = np.full(64, 1e-40, np.float32)
    cuda = compiled_anew({}, "-ftz=true")
    residual = put(cuda, tiny)
    cuda.accumulate(residual, put(cuda, tiny))
    assert not residual.get().any()


# Bytes of global memory that an entry of float32 costs: what is read and written of vectors, and of pairs
MOVED = {"select": (4, 8), "accumulate_select": (12, 8)}


@pytest.mark.parametrize("density", [pytest.param(0.001, marks=REST), 0.01, pytest.param(0.1, marks=REST)])
@pytest.mark.parametrize("name", MOVED)
def test_bytes_that_a_selection_moves(name, density, interpreted):
    """Where caches keep what is read twice: a vector as it is, and tiles that are read and written in whole sectors."""
    n = 8 * 8192
    x, gradient = np.random.default_rng(0).standard_normal((2, n)).astype(np.float32)
    acc = x + gradient if name == "accumulate_select" else x
    limit, given = thresholds(acc, 1 - density)[1], (x, gradient)[: 1 + (name == "accumulate_select")]
    getattr(interpreted, name)(*(put(interpreted, part) for part in given), limit, n)
    launch, (fixed, of_pairs) = RECORD[-1], MOVED[name]
    assert launch.kernel.name == "compact"
    assert fixed < launch.moved() / n <= 1.05 * (fixed + of_pairs * density)
    assert launch.sectors * 32 / n >= launch.moved() / n
