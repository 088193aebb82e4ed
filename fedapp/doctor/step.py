"""One training step and one evaluation of one model, in a process of its own, so that its peak can be measured.

Reads {"settings": ..., "model": ...} from standard input and prints {"memory", "gpu_memory", "gpus"} in bytes.
"""

from __future__ import annotations

import json
import resource
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedapp import client_app, datasets, models, paths, plugins
from fedapp.client_update import EVALUATION_BATCH, ClientUpdate, Local
from fedapp.config import RunConfig, lookup, parse
from fedapp.datasets import own
from fedapp.payload import Downlink

CUDA_CONTEXT = 512 * 2**20  # what CUDA takes for each process beside torch's own memory, about
IMPORTED = client_app  # a worker imports the whole app, and its memory counts


@dataclass(frozen=True, eq=False)
class Blanks:
    """Samples without content."""

    x: torch.Tensor
    y: torch.Tensor


def blanks(count: int, shape: tuple[int, ...], vocabulary: int = 0) -> Blanks:
    """Return ``count`` samples of class 0; texts are full of one word, not of padding."""
    x = torch.ones(count, *shape, dtype=torch.int64) if vocabulary else torch.zeros(count, *shape)
    return Blanks(x, torch.zeros(count, dtype=torch.int64))


def step(config: RunConfig, model: str) -> dict[str, Any]:
    """Train ``model`` on one batch, evaluate it on one, and return what that took."""
    plugins.load(config.plugins)
    torch.set_num_threads(config.training.torch_threads)
    source = lookup(datasets.DATASETS, config.data.dataset, "data set")
    if source.own:
        data = replace(config.data, data_root=paths.existing(config.data.data_root, "data-root"))
        source = own.described(source, datasets.load_pool(data))
    shapes = source.shape, source.vocabulary
    built = models.prepare(
        model, config, num_classes=source.classes, input_shape=source.shape, vocabulary=source.vocabulary
    )
    training = replace(config.training, local_epochs=1)
    update = ClientUpdate(None, Local("doctor", built, source.classes, training=training))
    update.train(Downlink(), blanks(training.batch_size, *shapes))
    update.evaluate(Downlink(), blanks(EVALUATION_BATCH, *shapes))
    found: dict[str, Any] = {"memory": peak_memory(), "gpu_memory": 0, "gpus": []}
    if update.local.device.type == "cuda":
        found["gpu_memory"] = torch.cuda.max_memory_reserved() + CUDA_CONTEXT
        found["gpus"] = [torch.cuda.get_device_properties(i).total_memory for i in range(torch.cuda.device_count())]
    return found


def peak_memory() -> int:
    """Return the most memory this process ever held, in bytes.

    Linux counts what the parent held before this program began into ``ru_maxrss``, hence /proc first.
    """
    try:
        rows = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return next(int(row.split()[1]) * 1024 for row in rows if row.startswith("VmHWM:"))
    except (OSError, StopIteration):
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    print(json.dumps(step(parse(RunConfig, asked["settings"]), asked["model"])))
