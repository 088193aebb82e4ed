"""Amazon Review: product reviews, negative or positive, in four domains, from a local copy.

Blitzer, Dredze and Pereira, Biographies, Bollywood, boom-boxes and blenders: domain adaptation for sentiment
classification, ACL 2007. No licence stated: for research. 2,000 labelled reviews each of books, dvd, electronics and
kitchen, half of them positive; no test part. The hub has no repository with this layout: a copy is
``<data-root>/local/amazon_reviews`` with the columns ``text``, ``label`` and ``domain``.

Two data sets:

* ``amazon-review``: bags of words, float32 (5000,), 1 where the review holds the word or pair of words, for the MLP
  group, as the FedSAF paper's code has it. That code reads 5,000 precomputed columns that are not published with their
  words; here they are the most frequent words and pairs.
* ``amazon-review-text``: rows of 256 token ids, int64, over the 32,000 most frequent words, for text models.

Having no test part, both take their words from all reviews, never looking at labels.
"""

from __future__ import annotations

import numpy as np

from fedapp.config import DataSettings
from fedapp.datasets import hub, words
from fedapp.datasets.base import Pool, Source
from fedapp.datasets.cache import Arrays, cached_arrays

VERSION = 1
DOMAINS = ("books", "dvd", "electronics", "kitchen")
BAG = 5_000
LENGTH = 256
MOST_WORDS = 32_000

REPOSITORY = hub.Repository(
    name="amazon-review",
    id="local/amazon_reviews",
    label="label",
    classes=2,
    splits=("train",),
    domain="domain",
    domains=DOMAINS,
    on_hub=False,
)


def load_bags(settings: DataSettings) -> Pool:
    """Return the pool of bags of words.

    Args:
        settings: The data settings.

    Raises:
        SettingError: If ``data_root`` has no copy, or it is another set.
    """
    arrays = _arrays("bags", settings.data_root)
    return hub.pool_of(REPOSITORY, arrays, arrays["bags"])


def load_texts(settings: DataSettings) -> Pool:
    """Return the pool of token ids; arguments as for :func:`load_bags`."""
    arrays = _arrays("text", settings.data_root)
    return hub.pool_of(REPOSITORY, arrays, arrays["tokens"], vocabulary=int(arrays["vocabulary"]))


def _arrays(form: str, data_root: str) -> Arrays:
    key = f"{REPOSITORY.name}-{form}-v{VERSION}-{hub.identity([REPOSITORY], data_root)}"
    return cached_arrays(key, lambda: _build(form, data_root))


def _build(form: str, data_root: str) -> Arrays:
    splits = hub.fetch(REPOSITORY, data_root)
    facts, reviews = hub.facts(REPOSITORY, splits), hub.cells(REPOSITORY, splits, "text")
    if form == "bags":
        terms = [words.pairs_of(review) for review in reviews]
        return {"bags": words.bags_of(terms, words.most_frequent(terms, BAG), BAG), **facts}
    texts = [words.words_of(review) for review in reviews]
    ids = words.numbered(words.most_frequent(texts, MOST_WORDS))
    vocabulary = np.asarray(len(ids) + words.FIRST)
    return {"tokens": words.rows_of(texts, ids, LENGTH), "vocabulary": vocabulary, **facts}


BAGS = Source(
    name="amazon-review",
    load=load_bags,
    summary="product reviews in four domains as bags of 5,000 words, 2 classes, local copy",
    classes=2,
    shape=(BAG,),
    has_domains=True,
    models="mlp-bow",
)
TEXTS = Source(
    name="amazon-review-text",
    load=load_texts,
    summary="product reviews in four domains as rows of 256 words, 2 classes, local copy",
    classes=2,
    shape=(LENGTH,),
    has_domains=True,
    vocabulary=MOST_WORDS + words.FIRST,
)
