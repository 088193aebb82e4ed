"""Digits rendered from fonts, by the recipe of SYN: a domain of digits4.

Every image draws a random font, colours, scale, rotation, shear and place; a second digit often peeps in at the left
or right edge, behind the first. The fonts come with matplotlib; faces whose 0-9 are not digits are left out.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]

SIDE = 32
OVERSAMPLING = 2
GLYPH_SIDE = 80
GLYPH_HEIGHT = 48
CHUNK = 250

TRAIN_FONTS = (
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique"),
    *("DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique", "DejaVuSansMono-BoldOblique"),
    *("STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "STIXGeneralBolIta"),
    *("cmr10", "cmb10"),
)
TEST_FONTS = (
    *("DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic"),
    *("cmss10", "cmtt10", "cmti10"),
)
DIGIT_NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def font_path(face: str) -> Path:
    """Return the file of a font that comes with matplotlib."""
    import matplotlib

    return Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{face}.ttf"


def draws_digits(face: str) -> bool:
    """Return whether the font exists and its characters 0-9 are lining digits, by the names of the glyphs."""
    from matplotlib.ft2font import FT2Font

    path = font_path(face)
    if not path.exists():
        return False
    font = FT2Font(str(path))
    return tuple(font.get_glyph_name(font.get_char_index(ord(digit))) for digit in "0123456789") == DIGIT_NAMES


def glyphs(face: str) -> Floats:
    """Return the ten digits of a font as coverage in [0, 1], centred, float64 (10, GLYPH_SIDE, GLYPH_SIDE)."""
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.truetype(str(font_path(face)), GLYPH_HEIGHT)
    _, top, _, bottom = font.getbbox("0")
    font = ImageFont.truetype(str(font_path(face)), round(GLYPH_HEIGHT**2 / (bottom - top)))
    drawn = []
    for digit in "0123456789":
        left, top, right, bottom = font.getbbox(digit)
        canvas = Image.new("L", (GLYPH_SIDE, GLYPH_SIDE))
        place = ((GLYPH_SIDE - left - right) / 2, (GLYPH_SIDE - top - bottom) / 2)
        ImageDraw.Draw(canvas).text(place, digit, fill=255, font=font)
        drawn.append(np.asarray(canvas))
    return np.stack(drawn) / 255.0


def render(labels: Ints, faces: tuple[str, ...], rng: np.random.RandomState) -> tuple[Bytes, Ints]:
    """Draw one image per label.

    Args:
        labels: The digits, int64 (N,).
        faces: The fonts to draw from.
        rng: Generator.

    Returns:
        Images, uint8 (N, 32, 32, 3), and the position in ``faces`` of the font of each, int64 (N,).
    """
    usable = [position for position, face in enumerate(faces) if draws_digits(face)]
    shapes = np.stack([glyphs(faces[position]) for position in usable])  # (fonts, 10, G, G)
    images, fonts = [], []
    for start in range(0, len(labels), CHUNK):
        digits = labels[start : start + CHUNK]
        font = rng.randint(len(usable), size=len(digits))
        images.append(_compose(digits, shapes[font], rng))
        fonts.append(np.asarray(usable, dtype=np.int64)[font])
    return np.concatenate(images), np.concatenate(fonts)


def _compose(digits: Ints, shapes: Floats, rng: np.random.RandomState) -> Bytes:
    """Paint background, distractor and digit, bottom up; shapes is (B, 10, G, G)."""
    batch = len(digits)
    rows = np.arange(batch)
    ink, paper = _colours(batch, rng)
    turn = _turns(batch, rng)
    shift = rng.uniform(-2.5, 2.5, size=(batch, 2))
    side = rng.choice([-1, 1], size=batch) * rng.uniform(18.5, 23, size=batch)
    beside = shift + np.stack([rng.uniform(-3, 3, size=batch), side], axis=1)
    distractor = _warp(shapes[rows, rng.randint(10, size=batch)], turn, beside)
    distractor *= (rng.uniform(size=batch) < 0.6)[:, None, None]
    digit = _warp(shapes[rows, digits], turn, shift)

    slope = rng.uniform(-1, 1, size=(batch, 2)) * 18 / SIDE
    steps = np.arange(SIDE) - (SIDE - 1) / 2
    ramp = slope[:, :1, None] * steps[:, None] + slope[:, 1:, None] * steps
    image = paper[:, None, None, :] + ramp[..., None]  # (B, 32, 32, 3)
    for cover in (distractor, digit):
        image += cover[..., None] * (ink[:, None, None, :] - image)
    image += rng.normal(scale=rng.uniform(0, 9, size=(batch, 1, 1, 1)), size=image.shape)
    pixels: Bytes = np.clip(np.rint(image), 0, 255).astype(np.uint8)
    return pixels


def _turns(batch: int, rng: np.random.RandomState) -> Floats:
    """Draw the maps from the image's pixels to the glyph's pixels: inverse of scale, shear, rotation; (B, 2, 2)."""
    height = rng.uniform(15, 24, size=batch)
    angle = np.deg2rad(rng.uniform(-20, 20, size=batch))
    shear = rng.uniform(-0.2, 0.2, size=batch)
    stretch = rng.uniform(0.85, 1.2, size=batch)
    cos, sin = np.cos(angle), np.sin(angle)
    rotation = np.stack([cos, -sin, sin, cos], axis=1).reshape(-1, 2, 2)
    shape = np.zeros((batch, 2, 2))
    shape[:, 0, 0], shape[:, 1, 0], shape[:, 1, 1] = 1, shear, 1 / stretch
    scaled: Floats = shape @ rotation * (GLYPH_HEIGHT / height)[:, None, None]
    return scaled


def _warp(masks: Floats, turn: Floats, shift: Floats) -> Floats:
    """Sample masks (B, G, G) at the affinely mapped pixels, bilinear and oversampled; returns coverage (B, 32, 32)."""
    batch, fine = len(masks), SIDE * OVERSAMPLING
    steps = (np.arange(fine) + 0.5) / OVERSAMPLING - SIDE / 2
    grid = np.stack(np.meshgrid(steps, steps, indexing="ij"), axis=-1).reshape(1, -1, 2)
    at = (grid - shift[:, None, :]) @ turn.transpose(0, 2, 1) + (GLYPH_SIDE - 1) / 2  # (B, fine², 2)
    at = np.clip(at, 0, GLYPH_SIDE - 1.001)
    corner = at.astype(np.int64)
    (down, across), (y, x) = np.moveaxis(at - corner, -1, 0), np.moveaxis(corner, -1, 0)
    rows = np.arange(batch)[:, None]
    top = masks[rows, y, x] * (1 - across) + masks[rows, y, x + 1] * across
    low = masks[rows, y + 1, x] * (1 - across) + masks[rows, y + 1, x + 1] * across
    sampled: Floats = top * (1 - down) + low * down
    cover: Floats = sampled.reshape(batch, SIDE, OVERSAMPLING, SIDE, OVERSAMPLING).mean(axis=(2, 4))
    return cover


def _colours(batch: int, rng: np.random.RandomState) -> tuple[Floats, Floats]:
    """Draw colours of ink and paper, (B, 3) each, that differ by 70 of 255 in luminance or more."""
    pairs = rng.uniform(0, 255, size=(batch, 32, 2, 3))
    luminance = pairs @ np.array([0.299, 0.587, 0.114])
    differs = np.abs(luminance[..., 0] - luminance[..., 1]) >= 70
    chosen = pairs[np.arange(batch), np.argmax(differs, axis=1)]
    return chosen[:, 0], chosen[:, 1]
