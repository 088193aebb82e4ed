"""FedSAP (Structured Adaptive Partitioning): clients train channel-pruned submodels under domain shift.

Every channel of a client is Global (shared by all), Private (shared within a pseudo-domain group) or Dropped (Eq. 3).
A client receives, trains and uploads a dense network of its active channels alone.

Eq. 2 layer budgets -> ``functional.budget``; Eq. 4 similarity, groups -> ``functional.grouping``; Eq. 5 utility and
Eq. 6 dispersion -> ``functional.channel_statistics``; Eq. 3 roles -> ``functional.roles``; Eq. 7 local loss ->
``client.FedSAPUpdate.loss``; Eq. 8 aggregation and Eq. 9 composition -> ``functional.type_matched``; the small network
-> ``functional.submodel``.

Travels: the active channels both ways; roles (2 bits a channel) down; two numbers a channel and, in grouping rounds,
the domain's signal up. With full budgets, all channels Global, BatchNorm averaged and no penalty it is FedAvg.
"""

from __future__ import annotations

from fedapp.strategies.base import Method
from fedapp.strategies.fedsap.client import FedSAPUpdate
from fedapp.strategies.fedsap.params import FedSAPParams
from fedapp.strategies.fedsap.server import FedSAP

__all__ = ["METHOD", "FedSAP", "FedSAPParams", "FedSAPUpdate"]

METHOD = Method(
    strategy=FedSAP,
    update=FedSAPUpdate,
    paper="FedSAP: Structured Adaptive Partitioning (supplied with this project)",
    summary="channel-pruned submodels; channels shared by all, by a pseudo-domain, or dropped",
    travels="the active channels",
    models="small-resnet",
)
