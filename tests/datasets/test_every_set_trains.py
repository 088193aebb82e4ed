"""Every data set trains a round on the small group of its kind, on generated rows in its source's schema."""

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from PIL import Image

import fedapp
from fedapp import doctor, models
from fedapp.config import RunConfig, parse
from fedapp.datasets import DATASETS, digits, digits_offline, shakespeare
from fedapp.datasets.hub import Repository
from fedapp.experiments import product
from tests.datasets.copies import png

ROWS = 40
MODULES: list[Any] = [module for _, module in sorted(vars(fedapp.datasets).items()) if hasattr(module, "REPOSITORY")]
REPOSITORIES = (*(module.REPOSITORY for module in MODULES), digits.USPS, digits.SVHN, digits_offline.MNISTM)
RNG = np.random.default_rng(0)


def texts(count: int) -> list[str]:
    return ["".join(RNG.choice([*"abcd  "], size=80)) for _ in range(count)]


def columns(source: Repository, count: int) -> dict[str, Any]:
    if source is shakespeare.REPOSITORY:
        return {"x": texts(count), "y": [text[0] for text in texts(count)]}
    labels = {source.label: RNG.integers(source.classes, size=count)}
    if not source.shape:
        return {"text": texts(count), **labels}
    pixels = RNG.integers(256, size=(count, *source.shape), dtype=np.uint8)
    return {"image": [{"bytes": png(image.squeeze()), "path": None} for image in pixels], **labels}


def write_copy(root: Path, source: Repository) -> None:
    """Write so many rows of every domain and split."""
    count = ROWS * max(1, len(source.domains))
    for split in source.splits:
        made = columns(source, count)
        made |= {source.domain: np.repeat(source.domains, ROWS)} if source.domain else {}
        made |= {source.client: [f"writer{row % 3}" for row in range(count)]} if source.client else {}
        path = root / source.id / f"{split}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        datasets.Dataset.from_dict(made).to_parquet(str(path))


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("copies")
    for source in REPOSITORIES:
        write_copy(root, source)
    for split in digits.SYN:
        for digit in range(10):
            (root / "syn" / split / str(digit)).mkdir(parents=True)
            Image.new("RGB", (32, 32), (20 * digit, 0, 0)).save(root / "syn" / split / str(digit) / "0.png")
    return root


@pytest.mark.parametrize("name", [name for name, source in DATASETS.items() if not source.own])
def test_data_set_trains_a_round_on_the_small_group(
    name: str, copies: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digits_offline, "RENDERED", {False: 2, True: 1})
    source = DATASETS[name]
    pair = product.Pair(models.SUITED[models.kind_of(source.shape, source.vocabulary)], name)
    chosen = {"out": str(tmp_path), "data-root": str(copies), "feature-dim": 16, "samples-per-client": 12}
    (line,) = product.run(chosen, [pair])
    assert line["status"] == product.DONE, line["why"]


@pytest.mark.parametrize(
    ("name", "method", "group"),
    [
        ("amazon-review", "fedsaf", models.GROUPS["mlp-bow"]),
        ("amazon-review", "fedavg", ("bow-linear",)),
        ("amazon-review-text", "fedsaf", models.GROUPS["small3-txt"]),
        ("amazon-review-text", "fedavg", ("small-fasttext",)),
        ("shakespeare", "fedsaf", ("char-lstm",)),
        ("shakespeare", "fedavg", ("char-lstm",)),
        ("mnist", "fedavg", ("small-resnet",)),
    ],
)
def test_models_auto_are_those_that_the_data_set_names_for_clients_and_for_the_doctor(
    name: str, method: str, group: tuple[str, ...], copies: Path, tmp_path: Path
) -> None:
    values = {"data_root": str(copies), "partition": "iid", "feature_dim": 16, "samples_per_client": 12}
    quick = {"report": False, "device": "cpu", "out": str(tmp_path)}
    ran = fedapp.run(method, clients=len(group) + 1, rounds=0, dataset=name, **values, **quick)
    given = [about["model"] for about in ran.described["clients"].values()]
    assert given == [*group, group[0]]
    config = parse(RunConfig, {"method": method, "dataset": name, "feature-dim": 16, "data-root": str(copies)})
    checks = [check for check in doctor.CHECKS if check.name == "models"]
    assert doctor.examine(config, len(given), checks)[0].detail.startswith(f"{', '.join(group)}: ")
