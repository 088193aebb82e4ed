"""A run's results as it goes: config.yaml, rounds.jsonl, clients.csv, summary.json. An observer of a strategy."""

from __future__ import annotations

import csv
import importlib.metadata
import io
import json
import platform
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from safetensors.numpy import save as to_bytes

from fedapp.config import RunConfig, SettingError, flatten
from fedapp.functional import metrics
from fedapp.memory import safe_name, write_atomically
from fedapp.payload import ClientInfo
from fedapp.strategies.base import PayloadStrategy
from fedapp.strategies.records import HEADLINE, Reply, RoundRecord, weighted_metrics
from fedapp.summaries import (
    BY_PROTOTYPE,
    by_prototype,
    chosen_by_validation,
    evaluations_in_words,
    number_of,
    over_evaluations,
    over_rounds,
)

COLUMNS = (
    "round", "client", "domain", "model", "trained", "train_examples", "train_loss", "test_examples", "accuracy",
    "prototype_accuracy", "test_loss", "payload_down", "payload_up", "header_down", "header_up",
    "evaluate_payload_down", "evaluate_payload_up", "evaluate_header_down", "evaluate_header_up", "load_seconds",
    "train_seconds", "save_seconds", "evaluate_seconds", "failure", "name",
)  # fmt: skip
PACKAGES = ("fedapp", "flwr", "torch", "torchvision", "numpy", "ray", "datasets", "scikit-learn")


class Recorder:
    """Results of one run in ``<out>/<run-name>/``; an existing folder is written to only to continue that run.

    Args:
        config: The run's settings, with an absolute ``out``; ``resume`` names the folder of a run to continue.
        progress: Called with every line of rounds.jsonl.
        completed: Rounds that the run to be continued has behind it; what was recorded of later ones goes.

    Raises:
        SettingError: If the folder of a given run name exists already, or cannot be made.
    """

    def __init__(
        self, config: RunConfig, completed: int = 0, progress: Callable[[dict[str, Any]], None] | None = None
    ) -> None:
        self.config = config
        self.progress = progress
        self.clients: dict[str, ClientInfo] = {}
        self.left_out: dict[str, ClientInfo] = {}
        if config.resume:
            self.folder = Path(config.resume)
            self.name = self.folder.name
        else:
            self.name, self.folder = _new_folder(config)
            self._write_config({}, {})
        self.rounds: list[dict[str, Any]] = []
        self.failures: list[dict[str, Any]] = []
        self.summary: dict[str, Any] = {}
        self._absent = 0  # nodes that could not join, as far as they are among the failures
        self._told = 0  # failures that stand in a line of rounds.jsonl
        if config.resume:
            self._take_up(completed)
        self._started = time.perf_counter()
        self._earlier = float(self.rounds[-1].get("run_seconds", 0.0)) if self.rounds else 0.0

    # ---- the observer ----------------------------------------------------------------------------

    def on_start(self, strategy: PayloadStrategy) -> None:
        """Write the resolved settings and open the tables."""
        self.clients, self.left_out = dict(strategy.clients), dict(strategy.held_out.clients)
        described = {client: _described(info) for client, info in self.clients.items()}
        self._write_config(flatten(strategy.params), described, strategy.roster.agreed)
        if not [known for known in self.failures if known["round"] == 0]:
            self._add_failures(0, strategy.roster.failures)
        self._absent = len(strategy.roster.failures)
        if not (self.folder / "clients.csv").exists():
            with (self.folder / "clients.csv").open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerow(COLUMNS)

    def on_round(self, strategy: PayloadStrategy, record: RoundRecord) -> None:
        """Append one line to rounds.jsonl and one row a client to clients.csv."""
        self.clients.update(strategy.clients)
        self.left_out.update(strategy.held_out.clients)
        self._add_failures(record.round, strategy.roster.failures[self._absent :])
        self._absent = len(strategy.roster.failures)
        self._add_failures(record.round, record.failures)
        line = self._round_line(record)
        self.rounds.append(line)
        with (self.folder / "rounds.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")
        with (self.folder / "clients.csv").open("a", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(self._rows(record))
        if record.artifacts:
            arrays = {name: np.asarray(array, order="C") for name, array in record.artifacts.items()}
            write_atomically(self.folder / "prototypes.safetensors", to_bytes(arrays))
        if self.progress:
            self.progress(line)

    def on_end(self, strategy: PayloadStrategy, digests: Mapping[str, str]) -> None:
        """Write summary.json."""
        self.summary = self._summarise(digests)
        text = json.dumps(self.summary, indent=2, allow_nan=False)
        (self.folder / "summary.json").write_text(text + "\n", encoding="utf-8")

    def headline(self) -> str:
        """Return the run's outcome in a few lines: one more for every named evaluation."""
        accuracy = self.summary.get("accuracy", {})
        if not accuracy or accuracy["last"] is None:
            return f"{self.config.method}: nothing was evaluated"
        worst = self.summary["clients"]
        lines = [
            f"{self.config.method}: accuracy (by samples) best {accuracy['best']:.4f}, last {accuracy['last']:.4f}, "
            f"mean of the last ten {accuracy['last_ten']:.4f}",
            f"by client: mean {worst['mean']:.4f}, std {worst['std']:.4f}, worst {worst['worst']:.4f} "
            f"(client {worst['worst_client']})",
            *evaluations_in_words(self.summary),
        ]
        if self.failures:
            first = self.failures[0]
            lines.append(
                f"{len(self.failures)} failures; first: client {first['client']}, round {first['round']}: "
                f"{first['kind']}: {first['reason']}"
            )
        return "\n".join(lines)

    # ---- parts -----------------------------------------------------------------------------------

    def _write_config(self, params: Mapping[str, Any], clients: Mapping[str, Any], agreed: str = "") -> None:
        described = {
            "run": self.name,
            "settings": {**flatten(self.config), "resume": ""},
            "method-params": dict(params),
            "versions": _versions(),
            "num-clients": max((info.num_clients for info in self.clients.values()), default=0) or len(self.clients),
            "clients": dict(clients),
            **({"agreed": agreed} if agreed else {}),
            **(
                {"left-out": {client: _described(info) for client, info in self.left_out.items()}}
                if self.left_out
                else {}
            ),
        }
        text = yaml.safe_dump(described, sort_keys=False)
        write_atomically(self.folder / "config.yaml", text.encode())

    def _take_up(self, completed: int) -> None:
        """Read what was recorded of the rounds behind the run, and drop what was recorded of later ones."""
        lines = _whole_lines(self.folder / "rounds.jsonl")
        self.rounds = [line for line in map(json.loads, lines) if line["round"] <= completed]
        self.failures = [failure for line in self.rounds for failure in line["failed"]]
        self._told = len(self.failures)
        kept = "".join(json.dumps(line, allow_nan=False) + "\n" for line in self.rounds)
        write_atomically(self.folder / "rounds.jsonl", kept.encode())
        rows = csv.DictReader(_whole_lines(self.folder / "clients.csv"), restval="")  # columns may be fewer than now
        if rows.fieldnames:
            text = io.StringIO()
            table = csv.DictWriter(text, COLUMNS, restval="", extrasaction="ignore")
            table.writeheader()
            table.writerows(row for row in rows if int(row["round"]) <= completed)
            write_atomically(self.folder / "clients.csv", text.getvalue().encode())

    def _add_failures(self, number: int, failures: Sequence[Any]) -> None:
        self.failures.extend({"round": number, **vars(failure)} for failure in failures)

    def _round_line(self, record: RoundRecord) -> dict[str, Any]:
        traffic: dict[str, int] = defaultdict(int)
        for (phase, _), flow in record.traffic.items():
            for name, count in vars(flow).items():
                traffic[name if phase == "train" else f"evaluate_{name}"] += count
        return {
            "round": record.round,
            "aggregated": record.aggregated,
            "trained": [reply.client for reply in record.trained],
            "evaluated": [reply.client for reply in record.evaluated],
            "train": _plain(weighted_metrics(record.trained)),
            "evaluate": _plain(weighted_metrics(record.evaluated)),
            **self._spread(record.evaluated),
            **({"evaluations": _finite(record.evaluations)} if record.evaluations else {}),
            **({"left_out": {one.client: _plain(one.metrics) for one in record.left_out}} if record.left_out else {}),
            "bytes": dict(traffic),
            "seconds": record.seconds,
            "client_seconds": _totals(record),
            "run_seconds": self._elapsed(),
            "failures": len(record.failures),
            "failed": self._untold(),
            **({"analysis": _finite(record.analysis)} if record.analysis else {}),
        }

    def _elapsed(self) -> float:
        """Return the seconds of this run, those before it was cut included."""
        return self._earlier + time.perf_counter() - self._started

    def _untold(self) -> list[dict[str, Any]]:
        fresh = self.failures[self._told :]
        self._told = len(self.failures)
        return fresh

    def _spread(self, replies: list[Reply]) -> dict[str, Any]:
        """Return the headline accuracy over samples, over clients and over domains."""
        measured = [reply.num_examples if HEADLINE in reply.metrics else 0 for reply in replies]
        counts = np.array(measured, dtype=np.int64)
        shares = [reply.metrics.get(HEADLINE, 0.0) for reply in replies]
        correct = np.array([round(share * count) for share, count in zip(shares, counts, strict=True)], dtype=np.int64)
        domains = [self.clients[reply.client].domain or "all" for reply in replies]
        by_domain = metrics.by_domain(correct, counts, domains)
        tested = [index for index, count in enumerate(counts) if count]
        worst = min(tested, key=lambda index: (shares[index], index), default=None)
        return {
            "accuracy": number_of(metrics.pooled_accuracy(correct, counts)),
            "client_mean": number_of(metrics.client_mean(correct, counts)),
            "client_std": number_of(metrics.client_std(correct, counts)),
            "client_worst": number_of(metrics.client_worst(correct, counts)),
            "worst_client": None if worst is None else replies[worst].client,
            "domains": {str(name): number_of(value) for name, value in by_domain.items()},
        }

    def _rows(self, record: RoundRecord) -> list[list[Any]]:
        trained = {reply.client: reply for reply in record.trained}
        evaluated = {reply.client: reply for reply in record.evaluated}
        failed: dict[str, list[str]] = defaultdict(list)
        for failure in record.failures:
            failed[failure.client].append(f"{failure.kind}: {failure.reason}")
        rows = []
        for client, info in self.clients.items():
            flows = {phase: vars(flow) for (phase, who), flow in record.traffic.items() if who == client}
            if not flows:
                continue
            train, test = trained.get(client), evaluated.get(client)
            values = {
                "round": record.round,
                "client": client,
                "domain": info.domain,
                "model": info.model,
                "trained": int(train is not None),
                "train_examples": train.num_examples if train else "",
                "train_loss": train.metrics.get("loss") if train else "",
                "test_examples": test.num_examples if test else "",
                "accuracy": test.metrics.get(HEADLINE, "") if test else "",
                "prototype_accuracy": test.metrics.get(BY_PROTOTYPE, "") if test else "",
                "test_loss": test.metrics.get("loss", "") if test else "",
                **flows.get("train", {}),
                **{f"evaluate_{name}": count for name, count in flows.get("evaluate", {}).items()},
                **{
                    f"{name}_seconds": train.metrics.get(f"{name}-seconds")
                    for name in ("load", "train", "save")
                    if train
                },
                "evaluate_seconds": test.metrics.get("evaluate-seconds") if test else "",
                "failure": "; ".join(failed[client]),
                "name": info.owner,
            }
            rows.append([values.get(column, "") for column in COLUMNS])
        return rows

    def _summarise(self, digests: Mapping[str, str]) -> dict[str, Any]:
        evaluated = [line for line in self.rounds if line["accuracy"] is not None]
        last = evaluated[-1] if evaluated else self._spread([])
        seconds: dict[str, float] = defaultdict(float)
        traffic: dict[str, int] = defaultdict(int)
        for line in self.rounds:
            for name, value in line["seconds"].items():
                seconds[name] += value
            for name, value in line["bytes"].items():
                traffic[name] += value
        return {
            "run": self.name,
            "method": self.config.method,
            "seed": self.config.seed,
            "rounds": self.rounds[-1]["round"] if self.rounds else 0,
            "num_clients": len(self.clients),
            **({"left_out": {client: info.domain for client, info in self.left_out.items()}} if self.left_out else {}),
            "accuracy": {
                **over_rounds([line["accuracy"] for line in evaluated]),
                **chosen_by_validation(evaluated),
            },
            **by_prototype(evaluated),
            **over_evaluations(evaluated),
            "client_mean_accuracy": over_rounds([line["client_mean"] for line in evaluated]),
            "clients": {
                "mean": last["client_mean"],
                "std": last["client_std"],
                "worst": last["client_worst"],
                "worst_client": last["worst_client"],
            },
            "domains": {
                name: over_rounds([line["domains"].get(name) for line in evaluated])
                for name in sorted({name for line in evaluated for name in line["domains"]})
            },
            "bytes": dict(traffic),
            "seconds": {**seconds, "run": self._elapsed()},
            "failures": self.failures,
            "model_sha256": dict(digests),
        }


def _whole_lines(path: Path) -> list[str]:
    """Return the lines that were written to their end; a crash may have cut the last one."""
    return path.read_text(encoding="utf-8").split("\n")[:-1] if path.is_file() else []


def _new_folder(config: RunConfig) -> tuple[str, Path]:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    base = config.run_name or f"{config.method}-{config.data.dataset}-s{config.seed}-{stamp}"
    root = Path(config.out)
    for attempt in range(1000):
        name = base if attempt == 0 else f"{base}-{attempt + 1}"
        try:
            safe_name(name, "run-name")
            (root / name).mkdir(parents=True, exist_ok=False)
            return name, root / name
        except FileExistsError:
            if config.run_name:
                raise SettingError(
                    f"{root / name} exists already and is not overwritten; choose another run-name, or move it away"
                ) from None
        except ValueError as error:
            raise SettingError(str(error)) from None
        except OSError as error:
            raise SettingError(
                f"results cannot be written to {root}: {error}; set another folder with `out`"
            ) from error
    raise SettingError(f"{root} holds a thousand runs named {base}; set run-name")


def _described(info: ClientInfo) -> dict[str, Any]:
    return {
        "model": info.model,
        **({"name": info.owner} if info.owner else {}),
        "domain": info.domain,
        "train-examples": info.num_examples,
        "test-examples": info.num_test,
        "feature-dim": info.feature_dim,
        "num-classes": info.num_classes,
        "input-shape": list(info.input_shape),
        **({"vocabulary": info.vocabulary} if info.vocabulary else {}),
        **({"tier": info.tier} if info.tier else {}),
        **({"keep-ratio": info.keep_ratio} if info.keep_ratio else {}),
        **({"label-counts": list(info.label_counts)} if info.label_counts else {}),
    }


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _totals(record: RoundRecord) -> dict[str, float]:
    """Sum the clients' own seconds, by what they were spent on."""
    totals: dict[str, float] = defaultdict(float)
    for reply in (*record.trained, *record.evaluated, *record.left_out):
        for name, value in reply.metrics.items():
            if name.endswith("-seconds"):
                totals[name.removesuffix("-seconds")] += value
    return dict(totals)


def _finite(value: Any) -> Any:
    """Return nested numbers as strict JSON can hold them."""
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    return number_of(value) if isinstance(value, float) else value


def _plain(values: Mapping[str, float]) -> dict[str, float | None]:
    return {name: number_of(value) for name, value in values.items() if not name.endswith("-seconds")}
