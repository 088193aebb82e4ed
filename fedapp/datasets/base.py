"""What a data set is: the pool of all samples, one node's tensors, and a row of the registry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedapp.config import DataSettings

if TYPE_CHECKING:
    import torch

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Pool:
    """All samples of a data set, before they are shared out; a source's training part comes before its test part.

    Attributes:
        inputs: Pixels, uint8 (N, H, W, C); tokens, whole numbers (N, L); or numbers, float32 (N, ...), or float64
            (N, F) where columns are to be scaled, NaN where one is missing. May be a read-only memory map.
        labels: Classes, int64 (N,) in [0, len(class_names)).
        class_names: The name of every class.
        domains: Which domain each sample is from, int64 (N,), or None if the set has no domains.
        domain_names: The name of every domain; empty if there are none.
        clients: Whose each sample is by nature, int64 (N,), or None if nothing says so.
        client_names: The name of every such client; empty if there are none.
        is_test: Whether a sample is in the source's own test part, bool (N,), or None if there is no such part.
        native_split_only: Whether training and test sources must stay apart, so that test_split=auto means native.
        scaled: Which columns of ``inputs`` (N, F) are scaled by what the training part holds, bool (F,), or None.
        vocabulary: Number of token ids (0 = padding, 1 = unknown) if ``inputs`` are tokens, else 0.
        columns: The input columns of a table, in the order of ``inputs``.
        categories: The values of every column with categories, or the words of a text, by which ``inputs`` is laid out.
    """

    inputs: Bytes | Ints | Floats | Doubles
    labels: Ints
    class_names: tuple[str, ...]
    domains: Ints | None = None
    domain_names: tuple[str, ...] = ()
    clients: Ints | None = None
    client_names: tuple[str, ...] = ()
    is_test: Bools | None = None
    native_split_only: bool = False
    scaled: Bools | None = None
    vocabulary: int = 0
    columns: tuple[str, ...] = ()
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return N, the number of samples."""
        return len(self.labels)

    def domain_of(self, rows: Ints) -> str | None:
        """Return the domain that all samples of some rows share, if they share one."""
        return _only(self.domains, self.domain_names, rows)

    def owner_of(self, rows: Ints) -> str | None:
        """Return the name of the natural client that all samples of some rows are of, if they are of one."""
        return _only(self.clients, self.client_names, rows)


def _only(numbers: Ints | None, names: tuple[str, ...], rows: Ints) -> str | None:
    found = [] if numbers is None else np.unique(numbers[rows]).tolist()
    return names[found[0]] if len(found) == 1 else None


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples as tensors.

    Attributes:
        x: Images, float32 (N, C, H, W) in [-1, 1]; tokens, int64 (N, L); or numbers, float32 (N, ...).
        y: Labels, int64 (N,).
    """

    x: torch.Tensor
    y: torch.Tensor

    def __len__(self) -> int:
        """Return N, the number of samples."""
        return len(self.y)

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return self.x.nbytes + self.y.nbytes


@dataclass(frozen=True, eq=False)
class NodeData:
    """The data of one node.

    Attributes:
        train: What the node trains on; never empty.
        test: What it is tested on; empty for a node that holds a single sample.
        validation: The part of the training part set aside, or None.
        num_classes: C, the classes of the whole data set, not only those held here.
        input_shape: Shape of one sample: (channels, H, W) of an image, (L,) of a text, (F,) of a row.
        class_names: The name of every class.
        domain: The name of the domain if all samples of the node share one, else None.
        label_counts: Training samples of every class, int64 (C,).
        owner: The name of the natural client if all samples of the node are of one, else None.
        vocabulary: Number of token ids of texts, 0 if samples are not texts.
    """

    train: Samples
    test: Samples
    validation: Samples | None
    num_classes: int
    input_shape: tuple[int, ...]
    class_names: tuple[str, ...]
    domain: str | None
    label_counts: Ints
    owner: str | None = None
    vocabulary: int = 0

    @property
    def parts(self) -> list[Samples]:
        """The training, test and validation samples, as far as there are any."""
        return [self.train, self.test] + ([self.validation] if self.validation is not None else [])


@dataclass(frozen=True)
class Source:
    """One data set: a row of the registry.

    Attributes:
        name: The name users give as ``dataset``.
        load: Makes the pool; may depend on ``dataset``, ``data_root`` and ``own`` of the settings only, since pools are
            shared.
        summary: One line for listings.
        classes: Number of classes C; 0 where only the data tell.
        shape: Shape of one sample, as :attr:`NodeData.input_shape`; () where only the data tell.
        has_domains: Whether the pool has domains.
        own: Whether the data are the user's own: a device reads them from its ``data-path`` and holds all of them.
        vocabulary: Number of token ids of texts, 0 if samples are not texts or only the data tell.
        models: The models, or the group of them, that suit this data set where ``models = auto``; "" = those for the
            kind of its samples.
    """

    name: str
    load: Callable[[DataSettings], Pool]
    summary: str
    classes: int
    shape: tuple[int, ...]
    has_domains: bool = False
    own: bool = False
    vocabulary: int = 0
    models: str = ""
