"""Tiny data sets of every kind of input, made on the spot: they stand in for real ones, which are slow to load."""

import numpy as np

from fedapp.datasets import Pool, Source

PER_CLASS, CLASSES = 24, 3
VOCABULARY, WORDS, COLUMNS = 40, 15, 12


def _labels():
    return np.tile(np.arange(CLASSES), PER_CLASS)


def _pool(inputs, **more):
    return Pool(inputs=inputs, labels=_labels(), class_names=("a", "b", "c"), **more)


def _images(settings):
    rng = np.random.RandomState(0)
    pixels = rng.randint(0, 120, size=(PER_CLASS * CLASSES, 32, 32, 3)) + 60 * _labels()[:, None, None, None]
    return _pool(pixels.astype(np.uint8))


def _texts(settings):
    """One word of each text tells its class; texts have 2 to 15 words."""
    rng = np.random.RandomState(0)
    tokens = rng.randint(1, VOCABULARY - CLASSES, size=(PER_CLASS * CLASSES, WORDS))
    tokens[:, 1] = VOCABULARY - CLASSES + _labels()
    tokens[np.arange(WORDS) >= rng.randint(2, WORDS + 1, size=(len(tokens), 1))] = 0
    return _pool(tokens.astype(np.int64), vocabulary=VOCABULARY)


def _rows(settings):
    rng = np.random.RandomState(0)
    rows = rng.normal(size=(PER_CLASS * CLASSES, COLUMNS))
    rows[:, 0] += 2 * _labels()
    return _pool(rows.astype(np.float32))


SOURCES = {
    "images": Source("tiny-images", _images, "brightness", CLASSES, (3, 32, 32)),
    "tokens": Source("tiny-texts", _texts, "one word tells", CLASSES, (WORDS,), vocabulary=VOCABULARY),
    "numbers": Source("tiny-rows", _rows, "one column tells", CLASSES, (COLUMNS,)),
}
