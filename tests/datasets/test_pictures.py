"""One way to decode a picture, for the hub's repositories and for own data."""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedapp.datasets.own.pictures import square
from fedapp.datasets.pictures import picture

RNG = np.random.default_rng(0)
GREY = Image.fromarray(RNG.integers(256, size=(9, 12), dtype=np.uint8))
COLOUR = Image.fromarray(RNG.integers(256, size=(9, 12, 3), dtype=np.uint8))
CLEAR = Image.fromarray(RNG.integers(256, size=(9, 12, 4), dtype=np.uint8))
PALETTE = COLOUR.quantize(7)
DEEP = Image.fromarray(RNG.integers(2**16, size=(9, 12), dtype=np.uint16))


def encode(image: Image.Image, kind: str) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **({"lossless": True} if kind == "webp" else {}))
    return stream.getvalue()


CASES = [
    *((image, kind) for image in (GREY, COLOUR) for kind in ("png", "jpeg", "webp", "bmp", "gif", "tiff", "ppm")),
    *((image, kind) for image in (CLEAR, PALETTE) for kind in ("png", "webp", "tiff")),
    (DEEP, "png"),
    (COLOUR.convert("CMYK"), "jpeg"),
]


@pytest.mark.parametrize(("image", "kind"), CASES)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(12, 9), (5, 7)])
def test_picture_has_the_bits_of_pillows_conversion_then_bilinear_resizing(
    image: Image.Image, kind: str, channels: int, size: tuple[int, int]
) -> None:
    encoded = encode(image, kind)
    expected = Image.open(io.BytesIO(encoded)).convert({1: "L", 3: "RGB"}[channels])
    if size != expected.size:
        expected = expected.resize(size, Image.Resampling.BILINEAR)
    made = picture(encoded, (size[1], size[0], channels))
    assert made.dtype == np.uint8
    assert made.shape == (size[1], size[0], channels)
    np.testing.assert_array_equal(made, np.asarray(expected).reshape(made.shape))


@pytest.mark.parametrize(
    "cell",
    [
        lambda path: path,
        lambda path: path.read_bytes(),
        lambda path: {"bytes": path.read_bytes(), "path": "elsewhere.png"},
        lambda path: {"bytes": None, "path": str(path)},
    ],
)
def test_own_pictures_have_the_same_bits_whatever_they_are_given_as(
    tmp_path: Path, cell: Callable[[Path], object]
) -> None:
    path = tmp_path / "one.jpeg"
    COLOUR.save(path)
    expected = Image.open(path).convert("RGB").resize((5, 5), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(square(cell(path), 5), np.asarray(expected))
    np.testing.assert_array_equal(picture(path, (5, 5, 3)), np.asarray(expected))


def test_another_size_is_an_error_with_both_where_it_is_not_resized() -> None:
    with pytest.raises(ValueError, match="it is 12x9, expected 9x12"):
        picture(encode(COLOUR, "png"), (12, 9, 3), resize=False)
    np.testing.assert_array_equal(picture(encode(COLOUR, "png"), (9, 12, 3), resize=False), np.asarray(COLOUR))


def test_what_is_no_picture_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "one.png").write_bytes(b"nothing")
    with pytest.raises(OSError, match=r"cannot identify image file .*one\.png"):
        picture(tmp_path / "one.png", (3, 3, 3))
