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
ORIENTATION = 0x0112  # EXIF tag
DEEPEST = 2**16 - 1
STEP = DEEPEST // 255  # levels of 16 bit in one of 8 bit: 257


def picture(source: bytes | Path, shape: tuple[int, ...], resize: bool = True, upright: bool = False) -> Bytes:
    """Decode a picture.

    Levels of 16 bit are divided by 257, whatever the picture holds, so that pictures stay as bright among each other as
    they were; those of 8 bit stay as they are.

    Args:
        source: An image file, or its bytes.
        shape: (H, W, channels); one channel means grey, three RGB.
        resize: Whether a picture of another size is resized, bilinearly; else it is an error.
        upright: Whether it is turned or mirrored as its EXIF data say.

    Returns:
        uint8 (H, W, channels).

    Raises:
        ValueError: If the picture has another size and is not to be resized, or holds fractions or levels beyond 16
            bit. Of corrupt files Pillow raises much else, SyntaxError among it.

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
        shown = _shallow(_upright(image) if upright else image)
        shown = shown if shown.mode == mode else shown.convert(mode)
        if shown.size != size:
            if not resize:
                raise ValueError(f"it is {shown.width}x{shown.height}, expected {size[0]}x{size[1]}")
            shown = shown.resize(size, Image.Resampling.BILINEAR)
        return np.frombuffer(shown.tobytes(), dtype=np.uint8).reshape(shape)


def _upright(image: Image.Image) -> Image.Image:
    """Return an image as it is to be looked at: cameras note how they were held."""
    from PIL import ImageOps

    return image if image.getexif().get(ORIENTATION, 1) == 1 else ImageOps.exif_transpose(image)


def _shallow(image: Image.Image) -> Image.Image:
    """Return a grey image of 16 bit as one of 8 bit, where Pillow would cut off all above 255, others as they are."""
    from PIL import Image

    if image.mode[0] not in "IF":  # I;16, I;16B, I and F
        return image
    levels = np.asarray(image)
    if image.mode == "F" or levels.min() < 0 or levels.max() > DEEPEST:
        raise ValueError(f"it holds {levels.min()} to {levels.max()} as {levels.dtype}; save it as 8 or 16 bit")
    return Image.fromarray(((levels.astype(np.uint32) + STEP // 2) // STEP).astype(np.uint8))


def _opened(source: bytes | Path) -> Image.Image:
    """Open an image, looking for the usual formats first: to try all of them takes longer than to decode."""
    from PIL import Image, UnidentifiedImageError

    try:
        return Image.open(_stream(source), formats=FORMATS)
    except UnidentifiedImageError:
        pass
    try:
        return Image.open(_stream(source))
    except UnidentifiedImageError as error:
        if isinstance(source, Path):
            raise
        raise UnidentifiedImageError(f"cannot identify an image in {len(source)} bytes") from error


def _stream(source: bytes | Path) -> Path | io.BytesIO:
    return source if isinstance(source, Path) else io.BytesIO(source)
