"""The parts that own data bring along: folders, splits and files that are named train, val or test.

Training parts come first. A validation part is the test part where there is no other, else it joins the training part,
of which ``validation-fraction`` sets its own aside.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Hashable, Mapping
from typing import TypeVar

Item = TypeVar("Item", bound=Hashable)
TRAIN, VALIDATION, TEST = "train", "validation", "test"
NAME = re.compile(
    r"(?:(?P<train>train)|(?P<validation>validation|valid|val)|(?P<test>test))(?:ing|set|data|s)?(?![a-z])",
    re.IGNORECASE,
)

logger = logging.getLogger(__name__)


def part_of(name: str, whole: bool = False) -> str:
    """Return which part a name stands for: train, validation, test, or "" for none.

    Args:
        name: Name of a folder, a split or a file.
        whole: Whether the name must be no more than that of a part.

    Example:
        >>> [part_of(name) for name in ("Training", "val", "test-0001.csv", "testimonials", "paris")]
        ['train', 'validation', 'test', '', '']
        >>> part_of("test_site", whole=True)
        ''
    """
    found = NAME.fullmatch(name) if whole else NAME.match(name)
    return (found and found.lastgroup) or ""


def part_within(*names: str) -> str:
    """Return which part a file is of: as the first of its folders that is named like one says, else its own name.

    Example:
        >>> part_within("test", "a.csv"), part_within("test_site", "train_1.csv"), part_within("a.csv")
        ('test', 'train', '')
    """
    *folders, name = names
    return next(filter(None, (part_of(folder, whole=True) for folder in folders)), part_of(name))


def train_first(parts: Mapping[Item, str], what: str) -> dict[Item, bool]:
    """Return whether items are of the test part, those of the training part first.

    Args:
        parts: The part that every item is named after; "" counts as training.
        what: What to call the data in the log.

    Returns:
        A flag for every item; all are False if training or test items are missing.

    Example:
        >>> train_first({"b": "test", "a": "train", "c": ""}, "pets")
        {'a': False, 'c': False, 'b': True}
    """
    held = set(parts.values())
    validation = ", ".join(str(item) for item, part in parts.items() if part == VALIDATION)
    test = TEST if TEST in held else VALIDATION
    if not held - {test}:
        return dict.fromkeys(parts, False)
    if validation and test == VALIDATION:
        logger.warning("%s: %s is the test part, since no other is there", what, validation)
    elif validation:
        logger.warning("%s: %s joins the training part; validation-fraction sets a part aside", what, validation)
    return {item: parts[item] == test for item in sorted(parts, key=lambda item: parts[item] == test)}
