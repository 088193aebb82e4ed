"""Local copies of public data sets in the hub's schema, with generated samples."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

DIGIT_NAMES = [str(digit) for digit in range(10)]


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="png")
    return buffer.getvalue()


def write_images(
    path: Path, images: Sequence[np.ndarray], labels: Sequence[int], names: list[str] = DIGIT_NAMES, **columns: Any
) -> None:
    """Write parquet with the features image (PNG bytes), label and more columns of text."""
    cells = [{"bytes": png(pixels), "path": None} for pixels in images]
    write_table(path, {"image": cells, "label": list(labels), **columns}, names)


def write_table(path: Path, columns: dict[str, Any], names: list[str]) -> None:
    """Write parquet as the hub has it: ClassLabel for label, Image for image, else what the values are."""
    import datasets

    path.parent.mkdir(parents=True, exist_ok=True)
    kinds: dict[str, Any] = {"label": datasets.ClassLabel(names=names), "image": datasets.Image()}
    features = {name: kinds.get(name, datasets.Value("string")) for name in columns}
    datasets.Dataset.from_dict(columns, features=datasets.Features(features)).to_parquet(str(path))
