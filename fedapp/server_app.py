"""The ServerApp: run config -> strategy -> start -> results. Names no method."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp

from fedapp import environment

environment.require()

import torch  # noqa: E402

from fedapp import augment, datasets, models, paths, plugins, tiers, tracking  # noqa: E402
from fedapp.checkpoints import Checkpointer, ModelKeeper, alone_in, newest  # noqa: E402
from fedapp.config import HARMLESS, RunConfig, SettingError, flatten, lookup, parse, split_pairs  # noqa: E402
from fedapp.datasets import presets  # noqa: E402
from fedapp.payload import ClientInfo  # noqa: E402
from fedapp.recorder import Recorder  # noqa: E402
from fedapp.runfolder import described_run  # noqa: E402
from fedapp.seeds import derive, seeded  # noqa: E402
from fedapp.shares import ShareKeeper  # noqa: E402
from fedapp.stopping import Leash, Stopper  # noqa: E402
from fedapp.strategies import METHODS, Method, PayloadStrategy, models_of  # noqa: E402
from fedapp.strategies.records import Observer  # noqa: E402
from fedapp.strategies.roster import NodesMissingError, WorkerLostError  # noqa: E402

RUNNER = "FEDAPP_RUNNER"
SIMULATION_GRIDS = {"InMemoryGrid", "LocalGrid"}
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run one experiment and write its results."""
    try:
        run(grid, parse(RunConfig, context.run_config))
    except (SettingError, NodesMissingError, WorkerLostError, environment.RunFailedError) as error:
        raise environment.CannotRunError(str(error)) from None


def run(
    grid: Grid, config: RunConfig, base: str = "", progress: Callable[[dict[str, Any]], None] | None = None
) -> Recorder:
    """Run one experiment.

    Args:
        grid: Flower's grid.
        config: Every setting.
        base: Directory that relative paths mean; found by itself if empty.
        progress: Called with every line of rounds.jsonl.

    Returns:
        The recorder, which knows where the results are.
    """
    paths.set_base(base or paths.directory_of_user())
    method, params = check(config)
    if datasets.DATASETS[config.data.dataset].own:
        datasets.forget()
    if config.resume:
        _same_settings(config)
    torch.set_num_threads(config.training.torch_threads)
    config = replace(config, out=paths.resolve(config.out), resume=paths.resolve(config.resume))
    # on devices, the server's folders mean nothing
    simulated = any(kind.__name__ in SIMULATION_GRIDS for kind in type(grid).__mro__)
    if config.resume and simulated:
        ShareKeeper(Path(config.resume), config.data).check()
    completed, state = newest(Path(config.resume)) if config.resume else (0, {})
    recorder = Recorder(config, completed, progress)
    keepers = [ShareKeeper(recorder.folder, config.data)] if simulated else []
    strategy = method.strategy(
        params,
        config.server,
        run=recorder.name,
        seed=config.seed,
        base=str(paths.base()) if simulated else "",
        memory=str(recorder.folder.parent) if simulated else "",
        build=_builder(config),
        observers=[*keepers, recorder, *_watchers(recorder)],
        held=_held(config) if simulated else None,
    )
    if config.resume:
        strategy.roster.agreed = described_run(Path(config.resume)).get("agreed", "")
    if completed:
        strategy.continue_after(completed, state)
    with alone_in(recorder.folder):
        try:
            strategy.start(grid, num_rounds=config.num_server_rounds)
        except Exception:
            if config.report:
                _report(recorder)
            raise
    _conclude(recorder, strategy)
    return recorder


def _held(config: RunConfig) -> Callable[[ClientInfo], Any]:
    """Return what tells the samples of a simulated client, as its own ClientApp loads them."""
    data = replace(config.data, data_root=paths.existing(config.data.data_root, "data-root"))
    return lambda info: datasets.load_node(data, int(info.client), info.num_clients)


def _same_settings(config: RunConfig) -> None:
    """Check that a run is continued with its own settings.

    Raises:
        SettingError: If there is no run, or naming the settings that differ, unless they leave the numbers alone.
    """
    known = described_run(Path(paths.resolve(config.resume)))["settings"]
    given = flatten(config)
    differ = [key for key, value in known.items() if key not in HARMLESS and given.get(key, value) != value]
    if differ:
        raise SettingError(
            f"resume = {config.resume!r} goes on with other settings than that run has ({', '.join(differ)}); continue "
            f"it with `fedapp run --resume {config.resume}`, which takes its own"
        )


def _watchers(recorder: Recorder) -> list[Observer]:
    """Return the observers that the settings ask for, in the order in which a round must pass them."""
    config, folder = recorder.config, recorder.folder
    # A round that ends the run as failed is not checkpointed: resumed, it has to go well, or fails again.
    watchers: list[Observer] = [Stopper(config.patience, config.max_failures, recorder.rounds, recorder.failures)]
    if config.save_client_models:
        watchers.append(ModelKeeper(folder, config.save_client_models, recorder.rounds))
    watchers.append(Checkpointer(folder))
    if runner := os.environ.get(RUNNER):
        watchers.append(Leash(int(runner)))
    return [*watchers, *tracking.observers(recorder)]


def check(config: RunConfig) -> tuple[Method, Any]:
    """Check every name in the settings and return the method and its parameters.

    Raises:
        SettingError: For an unknown method, parameter, model, data set, augmentation or tracker, a malformed
            device tier, or a plugin or tracker that cannot be imported.
    """
    plugins.load(config.plugins)
    models.resolve(models_of(config.method, config.models))
    source = lookup(datasets.DATASETS, config.data.dataset, "data set")
    if (
        source.own
        and config.data.own.scaling == "global"
        and (config.server.leave_domain or config.server.leave_clients)
    ):
        raise SettingError(
            "scaling = global fits the scale on the rows of all clients, those left out included; set scaling to "
            "client or none, or leave nobody out"
        )
    paths.existing(config.data.data_root, "data-root")
    augment.parse(config.training.augment)
    tiers.read(config.device_tiers)
    tracking.check(config.track)
    presets.check(config.preset, flatten(config), flatten(RunConfig()))
    method = lookup(METHODS, config.method, "method")
    what = f"{config.method} parameter (method-params)"
    return method, parse(method.strategy.params_type, split_pairs(config.method_params), what=what)


def _builder(config: RunConfig) -> Any:
    def build(client: ClientInfo, name: str) -> Any:
        shapes: Any = {key: getattr(client, key) for key in ("num_classes", "input_shape", "vocabulary")}
        with seeded(derive(config.seed, "init", "server")):
            return models.prepare(name or client.model, config, **shapes)

    return build


def _conclude(recorder: Recorder, strategy: PayloadStrategy) -> None:
    log(INFO, "Results: %s", recorder.folder)
    if recorder.config.report:
        _report(recorder)
    for line in recorder.headline().splitlines():
        log(INFO, "%s", line)
    if len(strategy.clients) == 2:
        log(INFO, 'Two clients took part; for more: flwr run . --stream --federation-config "num-supernodes=10 '
                  'client-resources-num-cpus=1"')  # fmt: skip


def _report(recorder: Recorder) -> None:
    """Write the report; a run that went well is not lost over a page that cannot be drawn."""
    try:
        from fedapp.report import write_report

        log(INFO, "Report:  %s", write_report(recorder.folder))
    except Exception as error:
        log(WARNING, "the report could not be written: %s: %s", type(error).__name__, error)
