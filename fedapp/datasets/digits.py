"""Digits: MNIST, USPS, SVHN and SYN, ten classes in four domains, 32x32 RGB; local copies or hub.

The feature-shift benchmark of the FedSAP paper, in the order of its code.

* ``mnist``: LeCun et al., Gradient-based learning applied to document recognition, Proc. IEEE 86 (1998); the licence is
  not stated with certainty; 60,000 + 10,000 of 28x28 grey; hub ``ylecun/mnist``.
* ``usps``: Hull, A database for handwritten text recognition research, TPAMI 16 (1994); no licence stated; 7,291 +
  2,007 of 16x16 grey; hub ``flwrlabs/usps``.
* ``svhn``: Netzer et al., Reading digits in natural images with unsupervised feature learning, NIPS workshop 2011;
  73,257 + 26,032 of 32x32; for non-commercial use; hub ``ufldl-stanford/svhn``, configuration ``cropped_digits``.
* ``syn``: Roy et al., Effects of degradations on deep neural network architectures, arXiv 1807.10108: the synthetic
  digits of Kaggle ``prasunroy/synthetic-digits``, 10,000 + 2,000; not DANN's SynthDigits. Not on the hub: unpack it to
  ``<data-root>/syn/train/<digit>/`` and ``<data-root>/syn/val/<digit>/`` (Kaggle's imgs_train and imgs_valid).

Other sizes are resized bilinearly to 32x32 and grey is repeated over the channels, as the papers' code does.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedapp.config import DataSettings, SettingError
from fedapp.datasets import hub
from fedapp.datasets.base import Bytes, Pool, Source
from fedapp.datasets.cache import Arrays, cached_arrays
from fedapp.datasets.pictures import picture

VERSION = 1
SIDE = 32
CLASSES = 10
DOMAINS = ("mnist", "usps", "svhn", "syn")
SYN = {"train": False, "val": True}
SUFFIXES = (".jpg", ".jpeg", ".png")

SHAPE = (SIDE, SIDE, 3)
MNIST = hub.Repository("mnist", "ylecun/mnist", "label", CLASSES, SHAPE, resize=True)
USPS = hub.Repository("usps", "flwrlabs/usps", "label", CLASSES, SHAPE, resize=True)
SVHN = hub.Repository("svhn", "ufldl-stanford/svhn", "label", CLASSES, SHAPE, config="cropped_digits")


def load(settings: DataSettings) -> Pool:
    """Return the pool, each source from ``data_root`` or the hub by itself.

    Args:
        settings: The data settings.

    Raises:
        SettingError: If no place has one of the sources.
    """
    files = _syn_files(settings.data_root)
    key = f"digits-v{VERSION}-{hub.identity([MNIST, USPS, SVHN], settings.data_root)}-{hub.digest(sorted(files))}"
    return pool_of(cached_arrays(key, lambda: _build(settings.data_root, files)), DOMAINS)


def joined(parts: Mapping[str, Arrays]) -> Arrays:
    """Join the domains' images, labels and splits, all training parts before all test parts.

    Args:
        parts: ``images`` uint8 (N, 32, 32, 3), ``labels`` int64 (N,) and ``is_test`` bool (N,) by domain, in order.

    Returns:
        The same arrays for all domains, and ``domains`` int64 (N,).
    """
    sizes = [len(part["labels"]) for part in parts.values()]
    fields = ("images", "labels", "is_test")
    whole: Arrays = {name: np.concatenate([part[name] for part in parts.values()]) for name in fields}
    whole["domains"] = np.repeat(np.arange(len(parts)), sizes)
    order = np.argsort(whole["is_test"], kind="stable")
    return {name: array[order] for name, array in whole.items()}


def pool_of(arrays: Arrays, domain_names: tuple[str, ...]) -> Pool:
    """Return the pool of what :func:`joined` returned; training and test parts stay apart."""
    return Pool(
        inputs=arrays["images"],
        labels=arrays["labels"],
        class_names=tuple(map(str, range(CLASSES))),
        domains=arrays["domains"],
        domain_names=domain_names,
        is_test=arrays["is_test"],
        native_split_only=True,
    )


def _build(data_root: str, files: Mapping[Path, tuple[int, bool]]) -> Arrays:
    found = [hub.decode(repository, data_root) for repository in (MNIST, USPS, SVHN)]
    return joined(dict(zip(DOMAINS, [*found, _syn(files)], strict=True)))


def _syn_files(data_root: str) -> dict[Path, tuple[int, bool]]:
    """Return the digit, and whether it tests, of every image of SYN."""
    folder = Path(data_root).expanduser() / "syn"
    found = {
        path: (int(place.name), is_test)
        for split, is_test in (SYN.items() if data_root else ())
        for place in sorted((folder / split).glob("[0-9]"))
        for path in sorted(place.iterdir())
        if path.suffix.lower() in SUFFIXES
    }
    if {is_test for _, is_test in found.values()} != {False, True}:
        where = f"{folder}/train/<digit> and {folder}/val/<digit>" if data_root else "data-root, which is not set"
        raise SettingError(
            f"data set syn was not found in {where}, and the hub does not have it; unpack Kaggle's "
            "prasunroy/synthetic-digits to <data-root>/syn (imgs_train as train, imgs_valid as val), or use "
            "digits-offline"
        )
    return found


def _syn(files: Mapping[Path, tuple[int, bool]]) -> Arrays:
    labels, is_test = zip(*files.values(), strict=True)
    return {
        "images": np.stack([_picture(path) for path in files]),
        "labels": np.asarray(labels, dtype=np.int64),
        "is_test": np.asarray(is_test, dtype=np.bool_),
    }


def _picture(path: Path) -> Bytes:
    try:
        return picture(path, SHAPE)
    except Exception as error:  # of corrupt files Pillow raises much, SyntaxError among it
        raise SettingError(f"{path} cannot be read: {error}; copy it again") from error


SOURCE = Source(
    name="digits",
    load=load,
    summary="digits in four domains (mnist, usps, svhn, syn), local copies or hub, SYN local only",
    classes=CLASSES,
    shape=(3, SIDE, SIDE),
    has_domains=True,
)
