"""Runs experiments and tells the truth about how they ended: through Flower's simulation, or in this process.

``flwr run`` exits 0 even when the run failed, and runs on whichever SuperLink owns the port. Here every call has a
SuperLink of its own on a free port, with its own ``FLWR_HOME``, and ends it; a run that failed raises with the cause.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import itertools
import json
import logging
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedapp.config import HARMLESS, RunConfig, SettingError, flatten, lookup, parse
from fedapp.display import Display
from fedapp.environment import RunFailedError
from fedapp.paths import resolve, set_base
from fedapp.runfolder import described_run
from fedapp.superlink import CONNECTION, POLL_SECONDS, SuperLink, end, program, spawn, superlink

__all__ = ["RunFailedError", "SuperLink", "resume", "run", "run_local", "run_on", "run_seeds", "summary", "superlink"]

START_SECONDS = 120.0
_counter = itertools.count(1)
_in_this_process = threading.Lock()  # models, their weights and torch's random stream are the process's
ENGINES = {"flower": "flower", "local": "local"}
FLOWERS_LAST_WORDS = ("Simulation Runtime crashed.", "An error was encountered. Ending simulation.")
Progress = Callable[[dict[str, Any]], None]


def run(config: RunConfig, clients: int, engine: str = "flower", progress: Progress | None = None) -> Path:
    """Run one experiment and return its results folder.

    Args:
        config: Every setting.
        clients: Number of simulated clients.
        engine: "flower" for Flower's Ray simulation, "local" for this process.
        progress: Called with every line of rounds.jsonl as it is written.

    Raises:
        RunFailedError: If the run failed; the message is the cause.
        SettingError: If a setting is wrong.
    """
    if lookup(ENGINES, engine, "engine") == "local":
        return run_local(config, clients, progress)
    with superlink(meanwhile=_imports) as link:
        return run_on(link, config, clients, progress)


def run_seeds(
    config: RunConfig,
    seeds: Sequence[int],
    clients: int,
    engine: str,
    display: Callable[[RunConfig], Display],
    tell: Callable[[Path], None],
) -> None:
    """Run one experiment with several training seeds, one after the other.

    Args:
        config: Every setting; its own seed is replaced.
        seeds: The seeds.
        clients: Number of simulated clients.
        engine: As for :func:`run`.
        display: Makes the display of a run.
        tell: Called with the results folder of every run that has ended.
    """
    flower = lookup(ENGINES, engine, "engine") == "flower"
    with superlink(meanwhile=_imports) if flower else contextlib.nullcontext() as link:
        for seed in seeds:
            named = f"{config.run_name}-s{seed}" if config.run_name and len(seeds) > 1 else config.run_name
            one = absolute(dataclasses.replace(config, seed=seed, run_name=named))
            with display(one) as show:
                folder = run_on(link, one, clients, show) if link else run_local(one, clients, show)
            tell(folder)


def run_local(config: RunConfig, clients: int, progress: Progress | None = None) -> Path:
    """Run one experiment in this process and return its results folder; runs of several threads wait for each other."""
    from fedapp import client_app, server_app
    from fedapp.local_grid import LocalGrid
    from fedapp.strategies.roster import NodesMissingError

    config = absolute(config)
    grid = LocalGrid(client_app.app, clients, flatten(config))
    logger = logging.getLogger("flwr")
    with _in_this_process:
        level = logger.level
        logger.setLevel(logging.WARNING if progress else level)  # whoever shows progress says it all
        try:
            return server_app.run(grid, config, base=str(Path.cwd()), progress=progress).folder
        except (RunFailedError, NodesMissingError) as error:
            raise RunFailedError(f"{error}\n{_way_on(_folder(config))}") from error
        finally:
            logger.setLevel(level)


def _folder(config: RunConfig) -> Path:
    return Path(config.out) / config.run_name


def _way_on(folder: Path) -> str:
    """Return where the records of a failed run are and, if it has a checkpoint, how it goes on from there."""
    from fedapp.checkpoints import found  # Flower and safetensors take a while, and most runs do not fail

    hint = f"; `fedapp run --resume {folder}` goes on from its last checkpoint" if found(folder / "checkpoints") else ""
    return f"What there is of the run is in {folder}{hint}"


def resume(
    folder: Path,
    engine: str = "flower",
    clients: int = 0,
    rounds: int | None = None,
    values: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Path:
    """Continue a run that was cut, with its own settings, from its last checkpoint.

    Args:
        folder: The run's folder.
        engine: As for :func:`run`; it may differ from the engine before.
        clients: Number of clients, if the run was cut before it could note it.
        rounds: More rounds than the run was asked for; None leaves them. A finished run can only be prolonged.
        values: New values of settings that leave the numbers alone, such as max-failures.
        progress: As for :func:`run`.

    Raises:
        SettingError: If there is no run in the folder, it is finished, or a value would change its numbers.
        RunFailedError: If the run failed again.
    """
    described = described_run(folder)
    if changed := [key for key in values or {} if key not in HARMLESS]:
        raise SettingError(
            f"a run is continued with its own settings; {', '.join(changed)} cannot be changed, only "
            f"{', '.join(HARMLESS)}"
        )
    settings = {**described["settings"], "out": str(folder.resolve().parent), "run-name": folder.resolve().name}
    config = parse(RunConfig, {**settings, **(values or {}), "resume": str(folder.resolve())})
    asked = config.num_server_rounds
    if rounds is not None:
        config = dataclasses.replace(config, num_server_rounds=max(rounds, asked))
    if (folder / "summary.json").exists() and config.num_server_rounds == asked:
        raise SettingError(
            f"{folder} is finished after {summary(folder)['rounds']} rounds; to prolong it, ask for more than {asked} "
            "with --rounds"
        )
    known = int(described.get("num-clients") or 0) or clients
    if not known:
        raise SettingError(f"{folder} was cut before it knew its clients; say how many with --clients")
    return run(config, known, engine, progress)


def absolute(config: RunConfig) -> RunConfig:
    """Return ``config`` with paths absolute from the current directory, and a definite run name."""
    set_base(str(Path.cwd()))
    words = config.data.own.vocabulary
    own = dataclasses.replace(config.data.own, vocabulary=words if words.lstrip().startswith("[") else resolve(words))
    data = dataclasses.replace(config.data, data_root=resolve(config.data.data_root), own=own)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    made = f"{config.method}-{config.data.dataset}-s{config.seed}-{stamp}-{os.getpid()}"
    name = config.run_name or f"{made}-{next(_counter)}"
    start = config.init_from if config.init_from == "torchvision" else resolve(config.init_from)
    return dataclasses.replace(config, data=data, out=resolve(config.out), run_name=name, init_from=start)


def run_on(link: SuperLink, config: RunConfig, clients: int, progress: Progress | None = None) -> Path:
    """Run one experiment on a SuperLink and return its results folder.

    Args:
        link: The SuperLink.
        config: Every setting.
        clients: Number of simulated clients.
        progress: Called with every line of rounds.jsonl as it is written.

    Raises:
        RunFailedError: If Flower does not report the run as completed; the message is the cause.
    """
    from fedapp import server_app

    config = absolute(config)
    server_app.check(config)
    folder = _folder(config)
    if folder.exists() and not config.resume:
        raise SettingError(f"{folder} exists already and is not overwritten; choose another run-name, or move it away")
    app = _write_app(link.home / "app", config)
    log = link.home / "run.log"
    federation = f"num-supernodes={clients} client-resources-num-cpus=1"
    if config.workers:
        federation += f" init-args-num-cpus={config.workers}"
    if config.client_gpus:
        federation += f" client-resources-num-gpus={config.client_gpus}"
    command = [program("flwr"), "run", str(app), CONNECTION, "--stream", "--federation-config", federation]
    started = time.time()
    process = spawn(command, log, link.environment)
    try:
        _follow(process, folder, progress, patience=config.server.node_timeout + START_SECONDS)
    finally:
        end(process)
    text = log.read_text(encoding="utf-8", errors="replace")
    if folder.is_dir():
        (folder / "flower.log").write_text(text, encoding="utf-8")
    finished = folder / "summary.json"
    if finished.is_file() and finished.stat().st_mtime >= started - 1:
        return folder
    where = _way_on(folder) if folder.is_dir() else f"Flower's log is in {_keep_log(text, config)}"
    raise RunFailedError(f"{_cause(text, _status(link))}\n{where}")


def summary(folder: Path) -> dict[str, Any]:
    """Return the summary of a finished run."""
    loaded: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return loaded


# ---- parts ---------------------------------------------------------------------------------------


def _imports() -> None:
    """Import what the checks need while the SuperLink starts."""
    importlib.import_module("fedapp.server_app")


def _follow(process: subprocess.Popen[bytes], folder: Path, progress: Progress | None, patience: float) -> None:
    """Wait for ``flwr run --stream``, handing on every new complete line of rounds.jsonl.

    Raises:
        RunFailedError: If the ServerApp has not begun within ``patience`` seconds.
    """
    rounds, started, deadline = folder / "rounds.jsonl", time.time(), time.monotonic() + patience
    seen = len(_lines(rounds))
    while True:
        ended = process.poll() is not None
        lines = _lines(rounds)
        for line in lines[seen:] if progress else []:
            progress(json.loads(line))  # type: ignore[misc]
        seen = len(lines)
        if ended:
            return
        if not _begun(folder, started) and time.monotonic() > deadline:
            raise RunFailedError(
                f"the run was submitted but has not begun after {patience:.0f} s; the machine may be busy, or Ray "
                "cannot start: see `fedapp doctor`"
            )
        time.sleep(POLL_SECONDS)


def _begun(folder: Path, since: float) -> bool:
    """Return whether a ServerApp has written to the run's folder since then; a resumed run has older records."""
    config = folder / "config.yaml"
    return config.exists() and config.stat().st_mtime >= since - 1


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1] if path.is_file() else []


def _write_app(folder: Path, config: RunConfig) -> Path:
    """Write a thin Flower app whose defaults are this run's settings; it imports the installed fedapp."""
    shutil.rmtree(folder, ignore_errors=True)
    package = folder / "fedapp_run"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    for half in ("server_app", "client_app"):
        (package / f"{half}.py").write_text(f"from fedapp.{half} import app\n\n__all__ = ['app']\n")
    settings = "\n".join(f"{key} = {json.dumps(value)}" for key, value in flatten(config).items())
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "fedapp-run"\nversion = "1.0.0"\ndescription = ""\nlicense = "Apache-2.0"\n'
        "dependencies = []\n"
        '[tool.flwr.app]\npublisher = "fedapp"\n'
        '[tool.flwr.app.components]\nserverapp = "fedapp_run.server_app:app"\nclientapp = "fedapp_run.client_app:app"\n'
        f"[tool.flwr.app.config]\n{settings}\n",
        encoding="utf-8",
    )
    return folder


def _status(link: SuperLink) -> str:
    command = [program("flwr"), "list", CONNECTION, "--format", "json"]
    result = subprocess.run(command, env=link.environment, capture_output=True, text=True, timeout=60, check=False)
    try:
        runs = json.loads(result.stdout)["runs"]
        return str(max(runs, key=lambda run: run["pending-at"])["status"]) if runs else "never submitted"
    except (ValueError, KeyError):
        return f"unknown ({result.stdout.strip() or result.stderr.strip()})"


def _cause(text: str, status: str) -> str:
    """Return the line of Flower's log that says why, with the lines that belong to it, else the status."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    written = [line for line in plain.splitlines() if line.strip()]
    lines = [line.strip() for line in written]
    errors = [line for line in lines if re.match(r"(?:[\w.]+\.)?\w*(?:Error|Exception)\b", line)]
    errors = [line for line in errors if not line.endswith(FLOWERS_LAST_WORDS)]
    for error in errors:
        if "CannotRunError: " in error or "MissingPackageError: " in error:
            reasons = itertools.takewhile(lambda line: line.startswith("  "), written[lines.index(error) + 1 :])
            return "\n".join([error.split("Error: ", 1)[1], *map(str.rstrip, reasons)])
    return errors[-1] if errors else f"the run ended as {status}; last line: {lines[-1] if lines else 'none'}"


def _keep_log(text: str, config: RunConfig) -> Path:
    path = Path(tempfile.gettempdir()) / f"{config.run_name}.log"
    path.write_text(text, encoding="utf-8")
    return path
