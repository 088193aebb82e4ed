"""Folders of runs that never ran, in exactly the form the recorder writes; also used by benchmarks/report.py."""

import csv
import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import yaml
from safetensors.numpy import save_file

from fedapp.config import RunConfig, flatten, parse
from fedapp.recorder import COLUMNS
from fedapp.report.records import summarise

MODELS = ("small-cnn", "small-resnet", "separable-cnn", "mlp")
FLOWS = [f"{p}{kind}_{way}" for p in ("", "evaluate_") for kind in ("payload", "header") for way in ("down", "up")]
DOMAINS = ("optical", "mnist", "mnistm", "rendered")


@dataclass
class Made:
    """What a folder is made of; a test changes what it is about before it writes the folder."""

    config: dict
    rounds: list
    table: list
    summary: dict
    prototypes: dict | None = None
    failures: list = field(default_factory=list)

    def write(self, folder):
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.yaml").write_text(yaml.safe_dump(self.config, sort_keys=False), encoding="utf-8")
        lines = "".join(json.dumps(line, allow_nan=False) + "\n" for line in self.rounds)
        (folder / "rounds.jsonl").write_text(lines, encoding="utf-8")
        with (folder / "clients.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS, restval="", extrasaction="ignore")
            writer.writeheader()
            writer.writerows(self.table)
        if self.summary is not None:
            (folder / "summary.json").write_text(json.dumps(self.summary, allow_nan=False), encoding="utf-8")
        if self.prototypes is not None:
            save_file(self.prototypes, folder / "prototypes.safetensors")
        return folder


def make(
    clients=6, rounds=4, classes=10, *, seed=0, method="fedsaf", names=None, gain=0.0, failing=(), settings=None,
    feature_dim=32, evaluated=True, analysed=True, finished=True, domains=DOMAINS,
):  # fmt: skip
    """Make a run; ``failing`` holds (round, client) pairs, round 0 = at the start."""
    rng = np.random.default_rng([seed, clients, rounds])
    ids = names or [str(i) for i in range(clients)]
    values = {"method": method, "seed": seed, "num-server-rounds": rounds, "out": "runs", **(settings or {})}
    config = parse(RunConfig, {**values, "run-name": f"{method}-s{seed}"})
    counts = rng.dirichlet(np.full(clients, 0.4), classes).T * 150 * clients
    infos = {
        client: {
            "model": MODELS[i % 4],
            "domain": domains[i % len(domains)] if domains else "",
            "train-examples": int(np.floor(counts[i]).sum()),
            "test-examples": 40 + i,
            "feature-dim": feature_dim,
            "label-counts": np.floor(counts[i]).astype(int).tolist(),
        }
        for i, client in enumerate(ids)
    }
    described = {
        "run": f"{method}-s{seed}",
        "settings": flatten(config),
        "method-params": {"alignment": "gcsa", "proto-weight": 10.0},
        "versions": {"python": "3.11.7", "fedapp": "0.1.0", "flwr": "1.42.0", "torch": "2.14.1"},
        "clients": infos,
    }
    failures = [
        {"round": at, "client": client, "phase": "start" if at == 0 else "train", "kind": "NoReply",
         "reason": f"no reply within 60 s (round {at})\nand a second line"}
        for at, client in failing
    ]  # fmt: skip
    skill = rng.normal(0, 0.08, clients)
    lines, table = [], []
    for number in range(1, rounds + 1):
        level = 0.1 + (0.6 + gain) * (1 - np.exp(-4 * number / rounds))
        line, rows = _round(number, infos, level + skill, rng, evaluated, analysed, failures)
        lines.append(line)
        table += rows
    summary = summarise(described, lines, failures)
    summary["seconds"]["run"] = sum(summary["seconds"].values()) + 1.25
    summary["model_sha256"] = {client: f"{i:064x}" for i, client in enumerate(ids)}
    held = [(i, label) for i in range(clients) for label in range(classes) if counts[i, label] >= 1]
    centres = rng.normal(size=(classes, feature_dim)) + 0
    bases = 1.5 * rng.normal(size=(clients, feature_dim))
    rows = np.stack([centres[label] + bases[i] + 0.3 * rng.normal(size=feature_dim) for i, label in held])
    prototypes = {
        "rows": rows.astype(np.float32),
        "client": np.array([i for i, _ in held]),
        "class": np.array([label for _, label in held]),
        "counts": np.array([int(counts[i, label]) for i, label in held]),
    }
    return Made(described, lines, table, summary if finished else None, prototypes if analysed else None, failures)


def _round(number, infos, levels, rng, evaluated, analysed, failures):
    failed = {f["client"]: f for f in failures if f["round"] == number}
    rows, measured = [], {}
    for i, (client, info) in enumerate(infos.items()):
        tests = info["test-examples"]
        correct = int(np.clip(round((levels[i] + rng.normal(0, 0.02)) * tests), 0, tests))
        lost = client in failed
        row = {
            "round": number, "client": client, "domain": info["domain"], "model": info["model"],
            "trained": int(not lost), "payload_down": 20_480 * (number > 1), "payload_up": 20_560, "header_down": 292,
            "header_up": 589, "evaluate_payload_down": 0, "evaluate_payload_up": 0,
        }  # fmt: skip
        if lost:
            row["failure"] = f"{failed[client]['kind']}: " + failed[client]["reason"].splitlines()[0]
        else:
            spent = rng.gamma(20, 0.01, 4)
            row |= {"train_examples": info["train-examples"], "train_loss": float(2.3 / number**0.3)}
            row |= dict(zip(("load_seconds", "train_seconds", "save_seconds"), map(float, spent), strict=False))
        if evaluated:
            row |= {"test_examples": tests, "accuracy": correct / tests, "test_loss": 2.0}
            row |= {"evaluate_seconds": float(rng.gamma(10, 0.002)), "evaluate_header_down": 292}
            row |= {"evaluate_header_up": 93}
            measured[client] = (correct, tests, info["domain"] or "all")
        rows.append(row)
    line = _line(number, rows, measured, rng)
    if analysed:
        line["analysis"] = {
            "effective_dimension": int(6 + 10 / number),
            "participation_ratio": float(5 + 5 / number + rng.normal(0, 0.1)),
            "entropy_rank": float(7 + 7 / number),
            "cka": None if number == 1 else float(1 - 0.6 / number),
            "clients": {
                client: {"shape": float(4 / number + i % 5 * 0.1), "rigid": float(9 + i % 3 + rng.normal(0, 0.2))}
                for i, client in enumerate(infos)
            },
        }
    return line, rows


def _line(number, rows, measured, rng):
    traffic = {name: sum(row.get(name) or 0 for row in rows) for name in FLOWS}
    kinds = ("load", "train", "save", "evaluate")
    shares = {client: correct / tests for client, (correct, tests, _) in measured.items()}
    pooled = defaultdict(list)
    for correct, tests, domain in measured.values():
        pooled[domain].append((correct, tests))
    total = sum(tests for _, tests, _ in measured.values())
    accuracy = sum(correct for correct, _, _ in measured.values()) / total if measured else None
    worst = min(shares, key=lambda client: shares[client], default=None)
    return {
        "round": number,
        "aggregated": True,
        "trained": [row["client"] for row in rows if row["trained"]],
        "evaluated": list(measured),
        "train": {
            "loss": float(2.3 / number**0.3 + 0.1 * rng.random()),
            "proto-loss": float(0.2 / number), "inst-loss": float(0.6 / number),
            "proto-active": min(1.0, number / 3), "inst-active": 1.0 if number > 1 else 0.0,
        },
        "evaluate": {"accuracy": accuracy, "loss": float(2.1 / number**0.2)} if measured else {},
        "accuracy": accuracy,
        "client_mean": float(np.mean(list(shares.values()))) if shares else None,
        "client_std": float(np.std(list(shares.values()))) if shares else None,
        "client_worst": shares[worst] if shares else None,
        "worst_client": worst,
        "domains": {
            name: sum(c for c, _ in found) / sum(t for _, t in found) for name, found in sorted(pooled.items())
        },
        "bytes": traffic,
        "seconds": {"train": float(rng.gamma(40, 0.02)), "aggregate": 0.004, "evaluate": float(rng.gamma(20, 0.01))},
        "client_seconds": {kind: float(sum(row.get(f"{kind}_seconds") or 0.0 for row in rows)) for kind in kinds},
        "failures": sum("failure" in row for row in rows),
    }  # fmt: skip
