"""What a finished run left in its folder, read back without torch or Flower, and the numbers tables are made of."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fedapp.config import SettingError
from fedapp.summaries import over_rounds

MIB = 2**20
PARAMS = "method-params"


@dataclass(frozen=True)
class Run:
    """The records of one finished run.

    Attributes:
        folder: Where they are.
        settings: Every setting by key; the method's own, resolved, as "method-params.KEY"; and "clients".
        clients: Who the clients were, by stable id.
        rounds: The lines of rounds.jsonl.
        summary: summary.json.
    """

    folder: Path
    settings: dict[str, Any]
    clients: dict[str, dict[str, Any]]
    rounds: list[dict[str, Any]]
    summary: dict[str, Any]

    @property
    def seed(self) -> int:
        """The training seed."""
        return int(self.settings["seed"])


@dataclass(frozen=True)
class Metric:
    """One number of a run.

    Attributes:
        label: Heading of its column.
        value: Reads it from a run; None if it was not measured.
        digits: Digits after the point in tables.
    """

    label: str
    value: Callable[[Run], float | None]
    digits: int = 2


def finished(folder: Path) -> bool:
    """Return whether a run came to its end here."""
    return (folder / "summary.json").is_file() and (folder / "config.yaml").is_file()


def read(folder: Path) -> Run:
    """Return the records of a finished run.

    Raises:
        SettingError: If the folder holds none, or they cannot be read.
    """
    settings, clients = begun(folder)
    try:
        lines = (folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
        rounds = [json.loads(line) for line in lines if line]
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise SettingError(f"{folder} holds no finished run: {Path(error.filename).name} is missing") from None
    except (OSError, ValueError) as error:
        raise SettingError(f"the records in {folder} cannot be read: {error}") from error
    return Run(folder, settings, clients, rounds, summary)


def begun(folder: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the settings and the clients of a run that has begun, finished or not.

    Raises:
        SettingError: If the folder holds none, or its config.yaml cannot be read.
    """
    try:
        described = yaml.load((folder / "config.yaml").read_text(encoding="utf-8"), Loader=_LOADER)
        clients = described["clients"]
        number = described.get("num-clients") or len(clients)
        return {**described["settings"], **dotted(described[PARAMS]), "clients": number}, clients
    except FileNotFoundError:
        raise SettingError(f"{folder} holds no run: config.yaml is missing") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError) as error:
        raise SettingError(f"the records in {folder} cannot be read: {error}") from error


def dotted(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return a method's own settings under the keys that stand beside the run's settings.

    Example:
        >>> dotted({"alignment": "rcsa"})
        {'method-params.alignment': 'rcsa'}
    """
    return {f"{PARAMS}.{key}": value for key, value in params.items()}


def measure(run: Run) -> dict[str, float | None]:
    """Return every number of ``METRICS`` for a run: accuracies in per cent, traffic in MiB, time in seconds."""
    return {name: metric.value(run) for name, metric in METRICS.items()}


def curve(run: Run) -> dict[int, float]:
    """Return the accuracy over the rounds that were evaluated, in per cent, by round."""
    return {line["round"]: 100 * line["accuracy"] for line in run.rounds if line["accuracy"] is not None}


def data_settings(run: Run) -> tuple[Any, ...]:
    """Return the settings that decide who trains on what: runs that share them must have had the same data."""
    left_out = [run.settings.get(key) or "" for key in ("leave-domain", "leave-clients")]
    return (*(run.settings.get(key) for key in (*_DATA_SETTINGS, "clients")), *left_out)


def data_differences(runs: Sequence[Run]) -> list[str]:
    """Return in which runs the clients held other data than in the first, and where; empty if all agree.

    Compared are each client's domain and its numbers of samples, as the clients themselves reported them, and the
    settings that decide who holds what.
    """
    found = []
    for run in runs[1:]:
        ours, theirs = _data(run), _data(runs[0])
        for key in sorted({*ours, *theirs}):
            if ours.get(key) != theirs.get(key):
                found.append(f"{run.folder.name}: {key} is {ours.get(key)}, but {theirs.get(key)} in the first run")
    return found


# ---- parts ---------------------------------------------------------------------------------------

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DATA_SETTINGS = (
    "dataset", "partition", "dirichlet-alpha", "min-partition-size", "partition-seed", "samples-per-client",
    "test-split", "train-fraction", "validation-fraction",
)  # fmt: skip
_DATA_OF_CLIENT = ("domain", "train-examples", "test-examples", "validation-examples", "labels", "label-counts")


def _data(run: Run) -> dict[str, Any]:
    data = {key: run.settings.get(key) for key in _DATA_SETTINGS}
    for client, described in run.clients.items():
        data[f"client {client}"] = {key: described[key] for key in _DATA_OF_CLIENT if key in described}
    return data


def _percent(*keys: str) -> Callable[[Run], float | None]:
    def value(run: Run) -> float | None:
        found: Any = run.summary
        for key in keys:
            found = found.get(key) if found else None
        return None if found is None else 100 * float(found)

    return value


def _mib(direction: str) -> Callable[[Run], float | None]:
    def value(run: Run) -> float | None:
        traffic = run.summary["bytes"]
        return float(traffic.get(f"payload_{direction}", 0) + traffic.get(f"evaluate_payload_{direction}", 0)) / MIB

    return value


def _mib_of_a_round(direction: str) -> Callable[[Run], float | None]:
    def value(run: Run) -> float | None:
        return float(run.rounds[-1]["bytes"].get(f"payload_{direction}", 0)) / MIB if run.rounds else None

    return value


def _client_seconds(kind: str) -> Callable[[Run], float | None]:
    def value(run: Run) -> float | None:
        return float(sum(line.get("client_seconds", {}).get(kind, 0.0) for line in run.rounds))

    return value


def _global_mean(part: str) -> Callable[[Run], float | None]:
    """Return what reads the mean over domains of the one model that everybody could use, as the FedSAP paper counts.

    It is the consensus where a method evaluates one, re-estimated if its settings say so; else the mean over domains
    of the clients' accuracies, which for methods with a single model is that model's.
    """

    def value(run: Run) -> float | None:
        again = run.settings.get(f"{PARAMS}.bn.recalibrate") in (True, "true", "True")
        found = (run.summary.get("evaluations") or {}).get("consensus-recalibrated" if again else "consensus")
        if found is not None:
            mean = found["global_mean"][part]
        else:
            lines = [line["domains"] for line in run.rounds if line.get("domains")]
            values = [sum(one.values()) / len(one) for one in lines if None not in one.values()]
            mean = over_rounds(values)[part]
        return None if mean is None else 100 * float(mean)

    return value


METRICS: dict[str, Metric] = {
    "best": Metric("best", _percent("accuracy", "best")),
    "last": Metric("last", _percent("accuracy", "last")),
    "last_ten": Metric("mean of last ten", _percent("accuracy", "last_ten")),
    "by_validation": Metric("by validation", _percent("accuracy", "by_validation")),
    "global_mean": Metric("mean over domains, best", _global_mean("best")),
    "global_mean_last_ten": Metric("mean over domains, mean of last ten", _global_mean("last_ten")),
    "client_mean": Metric("client mean", _percent("clients", "mean")),
    "client_std": Metric("client std", _percent("clients", "std")),
    "client_worst": Metric("worst client", _percent("clients", "worst")),
    "mib_up": Metric("MiB up", _mib("up")),
    "mib_down": Metric("MiB down", _mib("down")),
    "mib_up_round": Metric("MiB up, last round", _mib_of_a_round("up")),
    "mib_down_round": Metric("MiB down, last round", _mib_of_a_round("down")),
    "cpu_seconds": Metric("client CPU s", _client_seconds("cpu"), 1),
    "train_seconds": Metric("client train s", _client_seconds("train"), 1),
    "run_seconds": Metric("run s", lambda run: float(run.summary["seconds"]["run"]), 1),
    "failures": Metric("failures", lambda run: float(len(run.summary["failures"])), 0),
}
"""Every number of a run by its name: accuracies are weighted by samples unless they say "client"."""
