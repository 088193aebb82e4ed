"""One picture, decoded: from a file or its bytes to pixels."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedapp.datasets.base import Bytes

if TYPE_CHECKING:
    from PIL import Image

FORMATS = ("PNG", "WEBP", "JPEG")
MODES = {1: "L", 3: "RGB"}


def picture(source: bytes | Path, shape: tuple[int, ...], resize: bool = True) -> Bytes:
    """Decode a picture.

    Args:
        source: An image file, or its bytes.
        shape: (H, W, channels); one channel means grey, three RGB.
        resize: Whether a picture of another size is resized, bilinearly; else it is an error.

    Returns:
        uint8 (H, W, channels).

    Raises:
        ValueError: If the picture has another size and is not to be resized. Of corrupt files Pillow raises much else,
            SyntaxError among it.

    Example:
        >>> from PIL import Image
        >>> encoded = io.BytesIO()
        >>> Image.new("L", (4, 2), 77).save(encoded, "png")
        >>> picture(encoded.getvalue(), (1, 1, 3)).tolist()
        [[[77, 77, 77]]]
    """
    from PIL import Image

    mode, size = MODES[shape[-1]], (shape[1], shape[0])
    with _opened(source) as image:
        image.load()
        shown: Image.Image = image if image.mode == mode else image.convert(mode)
        if shown.size != size:
            if not resize:
                raise ValueError(f"it is {shown.width}x{shown.height}, expected {size[0]}x{size[1]}")
            shown = shown.resize(size, Image.Resampling.BILINEAR)
        return np.frombuffer(shown.tobytes(), dtype=np.uint8).reshape(shape)


def _opened(source: bytes | Path) -> Image.Image:
    """Open an image, looking for the usual formats first: to try all of them takes longer than to decode."""
    from PIL import Image, UnidentifiedImageError

    try:
        return Image.open(_stream(source), formats=FORMATS)
    except UnidentifiedImageError:
        return Image.open(_stream(source))


def _stream(source: bytes | Path) -> Path | io.BytesIO:
    return source if isinstance(source, Path) else io.BytesIO(source)
