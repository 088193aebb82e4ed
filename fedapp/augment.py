"""Augmentation of training batches: random crops of padded images and horizontal flips, a whole batch at once."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from torch import Tensor

from fedapp.settings import SettingError, closest

KINDS = ("crop", "flip")
BLACK = -1.0


@dataclass(frozen=True)
class Augmentation:
    """What happens to a training image.

    Attributes:
        crop: Pixels of black put around the image before a crop of its size is drawn; 0 = no crop.
        flip: Whether the image is mirrored, left to right, half of the time.
    """

    crop: int = 0
    flip: bool = False


def parse(text: str) -> Augmentation:
    """Read the setting ``augment``: ``crop`` (of 4 pixels) or ``crop=8``, and ``flip``, separated by commas.

    Args:
        text: The setting; empty = images stay as they are.

    Raises:
        SettingError: If a word is neither, or the crop is no whole number above 0.

    Example:
        >>> parse("crop,flip")
        Augmentation(crop=4, flip=True)
    """
    crop, flip = 0, False
    for word in filter(None, re.split(r"[,\s]+", text)):
        name, _, pixels = word.partition("=")
        if name == "crop" and (not pixels or (pixels.isdecimal() and int(pixels))):
            crop = int(pixels or 4)
        elif word == "flip":
            flip = True
        elif name in KINDS:
            raise SettingError(f"augment: {word!r} cannot be read; write crop, crop=8 (pixels) or flip")
        else:
            raise SettingError(f"augment: unknown augmentation {word!r}; {closest(word, KINDS)}")
    return Augmentation(crop, flip)


def augment(x: Tensor, augmentation: Augmentation, generator: torch.Generator) -> Tensor:
    """Return a batch of images, each cropped and mirrored at random: torchvision's RandomCrop and RandomHorizontalFlip.

    Pixel (r, c) of image b becomes pixel (r + u_b - p, c' + v_b - p) of the original, with u_b and v_b uniform in
    {0, ..., 2p}, p the padding and c' = c or W - 1 - c; outside the image it is black, -1.

    Args:
        x: Images in [-1, 1], float32 (B, C, H, W); unchanged.
        augmentation: What to do.
        generator: Draws on the CPU, two numbers per image for a crop and one for a flip, so that the draws do not
            depend on the device.

    Returns:
        (B, C, H, W); ``x`` itself if there is nothing to do.

    Raises:
        SettingError: If the samples are no images.

    Example:
        >>> x = torch.tensor([[[[0.0, 0.5]]], [[[0.0, 0.5]]]])
        >>> augment(x, Augmentation(flip=True), torch.Generator().manual_seed(2)).flatten(1).tolist()
        [[0.0, 0.5], [0.5, 0.0]]
    """
    if augmentation == Augmentation():
        return x
    if x.dim() != 4:
        raise SettingError(
            f"augment needs images, (B, C, H, W), got samples of shape {tuple(x.shape[1:])}; leave it empty"
        )
    batch, channels, height, width = x.shape
    padding = augmentation.crop
    column = torch.arange(width).expand(batch, width)
    row = torch.arange(height).expand(batch, height)
    if augmentation.flip:
        mirrored = torch.rand(batch, 1, generator=generator) < 0.5
        column = torch.where(mirrored, width - 1 - column, column)
    if padding:
        shift = torch.randint(2 * padding + 1, (2, batch, 1), generator=generator)
        row, column = row + shift[0], column + shift[1]
        x = torch.nn.functional.pad(x, (padding,) * 4, value=BLACK)
    at = row[:, :, None] * (width + 2 * padding) + column[:, None, :]  # (B, H, W)
    at = at.view(batch, 1, -1).to(x.device).expand(-1, channels, -1)
    return x.flatten(2).gather(2, at).view(batch, channels, height, width)
