"""AG News: news in four classes (World, Sports, Business, Sci/Tech), local copy or hub.

Zhang, Zhao and LeCun, Character-level convolutional networks for text classification, NIPS 2015, from A. Gulli's corpus
of news articles. For non-commercial use. 120,000 + 7,600 texts; on the hub ``fancyzhx/ag_news``, columns ``text``
(title and description; the description alone in some copies) and ``label``.

A sample is a row of 200 token ids, int64: the words of :mod:`fedapp.datasets.words`, the 32,000 most frequent of the
training part. The FedSAF paper's code takes torchtext's basic_english tokens, a vocabulary of training and test part
(98,635 words) and length 200 too; PFLlib caps the vocabulary at 32,000.
"""

from __future__ import annotations

import numpy as np

from fedapp.config import DataSettings
from fedapp.datasets import hub, words
from fedapp.datasets.base import Pool, Source
from fedapp.datasets.cache import Arrays, cached_arrays

VERSION = 1
LENGTH = 200
MOST_WORDS = 32_000

REPOSITORY = hub.Repository("ag-news", "fancyzhx/ag_news", "label", 4)


def load(settings: DataSettings) -> Pool:
    """Return the pool, the training part first.

    Args:
        settings: The data settings; ``data_root`` is tried before the hub.

    Raises:
        SettingError: If neither place has it, or the copy is another set.
    """
    key = f"{REPOSITORY.name}-v{VERSION}-{hub.identity([REPOSITORY], settings.data_root)}"
    arrays = cached_arrays(key, lambda: _build(settings.data_root))
    return hub.pool_of(REPOSITORY, arrays, arrays["tokens"], vocabulary=int(arrays["vocabulary"]))


def _build(data_root: str) -> Arrays:
    splits = hub.fetch(REPOSITORY, data_root)
    facts = hub.facts(REPOSITORY, splits)
    texts = [words.words_of(text) for text in hub.cells(REPOSITORY, splits, "text")]
    training = [text for text, is_test in zip(texts, facts["is_test"], strict=True) if not is_test]
    ids = words.numbered(words.most_frequent(training, MOST_WORDS))
    vocabulary = np.asarray(len(ids) + words.FIRST)
    return {"tokens": words.rows_of(texts, ids, LENGTH), "vocabulary": vocabulary, **facts}


SOURCE = Source(
    name="ag-news",
    load=load,
    summary="news texts in 4 classes as rows of 200 words, local copy or hub",
    classes=4,
    shape=(LENGTH,),
    vocabulary=MOST_WORDS + words.FIRST,
)
