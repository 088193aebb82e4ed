"""Local training only: nothing travels, every client keeps its own model (the papers' "no collaboration" row).

Equals FedSAF, FedProto at zero weights. Loss: cross-entropy, mean over the batch.
"""

from __future__ import annotations

from typing import ClassVar

from fedapp.client_update import ClientUpdate
from fedapp.strategies.base import Method, PayloadStrategy


class Local(PayloadStrategy):
    """A server that only lets clients train and be evaluated."""

    name: ClassVar[str] = "local"


METHOD = Method(
    strategy=Local,
    update=ClientUpdate,
    paper="the no-collaboration baseline",
    summary="every client trains alone",
    travels="nothing",
)
