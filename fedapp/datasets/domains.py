"""Domains and clients: which client holds which domain, how much of it, and what it is tested on."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedapp.config import SettingError, closest, count_of
from fedapp.datasets.base import Ints

RULES = ("cyclic", "drawn", "drawn-then-each")


def client_domains(rule: str, names: Sequence[str], num_clients: int, rng: np.random.RandomState) -> Ints:
    """Return the domain of every client, int64 (K,): the setting ``domain-map``.

    * ``cyclic``: client i holds domain i mod D (the FedSAP paper's words).
    * ``drawn``: every client draws its domain uniformly; a domain may go without a client (public code of FPL).
    * ``drawn-then-each``: all but the last D clients draw, the last D hold each domain once, in order (public code of
      DapperFL: with 10 clients and 4 domains six draw).
    * ``mnist,usps,usps``: client i holds the i-th domain named.
    * ``mnist=6,usps=4``: the first six clients hold mnist, the next four usps. Blanks part names as commas do, unless
      the name of a domain holds one.

    Args:
        rule: One of the above.
        names: The domains, D of them, in order.
        num_clients: K, the number of clients.
        rng: Generator; only the rules that draw advance it.

    Raises:
        SettingError: If the rule is none of these, names an unknown domain, or does not fit the number of clients.

    Example:
        >>> client_domains("b=2,a=1", ["a", "b"], 3, np.random.RandomState(0)).tolist()
        [1, 1, 0]
    """
    count = len(names)
    if rule == "cyclic":
        return np.arange(num_clients) % count
    if rule == "drawn":
        return rng.randint(count, size=num_clients).astype(np.int64)
    if rule == "drawn-then-each":
        if num_clients < count:
            raise SettingError(f"domain-map = {rule} needs a client for each of {count} domains, got {num_clients}")
        return np.concatenate([rng.randint(count, size=num_clients - count), np.arange(count)]).astype(np.int64)
    if not re.search("[=,]", rule) and rule not in names:
        valid = (*RULES, *names)
        raise SettingError(f"domain-map = {rule!r} is no rule and no domain; {closest(rule, valid)}")
    owners: list[int] = []
    for word in _words(rule, names):
        name, times = _pair(word, names)
        owners += [_position(name, names, "domain-map")] * _whole(times or "1", word, "domain-map")
    if len(owners) != num_clients:
        raise SettingError(
            f"domain-map = {rule!r} gives domains to {len(owners)} clients, but there are {num_clients}; "
            f"name {num_clients} of them"
        )
    return np.asarray(owners, dtype=np.int64)


def counts_of(text: str, names: Sequence[str], sizes: Ints) -> Ints:
    """Read the setting ``samples-per-domain``: how many training samples a client of each domain draws, int64 (D,).

    Args:
        text: A number or a per cent of the domain's training part for all domains, ``600`` or ``1%``, or one for every
            domain, ``mnist=600,usps=1%``. A per cent is rounded down, as the papers' code does, to 1 at least.
        names: The domains, D of them, in order.
        sizes: Training samples of every domain, int (D,).

    Raises:
        SettingError: If the text cannot be read, or names an unknown domain, or leaves one out.

    Example:
        >>> counts_of("1%", ["mnist", "usps"], np.array([60_000, 7_291])).tolist()
        [600, 72]
        >>> counts_of("mnist=50 usps=7.5", ["mnist", "usps"], np.array([60_000, 7_291]))
        Traceback (most recent call last):
        fedapp.settings.SettingError: samples-per-domain: '7.5' is neither a whole number above 0 nor a per cent, as 1%
    """
    words, key = _words(text, names), "samples-per-domain"
    if len(words) == 1 and "=" not in words[0]:
        return np.asarray([count_of(words[0], int(size), key) for size in sizes], dtype=np.int64)
    given: dict[int, int] = {}
    for word in words:
        name, amount = _pair(word, names)
        position = _position(name, names, key)
        given[position] = count_of(amount, int(sizes[position]), key)
    missing = [name for position, name in enumerate(names) if position not in given]
    if missing:
        raise SettingError(f"{key} = {text!r} says nothing of {', '.join(missing)}; name every domain")
    return np.asarray([given[position] for position in range(len(names))], dtype=np.int64)


def check_draws(owners: Ints, counts: Ints, sizes: Ints, names: Sequence[str]) -> None:
    """Check that every domain has as many training samples as its clients are to draw.

    Args:
        owners: Domain of every client, int (K,).
        counts: Samples a client of each domain draws, int (D,).
        sizes: Training samples of every domain, int (D,).
        names: The domains, D of them, in order.

    Raises:
        SettingError: For the first that has fewer.
    """
    holders = np.bincount(owners, minlength=len(names))
    for domain in np.flatnonzero(holders * counts > sizes).tolist():
        most = int(sizes[domain] // holders[domain])
        raise SettingError(
            f"samples-per-domain: {holders[domain]} clients cannot draw {counts[domain]} samples each from the "
            f"{sizes[domain]} training samples of domain {names[domain]}; "
            + (f"draw at most {most}" if most else "let fewer clients hold it")
        )


def draw(domains: Ints, labels: Ints, owners: Ints, counts: Ints, rng: np.random.RandomState) -> list[Ints]:
    """Let every client draw samples of its domain without replacement, none of them twice in all.

    A class of the domain that a draw of at least so many samples lacks comes in for a sample of the draw's most
    frequent class, while unheld samples of it last (public code of DapperFL for Office-Caltech).

    Args:
        domains: Domain of every sample, int (N,).
        labels: Class of every sample, int (N,).
        owners: Domain of every client, int (K,).
        counts: Samples a client of each domain draws, int (D,); as many as :func:`check_draws` allows.
        rng: Generator, advanced by one permutation for every domain that has a client.

    Returns:
        K arrays of indices into ``domains``.
    """
    shares = [np.zeros(0, dtype=np.int64)] * len(owners)
    for domain in np.unique(owners):
        order = rng.permutation(np.flatnonzero(domains == domain))
        holders, count = np.flatnonzero(owners == domain), int(counts[domain])
        spare = order[count * len(holders) :]
        for position, holder in enumerate(holders):
            drawn = order[count * position : count * (position + 1)].copy()
            shares[holder] = _complete(drawn, spare, labels, np.unique(labels[order]))
    return shares


def _complete(drawn: Ints, spare: Ints, labels: Ints, classes: Ints) -> Ints:
    """Swap missing classes in from the spare samples, which get the replaced ones."""
    if len(drawn) < len(classes):
        return drawn
    for label in np.setdiff1d(classes, labels[drawn]):
        found = np.flatnonzero(labels[spare] == label)
        held, times = np.unique(labels[drawn], return_counts=True)
        if len(found) and times.max() > 1:
            gone = np.flatnonzero(labels[drawn] == held[np.argmax(times)])[-1]
            drawn[gone], spare[found[0]] = spare[found[0]], drawn[gone]
    return drawn


def even_choice(labels: Ints, most: int, rng: np.random.RandomState) -> Ints:
    """Choose at most ``most`` samples at random, of every class as many as of the others while they last; 0 keeps all.

    Args:
        labels: Class of every sample, int (N,).
        most: How many, or 0.
        rng: Generator, advanced by one permutation.

    Returns:
        Indices into ``labels``, ascending.

    Example:
        >>> labels = np.array([0, 0, 0, 0, 1, 2, 2])
        >>> labels[even_choice(labels, 5, np.random.RandomState(0))].tolist()
        [0, 0, 1, 2, 2]
    """
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    _, starts, sizes = np.unique(labels[order], return_index=True, return_counts=True)
    rank = np.arange(len(labels)) - np.repeat(starts, sizes)  # place within the class
    chosen = order[np.argsort(rank, kind="stable")][: most or len(labels)]
    return np.sort(chosen)


def shared_tests(domains: Ints, labels: Ints, is_test: NDArray[np.bool_], most: int, seed: int) -> dict[int, Ints]:
    """Return the test samples of every domain, at most ``most`` each (0 = all), evenly over its classes.

    Args:
        domains: Domain of every sample, int (N,).
        labels: Class of every sample, int (N,).
        is_test: Whether a sample may test, bool (N,).
        most: Most samples of a domain, or 0.
        seed: Seed of the choice; each domain has a stream of its own.
    """
    chosen = {}
    for domain in np.unique(domains).tolist():
        members = np.flatnonzero(is_test & (domains == domain))
        chosen[domain] = members[even_choice(labels[members], most, np.random.RandomState([seed, domain]))]
    return chosen


def _words(text: str, names: Sequence[str]) -> list[str]:
    """Split at commas, and at blanks as well where no name holds one."""
    blanks = any(re.search(r"\s", name) for name in names)
    return list(filter(None, map(str.strip, re.split("," if blanks else r"[,\s]", text))))


def _pair(word: str, names: Sequence[str]) -> tuple[str, str]:
    """Return a name and what stands behind its equals sign, "" if there is none; a name may hold one as well."""
    name, equals, amount = word.rpartition("=")
    return (word, "") if word in names or not equals else (name.strip(), amount.strip())


def _position(name: str, names: Sequence[str], key: str) -> int:
    if name not in names:
        raise SettingError(f"{key}: unknown domain {name!r}; {closest(name, names)}")
    return list(names).index(name)


def _whole(text: str, word: str, key: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise SettingError(f"{key}: {word!r} must give a whole number of clients above 0, as mnist=6")
    return int(text)
