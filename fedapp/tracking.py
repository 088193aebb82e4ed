"""Experiment trackers behind the one setting ``track = "tensorboard,wandb"``; a package is imported only if asked for.

Every tracker gets what the recorder wrote: the settings at the start, the numbers of each line of rounds.jsonl, and
those of summary.json at the end. A tracker that raises is logged once and dropped; the run goes on.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from logging import WARNING
from typing import Any, Protocol

from flwr.common.logger import log

from fedapp.config import Scalar, SettingError, flatten, lookup
from fedapp.recorder import Recorder
from fedapp.strategies.base import PayloadStrategy
from fedapp.strategies.records import Observer, RoundRecord

PROJECT = "fedapp"


class Sink(Protocol):
    """One run in one tracker."""

    def write(self, numbers: Mapping[str, float], step: int) -> None:
        """Add numbers at a round."""

    def close(self) -> None:
        """End the run in the tracker."""


class TensorBoardSink:
    """Event files in ``<run>/tensorboard``; look at them with ``tensorboard --logdir fedapp-runs``."""

    def __init__(self, package: Any, recorder: Recorder, settings: Mapping[str, Scalar]) -> None:
        self.writer = package.SummaryWriter(str(recorder.folder / "tensorboard"))
        rows = "\n".join(f"| {key} | {value} |" for key, value in settings.items())
        self.writer.add_text("settings", f"| setting | value |\n| --- | --- |\n{rows}")

    def write(self, numbers: Mapping[str, float], step: int) -> None:
        """Add one scalar a number, and have them on disk: a run may be killed."""
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self.writer.close()


class WandbSink:
    """A run in Weights & Biases; WANDB_PROJECT, WANDB_MODE and its other variables apply."""

    def __init__(self, package: Any, recorder: Recorder, settings: Mapping[str, Scalar]) -> None:
        project = os.environ.get("WANDB_PROJECT", PROJECT)
        self.run = package.init(project=project, name=recorder.name, config=dict(settings), dir=str(recorder.folder))

    def write(self, numbers: Mapping[str, float], step: int) -> None:
        """Log the numbers of a step."""
        self.run.log(dict(numbers), step=step)

    def close(self) -> None:
        """Finish the run."""
        self.run.finish()


class MLflowSink:
    """A run in MLflow: at MLFLOW_TRACKING_URI, else in ``<out>/mlflow.db``, wherever the ServerApp's process lives."""

    def __init__(self, package: Any, recorder: Recorder, settings: Mapping[str, Scalar]) -> None:
        self.mlflow = package
        if not os.environ.get("MLFLOW_TRACKING_URI"):
            package.set_tracking_uri(f"sqlite:///{(recorder.folder.parent / 'mlflow.db').as_posix()}")
        package.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT))
        package.start_run(run_name=recorder.name)
        package.log_params(dict(settings))

    def write(self, numbers: Mapping[str, float], step: int) -> None:
        """Log the metrics of a step."""
        self.mlflow.log_metrics(dict(numbers), step=step)

    def close(self) -> None:
        """End the run."""
        self.mlflow.end_run()


class TrackioSink:
    """A run in trackio, local unless TRACKIO_SPACE_ID says otherwise."""

    def __init__(self, package: Any, recorder: Recorder, settings: Mapping[str, Scalar]) -> None:
        self.trackio = package
        package.init(project=PROJECT, name=recorder.name, config=dict(settings))

    def write(self, numbers: Mapping[str, float], step: int) -> None:
        """Log the numbers of a step."""
        self.trackio.log(dict(numbers), step=step)

    def close(self) -> None:
        """Finish the run."""
        self.trackio.finish()


@dataclass(frozen=True)
class Kind:
    """One row of the table of trackers.

    Attributes:
        open: Begins a run, given the module, the recorder and the settings.
        package: What pip installs.
        module: What is imported.
    """

    open: Callable[[Any, Recorder, Mapping[str, Scalar]], Sink]
    package: str
    module: str


TRACKERS: dict[str, Kind] = {
    "tensorboard": Kind(TensorBoardSink, "tensorboard", "torch.utils.tensorboard"),
    "wandb": Kind(WandbSink, "wandb", "wandb"),
    "mlflow": Kind(MLflowSink, "mlflow", "mlflow"),
    "trackio": Kind(TrackioSink, "trackio", "trackio"),
}


class Tracker:
    """An observer that hands a recorder's numbers to one tracker. List it after the recorder.

    Args:
        name: Name in the table of trackers.
        recorder: The run's recorder.

    Raises:
        SettingError: If the tracker's package cannot be imported.
    """

    def __init__(self, name: str, recorder: Recorder) -> None:
        check(name)
        self.name = name
        self.recorder = recorder
        self.kind = TRACKERS[name]
        self.sink: Sink | None = None
        try:
            self.module = importlib.import_module(self.kind.module)
        except ImportError as error:
            raise SettingError(f"track = {name}: {error}; pip install --upgrade {self.kind.package}") from error

    def on_start(self, strategy: PayloadStrategy) -> None:
        """Begin a run in the tracker, with every setting."""
        params = {f"method-params/{key}": value for key, value in flatten(strategy.params).items()}
        with self._tolerantly():
            self.sink = self.kind.open(self.module, self.recorder, {**flatten(self.recorder.config), **params})

    def on_round(self, strategy: PayloadStrategy, record: RoundRecord) -> None:
        """Hand on the round's numbers."""
        with self._tolerantly():
            if self.sink:
                self.sink.write(numbers(self.recorder.rounds[-1]), record.round)

    def on_end(self, strategy: PayloadStrategy, digests: Mapping[str, str]) -> None:
        """Hand on the summary's numbers and end the run in the tracker."""
        with self._tolerantly():
            if self.sink:
                self.sink.write(numbers(self.recorder.summary, "summary/"), strategy.record.round)
                self.sink.close()

    @contextmanager
    def _tolerantly(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # a tracker's trouble, of whatever kind, must not cost a run
            self.sink = None
            text = "track = %s stops here, the run goes on: %s: %s"
            log(WARNING, text, self.name, type(error).__name__, error)


def observers(recorder: Recorder) -> list[Observer]:
    """Return one observer for each tracker in the setting ``track``; they read the recorder, so they go after it.

    Raises:
        SettingError: If a tracker is unknown, or its package cannot be imported.
    """
    return [Tracker(name, recorder) for name in names(recorder.config.track)]


def names(track: str) -> list[str]:
    """Return the trackers that the setting ``track`` names.

    Raises:
        SettingError: If one is unknown.

    Example:
        >>> names("tensorboard, mlflow")
        ['tensorboard', 'mlflow']
    """
    found = dict.fromkeys(filter(None, (part.strip() for part in track.split(","))))
    for name in found:
        lookup(TRACKERS, name, "tracker")
    return list(found)


def check(track: str) -> None:
    """Check the setting ``track`` without importing anything.

    Raises:
        SettingError: If a tracker is unknown, or its package is not installed; says what to install.
    """
    for name in names(track):
        package = TRACKERS[name].package
        if not sys.modules.get(package) and importlib.util.find_spec(package) is None:
            raise SettingError(
                f"track = {name} needs the package {package}, which is not installed; pip install {package}, or take "
                f"{name} out of track"
            )


def numbers(values: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Return the numbers in nested mappings by their path; what was not measured is left out.

    Example:
        >>> numbers({"round": 3, "accuracy": 0.5, "train": {"loss": 1.5, "kl": None}, "trained": ["0"]})
        {'accuracy': 0.5, 'train/loss': 1.5}
    """
    found: dict[str, float] = {}
    for key, value in values.items():
        name = prefix + re.sub(r"[^\w./ -]", "_", str(key))
        if isinstance(value, Mapping):
            found.update(numbers(value, f"{name}/"))
        elif isinstance(value, int | float) and not isinstance(value, bool) and name != "round":
            found[name] = value
    return found
