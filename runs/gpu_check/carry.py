"""NCCL and an MPI for a machine with a GPU and no network, small enough to carry: ``python -m runs.gpu_check.carry``.

Writes ``.gpu/``, 35 MB: ``libnccl.so.2.xz`` with code for one kind of GPU, ``ompi.tar.xz``, an Open MPI that takes
device pointers, ``wheels/`` with mpi4py, all for x86-64, and ``README``, which says how they are used. Needs no CUDA,
but pip, gcc, make, perl, strip, xz, and apt-get with a ``deb-src`` line of Debian 13, or Open MPI's tarball in
``--work``. The glibc of the machine with the GPU must be as new as the one here.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

NCCL = "nvidia-nccl-cu13==2.30.7"
CUDA = "nvidia-cuda-runtime==13.0.*"  # its cuda.h
MPI4PY = "mpi4py==4.1.2"
OPEN_MPI, TARBALL = "5.0.7", "openmpi_5.0.7.orig.tar.xz"
PYTHON = "3.12"  # of the machine with the GPU
PLATFORMS = ("manylinux2014_x86_64", "manylinux_2_18_x86_64", "manylinux_2_5_x86_64", "manylinux1_x86_64")
CUDA_PARTS = "accelerator-cuda,rcache-gpusm,rcache-rgpusm,btl-smcuda"  # alone need libcuda, so are loaded apart
LEFT_OUT = "ucx ofi libnl slurm munge zlib psm2 verbs jansson curl"
INSIDE = "libevent hwloc pmix prrte"
FATBIN = struct.pack("<I", 0xBA55ED50)

README = """\
# In the folder that holds .gpu. HOME must be set; root also needs the last line
GPU=$PWD/.gpu
xz -dk $GPU/libnccl.so.2.xz && tar xf $GPU/ompi.tar.xz -C $GPU
python3 -m pip install --no-index --no-deps --find-links $GPU/wheels mpi4py
# The library takes the mpiexec beside Python first. In a virtual environment leave this line out
ln -s "$(command -v python3)" $GPU/ompi/bin/python3
export LD_PRELOAD=$GPU/libnccl.so.2 NCCL_MULTI_RANK_GPU_ENABLE=1
export OPAL_PREFIX=$GPU/ompi PATH=$GPU/ompi/bin:$PATH LD_LIBRARY_PATH=$GPU/ompi/lib:$LD_LIBRARY_PATH
export MPI4PY_LIBMPI=$GPU/ompi/lib/libmpi.so.40 SPARSE_MPI_CUDA_AWARE=1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
"""


def prune(image: bytearray, arch: int) -> int:
    """Zeroes the code of all GPUs but ``arch`` (90 is sm_90) in ``image``, a library or program of CUDA.

    Headers and lengths stay, so that the driver finds what it looks for. A fat binary is magic, u16 version, u16 bytes
    of header, u64 bytes of entries; an entry is u16 kind (1 PTX, 2 code), u16, u32 bytes of header, u64 bytes of code
    and, at 28, u32 architecture.

    Returns:
        the bytes of code that are left.

    Raises:
        ValueError: an entry reaches beyond its fat binary, or there is no code for ``arch``.
    """
    left, at = 0, image.find(FATBIN)
    while at >= 0:
        _, header, length = struct.unpack_from("<HHQ", image, at + 4)
        entry, end = at + header, at + header + length
        while entry < end:
            kind, _, skip, size = struct.unpack_from("<HHIQ", image, entry)
            code = entry + skip
            if code + size > end:
                raise ValueError(f"image: the entry at {entry} reaches {code + size - end} bytes beyond its fat binary")
            if struct.unpack_from("<I", image, entry + 28)[0] != arch or kind != 2:
                image[code : code + size] = bytes(size)
            else:
                left += size
            entry = code + size
        at = image.find(FATBIN, end)
    if not left:
        raise ValueError(f"image: has no code for sm_{arch}, expected some; name an architecture that it was built for")
    return left


def call(*words: str | Path, cwd: Path, **more: str) -> None:
    print("+", *words, flush=True)
    subprocess.run([str(word) for word in words], cwd=cwd, env={**os.environ, **more}, check=True)


def wheel(requirement: str, into: Path) -> Path:
    """Downloads the wheel of ``requirement`` into ``into`` and returns it."""
    options = ["-q", "--no-deps", "--only-binary=:all:", f"--python-version={PYTHON}", "--dest=."]
    options += [f"--platform={platform}" for platform in PLATFORMS]
    call(sys.executable, "-m", "pip", "download", *options, requirement, cwd=into)
    return next(into.glob(requirement.split("==")[0].replace("-", "_") + "-*.whl"))


def nccl(work: Path, out: Path, arch: int) -> None:
    shutil.unpack_archive(wheel(NCCL, work), work / "nccl", "zip")
    library = work / "nccl/nvidia/nccl/lib/libnccl.so.2"
    call("strip", "--strip-debug", library, cwd=work)
    image = bytearray(library.read_bytes())
    print(f"{prune(image, arch) / 1e6:.1f} MB of code for sm_{arch}")
    (out / library.name).write_bytes(image)
    call("xz", "-T2", "-6", "-f", library.name, cwd=out)


def open_mpi(work: Path, out: Path) -> None:
    shutil.unpack_archive(wheel(CUDA, work), work / "cuda", "zip")
    cuda = work / "cuda/nvidia/cu13"
    # Stands for the driver's library when this is linked: the functions of cuda.h, which all find no device
    names = set(re.findall(r"\bcu[A-Z]\w*(?=\s*\()", (cuda / "include/cuda.h").read_text()))
    names |= {f"{name}_v2" for name in names}
    (work / "stub.c").write_text("".join(f"int {name}(void) {{ return 100; }}\n" for name in sorted(names)))
    call("gcc", "-w", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", "libcuda.so", "stub.c", cwd=work)
    if not (work / TARBALL).exists():
        call("apt-get", "source", "--download-only", f"openmpi={OPEN_MPI}-1", cwd=work)
    call("tar", "xf", TARBALL, cwd=work)
    source = work / f"openmpi-{OPEN_MPI}"
    flags = [f"--with-{name}=internal" for name in INSIDE.split()] + [f"--without-{name}" for name in LEFT_OUT.split()]
    flags += ["--disable-mpi-fortran", "--disable-oshmem", "--disable-io-romio", "--disable-libxml2", "--disable-pci"]
    flags += [f"--with-cuda={cuda}", f"--with-cuda-libdir={work}", f"--enable-mca-dso={CUDA_PARTS}"]
    call("./configure", "-q", "--prefix=/ompi", *flags, cwd=source, CFLAGS="-O2 -g0")
    call("make", "-s", f"-j{os.cpu_count()}", cwd=source)
    call("make", "-s", "install", f"DESTDIR={work / 'installed'}", cwd=source)
    tree = work / "installed/ompi"
    for part in ("include", "share/man", "share/doc"):
        shutil.rmtree(tree / part, ignore_errors=True)
    for file in tree.rglob("*.la"):
        file.unlink()
    # Built without zlib, about which PMIx would warn at every start
    with (tree / "etc/pmix-mca-params.conf").open("a") as settings:
        settings.write("pcompress_base_silence_warning = 1\n")
    libraries = [file for file in tree.rglob("*.so*") if not file.is_symlink()]
    call("strip", "--strip-unneeded", *libraries, cwd=work)
    call("tar", "cJf", out / "ompi.tar.xz", "ompi", cwd=tree.parent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["nccl", "open_mpi"], help="nccl, open_mpi; both if none is named")
    parser.add_argument("--arch", type=int, default=90, help="kind of GPU: 90 for H100 and H200")
    parser.add_argument("--out", type=Path, default=Path(".gpu"))
    parser.add_argument("--work", type=Path, default=Path("build/carry"), help="where it downloads and builds")
    asked = parser.parse_args()
    work, out = asked.work.resolve(), asked.out.resolve()
    for folder in (work, out / "wheels"):
        folder.mkdir(parents=True, exist_ok=True)
    if "nccl" in asked.parts:
        nccl(work, out, asked.arch)
    if "open_mpi" in asked.parts:
        open_mpi(work, out)
        wheel(MPI4PY, out / "wheels")
    (out / "README").write_text(README)


if __name__ == "__main__":
    main()
