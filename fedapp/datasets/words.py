"""Texts as rows of token ids or bags of words, without any network: tokeniser and vocabulary."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

PADDING = 0
UNKNOWN = 1
FIRST = 2

WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?")


def words_of(text: str) -> list[str]:
    """Return the words and numbers of a text, in lower case; an apostrophe within a word belongs to it.

    Example:
        >>> words_of("It's 9 o'clock -- no_one (else) CAN'T.")
        ["it's", '9', "o'clock", 'no', 'one', 'else', "can't"]
    """
    return WORD.findall(text.lower())


def pairs_of(text: str) -> list[str]:
    """Return the words of a text and its pairs of neighbouring words.

    Example:
        >>> pairs_of("Not good at all")
        ['not', 'good', 'at', 'all', 'not good', 'good at', 'at all']
    """
    words = words_of(text)
    return words + [f"{first} {second}" for first, second in itertools.pairwise(words)]


def most_frequent(texts: Iterable[Sequence[str]], most: int) -> tuple[str, ...]:
    """Return the most frequent words, the most frequent first, ties in alphabetical order.

    Args:
        texts: The words of every text.
        most: At most how many.

    Example:
        >>> most_frequent([["b", "a"], ["c", "b"]], 2)
        ('b', 'a')
    """
    counts: Counter[str] = Counter()
    for words in texts:
        counts.update(words)
    return tuple(sorted(counts, key=lambda word: (-counts[word], word))[:most])


def numbered(words: Sequence[str]) -> dict[str, int]:
    """Return the token id of every word of a vocabulary: its place plus 2, since 0 is padding and 1 unknown.

    Example:
        >>> numbered(["the", "a"])
        {'the': 2, 'a': 3}
    """
    return {word: number for number, word in enumerate(words, start=FIRST)}


def rows_of(texts: Iterable[Sequence[str]], ids: Mapping[str, int], length: int) -> NDArray[np.int32]:
    """Return texts as rows of token ids, cut off or padded on the right.

    Args:
        texts: The words of N texts.
        ids: Token id of every known word.
        length: L, the length of a row.

    Returns:
        int32 (N, L).

    Example:
        >>> rows_of([["the", "cat"], ["a", "the", "a", "a"]], {"the": 2, "a": 3}, 3).tolist()
        [[2, 1, 0], [3, 2, 3]]
    """
    rows = [[ids.get(word, UNKNOWN) for word in words[:length]] for words in texts]
    padded = [row + [PADDING] * (length - len(row)) for row in rows]
    return np.asarray(padded, dtype=np.int32).reshape(-1, length)


def bags_of(texts: Sequence[Sequence[str]], words: Sequence[str], width: int) -> NDArray[np.float32]:
    """Return which words of a vocabulary texts hold, 1 or 0.

    Args:
        texts: The words of N texts.
        words: The vocabulary, at most ``width`` words; columns beyond it stay 0.
        width: W, the number of columns.

    Returns:
        float32 (N, W).

    Example:
        >>> bags_of([["the", "cat", "the"]], ["a", "the"], 3).tolist()
        [[0.0, 1.0, 0.0]]
    """
    column = {word: number for number, word in enumerate(words)}
    bags = np.zeros((len(texts), width), dtype=np.float32)
    for row, text in enumerate(texts):
        bags[row, [column[word] for word in set(text) if word in column]] = 1
    return bags
