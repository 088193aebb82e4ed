"""Small data of one's own of every kind: pets of three owners, of whom the third has no dog."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from fedapp.config import DataSettings, OwnDataSettings, SettingError
from fedapp.datasets import NodeData, load_node, load_pool

ROWS = [  # age, colour, whose, domain, label; client c has no dog
    *((age, colour, "a", "town", label) for age, colour, label in [(1, "red", "cat"), (3, "blue", "dog")] * 4),
    *((age, colour, "b", "land", label) for age, colour, label in [(10, "red", "dog"), (20, "red", "cat")] * 4),
    *((age, colour, "c", "land", label) for age, colour, label in [(5, "blue", "cat"), (7, "red", "cat")] * 4),
]
NAMES = ("age", "colour", "owner", "place", "label")


def settings(dataset: str, root: Path | str, changes: dict[str, Any] | None = None, **own: Any) -> DataSettings:
    return DataSettings(dataset=dataset, data_root=str(root), own=OwnDataSettings(**own), **(changes or {}))


def nodes(chosen: DataSettings, count: int = 3) -> list[NodeData]:
    return [load_node(chosen, index, count) for index in range(count)]


def write_csv(path: Path, rows: list[Any], names: tuple[str, ...] = NAMES, delimiter: str = ",") -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows([names, *rows])
    return path


def picture(value: int, mode: str = "RGB", side: int = 20) -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, (side, side), value if mode == "L" else (value, 0, 255 - value)).save(buffer, format="png")
    return buffer.getvalue()


def write_images(root: Path, groups: dict[str, list[str]]) -> None:
    for number, (group, labels) in enumerate(groups.items()):
        for label in labels:
            folder = root / group / label
            folder.mkdir(parents=True)
            for image in range(4):
                (folder / f"{image}.png").write_bytes(picture(40 * number + image, "L" if label == "dog" else "RGB"))


GROUPS = {"amy": ["cat", "dog"], "ben": ["cat", "dog"], "cem": ["cat"]}


def message(chosen: DataSettings) -> str:
    with pytest.raises(SettingError) as caught:
        load_pool(chosen)
    return str(caught.value)


def function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> DataSettings:
    name = f"own_data_{abs(hash(body))}"
    (tmp_path / f"{name}.py").write_text(f"import numpy as np\nimport torch\n\n\ndef load(root):\n    {body}\n")
    monkeypatch.syspath_prepend(tmp_path)
    return settings("callable", tmp_path, data_callable=f"{name}:load")
