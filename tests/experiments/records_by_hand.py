"""Run folders written by hand, so that tables can be checked against numbers that nobody computed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from fedapp.config import RunConfig, flatten
from fedapp.experiments import grid
from fedapp.experiments.execution import Outcome, State

CLIENTS = {
    "0": {"model": "mlp", "domain": "", "train-examples": 30, "test-examples": 10, "feature-dim": 16},
    "1": {"model": "mlp", "domain": "", "train-examples": 20, "test-examples": 5, "feature-dim": 16},
}


def write_run(folder: Path, settings: Mapping[str, Any], accuracies: Sequence[float]) -> Path:
    """Write the records of a finished run with these accuracies (shares) over its rounds."""
    folder.mkdir(parents=True)
    params = {key.removeprefix("method-params."): value for key, value in settings.items() if "params." in key}
    own = {key: value for key, value in settings.items() if "params." not in key and key != "clients"}
    described = {"settings": {**flatten(RunConfig()), **own}, "method-params": params, "clients": CLIENTS}
    (folder / "config.yaml").write_text(yaml.safe_dump(described))
    lines = [
        {
            "round": number,
            "accuracy": accuracy,
            "bytes": {"payload_up": 2**20, "payload_down": 2**21},
            "client_seconds": {"train": 1.5, "cpu": 1.5},
        }
        for number, accuracy in enumerate(accuracies, start=1)
    ]
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    tail = list(accuracies)[-10:]
    summary = {
        "method": own["method"],
        "accuracy": {"best": max(accuracies), "last": accuracies[-1], "last_ten": sum(tail) / len(tail)},
        "clients": {"mean": 0.5, "std": 0.125, "worst": 0.25, "worst_client": "1"},
        "bytes": {"payload_up": 3 * 2**20, "evaluate_payload_up": 2**19, "payload_down": 2**20},
        "seconds": {"run": 9.0},
        "failures": [],
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def write_sweep(folder: Path, sweep: grid.Sweep, curves: Mapping[str, Sequence[float]]) -> None:
    """Write a sweep in which the cells named by (method, seed) are done, and the others wait."""
    outcomes = {}
    for cell in sweep.cells:
        key = f"{cell.config.method} {cell.config.seed}"
        if key in curves:
            write_run(folder / cell.name, {**cell.settings, "seed": cell.config.seed}, curves[key])
            outcomes[cell.name] = Outcome("done")
    folder.mkdir(exist_ok=True)
    State(sweep, outcomes).write(folder)
