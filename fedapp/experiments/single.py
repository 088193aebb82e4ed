"""What ``fedapp run`` does: one experiment with one or several seeds, shown as it goes, told in a few lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from fedapp import runner
from fedapp.config import RunConfig, parse
from fedapp.display import Display
from fedapp.runfolder import described_run
from fedapp.summaries import evaluations_in_words

MIB = 2**20


def run(values: Mapping[str, Any], seeds: Sequence[int] | None, clients: int, engine: str) -> None:
    """Run one experiment and say what came out.

    Args:
        values: Settings by key.
        seeds: Training seeds; the setting ``seed`` if None.
        clients: Number of simulated clients.
        engine: "flower" or "local".
    """
    config = parse(RunConfig, values)
    runner.run_seeds(config, tuple(dict.fromkeys(seeds or (config.seed,))), clients, engine, _display, _tell)


def resume(folder: str, engine: str, clients: int, rounds: int | None, values: Mapping[str, Any]) -> None:
    """Continue a run that was cut, and say what came out."""
    path = Path(folder)
    config = parse(RunConfig, {**described_run(path)["settings"], "out": str(path.parent), "run-name": path.name})
    with _display(replace(config, num_server_rounds=max(rounds or 0, config.num_server_rounds))) as show:
        path = runner.resume(path, engine, clients, rounds, values, show)
    _tell(path)


def _display(config: RunConfig) -> Display:
    folder = Path(config.out) / config.run_name
    return Display(f"{config.method} (seed {config.seed})", config.num_server_rounds, folder=str(folder))


def _tell(folder: Path) -> None:
    for line in told(runner.summary(folder)):
        typer.echo(line)
    typer.echo(f"Results: {folder}")
    if (folder / "report.html").exists():
        typer.echo(f"Report:  {folder / 'report.html'}")


def told(summary: Mapping[str, Any]) -> list[str]:
    """Return the outcome of a run in a few lines."""
    accuracy, clients, traffic = summary["accuracy"], summary["clients"], summary["bytes"]
    up = traffic.get("payload_up", 0) + traffic.get("evaluate_payload_up", 0)
    down = traffic.get("payload_down", 0) + traffic.get("evaluate_payload_down", 0)
    lines = [
        f"{summary['method']}, seed {summary['seed']}: {summary['num_clients']} clients, {summary['rounds']} rounds"
    ]
    if accuracy["last"] is not None:
        lines.append(
            f"  accuracy by samples: best {accuracy['best']:.4f}, last {accuracy['last']:.4f}, "
            f"mean of the last ten {accuracy['last_ten']:.4f}"
        )
        lines.append(
            f"  over clients: mean {clients['mean']:.4f}, std {clients['std']:.4f}, "
            f"worst {clients['worst']:.4f} (client {clients['worst_client']})"
        )
    lines += [f"  {line}" for line in evaluations_in_words(summary)]
    lines.append(f"  payload: {up / MIB:.2f} MiB up, {down / MIB:.2f} MiB down; {summary['seconds']['run']:.1f} s")
    for failure in summary["failures"][:5]:
        where = f"client {failure['client']}, round {failure['round']}, {failure['phase']}"
        lines.append(f"  failure: {where}: {failure['kind']}: {failure['reason']}")
    if len(summary["failures"]) > 5:
        lines.append(f"  and {len(summary['failures']) - 5} more failures: see summary.json")
    return lines
