"""Several methods on the same seed, data and partition, side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedapp import runner
from fedapp.config import RunConfig

MIB = 2**20
COLUMNS = (
    "method", "best", "last", "mean of last ten", "client mean", "client std", "worst client", "MiB up", "MiB down",
    "seconds",
)  # fmt: skip


def compare(
    methods: Sequence[str],
    config: RunConfig,
    clients: int,
    engine: str = "flower",
    progress: Callable[[str], runner.Progress] | None = None,
) -> list[Path]:
    """Run every method with the same settings and return the results folders.

    Args:
        methods: Names of methods; ``config.method`` is ignored.
        config: Everything else.
        clients: Number of simulated clients.
        engine: "flower" or "local".
        progress: Returns the progress callback for a method.
    """
    folders = []
    if engine == "local":
        for method in methods:
            folders.append(runner.run_local(_for(config, method), clients, progress(method) if progress else None))
        return folders
    with runner.superlink() as link:
        for method in methods:
            watch = progress(method) if progress else None
            folders.append(runner.run_on(link, _for(config, method), clients, watch))
    return folders


def _for(config: RunConfig, method: str) -> RunConfig:
    params = config.method_params if method == config.method else ""
    name = f"{config.run_name}-{method}" if config.run_name else ""
    return replace(config, method=method, method_params=params, run_name=name)


def rows(folders: Sequence[Path]) -> list[tuple[str, ...]]:
    """Return one row of text a run, under ``COLUMNS``; accuracies in per cent, weighted by samples unless named."""
    return [_row(runner.summary(folder)) for folder in folders]


def _row(summary: dict[str, Any]) -> tuple[str, ...]:
    accuracy, clients, traffic = summary["accuracy"], summary["clients"], summary["bytes"]
    up = traffic.get("payload_up", 0) + traffic.get("evaluate_payload_up", 0)
    down = traffic.get("payload_down", 0) + traffic.get("evaluate_payload_down", 0)
    return (
        summary["method"],
        *(_percent(accuracy[name]) for name in ("best", "last", "last_ten")),
        _percent(clients["mean"]),
        _percent(clients["std"]),
        f"{_percent(clients['worst'])} (client {clients['worst_client']})",
        f"{up / MIB:.2f}",
        f"{down / MIB:.2f}",
        f"{summary['seconds']['run']:.1f}",
    )


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f}"
