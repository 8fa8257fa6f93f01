"""Error feedback in a class of its own, which keeps all that was not sent."""

from dataclasses import dataclass

from sparse_mpi.feedback import ErrorFeedback


@dataclass(eq=False)
class Plain(ErrorFeedback):
    def consume(self, sent, total, ranks=0):
        super().consume(sent, total, ranks)
