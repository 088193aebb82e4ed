"""What a FedSAP client uploads, in bytes, beside the parameters of its submodel.

Counted: the message of one client with the full-width ResNet-10 for 32x32 images after a round, at keep ratios 0.2 to
1, with random masks for every convolution (no coupling), in a round that asks for the domain's signal (`edge`).
Arrays are counted by their contents; "message" adds names, headers and numbers, everything that Flower is handed.

Target: parameters at most 1.02 x 4 bytes x active parameters, everything together at most 1.04.
"""

from __future__ import annotations

import torch
from fedsap_phases import SHAPE, client
from measure import print_table, start

from fedapp.datasets.base import Samples
from fedapp.payload import Uplink
from fedapp.strategies.fedsap.client import ACTIVATION, GRADIENT, SIGNAL
from fedapp.strategies.fedsap.shared import is_statistic
from fedapp.wire import header_bytes, pack_uplink, payload_bytes

RATIOS = (0.2, 0.4, 0.6, 0.8, 1.0)


def row(keep_ratio: float, model: str) -> tuple[str, ...]:
    """Return the parts of one client's upload as multiples of the bytes of its active parameters."""
    update = client(keep_ratio, "bn_stats", images=2, model=model)
    samples = Samples(torch.randn(2, *SHAPE), torch.tensor([0, 1]))
    update.epoch = update.epochs - 1
    update.loss(samples.x, samples.y).backward()  # type: ignore[no-untyped-call]
    update.after_step()
    arrays = update.end(samples)
    active = 4 * sum(parameter.numel() for parameter in update.model.parameters())
    measured = {name: array for name, array in arrays.items() if name in (ACTIVATION, GRADIENT, SIGNAL)}
    statistics = {name: array for name, array in arrays.items() if is_statistic(name)}
    parameters = sum(a.nbytes for n, a in arrays.items() if n not in measured and n not in statistics)
    message = pack_uplink(Uplink("0", 2, arrays, update.metrics))
    parts = (
        parameters,
        sum(array.nbytes for array in statistics.values()),
        sum(array.nbytes for array in measured.values()),
        payload_bytes(message),
        payload_bytes(message) + header_bytes(message),
    )
    return (f"keep {keep_ratio:g}: {active:,} bytes", *(f"{part / active:.4f}" for part in parts))


def main() -> None:
    """Print the table."""
    quick = start(__doc__)
    header = ("active parameters", "parameters", "BatchNorm", "measured", "all arrays", "message")
    rows = [row(ratio, "resnet10-cifar-quarter" if quick else "resnet10-cifar") for ratio in RATIOS]
    print_table(header, [*rows, ("target", "<= 1.02", "", "", "<= 1.04", "")])


if __name__ == "__main__":
    main()
