"""Records of what a budget decides."""

from __future__ import annotations

from typing import Any

from sparse_mpi.budget import Decision

EVENT = "budget"


def record_of(decision: Decision, elapsed: float) -> dict[str, Any]:
    """Return the record of a decision that was made ``elapsed`` seconds after the run began."""
    values = decision._asdict() | {"decision": decision.step, "elapsed": elapsed, "mb_sent": decision.sent / 1e6}
    values["mb_credit"] = values.pop("credit") / 1e6
    return {name: value for name, value in values.items() if name not in ("step", "sent")}
