"""What the server pays for FedSAP's submodels: extracting them for ten clients and aggregating what comes back.

Measured: CPU time for one round's arithmetic on resnet18-cifar (11.2 M parameters), ten clients with keep ratios 1,
0.8, 0.6, 0.4 and 0.2, twice. Every convolution's active channels are drawn at random for each client, without coupling;
a tenth of the channels is Private, in four groups. "extract" composes the rows and columns of each client's plan
(Eq. 9), "aggregate" is Eq. 8 entry by entry (`agg.entry=entry`, profile `edge`), "whole rows" completes every upload
with what was sent (`row`, profile `paper`). The yardstick: `weighted_mean` over ten full models.

Target: extract and aggregate together at most twice the yardstick.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from measure import HEADER, Timing, print_table, start, take_turns
from numpy.typing import NDArray

from fedapp import models
from fedapp.functional.aggregation import weighted_mean
from fedapp.functional.channels import ChannelGraph, trace
from fedapp.functional.submodel import Plan, plan
from fedapp.functional.type_matched import Matching, Rows, Upload, compose, type_matched_mean

SHAPE = (3, 32, 32)
KEEP_RATIOS = (1.0, 0.8, 0.6, 0.4, 0.2) * 2
GROUPS, PRIVATE = 4, 0.1
WEIGHTS = [600.0, 72.0, 590.0, 100.0, 600.0] * 2

Arrays = dict[str, NDArray[Any]]


@dataclass
class Server:
    """Shared entries and pools, and a plan for each client."""

    graph: ChannelGraph
    shared: Arrays
    private: dict[str, NDArray[np.bool_]] = field(init=False)
    pools: dict[str, dict[int, Rows]] = field(init=False)
    plans: list[Plan] = field(init=False)

    def __post_init__(self) -> None:
        generator = np.random.default_rng(0)
        self.private = {name: np.zeros(len(array), dtype=np.bool_) for name, array in self.shared.items()}
        for layer in self.graph.layers:
            chosen = generator.random(layer.channels) < PRIVATE
            self.private |= dict.fromkeys(layer.entries, chosen)
        self.pools = {name: {} for name in self.shared}
        for name, array in self.shared.items():
            index = np.flatnonzero(self.private[name])
            if len(index):
                self.pools[name] = {group: Rows(index, array[index] + group) for group in range(GROUPS)}
        self.plans = [plan(self.graph, self.active(keep, generator)) for keep in KEEP_RATIOS]

    def active(self, keep: float, generator: np.random.Generator) -> NDArray[np.bool_]:
        """Draw equally many channels of every hundred in every layer."""
        masks = []
        for layer in self.graph.layers:
            mask = np.zeros(layer.channels, dtype=np.bool_)
            mask[generator.permutation(layer.channels)[: round(keep * layer.channels)]] = True
            masks.append(mask)
        return np.concatenate(masks)

    def extract(self) -> list[Arrays]:
        """Compose the rows and columns of every client's plan."""
        return [
            {
                name: compose(array, self.pools[name].get(client % GROUPS), self.private[name], *its_plan.index[name])
                for name, array in self.shared.items()
            }
            for client, its_plan in enumerate(self.plans)
        ]

    def aggregate(self, arrays: list[Arrays], matching: Matching = "entry") -> None:
        """Average what the clients send; whole rows are completed with what was sent, which is composed anew."""
        for name, array in self.shared.items():
            uploads = []
            for client, (its_plan, weight) in enumerate(zip(self.plans, WEIGHTS, strict=True)):
                rows, columns = (*its_plan.index[name], None, None)[:2]
                group, private = client % GROUPS, self.private[name]
                whole = compose(array, self.pools[name].get(group), private, rows) if matching == "row" else None
                mine = private if rows is None else private[rows]
                uploads.append(Upload(arrays[client][name], rows, columns, mine, group, weight, whole))
            type_matched_mean(array, self.pools[name], uploads, matching)


def measure(server: Server, repeats: int) -> Timing:
    full = [{name: array.copy() for name, array in server.shared.items()} for _ in KEEP_RATIOS]
    compact = server.extract()
    timing = take_turns(
        {
            "weighted mean": lambda: weighted_mean(full, WEIGHTS),
            "extract": server.extract,
            "aggregate": lambda: server.aggregate(compact),
            "aggregate whole rows": lambda: server.aggregate(compact, "row"),
        },
        repeats,
    )
    seconds = timing.seconds
    both = {
        f"extract and {name}": [sum(pair) for pair in zip(seconds["extract"], seconds[name], strict=True)]
        for name in ("aggregate", "aggregate whole rows")
    }
    return Timing({**seconds, **both})


def main() -> None:
    quick = start(__doc__)
    name = "small-resnet" if quick else "resnet18-cifar"
    model = models.build(name, num_classes=10, input_shape=SHAPE, feature_dim=64 if quick else 512)
    graph = trace(model, SHAPE)
    state = model.state_dict()
    server = Server(graph, {name: state[name].numpy() for name in graph.entries})
    timing = measure(server, repeats=2 if quick else 15)
    names = ("weighted mean", "extract", "aggregate", "aggregate whole rows")
    rows = [(f"{name}, ms", *(f"{ms:.1f}" for ms in timing.milliseconds(name)), "") for name in names]
    for what, target in (("extract and aggregate", "<= 2.00"), ("extract and aggregate whole rows", "")):
        ratio = (f"{ratio:.2f}" for ratio in timing.ratio(what, "weighted mean"))
        rows.append((f"{what} / weighted mean", *ratio, target))
    print_table(HEADER, rows)


if __name__ == "__main__":
    main()
