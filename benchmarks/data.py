"""How fast data is there: decoding, loading again, partitioning, augmenting.

Measured, imports excluded:

* CIFAR-10 for 20 clients (Dirichlet, alpha 0.1) from a local copy, in a fresh process with an empty cache, and in a
  later process that finds the decoded images memory-mapped: wall time, and CPU time of the former. The copy is
  `../shared/data` beside the repository, or `FEDAPP_DATA_ROOT`; without either, 2,000 random PNG images of that schema.
  A copy of fewer than 60,000 images has its figures multiplied up to that, in rows that say so.
* A second round in the same process: the bytes it reads from disk.
* The exact Dirichlet rule over 60,000 samples and 1,000 clients, alpha 0.1, minimum 1: CPU time, with 100 classes, and
  with 10 and a seed by which no draw succeeds and the answer is an error that names a feasible alpha.
* What flwr-pathological, flwr-dirichlet and flwr-inner-dirichlet cannot share out of 8,797 samples of 10 classes, until
  it is refused with what would do: CPU time.
* Crop and flip of CIFAR images in batches of 100 on one thread: CPU time of 10,000 images, and images a second.

Targets: 5 s cold, 0.3 s later, nothing read in later rounds, 2 s, 1 s, 60,000 images a second.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from measure import HEADER, print_table, start, take_turns

from fedapp.augment import Augmentation, augment
from fedapp.config import DataSettings, SettingError
from fedapp.datasets import flwr_partition
from fedapp.datasets.partition import dirichlet

CIFAR10 = 60_000  # images of the whole set
LOAD = """
import sys, time
import datasets, PIL.Image, pyarrow.parquet, torch
from fedapp.config import DataSettings
from fedapp.datasets import load_node

def read():
    with open("/proc/self/io") as counters:
        return int(counters.readline().split()[1])

settings = DataSettings(dataset="cifar10", data_root=sys.argv[1])
seconds, cpu, bytes_read = [], [], []
for _ in range(2):
    before, used, had = time.perf_counter(), time.process_time(), read()
    for index in range(20):
        node = load_node(settings, index, 20)
        float(node.train.x.sum() + node.test.x.sum())
    seconds.append(time.perf_counter() - before)
    cpu.append(time.process_time() - used)
    bytes_read.append(read() - had)
print(seconds[0], cpu[0], bytes_read[1])
"""


def copy_of_cifar10(folder: Path, quick: bool) -> Path:
    """Return a data root that holds CIFAR-10, or something of its schema."""
    for place in (os.environ.get("FEDAPP_DATA_ROOT", ""), str(Path(__file__).parents[2] / "shared" / "data")):
        if not quick and place and (Path(place) / "uoft-cs" / "cifar10").is_dir():
            return Path(place)
    import datasets
    from PIL import Image

    pixels = np.random.default_rng(0).integers(256, size=(1000, 32, 32, 3), dtype=np.uint8)
    rows = {"img": [Image.fromarray(image) for image in pixels], "label": [index % 10 for index in range(1000)]}
    names = [str(label) for label in range(10)]
    features = datasets.Features({"img": datasets.Image(), "label": datasets.ClassLabel(names=names)})
    datasets.disable_progress_bars()
    (folder / "uoft-cs" / "cifar10").mkdir(parents=True)
    for split in ("train", "test"):
        made = datasets.Dataset.from_dict(rows, features=features)
        made.to_parquet(str(folder / "uoft-cs" / "cifar10" / f"{split}.parquet"))
    return folder


def load(root: Path, cache: str) -> tuple[float, float, float]:
    """Return the seconds and CPU seconds in which a fresh process loads all clients' data, and the bytes read again."""
    environment = os.environ | {"FEDAPP_CACHE": cache, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", LOAD, str(root)]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    seconds, cpu, read = map(float, answer.stdout.split())
    return seconds, cpu, read


def loading(root: Path, repeats: int) -> list[tuple[str, ...]]:
    """Return the rows of loading CIFAR-10."""
    cold, cold_cpu, later, reads = [], [], [], []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as cache:
            seconds, cpu, _ = load(root, cache)
            cold.append(seconds)
            cold_cpu.append(cpu)
            again = [load(root, cache) for _ in range(2)]
            later += [seconds for seconds, _, _ in again]
            reads += [read for _, _, read in again]
    measured = (("cold", cold, "5 s"), ("cold, CPU", cold_cpu, ""), ("later process", later, "0.3 s"))
    count = images(root)
    rows = [row(f"CIFAR-10, {count:,} images, {name}", values, "s", target) for name, values, target in measured]
    if count < CIFAR10:
        for name, values, target in measured:
            grown = [CIFAR10 / count * value for value in values]
            rows.append(row(f"extrapolated to {CIFAR10:,} images, {name}", grown, "s", target))
    return [*rows, row("second round reads", reads, "bytes", "next to nothing")]


def images(root: Path) -> int:
    """Return how many images a copy of CIFAR-10 holds."""
    files = (root / "uoft-cs" / "cifar10").rglob("*.parquet")
    return sum(pq.read_metadata(file).num_rows for file in files)


def partitioning(repeats: int) -> list[tuple[str, ...]]:
    """Return the rows of the exact Dirichlet rule."""

    def share(classes: int, seed: int) -> None:
        with contextlib.suppress(SettingError):
            dirichlet(np.arange(60_000) % classes, 1000, 0.1, 1, seed)

    timing = take_turns({"100": lambda: share(100, 1), "10": lambda: share(10, 2)}, repeats)
    return [
        row("Dirichlet rule, 1,000 clients, 100 classes", timing.seconds["100"], "s", "2 s"),
        row("Dirichlet rule, 1,000 clients, 10 classes: refused", timing.seconds["10"], "s", "2 s"),
    ]


def refusing(repeats: int) -> list[tuple[str, ...]]:
    """Return the rows of partitions that are not possible."""
    labels = np.arange(8797) % 10

    def refused(kind: str, clients: int, settings: DataSettings) -> None:
        with contextlib.suppress(SettingError):
            flwr_partition.share(flwr_partition.Task(kind, labels, None, clients, settings), np.random.RandomState(1))

    timing = take_turns(
        {
            "flwr-pathological": lambda: refused("flwr-pathological", 5, DataSettings(classes_per_client=2)),
            "flwr-dirichlet": lambda: refused("flwr-dirichlet", 20, DataSettings(min_partition_size=400)),
            "flwr-inner-dirichlet": lambda: refused("flwr-inner-dirichlet", 20, DataSettings(dirichlet_alpha=1e-3)),
        },
        repeats,
    )
    return [row(f"{kind}: refused", seconds, "s", "1 s") for kind, seconds in timing.seconds.items()]


def augmenting(batches: int, repeats: int) -> list[tuple[str, ...]]:
    """Return the row of augmentation."""
    x, generator = torch.randn(100, 3, 32, 32), torch.Generator().manual_seed(0)

    def both() -> None:
        for _ in range(batches):
            augment(x, Augmentation(crop=4, flip=True), generator)

    seconds = take_turns({"": both}, repeats).seconds[""]
    rates = [100 * batches / second for second in seconds]
    return [
        row("crop and flip, a batch of 100", [second / batches for second in seconds], "s", "0.0017 s"),
        ("crop and flip, images a second", f"{max(rates):,.0f}", f"{statistics.median(rates):,.0f}", "60,000"),
    ]


def row(name: str, values: Sequence[float], unit: str, target: str) -> tuple[str, ...]:
    return (name, *(f"{value:.3g} {unit}" for value in (min(values), statistics.median(values))), target)


def main() -> None:
    quick = start(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        rows = loading(copy_of_cifar10(Path(folder), quick), 1 if quick else 3)
    rows += (
        partitioning(1 if quick else 5)
        + refusing(1 if quick else 5)
        + augmenting(2 if quick else 100, 1 if quick else 7)
    )
    print_table(HEADER, rows)


if __name__ == "__main__":
    main()
