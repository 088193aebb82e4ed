"""fedapp from Python: run an experiment, look at its history, take its models out.

``fedapp.run`` and ``fedapp.load_run`` are these functions; both return a :class:`Run`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedapp import runner
from fedapp.config import RunConfig, SettingError, closest, join_pairs, parse
from fedapp.runfolder import described_run

if TYPE_CHECKING:
    import pandas as pd
    import torch
    from torch import nn

    from fedapp.client_update import ClientUpdate
    from fedapp.payload import ClientInfo


def run(
    method: str = "fedsaf",
    *,
    clients: int | None = None,
    rounds: int | None = None,
    engine: str = "local",
    progress: bool = False,
    method_params: str | Mapping[str, Any] = "",
    **settings: Any,
) -> Run:
    """Run one experiment and return it.

    Args:
        method: Name of the method.
        clients: Number of simulated clients; the preset's if None, else 10.
        rounds: Communication rounds; the default of the setting if None.
        engine: "local" for this process, "flower" for Flower's Ray simulation; the numbers are the same.
        progress: True to show every round as it ends.
        method_params: The method's own settings, as text or as a mapping.
        **settings: Any setting of ``fedapp settings``, with underscores for hyphens; ``preset`` brings its own along.

    Raises:
        SettingError: For an unknown setting or name, or a bad value.
        RunFailedError: If the run failed in Flower's simulation.

    Example:
        >>> tiny = {"local_epochs": 1, "samples_per_client": 20, "out": getfixture("tmp_path")}
        >>> result = run("local", clients=2, rounds=1, **tiny)
        >>> len(result.rounds), sorted(result.clients["client"])
        (1, ['0', '1'])
    """
    from fedapp.datasets import presets
    from fedapp.display import Display

    values: dict[str, Any] = {key.replace("_", "-"): value for key, value in settings.items()}
    values["method"] = method
    values["method-params"] = method_params if isinstance(method_params, str) else join_pairs(method_params)
    if rounds is not None:
        values["num-server-rounds"] = rounds
    if preset := values.get("preset"):
        values = presets.settings_of(preset, values)
    clients = clients or presets.clients_of(preset)
    config = parse(RunConfig, values)
    if not progress:
        return Run(runner.run(config, clients, engine))
    with Display(method, config.num_server_rounds) as show:
        return Run(runner.run(config, clients, engine, show))


def load_run(folder: str | Path) -> Run:
    """Return the run in a folder, finished or not.

    Raises:
        SettingError: If the folder holds no run.
    """
    return Run(Path(folder))


class Run:
    """One run, read from its records.

    Args:
        folder: The run's results folder.

    Raises:
        SettingError: If the folder holds no run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.described = described_run(folder)

    def __repr__(self) -> str:
        """Name the method, the run and how far it got."""
        done = f"{len(self.rounds)} rounds" if (self.folder / "summary.json").exists() else "unfinished"
        return f"Run({self.described['settings']['method']}, {self.folder.name}, {done})"

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The run's summary.

        Raises:
            SettingError: If the run is not finished.
        """
        if not (self.folder / "summary.json").exists():
            raise SettingError(f"{self.folder} is not finished; `fedapp run --resume {self.folder}` continues it")
        return runner.summary(self.folder)

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """One row a round: accuracy, spread over clients, losses, bytes and seconds."""
        import json

        import pandas as pd

        path = self.folder / "rounds.jsonl"
        lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
        table = pd.json_normalize([json.loads(line) for line in lines])
        return table.set_index("round") if len(table) else table

    @cached_property
    def clients(self) -> pd.DataFrame:
        """One row a client and round."""
        import pandas as pd

        return pd.read_csv(self.folder / "clients.csv", dtype={"client": str, "failure": str, "name": str})

    @property
    def failures(self) -> list[dict[str, Any]]:
        """Every failure, with client, round, type and first line."""
        failures: list[dict[str, Any]] = self.summary["failures"]
        return failures

    def report(self) -> Path:
        """Write report.html and return its path."""
        from fedapp.report import write_report

        return write_report(self.folder)

    def client(self, client: str | int, *, weights: str = "last") -> Client:
        """Return one client with its trained model.

        Args:
            client: The client's id.
            weights: "last", or "best" if the run kept its best models (setting ``save-client-models``).

        Raises:
            SettingError: If there is no such client, or the run kept no such weights.
        """
        if str(client) not in self.described["clients"]:
            raise SettingError(f"unknown client {str(client)!r}; {closest(str(client), self.described['clients'])}")
        return Client(self, str(client), weights)


class Client:
    """One client of a run, with the model that the run evaluated.

    Args:
        run: The run.
        client: The client's id.
        weights: "last" or "best".
    """

    def __init__(self, run: Run, client: str, weights: str) -> None:
        self.run = run
        self.id = client
        self.weights = weights

    @cached_property
    def model(self) -> nn.Module:
        """The trained module, in evaluation mode."""
        model: nn.Module = self._update.model
        return model.eval()

    def evaluate(self, x: torch.Tensor | None = None, y: torch.Tensor | None = None) -> dict[str, float]:
        """Return accuracy and loss on samples of your own, or on the client's own test samples.

        Args:
            x: Inputs (N, ...), on the scale that the data set has; None for the client's own test samples.
            y: Labels (N,), int64.

        Raises:
            ValueError: If only one of the two is given.
        """
        from fedapp.datasets.base import Samples
        from fedapp.payload import Downlink

        if (x is None) != (y is None):
            raise ValueError("give both x and y, or neither for the client's own test samples")
        samples = self._test_samples() if x is None or y is None else Samples(x, y)
        self._update.metrics = {}
        return dict(self._update.evaluate(Downlink(), samples).metrics)

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        """Return predicted labels (N,) of inputs (N, ...)."""
        import torch

        self.model.eval()
        with torch.no_grad():
            z, logits = self._update.forward(self._update.model, x.to(self._update.local.device))
            return self._update.predictions(z, logits)["accuracy"].cpu()

    @cached_property
    def _config(self) -> RunConfig:
        return parse(RunConfig, self.run.described["settings"])

    def _test_samples(self) -> Any:
        return self._data().test

    def _data(self) -> Any:
        from fedapp import datasets, plugins

        plugins.load(self._config.plugins)
        return datasets.load_node(self._config.data, int(self.id), int(self.run.described["num-clients"]))

    @cached_property
    def _update(self) -> ClientUpdate:
        """The client's half of the method, as it stood in the last evaluation: model, head, prototypes."""
        from fedapp import restore

        return restore.client_update(
            self.run.folder, self._config, self._infos, self.id, self.weights, lambda: self._data().train
        )

    @cached_property
    def _infos(self) -> dict[str, ClientInfo]:
        from fedapp import restore

        return restore.client_infos(self.run.described["clients"])
