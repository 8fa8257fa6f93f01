"""The one exception that tells of lost ranks, whatever the transport."""

from __future__ import annotations


class RankFailure(RuntimeError):
    """Raised from a call that needs a rank which has failed, or on a communicator that another rank has revoked.

    Not all ranks see it in the same call, and some may not see it at all until one of them revokes the communicator.
    """
