"""Checks: is the data there, and can it be shared out over so many clients?"""

from __future__ import annotations

from dataclasses import replace

from fedapp import datasets, paths
from fedapp.config import DataSettings
from fedapp.datasets.cache import cache_folder
from fedapp.doctor.base import Case, SkippedError, size


def look(case: Case) -> str:
    """Load the data set as a run would: from ``data-root``, the cache, the hub, or by making it."""
    settings = _settings(case)
    cached = any(cache_folder().glob(f"{settings.dataset}-v*"))
    case.pool = datasets.load_pool(settings)
    source = case.source
    where = (
        f"under data-root {settings.data_root} or in the cache" if settings.data_root else "made or fetched just now"
    )
    place = "in the cache" if cached and not settings.data_root else where
    shape, nbytes = "x".join(map(str, source.shape)), size(case.pool.inputs.nbytes)
    return f"{settings.dataset}: {len(case.pool)} samples of {shape} in {source.classes} classes, {nbytes}, {place}"


def look_at_partition(case: Case) -> str:
    """Really share the data out, and say who holds least."""
    if case.pool is None:
        raise SkippedError("skipped: there is no data to share out")
    shares = datasets.load_shares(_settings(case), case.clients)
    sizes = [len(share.train) for share in shares]
    least = min(range(len(sizes)), key=sizes.__getitem__)
    untested = sum(not len(share.test) for share in shares)
    return (
        f"{case.clients} clients hold {min(sizes)} to {max(sizes)} training samples; least: client {least} with "
        f"{sizes[least]} for training and {len(shares[least].test)} for testing"
        + (f"; {untested} clients have nothing to test on" if untested else "")
    )


def _settings(case: Case) -> DataSettings:
    settings = case.config.data
    return replace(settings, data_root=paths.existing(settings.data_root, "data-root"))
