"""LG-FedAvg (Liang et al., 2020): every client keeps its own feature extractor, the heads are averaged.

Server: h = Σ n_i h_i / Σ n_i -> ``functional.aggregation.weighted_mean``. Local objective: cross-entropy through the
client's own extractor and the global head. In the first round clients start from their own heads.

Travels: the head's ``state_dict``. Equals FedAvg when the extractor has no parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedapp.client_update import ClientUpdate, LabelledSamples, arrays_of, load_arrays
from fedapp.payload import Arrays, ArraySpec, ClientInfo, Downlink, Uplink, specs_of
from fedapp.strategies.base import Method, PayloadStrategy
from fedapp.strategies.fedavg import averaged, require_fit


class HeadUpdate(ClientUpdate):
    """A client whose head is the one the server sent."""

    def receive(self, downlink: Downlink) -> None:
        """Load the global head."""
        if downlink.arrays:
            load_arrays(self.model.head, downlink.arrays)


class LGFedAvgUpdate(HeadUpdate):
    """Train everything, upload the head."""

    def end(self, samples: LabelledSamples) -> Arrays:
        """Upload the head."""
        return arrays_of(self.model.head)


class LGFedAvg(PayloadStrategy):
    """The server of LG-FedAvg: one global head."""

    name: ClassVar[str] = "lg-fedavg"
    requires: ClassVar[tuple[str, ...]] = ("equal-classes", "equal-heads")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.head: dict[str, npt.NDArray[Any]] = {}

    def begin(self) -> None:
        """Check the head given, if there is one."""
        if self.head:
            require_fit(self, self.head, specs_of(self.first_client.head_layout))

    def downlink(self, client: ClientInfo) -> Downlink:
        """Send the global head, once there is one."""
        return Downlink(self.head)

    def uplink_specs(self, client: ClientInfo) -> dict[str, ArraySpec]:
        """Every entry of the head that the clients announced."""
        return specs_of(client.head_layout)

    def aggregate(self, uplinks: Sequence[Uplink]) -> None:
        """Average the heads by sample counts."""
        self.head = averaged(uplinks, "samples") or self.head

    def state(self) -> Arrays:
        """Return the global head."""
        return self.head

    def load_state(self, arrays: Arrays) -> None:
        """Take over a global head."""
        self.head = {name: np.asarray(array) for name, array in arrays.items()}


METHOD = Method(
    strategy=LGFedAvg,
    update=LGFedAvgUpdate,
    paper="Liang et al., Think Locally, Act Globally, 2020",
    summary="own feature extractors, one averaged head",
    travels="the head",
)
