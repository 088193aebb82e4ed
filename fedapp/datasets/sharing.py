"""From the pool and the settings to every client's share."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from fedapp.config import DataSettings, SettingError, count_of
from fedapp.datasets import domains, flwr_partition, partition
from fedapp.datasets.base import Bools, Ints, Pool
from fedapp.datasets.partition import Share
from fedapp.summaries import called

logger = logging.getLogger(__name__)


def share_out(pool: Pool, settings: DataSettings, num_clients: int, having: Sequence[str] = ()) -> tuple[Share, ...]:
    """Partition the pool and split every client's part into train, test and validation.

    One random stream, seeded by ``partition_seed``, draws in this order: a test part where one must be set aside, the
    map of clients to domains, the partition, the splits client by client. Training parts are always disjoint; test
    parts too, except with ``test_split=shared``.

    Args:
        pool: All samples.
        settings: The data settings.
        num_clients: K, the number of clients.
        having: Names of data sets with domains, for the message to a user who asks for domains in vain.

    Raises:
        SettingError: If the pool lacks what the settings ask for, or the partition is not feasible.
    """
    rng = partition.generator(settings.partition_seed)
    is_test = _test_part(pool, settings, rng)
    shared = {}
    if _split(pool, settings) == "shared" and is_test is not None:
        most = settings.test_samples_per_domain
        shared = domains.shared_tests(_domains(pool), pool.labels, is_test, most, settings.partition_seed)
    elif settings.test_samples_per_domain:
        raise SettingError("test-samples-per-domain needs test-split = shared; set that, or leave it at 0")
    shares = []
    for client, indices in enumerate(_partition(pool, is_test, settings, num_clients, rng, having)):
        if is_test is not None:
            whose = f"client {called(str(client), pool.owner_of(indices))}"
            train, test = partition.split_native(indices, is_test, rng, whose)
        else:
            train, test = partition.split_random(indices, settings.train_fraction, rng)
        train, test = _kept(train, test[:0] if shared else test, settings.samples_per_client)
        if shared:
            held = [shared[domain] for domain in np.unique(_domains(pool)[train]).tolist()]
            test = held[0] if len(held) == 1 else np.concatenate(held)
        shares.append(partition.hold_out(train, test, settings.validation_fraction))
    return tuple(shares)


def _kept(train: Ints, test: Ints, amount: int | str) -> tuple[Ints, Ints]:
    """Keep so many samples of a share, or a per cent of its training part and as large a part of its tests, if any."""
    if isinstance(amount, int):
        return partition.limit(train, test, amount)
    count = count_of(amount, len(train), "samples-per-client")
    return train[:count], test[: max(1, len(test) * count // len(train))]


def _split(pool: Pool, settings: DataSettings) -> str:
    """Return what test_split means for this pool: native, shared or client."""
    if settings.test_split != "auto":
        return settings.test_split
    if settings.test_samples_per_domain:
        return "shared"
    return "native" if pool.native_split_only else "client"


def _domains(pool: Pool) -> Ints:
    """Return the domain of every sample; a pool without domains is one domain."""
    return np.zeros(len(pool), dtype=np.int64) if pool.domains is None else pool.domains


def _test_part(pool: Pool, settings: DataSettings, rng: np.random.RandomState) -> Bools | None:
    """Return which samples test: the source's own part, or for shared tests one set aside; None if clients split."""
    split = _split(pool, settings)
    if split == "client" or pool.is_test is not None:
        return None if split == "client" else pool.is_test
    if split == "native":
        raise SettingError(f"test-split = native: {settings.dataset} has no test part of its own; use client or shared")
    is_test = np.zeros(len(pool), dtype=np.bool_)
    for domain in np.unique(_domains(pool)):
        _, tests = partition.split_random(np.flatnonzero(_domains(pool) == domain), settings.train_fraction, rng)
        is_test[tests] = True
    return is_test


def _partition(
    pool: Pool,
    is_test: Bools | None,
    settings: DataSettings,
    num_clients: int,
    rng: np.random.RandomState,
    having: Sequence[str],
) -> list[Ints]:
    """Partition the pool; where the native split is used, training and test samples are dealt out evenly each."""
    later = np.zeros(len(pool), dtype=np.int64) if is_test is None else is_test.astype(np.int64)
    kind = settings.partition
    if kind == "auto":
        kind = "clients" if pool.clients is not None else "dirichlet" if pool.domains is None else "domains"
    if kind != "domains" and (settings.samples_per_domain or settings.domain_map != "cyclic"):
        raise SettingError(
            f"samples-per-domain and domain-map need partition = domains, this is {kind}; use samples-per-client"
        )
    if kind == "iid":
        return partition.iid(later, num_clients, rng)
    if kind == "dirichlet":
        return partition.dirichlet(pool.labels, num_clients, settings.dirichlet_alpha, settings.min_partition_size, rng)
    if kind == "clients":
        return _by_nature(pool, later, settings, num_clients)
    if kind in flwr_partition.KINDS:
        labels = np.unique(pool.labels, return_inverse=True)[1]
        return flwr_partition.share(flwr_partition.Task(kind, labels, pool.clients, num_clients, settings), rng)
    if pool.domains is None:
        raise SettingError(
            f"partition = domains: {settings.dataset} has no domains; use iid or dirichlet, or a data set with domains "
            f"({', '.join(having)})"
        )
    return _by_domain(pool, later, settings, num_clients, rng)


def _by_nature(pool: Pool, later: Ints, settings: DataSettings, num_clients: int) -> list[Ints]:
    """Give every client what is its own by nature; who has nothing to train on is left out, and named."""
    if pool.clients is None or not later.any():
        return partition.by_client(pool.clients, num_clients, settings.dataset)
    trainers = np.unique(pool.clients[later == 0])
    kept = np.flatnonzero(np.isin(pool.clients, trainers))
    gone = [pool.client_names[number] for number in np.setdiff1d(pool.clients, trainers)]
    if not gone:
        return partition.by_client(pool.clients, num_clients, settings.dataset)
    words = f"{_few(gone)} {'holds' if len(gone) == 1 else 'hold'} test samples only"
    if num_clients > len(trainers):
        raise SettingError(
            f"partition = clients: {settings.dataset} names {len(trainers)} clients with samples to train on, not "
            f"{num_clients}, for {words}; use at most {len(trainers)} clients, or test-split = client"
        )
    so = "is no client" if len(gone) == 1 else "are no clients"
    logger.warning("%s: %s and %s; with test-split = client all take part", settings.dataset, words, so)
    return [kept[part] for part in partition.by_client(pool.clients[kept], num_clients, settings.dataset)]


def _few(names: Sequence[str]) -> str:
    return ", ".join([*names[:5], *[f"{len(names) - 5} more"] * (len(names) > 5)])


def _by_domain(
    pool: Pool, later: Ints, settings: DataSettings, num_clients: int, rng: np.random.RandomState
) -> list[Ints]:
    """Deal the domains out evenly, or let every client draw its training samples."""
    held, names = _domains(pool), pool.domain_names
    owners = domains.client_domains(settings.domain_map, names, num_clients, rng)
    logger.info("clients by domain: %s", ", ".join(names[owner] for owner in owners))
    strata = later * len(pool.class_names) + pool.labels
    if not settings.samples_per_domain:
        given = None if settings.domain_map == "cyclic" else owners
        _check_holders(owners, held, names)
        return partition.by_domain(held, strata, num_clients, rng, given)
    if num_clients < len(names) and settings.domain_map == "cyclic":
        raise SettingError(
            f"samples-per-domain: {num_clients} clients cannot hold one of {len(names)} domains each; "
            "use more clients, or name domains in domain-map"
        )
    trains, tests = np.flatnonzero(later == 0), np.flatnonzero(later)
    sizes = np.bincount(held[trains], minlength=len(names)).astype(np.int64)
    counts = domains.counts_of(settings.samples_per_domain, names, sizes)
    domains.check_draws(owners, counts, sizes, names)
    drawn = domains.draw(held[trains], pool.labels[trains], owners, counts, rng)
    if not len(tests):
        return [trains[part] for part in drawn]
    _check_holders(owners, held[tests], names, " to test on")
    dealt = partition.by_domain(held[tests], pool.labels[tests], num_clients, rng, owners)
    return [np.concatenate([trains[part], tests[rest]]) for part, rest in zip(drawn, dealt, strict=True)]


def _check_holders(owners: Ints, held: Ints, names: Sequence[str], what: str = "") -> None:
    """Check that every client can have a sample of its domain, of those that have any."""
    sizes = np.bincount(held, minlength=len(names))
    for domain, holders in zip(*np.unique(owners, return_counts=True), strict=True):
        if sizes[domain]:
            partition.check_clients(int(holders), int(sizes[domain]), f"{what} of domain {names[domain]}")
