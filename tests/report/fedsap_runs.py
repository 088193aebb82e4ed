"""Folders of FedSAP runs that never ran: what tests/report/folders.py makes, with submodels and named evaluations."""

import numpy as np

from fedapp.config import flatten
from fedapp.report.records import summarise
from fedapp.strategies.fedsap.params import FedSAPParams
from tests.report.folders import make

RATIOS = (1.0, 0.8, 0.6, 0.4, 0.2)
NAMES = ("consensus", "group", "deployed")
RESNET18 = (
    ("extractor.conv1", 64),
    *(
        (f"extractor.layer{stage}.{block}.{name}", 32 * 2**stage)
        for stage in (1, 2, 3, 4)
        for block in (0, 1)
        for name in ("conv1", "conv2", "downsample.0")
        if name != "downsample.0" or (block == 0 and stage > 1)
    ),
)
SMALL = (("extractor.conv1", 16), ("extractor.layer1.0.conv1", 32), ("extractor.layer1.0.downsample.0", 64))


def make_fedsap(clients=6, rounds=4, layers=SMALL, *, params=None, settings=None, simulated=True, **more):
    """Make a run of FedSAP; ``simulated`` is whether the server had test data."""
    made = make(clients, rounds, method="fedsap", settings=settings, analysed=False, **more)
    made.config["method-params"] = flatten(params or FedSAPParams())
    rng = np.random.default_rng(rounds)
    for line in made.rounds:
        line["analysis"] = {"submodels": _submodels(line["round"], made.config["clients"], layers, rng)}
        if line["domains"]:
            line["evaluations"] = _evaluations(line["domains"], simulated, rng)
    if made.summary is not None:
        made.summary |= {key: v for key, v in summarise(made.config, made.rounds, []).items() if key == "evaluations"}
    return made


def _submodels(number, infos, layers, rng):
    sizes = np.array([channels for _, channels in layers])
    domains = sorted({info["domain"] for info in infos.values()})
    clients = {}
    for i, (client, info) in enumerate(infos.items()):
        ratio = RATIOS[i % len(RATIOS)]
        tilt = 1 + 0.3 * (1 - ratio) * np.sin(np.arange(len(sizes)) + number)
        kept = np.clip(np.rint(ratio * tilt * sizes), 1, sizes).astype(int)
        private = kept // 10 * (number > 1)
        clients[client] = {
            "keep_ratio": ratio,
            "group": domains.index(info["domain"]) if number > 2 else 0,
            "global": (kept - private).tolist(),
            "private": private.tolist(),
            **_costs(kept),
        }
    return {
        "stage": "warm-up" if number == 1 else "adaptive",
        "layers": [{"name": name, "channels": channels} for name, channels in layers],
        "num_groups": len({own["group"] for own in clients.values()}),
        "adjusted_rand": (1.0 if number > 2 else 0.0) if len(domains) > 1 else None,
        "importance": rng.random(len(sizes)).tolist(),
        "dispersed": rng.random(len(sizes)).tolist(),
        "full": _costs(sizes),
        "clients": clients,
        "warnings": [],
    }


def _costs(kept):
    weights = int(9 * (kept[1:] * kept[:-1]).sum() + 27 * kept[0])
    return {"macs": 64 * weights, "parameters": weights, "bytes": 4 * weights, "activations": int(128 * kept.sum())}


def _evaluations(domains, simulated, rng):
    kinds = [name + way for name in (NAMES if simulated else NAMES[2:]) for way in ("", "-recalibrated")]
    return {name: {d: float(np.clip(v + rng.normal(0, 0.05), 0, 1)) for d, v in domains.items()} for name in kinds}
