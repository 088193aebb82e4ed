"""Who holds which sample: partitions over clients, and the parts of one client's share.

A partition is a list of K index arrays, one per client, disjoint and complete. All draws come from numpy's legacy
generator, whose stream is frozen for good; a function that takes ``seed`` accepts a generator as well and continues it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedapp.config import SettingError

Ints = NDArray[np.int64]
Seed = int | np.random.RandomState

DIRICHLET_TRIES = 200
LEAST_ALPHA, EVEN_ALPHA = 0.0005, 10_000


@dataclass(frozen=True)
class Share:
    """The parts of one client's share, as indices into the pool: int64 arrays without overlap."""

    train: Ints
    test: Ints
    validation: Ints


def generator(seed: Seed) -> np.random.RandomState:
    """Return the legacy numpy generator of ``seed``; a generator is returned as it is.

    Raises:
        SettingError: If the seed is not in [0, 2**32).
    """
    if isinstance(seed, np.random.RandomState):
        return seed
    if not 0 <= seed < 2**32:
        raise SettingError(f"partition-seed must be in [0, 2**32), got {seed}")
    return np.random.RandomState(seed)


def check_clients(num_clients: int, num_samples: int, of: str = "") -> None:
    """Check that every client can hold a sample.

    Raises:
        SettingError: If there are no clients, or more than samples (``of`` what).
    """
    if num_clients < 1:
        raise SettingError(f"the number of clients must be at least 1, got {num_clients}")
    if num_clients > num_samples:
        raise SettingError(f"{num_clients} clients cannot share {num_samples} samples{of}; use fewer clients")


def check_least(least: float, num_clients: int, num_samples: int) -> None:
    """Check that there are samples for the least size of every client.

    Raises:
        SettingError: If there are not.
    """
    if least * num_clients > num_samples:
        raise SettingError(
            f"min-partition-size = {least:g} times {num_clients} clients exceeds the {num_samples} samples; "
            f"set it to at most {num_samples // num_clients}, or use fewer clients"
        )


def iid(strata: ArrayLike, num_clients: int, seed: Seed) -> list[Ints]:
    """Deal the samples out at random, so that clients differ by at most one sample in all and in every stratum.

    Args:
        strata: What to spread evenly, int (N,): zeros for a plain random split, labels for a stratified one.
        num_clients: K, the number of clients.
        seed: Seed, or a generator to continue.

    Returns:
        K arrays of indices into ``strata``.

    Raises:
        SettingError: If there are more clients than samples.

    Example:
        >>> [share.tolist() for share in iid([0, 0, 1, 1], num_clients=2, seed=0)]
        [[1, 2], [0, 3]]
    """
    strata = np.asarray(strata)
    check_clients(num_clients, len(strata))
    return _deal(np.arange(len(strata)), strata, num_clients, generator(seed))


def by_domain(
    domains: ArrayLike, strata: ArrayLike, num_clients: int, seed: Seed, owners: Ints | None = None
) -> list[Ints]:
    """Give every client one domain: client i holds domain i mod D, or ``owners[i]``.

    The clients of one domain share it evenly, stratum by stratum. With fewer clients than domains no domain is left
    out: client i holds the domains i, i + K, i + 2K, ... Where ``owners`` leave out a domain, nobody holds it.

    Args:
        domains: Domain of every sample, int (N,); D is the number of distinct values.
        strata: What to spread evenly over the clients of a domain, int (N,): usually the labels.
        num_clients: K, the number of clients.
        seed: Seed, or a generator to continue.
        owners: Domain of every client, int (K,), or None.

    Returns:
        K arrays of indices into ``domains``.

    Raises:
        SettingError: If there are more clients than samples, in all or for one domain.

    Example:
        >>> [share.tolist() for share in by_domain([0, 0, 1, 1], [0, 1, 0, 1], num_clients=2, seed=0)]
        [[0, 1], [2, 3]]
    """
    domains, strata = np.asarray(domains), np.asarray(strata)
    check_clients(num_clients, len(domains))
    rng = generator(seed)
    names = np.unique(domains)
    shares: list[list[Ints]] = [[] for _ in range(num_clients)]
    for position, name in enumerate(names):
        holders = list(range(position, num_clients, len(names)) or [position % num_clients])
        if owners is not None:
            holders = np.flatnonzero(owners == name).tolist()
        if not holders:
            continue
        members = np.flatnonzero(domains == name)
        check_clients(len(holders), len(members), f" of domain {name}")
        for holder, part in zip(holders, _deal(members, strata[members], len(holders), rng), strict=True):
            shares[holder].append(part)
    return [np.concatenate(parts) for parts in shares]


def by_client(clients: ArrayLike | None, num_clients: int, dataset: str = "the data set") -> list[Ints]:
    """Give every client what is its own by nature.

    With fewer clients here than there are by nature, client i stands for those numbered i, i + K, i + 2K, ...

    Args:
        clients: Number of the natural client of every sample, int (N,); None if nothing says so.
        num_clients: K, the number of clients here.
        dataset: What to call the data in messages.

    Returns:
        K arrays of indices into ``clients``.

    Raises:
        SettingError: If nothing says whose a sample is, or there are fewer clients by nature than here.

    Example:
        >>> [share.tolist() for share in by_client([2, 0, 1, 0], num_clients=2)]
        [[0, 1, 3], [2]]
    """
    if clients is None:
        raise SettingError(
            f"partition = clients: {dataset} does not say whose each sample is; use another partition, or "
            "client-column with data of your own"
        )
    _, numbers = np.unique(np.asarray(clients), return_inverse=True)
    count = int(numbers.max()) + 1
    if num_clients > count:
        raise SettingError(
            f"partition = clients: {dataset} names {count} clients, not {num_clients}; use at most {count}"
        )
    return [np.flatnonzero(numbers % num_clients == client) for client in range(num_clients)]


def dirichlet(labels: ArrayLike, num_clients: int, alpha: float, min_size: int = 0, seed: Seed = 1) -> list[Ints]:
    """Share every class out by a Dirichlet draw: the rule of the papers, bit for bit.

    For each class k in order: shuffle its samples, draw p ~ Dir(α·1_K), set p_j = 0 for every client that already
    holds N/K samples or more, renormalise, cut at floor(cumsum(p)·n_k). If the smallest client is below the least
    size, all is drawn again from the same stream (HtFLlib, the papers' code, repeats for ever; here the tries are
    bounded). Where every p is zero (a tiny α underflows) the class goes whole to the emptiest client, the limit α -> 0.

    Args:
        labels: Class of every sample, int (N,).
        num_clients: K, the number of clients.
        alpha: Concentration (α), above 0; small means that clients hold few classes.
        min_size: Least samples a client holds; 0 means the papers' rule, :func:`papers_min_size`.
        seed: Seed, or a generator to continue; after the call it stands where the papers' code splits the shares.

    Returns:
        K arrays of indices into ``labels``, in the order of classes.

    Raises:
        SettingError: If no try succeeds; names a least size or an alpha that works.

    Example:
        >>> [len(share) for share in dirichlet([0] * 60 + [1] * 60, num_clients=3, alpha=1.0, min_size=10, seed=1)]
        [23, 51, 46]
    """
    labels = np.asarray(labels)
    check_clients(num_clients, len(labels))
    least = float(min_size) if min_size else papers_min_size(len(labels), num_clients)
    check_least(least, num_clients, len(labels))
    rng = generator(seed)
    members = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    best = 0
    for _ in range(DIRICHLET_TRIES):
        order, owners, smallest = _draw(members, num_clients, alpha, rng)
        if smallest >= least:
            return _group(order, owners, num_clients)
        best = max(best, smallest)
    raise SettingError(_dirichlet_advice(members, num_clients, alpha, least, best))


def papers_min_size(num_samples: int, num_clients: int) -> float:
    """Return the papers' least size of a client: min(b / (1 - 0.75), N / K / 2) with the batch size b = 10.

    Example:
        >>> papers_min_size(60_000, 20), papers_min_size(600, 20)
        (40.0, 15.0)
    """
    return min(10 / (1 - 0.75), num_samples / num_clients / 2)


def larger_alphas(alpha: float) -> list[float]:
    """Return concentrations to advise in place of one that is too small, by doubling, up to nearly even shares.

    Example:
        >>> [round(larger, 3) for larger in larger_alphas(1e-6)][:3], larger_alphas(4000.0)
        ([0.001, 0.002, 0.004], [8000.0, 16000.0])
    """
    doubled = max(alpha, LEAST_ALPHA) * 2.0 ** np.arange(1, 26)
    return [float(larger) for larger in doubled if larger < 2 * EVEN_ALPHA]


def split_random(indices: Ints, train_fraction: float, rng: np.random.RandomState) -> tuple[Ints, Ints]:
    """Split a share at random into train and test, exactly as scikit-learn's ``train_test_split`` does.

    ``train_test_split(indices, train_size=train_fraction, shuffle=True, random_state=rng)`` gives the same arrays and
    leaves the generator in the same state. Where it would refuse, a lone sample goes to the training part.

    Args:
        indices: The share, int64 (n,).
        train_fraction: Part that trains, in (0, 1].
        rng: Generator, advanced by one permutation.

    Returns:
        The training and the test indices.

    Example:
        >>> train, test = split_random(np.arange(8), 0.75, np.random.RandomState(1))
        >>> train.tolist(), test.tolist()
        ([1, 6, 0, 4, 3, 5], [7, 2])
    """
    order = rng.permutation(len(indices))
    num_train = max(1, int(train_fraction * len(indices)))
    num_test = len(indices) - num_train
    return indices[order[num_test:]], indices[order[:num_test]]


def split_native(
    indices: Ints, is_test: NDArray[np.bool_], rng: np.random.RandomState, whose: str = "a client"
) -> tuple[Ints, Ints]:
    """Split a share by the source's own parts; the order within a part is random.

    Args:
        indices: The share, int64 (n,).
        is_test: Whether a sample of the pool is in the source's test part, bool (N,).
        rng: Generator, advanced by one permutation.
        whose: Whose share it is, for the message.

    Returns:
        The training and the test indices.

    Raises:
        SettingError: If the share has no training sample.
    """
    order = indices[rng.permutation(len(indices))]
    train, test = order[~is_test[order]], order[is_test[order]]
    if not len(train):
        raise SettingError(
            f"{whose} holds {len(indices)} samples of the source's test part and none to train on; set test-split = "
            "client, or use another partition or fewer clients"
        )
    return train, test


def limit(train: Ints, test: Ints, most: int) -> tuple[Ints, Ints]:
    """Keep at most ``most`` samples of a share, in the same ratio of train to test; 0 keeps all.

    The first ones of each part stay, so a larger limit keeps what a smaller one kept.

    Example:
        >>> train, test = limit(np.arange(30), np.arange(30, 40), 8)
        >>> train.tolist(), test.tolist()
        ([0, 1, 2, 3, 4, 5], [30, 31])
    """
    total = len(train) + len(test)
    if most == 0 or total <= most:
        return train, test
    num_train = max(1, most * len(train) // total)
    return train[:num_train], test[: most - num_train]


def hold_out(train: Ints, test: Ints, validation_fraction: float) -> Share:
    """Set the last ``validation_fraction`` of the training part aside, rounded down; one training sample stays.

    Example:
        >>> hold_out(np.arange(5), np.arange(5, 7), 0.4).validation.tolist()
        [3, 4]
    """
    num_train = max(1, len(train) - int(validation_fraction * len(train)))
    return Share(train[:num_train], test, train[num_train:])


def _deal(members: Ints, strata: NDArray[np.int64], num_hands: int, rng: np.random.RandomState) -> list[Ints]:
    """Shuffle, sort by stratum, and deal out in turn."""
    order = rng.permutation(len(members))
    order = order[np.argsort(strata[order], kind="stable")]
    return [members[order[hand::num_hands]] for hand in range(num_hands)]


def _draw(
    members: list[Ints], num_clients: int, alpha: float, rng: np.random.RandomState
) -> tuple[list[Ints], list[Ints], int]:
    """Draw once: per class the shuffled samples and the count of each client; and the smallest client's size."""
    even = sum(map(len, members)) / num_clients
    sizes = np.zeros(num_clients, dtype=np.int64)
    order, counts = [], []
    for group in members:
        shuffled = group.copy()
        rng.shuffle(shuffled)
        drawn = rng.dirichlet(np.full(num_clients, alpha))
        drawn = np.where(np.isfinite(drawn), drawn, 0) * (sizes < even)  # tiny alphas: gamma draws under- or overflow
        if not drawn.any():
            drawn = np.zeros(num_clients)
            drawn[np.argmin(sizes)] = 1
        cuts = (np.cumsum(drawn / drawn.sum()) * len(group)).astype(np.int64)[:-1]
        held = np.diff(cuts, prepend=0, append=len(group))
        sizes += held
        order.append(shuffled)
        counts.append(held)
    return order, counts, int(sizes.min())


def _group(order: list[Ints], counts: list[Ints], num_clients: int) -> list[Ints]:
    """Collect every client's samples, class after class."""
    owners = np.concatenate([np.repeat(np.arange(num_clients), held) for held in counts])
    samples = np.concatenate(order)[np.argsort(owners, kind="stable")]
    return np.split(samples, np.cumsum(np.bincount(owners, minlength=num_clients))[:-1])


def ways_out(smallest: Callable[[float, int], int], alpha: float, least: float, best: int) -> str:
    """Return which least size or alpha would make a Dirichlet partition feasible.

    Args:
        smallest: Draws with an alpha and a seed, and returns the smallest client's samples.
        alpha: The alpha that failed.
        least: The least size asked for.
        best: The largest smallest client of the tries.
    """
    ways = [f"min-partition-size to at most {best}"] if best else []
    larger, found = alpha, 0
    for larger in larger_alphas(alpha):
        found = min(smallest(larger, seed) for seed in range(3))
        if found >= least:
            ways.append(f"dirichlet-alpha to at least {larger:g}")
            break
    if not ways and found:
        ways.append(f"min-partition-size to {found} and dirichlet-alpha to {larger:g}")
    return f"set {' or '.join(ways)}, or use fewer clients" if ways else "use fewer clients"


def _dirichlet_advice(members: list[Ints], num_clients: int, alpha: float, least: float, best: int) -> str:
    """Say what failed and which least size or alpha would do."""

    def smallest(larger: float, seed: int) -> int:
        return _draw(members, num_clients, larger, np.random.RandomState(seed))[2]

    total, advice = sum(map(len, members)), ways_out(smallest, alpha, least, best)
    return (
        f"no Dirichlet partition with alpha {alpha:g} of {total} samples over {num_clients} clients gave every client "
        f"at least {math.ceil(least)} samples in {DIRICHLET_TRIES} tries; {advice}"
    )
