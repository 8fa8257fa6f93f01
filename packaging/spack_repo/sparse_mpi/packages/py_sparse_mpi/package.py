# Not in Spack's own repository yet. Here: `spack repo add packaging/spack_repo/sparse_mpi`
# `make release` leaves a copy in build/release with the version and the hash of its sdist.

from spack_repo.builtin.build_systems.cuda import CudaPackage
from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import *


class PySparseMpi(PythonPackage, CudaPackage):
    """Sparse allreduce over MPI, for NumPy, CuPy and torch arrays."""

    homepage = "https://sparse-mpi.github.io/sparse_mpi/"
    pypi = "sparse_mpi/sparse_mpi-0.2.0.tar.gz"
    git = "https://github.com/sparse-mpi/sparse_mpi.git"

    license("MIT")

    version("main", branch="main")
    version("0.2.0", sha256="0000000000000000000000000000000000000000000000000000000000000000")

    # Once for each kind of CPU: spack load py-sparse-mpi && sparse-mpi doctor --compile
    variant("numba", default=True, description="Compile passes over vectors in host memory")
    variant("torch", default=False, description="Bring PyTorch, for optimizers and hooks")

    depends_on("python@3.10:", type=("build", "run"))
    depends_on("py-setuptools@64:", type="build")
    with default_args(type="run"):
        depends_on("mpi")
        depends_on("py-mpi4py@4:")
        depends_on("py-numpy@1.26:")
        depends_on("py-psutil@5.9:")
        depends_on("py-numba@0.60:", when="+numba")
        depends_on("py-torch@2.4:", when="+torch")
        depends_on("py-torch~cuda", when="+torch~cuda")
        depends_on("py-cupy@13.6:", when="+cuda")
        for arch in CudaPackage.cuda_arch_values:
            depends_on(f"py-cupy+cuda cuda_arch={arch}", when=f"+cuda cuda_arch={arch}")
            depends_on(f"py-torch+cuda cuda_arch={arch}", when=f"+torch+cuda cuda_arch={arch}")

    @property
    def import_modules(self):
        """What is imported to test an installation: modules that need no package of a variant."""
        return ["sparse_mpi", "sparse_mpi.collectives", "sparse_mpi.cli"]
