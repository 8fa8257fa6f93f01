"""Models of the time of communication on a network, fitted to measurements: `advise`."""

from sparse_mpi.predict.questions import Answer, advise

__all__ = ["Answer", "advise"]
