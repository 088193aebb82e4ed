"""What a run's folder holds, read as it is; what an unfinished run lacks is made from its rounds by the same rules."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fedapp.config import SettingError
from fedapp.summaries import called, over_evaluations, over_rounds

Line = Mapping[str, Any]


@dataclass(frozen=True)
class Prototypes:
    """The local prototypes of the last round that had uploads.

    Attributes:
        rows: (M, D), one class mean a row.
        client: (M,), which client it came from, as a position in config.yaml.
        label: (M,), its class.
    """

    rows: NDArray[np.float32]
    client: NDArray[np.int64]
    label: NDArray[np.int64]


@dataclass(frozen=True)
class Records:
    """One run's folder.

    Attributes:
        name: Name of the run.
        config: config.yaml.
        rounds: rounds.jsonl, one mapping a line.
        table: clients.csv, one mapping a row, all text.
        summary: summary.json, or the same made from the rounds if the run did not finish.
        finished: Whether there is a summary.json.
        prototypes: prototypes.safetensors, if there is one.
        class_names: The name of every class, as far as the run knows them.
        damage: What could not be read, in words.
    """

    name: str
    config: Line
    rounds: Sequence[Line]
    table: Sequence[Mapping[str, str]]
    summary: Line
    finished: bool
    prototypes: Prototypes | None = None
    damage: Sequence[str] = ()
    class_names: Sequence[str] = ()

    @property
    def settings(self) -> Line:
        """Every setting by key."""
        found: Line = self.config.get("settings") or {}
        return found

    @cached_property
    def clients(self) -> dict[str, dict[str, Any]]:
        """What is known of every client, first those of config.yaml, then those that joined later."""
        known = {str(client): dict(info or {}) for client, info in (self.config.get("clients") or {}).items()}
        for row in self.table:
            about = {key: row.get(key) or "" for key in ("model", "domain", "name")}
            known.setdefault(row["client"], about)
        return known

    @cached_property
    def newcomers(self) -> dict[str, dict[str, Any]]:
        """What is known of every client that was left out of training, likewise."""
        known = {str(client): dict(info or {}) for client, info in (self.config.get("left-out") or {}).items()}
        for client, domain in self.left_out.items():
            known.setdefault(client, {"domain": domain})
        return known

    def called(self, client: str) -> str:
        """Return what to call a client: its id, with its name in the data if it has one."""
        known = {**self.clients, **self.newcomers}
        return called(client, known.get(client, {}).get("name"))

    def class_name(self, label: int) -> str:
        """Return what to call a class: its name, or its number where no name is known."""
        return self.class_names[label] if label < len(self.class_names) else str(label)

    @property
    def left_out(self) -> dict[str, str]:
        """The clients that took no part in training, with their domains ("" = none)."""
        return dict(self.summary.get("left_out") or {})

    @cached_property
    def evaluated(self) -> list[Line]:
        """The rounds in which an accuracy was measured."""
        return [line for line in self.rounds if line.get("accuracy") is not None]

    @cached_property
    def best_round(self) -> int | None:
        """The first round with the best accuracy over samples."""
        best = max(self.evaluated, key=lambda line: line["accuracy"], default=None)
        return None if best is None else int(best["round"])

    @cached_property
    def analysed(self) -> list[Line]:
        """The rounds that carry an analysis of the prototypes."""
        return [line for line in self.rounds if "effective_dimension" in (line.get("analysis") or {})]

    @cached_property
    def submodels(self) -> list[Line]:
        """The rounds that tell what each client's submodel holds."""
        return [line for line in self.rounds if (line.get("analysis") or {}).get("submodels")]

    @cached_property
    def latest(self) -> dict[str, Mapping[str, str]]:
        """The last row of every client that was ever evaluated."""
        return {row["client"]: row for row in self.table if row["accuracy"]}

    def rows_of(self, client: str) -> list[Mapping[str, str]]:
        """Return the rows of one client."""
        return self._rows.get(client, [])

    @cached_property
    def _rows(self) -> dict[str, list[Mapping[str, str]]]:
        rows: dict[str, list[Mapping[str, str]]] = defaultdict(list)
        for row in self.table:
            rows[row["client"]].append(row)
        return dict(rows)


def load(folder: Path) -> Records:
    """Read the folder of one run, whatever parts of it exist.

    Raises:
        SettingError: If there is no config.yaml, or it cannot be read.
    """
    path = Path(folder) / "config.yaml"
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise SettingError(f"{folder} is no run's folder: {error}; give the folder that `fedapp run` printed") from None
    if not isinstance(config, dict):
        raise SettingError(f"{path} holds no settings; give the folder that `fedapp run` printed")
    damage: list[str] = []
    rounds = _rounds(Path(folder) / "rounds.jsonl", damage)
    table = _table(Path(folder) / "clients.csv")
    summary = _summary(Path(folder) / "summary.json", damage)
    made = summary if summary is not None else summarise(config, rounds, failures_in(table))
    prototypes = _prototypes(Path(folder) / "prototypes.safetensors", damage)
    name = str(config.get("run") or Path(folder).name)
    names = _class_names(Path(folder) / "partition.npz", config, damage)
    return Records(name, config, rounds, table, made, summary is not None, prototypes, damage, names)


def summarise(config: Line, rounds: Sequence[Line], failures: Sequence[Line]) -> dict[str, Any]:
    """Return what summary.json would hold if the run had ended after ``rounds``; without its wall clock and digests."""
    evaluated = [line for line in rounds if line.get("accuracy") is not None]
    last: Line = evaluated[-1] if evaluated else {}
    domains = sorted({name for line in evaluated for name in line["domains"]})
    settings = config.get("settings") or {}
    left_out = {client: about.get("domain", "") for client, about in (config.get("left-out") or {}).items()}
    return {
        "run": config.get("run"),
        "method": settings.get("method", "unknown method"),
        "seed": settings.get("seed"),
        "rounds": rounds[-1]["round"] if rounds else 0,
        "num_clients": len(config.get("clients") or {}),
        **({"left_out": left_out} if left_out else {}),
        "accuracy": over_rounds([line["accuracy"] for line in evaluated]),
        "client_mean_accuracy": over_rounds([line["client_mean"] for line in evaluated]),
        "clients": {
            "mean": last.get("client_mean"),
            "std": last.get("client_std"),
            "worst": last.get("client_worst"),
            "worst_client": last.get("worst_client"),
        },
        "domains": {name: over_rounds([line["domains"].get(name) for line in evaluated]) for name in domains},
        "bytes": totals(rounds, "bytes"),
        "seconds": totals(rounds, "seconds"),
        "failures": list(failures),
        **over_evaluations(evaluated),
        "model_sha256": {},
    }


def totals(rounds: Sequence[Line], part: str) -> dict[str, Any]:
    """Return the sums over the rounds of one of their parts.

    Example:
        >>> totals([{"bytes": {"payload_up": 1}}, {"bytes": {"payload_up": 2}}, {}], "bytes")
        {'payload_up': 3}
    """
    sums: dict[str, Any] = defaultdict(int)
    for line in rounds:
        for name, value in (line.get(part) or {}).items():
            sums[name] += value
    return dict(sums)


def failures_in(table: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
    """Return the failures that stand in clients.csv; the phase is not kept there.

    Example:
        >>> failures_in([{"round": "2", "client": "5", "failure": "NoReply: no reply in time"}])
        [{'round': 2, 'client': '5', 'phase': None, 'kind': 'NoReply', 'reason': 'no reply in time'}]
    """
    found = []
    for row in table:
        if row["failure"]:
            kind, _, reason = row["failure"].partition(": ")
            found.append(
                {"round": int(row["round"]), "client": row["client"], "phase": None, "kind": kind, "reason": reason}
            )
    return found


def _rounds(path: Path, damage: list[str]) -> list[Line]:
    """Read the lines up to the first that was cut off."""
    lines: list[Line] = []
    if not path.is_file():
        return lines
    for text in path.read_text(encoding="utf-8", errors="replace").rstrip("\n").split("\n"):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
            lines.append({**line, "round": int(line["round"])})
        except (ValueError, KeyError, TypeError):
            damage.append(f"rounds.jsonl is cut off after {len(lines)} rounds; what follows is left out")
            break
    return lines


def _table(path: Path) -> list[dict[str, str]]:
    """Read the rows; a last row that was cut off is left out."""
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        return [row for row in csv.DictReader(file) if None not in row.values()]


def _summary(path: Path, damage: list[str]) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found
    except ValueError:
        damage.append("summary.json cannot be read; the totals are made from rounds.jsonl")
        return None


def _class_names(path: Path, config: Line, damage: list[str]) -> list[str]:
    """Read the names that a simulation keeps beside its index lists, or that devices have agreed on."""
    try:
        if path.is_file():
            with np.load(path, allow_pickle=False) as kept:
                return list(map(str, kept["classes"])) if "classes" in kept else []
        agreed = json.loads(config.get("agreed") or "{}")
        return list(map(str, json.loads(agreed.get("label-names") or "[]")))
    except Exception as error:  # of a damaged file zipfile and zlib raise much, NotImplementedError among it
        damage.append(f"the names of the classes cannot be read ({error})")
        return []


def _prototypes(path: Path, damage: list[str]) -> Prototypes | None:
    """Read the rows that are finite."""
    if not path.is_file():
        return None
    try:
        found = load_file(path)
        rows, client, label = found["rows"].astype(np.float32), found["client"], found["class"]
    except (OSError, KeyError, SafetensorError) as error:
        damage.append(f"prototypes.safetensors cannot be read ({error})")
        return None
    if rows.ndim != 2 or client.shape != rows.shape[:1] or label.shape != rows.shape[:1]:
        damage.append(f"prototypes.safetensors: {rows.shape} rows do not fit {client.shape} clients")
        return None
    finite = np.isfinite(rows).all(axis=1)
    return Prototypes(rows[finite], client[finite], label[finite])
