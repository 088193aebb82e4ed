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
LEVELS = RNG.integers(2**16, size=(9, 12), dtype=np.uint16)
DEEP = Image.fromarray(LEVELS)


def encode(image: Image.Image, kind: str) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **({"lossless": True} if kind == "webp" else {}))
    return stream.getvalue()


CASES = [
    *((image, kind) for image in (GREY, COLOUR) for kind in ("png", "jpeg", "webp", "bmp", "gif", "tiff", "ppm")),
    *((image, kind) for image in (CLEAR, PALETTE) for kind in ("png", "webp", "tiff")),
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


@pytest.mark.parametrize(("mode", "kind"), [("I;16", "png"), ("I;16", "tiff"), ("I;16B", "tiff"), ("I", "tiff")])
@pytest.mark.parametrize("channels", [1, 3])
def test_levels_of_16_bit_are_divided_by_257(mode: str, kind: str, channels: int) -> None:
    image = DEEP if mode == "I;16" else Image.fromarray(LEVELS.astype(">u2" if mode == "I;16B" else np.int32))
    assert image.mode == mode
    made = picture(encode(image, kind), (9, 12, channels))
    for channel in range(channels):
        np.testing.assert_array_equal(made[..., channel], np.rint(LEVELS / 257))


def test_ends_and_middle_of_16_bit_are_those_of_8_bit() -> None:
    levels = Image.fromarray(np.asarray([[0, 128, 129, 257 * 77, 65535]], dtype=np.uint16))
    assert picture(encode(levels, "png"), (1, 5, 1)).ravel().tolist() == [0, 0, 1, 77, 255]


@pytest.mark.parametrize(
    ("levels", "said"),
    [
        (np.asarray([[0.0, 0.25]], dtype=np.float32), r"it holds 0\.0 to 0\.25 as float32; save it as 8 or 16 bit"),
        (np.asarray([[0, 65536]], dtype=np.int32), r"it holds 0 to 65536 as int32; save it as 8 or 16 bit"),
        (np.asarray([[-1, 7]], dtype=np.int32), r"it holds -1 to 7 as int32; save it as 8 or 16 bit"),
    ],
)
def test_fractions_and_levels_beyond_16_bit_are_an_error(levels: np.ndarray, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        picture(encode(Image.fromarray(levels), "tiff"), (1, 2, 3))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("image", [COLOUR, GREY, DEEP])
def test_own_pictures_are_turned_as_their_exif_data_say(image: Image.Image, orientation: int) -> None:
    stream = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = orientation
    image.save(stream, "png", exif=exif)
    stored = picture(stream.getvalue(), (9, 12, 3))
    turned = {  # where the first row and the first column are shown (EXIF 2.32, table 6)
        1: stored,  # top, left
        2: stored[:, ::-1],  # top, right
        3: stored[::-1, ::-1],  # bottom, right
        4: stored[::-1],  # bottom, left
        5: stored.transpose(1, 0, 2),  # left, top
        6: stored.transpose(1, 0, 2)[:, ::-1],  # right, top
        7: stored.transpose(1, 0, 2)[::-1, ::-1],  # right, bottom
        8: stored.transpose(1, 0, 2)[::-1],  # left, bottom
    }[orientation]
    made = picture(stream.getvalue(), turned.shape, resize=False, upright=True)
    np.testing.assert_array_equal(made, turned)
    square_of = Image.fromarray(turned).resize((5, 5), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(square(stream.getvalue(), 5), np.asarray(square_of))


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
@pytest.mark.parametrize("exif", [b"Exif\0\0nothing", b"Exif\0\0MM\0*\0\0\0\x08\xff\xff", b"Exif\0\0II*\0"])
def test_exif_data_that_cannot_be_read_change_nothing(exif: bytes) -> None:
    stream = io.BytesIO()
    COLOUR.save(stream, "jpeg", exif=exif)
    np.testing.assert_array_equal(square(stream.getvalue(), 5), square(encode(COLOUR, "jpeg"), 5))


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


def test_bytes_that_are_no_picture_are_an_error_without_an_address() -> None:
    with pytest.raises(OSError, match=r"cannot identify an image in 7 bytes"):
        picture(b"nothing", (3, 3, 3))
