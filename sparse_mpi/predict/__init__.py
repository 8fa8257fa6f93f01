"""Models of what communication costs on a network, and fits of them to measurements: `advise`."""

from sparse_mpi.predict.questions import Answer, advise

__all__ = ["Answer", "advise"]
