"""How CUDA sources become files, which later processes load; a GPU loads them in the other tests of the kernels."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from ..fakes import fake_cuda
from ..fakes.fake_array import install

SOURCE = {"name": "accumulate", "source": "accumulate.cu", "REAL": "float32", "GRADIENT": "float32"}


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    """Function that imports the kernels anew, as a new process does; ``compiled.names`` are the files it compiles."""

    def kernels():
        found = fake_cuda.install_kernels(monkeypatch)
        monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "kept"))
        monkeypatch.setattr(found.cupy.cuda.compiler, "compile_using_nvrtc", compile_using_nvrtc)
        monkeypatch.setattr(found.cupy, "RawModule", lambda path: SimpleNamespace(get_function=lambda _: path))
        return found

    def compile_using_nvrtc(code, options=(), arch=None, filename="kern.cu"):
        kernels.names.append(filename)
        return code.encode(), None

    install(monkeypatch)
    kernels.names = []
    return kernels


def test_later_processes_find_what_was_compiled(compiled, tmp_path):
    first, again = (Path(compiled().kernel(**SOURCE)) for _ in range(2))
    assert first == again and first.parent == tmp_path / "kept" and len(compiled.names) == 1
    assert [file.name for file in first.parent.iterdir()] == [first.name]


@pytest.mark.parametrize("changed", ["compute_capability", "compiler", "CuPy", "options"])
def test_what_it_is_compiled_by_and_for_makes_another_file(compiled, changed, monkeypatch):
    compiled().kernel(**SOURCE)
    again, source = compiled(), dict(SOURCE)
    if changed == "compute_capability":
        monkeypatch.setattr(again.cupy.cuda.Device, "compute_capability", "100")
    elif changed == "compiler":
        monkeypatch.setattr(again.cupy.cuda.nvrtc, "getVersion", lambda: (13, 9))
    elif changed == "CuPy":
        monkeypatch.setattr(again.cupy, "__version__", "15.0.0")
    else:
        source["GRADIENT"] = "float16"
    again.kernel(**source)
    assert len(set(compiled.names)) == 2


def test_devices_of_two_kinds_have_kernels_of_their_own(compiled, monkeypatch):
    cuda = compiled()
    here = cuda.kernel(**SOURCE)
    monkeypatch.setattr(cuda.cupy.cuda.Device, "compute_capability", "100")
    monkeypatch.setattr(cuda.cupy.cuda.runtime, "getDevice", lambda: 1)
    assert cuda.kernel(**SOURCE) != here and len(compiled.names) == 2


def test_nothing_is_kept_where_cupy_is_to_keep_kernels_in_memory(compiled, monkeypatch, tmp_path):
    cuda = compiled()
    monkeypatch.setenv("CUPY_CACHE_IN_MEMORY", "1")
    assert Path(cuda.kernel(**SOURCE)).exists() and not (tmp_path / "kept").exists()
