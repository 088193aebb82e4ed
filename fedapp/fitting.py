"""Whether a node's samples, labels and model fit together, checked once before anything is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedapp.config import SettingError

if TYPE_CHECKING:
    from fedapp.node import Setup


@torch.no_grad()
def try_out(model: Any, setup: Setup, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return features and scores of one sample.

    Raises:
        SettingError: If the model's parts do not fit the sample, or each other.
    """
    example = setup.train.x[:1].to(device, copy=True)
    try:
        features = model.features(example)
        return features, model.head(features)
    except Exception as error:  # whatever the user's own layers raise
        raise SettingError(
            f"model {setup.model_name!r} fails on one sample of shape {tuple(example.shape[1:])}: "
            f"{type(error).__name__}: {error}; features(x) must give (N, D), head(features) (N, {setup.num_classes})"
        ) from error


def check_tokens(setup: Setup) -> None:
    """Check that texts are token ids of the vocabulary, before a model looks them up.

    Raises:
        SettingError: Naming what came and what has to be.
    """
    for part, samples in (("train", setup.train), ("test", setup.test)) if setup.vocabulary else ():
        x = samples.x
        if x.dtype != torch.int64 or (x.numel() and not 0 <= int(x.min()) <= int(x.max()) < setup.vocabulary):
            got = f"{int(x.min())} to {int(x.max())} of {x.dtype}" if x.numel() else str(x.dtype)
            raise SettingError(
                f"token ids of the {part} samples must be int64 in [0, {setup.vocabulary}), got {got}; the vocabulary "
                "counts padding (0) and unknown (1), too"
            )


def check_fit(setup: Setup, features: Tensor, scores: Tensor) -> None:
    """Check once, before anything is trained, that model, labels and number of classes fit together.

    Raises:
        SettingError: Naming what came and what has to be.
    """
    if features.ndim != 2 or tuple(scores.shape) != (len(features), setup.num_classes):
        raise SettingError(
            f"model {setup.model_name!r} must give features (N, D) and scores (N, {setup.num_classes}), got "
            f"{tuple(features.shape)} and {tuple(scores.shape)} for one sample"
        )
    for part, samples in (("train", setup.train), ("test", setup.test)):
        if samples.y.dtype != torch.int64:
            raise SettingError(f"labels of the {part} samples must be int64, got {samples.y.dtype}; use y.long()")
        if len(samples.y) and not 0 <= int(samples.y.min()) <= int(samples.y.max()) < setup.num_classes:
            raise SettingError(
                f"labels of the {part} samples must be in [0, {setup.num_classes}), got {int(samples.y.min())} to "
                f"{int(samples.y.max())}; num_classes counts the classes of all clients together"
            )
