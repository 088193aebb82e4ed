"""The splits of a repository, read batch by batch: its columns can be larger than memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedapp.config import SettingError

if TYPE_CHECKING:
    import datasets
    import pyarrow as pa

ROWS = 1000  # of a batch: DomainNet's pictures are 30 kB each, encoded
BUFFER = 2**20  # bytes of a file that are read at a time, whatever the size of its row groups


@dataclass(frozen=True)
class Split:
    """One split of a repository.

    Attributes:
        features: The columns, as the ``datasets`` library describes them.
        rows: N, the number of samples.
        batches: Reads one column anew, in order, at most ``ROWS`` cells at a time.
    """

    features: Mapping[str, Any]
    rows: int
    batches: Callable[[str], Iterator[pa.Array]]


Splits = Mapping[str, Split]


def from_parquet(paths: Sequence[Path]) -> Split:
    """Return the split that parquet files hold, in order; ``load_dataset`` would copy them into its cache first.

    Args:
        paths: The files; at least one.

    Raises:
        SettingError: If a file cannot be read, now or later, or holds other columns than the first.
    """
    import datasets
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows, schemas = 0, []
    for path in paths:
        try:
            with pq.ParquetFile(path) as file:
                rows += file.metadata.num_rows
                schemas.append(file.schema_arrow)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise _unreadable(path, error) from error
        if not schemas[-1].equals(schemas[0]):
            raise _unreadable(path, f"its columns are not those of {paths[0].name}")

    def batches(column: str) -> Iterator[pa.Array]:
        for path in paths:
            yield from _batches(path, column)

    return Split(datasets.Features.from_arrow_schema(schemas[0]), rows, batches)


def _batches(path: Path, column: str) -> Iterator[pa.Array]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, buffer_size=BUFFER, pre_buffer=False) as file:
            for batch in file.iter_batches(ROWS, columns=[column], use_threads=False):
                yield batch.column(0)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise _unreadable(path, error) from error


def from_library(split: datasets.Dataset) -> Split:
    """Return a split of the ``datasets`` library, which maps its own copy into memory."""

    def batches(column: str) -> Iterator[pa.Array]:
        for table in split.select_columns([column]).with_format("arrow").iter(ROWS):
            yield from table.column(0).chunks

    return Split(split.features, len(split), batches)


def _unreadable(path: Path, reason: object) -> SettingError:
    return SettingError(f"cannot read {path}: {reason}; copy it again")
