"""The partitioners of flwr-datasets by name, made disjoint and complete, and never endless.

They see a data set of labels and clients only, in random order: the size-skewed ones cut it into runs. What a
partitioner leaves out (an incomplete shard) is dealt out in turn. What no seed can give is refused at once. Where
chance decides whether a partition is possible, there are some tries, each with another seed; where a part of the draw
decides already, only that is drawn. After that an error says what would do.
"""

from __future__ import annotations

import math
import warnings
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from fedapp.config import DataSettings, SettingError
from fedapp.datasets.base import Ints
from fedapp.datasets.partition import check_clients, check_least, ways_out

TRIES = 10
GOES = 11  # draws that the DirichletPartitioner makes of its own before it gives up
LABEL, CLIENT, ROW = "label", "client", "row"


class InfeasibleError(Exception):
    """A draw gave no partition; another seed may."""


@dataclass(frozen=True)
class Task:
    """What is to be shared out.

    Attributes:
        kind: The partitioner, a name of ``KINDS``.
        labels: Class of every sample, int (N,), every number from 0 on in use.
        clients: Whose each sample is by nature, int (N,), or None.
        num_clients: K.
        settings: Concentration, least size, classes and shards of a client.
    """

    kind: str
    labels: Ints
    clients: Ints | None
    num_clients: int
    settings: DataSettings

    @property
    def classes(self) -> int:
        """C, the number of classes."""
        return len(self.counts)

    @property
    def counts(self) -> Ints:
        """Samples of every class, int64 (C,)."""
        return np.bincount(self.labels)

    @property
    def least(self) -> int:
        """The least samples of a client: the setting, or as many as flwr-datasets asks for while they last."""
        return self.settings.min_partition_size or max(1, min(10, len(self.labels) // self.num_clients // 2))


def share(task: Task, rng: np.random.RandomState) -> list[Ints]:
    """Return K disjoint, complete, non-empty arrays of indices.

    Args:
        task: What is to be shared out.
        rng: Generator; a permutation and one seed for each try are drawn.

    Raises:
        SettingError: If no partition is possible; names what is.
    """
    kind = KINDS[task.kind]
    check_clients(task.num_clients, len(task.labels))
    order = rng.permutation(len(task.labels))
    problem, reason, seeds = kind.rule(task), "", list[int]()
    for _ in range(0 if problem else kind.tries):
        seed = int(rng.randint(2**31))
        seeds.append(seed)
        try:
            kind.check(task, seed)
            return _complete(_draw(kind.make, task, order, seed), task)
        except (InfeasibleError, ValueError, ZeroDivisionError) as error:
            reason = f"{' '.join(str(error).split())}; use another partition"
    raise SettingError(
        f"partition = {task.kind} of {len(task.labels)} samples over {task.num_clients} clients: "
        + (problem or kind.advise(task, seeds) or reason)
    )


def _draw(make: Callable[[Task, int], Any], task: Task, order: Ints, seed: int) -> list[Ints]:
    """Let one partitioner share out the samples in ``order``."""
    partitioner = _partitioned(make, task, order, seed)
    parts = [partitioner.load_partition(client)[ROW] for client in range(task.num_clients)]
    return [np.asarray(part, dtype=np.int64) for part in parts]


def _partitioned(make: Callable[[Task, int], Any], task: Task, order: Ints, seed: int) -> Any:
    """Return a partitioner that has shared out the samples in ``order``."""
    import datasets

    columns = {LABEL: task.labels[order], ROW: order}
    if task.clients is not None:
        columns[CLIENT] = task.clients[order]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what they warn of, incomplete partitions, is mended or refused here
        partitioner = make(task, seed)
        partitioner.dataset = datasets.Dataset.from_dict(columns).with_format("arrow")  # other columns go row by row
        if partitioner.num_partitions != task.num_clients:
            raise InfeasibleError(f"it makes {partitioner.num_partitions} parts")
    return partitioner


def _complete(parts: list[Ints], task: Task) -> list[Ints]:
    """Deal out what is left, and check that classes were not left out whole and nobody is empty."""
    left = np.setdiff1d(np.arange(len(task.labels)), np.concatenate(parts))
    held = np.delete(task.labels, left)
    if len(np.unique(held)) < task.classes:
        raise InfeasibleError(f"only {len(np.unique(held))} of {task.classes} classes have a client")
    parts = [np.concatenate([part, left[client :: task.num_clients]]) for client, part in enumerate(parts)]
    if not all(map(len, parts)):
        raise InfeasibleError("a client is left without samples")
    return parts


def _partitioner(name: str) -> Any:
    import flwr_datasets.partitioner

    return getattr(flwr_datasets.partitioner, name)


def _sized(name: str) -> Callable[[Task, int], Any]:
    return lambda task, seed: _partitioner(name)(num_partitions=task.num_clients)


def _dirichlet(task: Task, seed: int) -> Any:
    return _partitioner("DirichletPartitioner")(
        num_partitions=task.num_clients,
        partition_by=LABEL,
        alpha=task.settings.dirichlet_alpha,
        min_partition_size=task.least,
        seed=seed,
    )


def _inner_dirichlet(task: Task, seed: int) -> Any:
    sizes = [len(part) for part in np.array_split(task.labels, task.num_clients)]
    alpha = task.settings.dirichlet_alpha
    return _partitioner("InnerDirichletPartitioner")(sizes, partition_by=LABEL, alpha=alpha, seed=seed)


def _pathological(task: Task, seed: int) -> Any:
    return _partitioner("PathologicalPartitioner")(
        num_partitions=task.num_clients,
        partition_by=LABEL,
        num_classes_per_partition=task.settings.classes_per_client,
        class_assignment_mode="first-deterministic",
        seed=seed,
    )


def _shard(task: Task, seed: int) -> Any:
    shards = task.settings.shards_per_client
    return _partitioner("ShardPartitioner")(task.num_clients, LABEL, num_shards_per_partition=shards, seed=seed)


def _natural(task: Task, seed: int) -> Any:
    _count_clients(task)
    return _partitioner("NaturalIdPartitioner")(partition_by=CLIENT)


def _grouped(task: Task, seed: int) -> Any:
    size = math.ceil(_count_clients(task) / task.num_clients)
    return _partitioner("GroupedNaturalIdPartitioner")(partition_by=CLIENT, group_size=size, sort_unique_ids=True)


def _count_clients(task: Task) -> int:
    """Return how many clients there are by nature."""
    if task.clients is None:
        raise SettingError(
            f"the partition asks whose each sample is, which {task.settings.dataset} does not say; use another "
            "partition, or client-column with data of your own"
        )
    return len(np.unique(task.clients))


# ---- what no seed gives, and what a part of the draw decides ----------------------------------------------------


def _no_rule(task: Task) -> str:
    return ""


def _no_check(task: Task, seed: int) -> None:
    return None


def _rule_dirichlet(task: Task) -> str:
    check_least(task.least, task.num_clients, len(task.labels))
    return ""


def _check_dirichlet(task: Task, seed: int) -> None:
    """Draw the sizes alone, from the stream of the DirichletPartitioner."""
    if _largest_smallest(task, seed) < task.least:
        raise InfeasibleError("a client is left with too few samples")


def _largest_smallest(task: Task, seed: int) -> int:
    """Return the smallest client's samples in the best draw of the DirichletPartitioner."""
    rng = np.random.default_rng(seed)
    return max(_smallest(task, task.settings.dirichlet_alpha, rng) for _ in range(GOES))


def _smallest(task: Task, alpha: float, rng: np.random.Generator) -> int:
    """Return the smallest client of one draw by the rule of the DirichletPartitioner."""
    sizes = np.zeros(task.num_clients, dtype=np.int64)
    for count in task.counts:
        shares = np.nan_to_num(rng.dirichlet(np.full(task.num_clients, alpha)))
        sizes += np.diff((np.cumsum(shares) * count).astype(np.int64)[:-1], prepend=0, append=count)
    return int(sizes.min())


def _rule_pathological(task: Task) -> str:
    """Count: every class needs a client, and every client a sample of its own of each of its classes."""
    wanted, clients, classes = task.settings.classes_per_client, task.num_clients, task.classes
    if wanted > classes:
        return f"classes-per-client = {wanted} exceeds the {classes} classes; set it to at most {classes}"
    most = int((classes * task.counts + np.arange(classes)).min())  # client i holds class i mod C whatever the seed
    if clients > most:
        return f"client i holds class i mod {classes}, and a class has too few samples; use at most {most} clients"
    if clients * wanted < classes:
        reason = f"gives at most {clients * wanted} of {classes} classes a client"
    elif not _enough(task, wanted):
        reason = f"asks for {clients * wanted} samples that {clients} clients could hold each another of"
    else:
        return ""
    return f"classes-per-client = {wanted} {reason}; {_other_classes(task)}"


def _enough(task: Task, classes_per_client: int) -> bool:
    """Return whether there are samples for so many classes of every client, where a client needs one of each."""
    return task.num_clients * classes_per_client <= int(np.minimum(task.counts, task.num_clients).sum())


def _check_pathological(task: Task, seed: int) -> None:
    """Draw for so few samples that decide it: of every class one for each client, or as many as there are."""
    few = np.minimum(task.counts, task.num_clients)
    small = replace(task, labels=np.repeat(np.arange(task.classes), few), clients=None)
    partitioner = _partitioned(_pathological, small, np.arange(few.sum()), seed)
    if task.num_clients < task.classes:  # else the first clients hold each class once
        rows = [np.asarray(partitioner.load_partition(client)[ROW]) for client in range(task.num_clients)]
        held = len(np.unique(small.labels[np.concatenate(rows)]))
        if held < task.classes:
            raise InfeasibleError(f"only {held} of {task.classes} classes have a client")


# ---- what would do -------------------------------------------------------------------------------


def _fewer(task: Task, seeds: Sequence[int]) -> str:
    """Say how many clients a size-skewed partition can have; the more there are, the less is for the first."""
    make = KINDS[task.kind].make
    most = bisect_left(range(1, task.num_clients), True, key=lambda count: not _works(make, task, count))
    return f"the first clients would hold nothing; use at most {most} clients" if most else ""


def _works(make: Callable[[Task, int], Any], task: Task, count: int) -> bool:
    try:
        _partitioned(make, replace(task, num_clients=count), np.arange(len(task.labels)), 0)
    except (InfeasibleError, ValueError):
        return False
    return True


def _advise_dirichlet(task: Task, seeds: Sequence[int]) -> str:
    alpha = task.settings.dirichlet_alpha
    best = max(_largest_smallest(task, seed) for seed in seeds)  # so it holds for this partition-seed
    advice = ways_out(partial(_smallest_of, task), alpha, task.least, best)
    return f"alpha {alpha:g} gave no try in which every client holds {task.least} samples; {advice}"


def _smallest_of(task: Task, alpha: float, seed: int) -> int:
    return _smallest(task, alpha, np.random.default_rng(seed))


def _advise_inner(task: Task, seeds: Sequence[int]) -> str:
    return (
        f"in {KINDS[task.kind].tries} tries a class ran out while a client drew from it alone (alpha "
        f"{task.settings.dirichlet_alpha:g}); raise dirichlet-alpha, or use flwr-dirichlet"
    )


def _advise_pathological(task: Task, seeds: Sequence[int]) -> str:
    return (
        f"classes-per-client = {task.settings.classes_per_client} gave every class a client, and every client a sample "
        f"of each of its classes, in none of {TRIES} tries; {_other_classes(task)}"
    )


def _other_classes(task: Task) -> str:
    if feasible := next(_feasible_classes(task), 0):
        return f"set it to {feasible}"
    return "no other number gives every class a client; use another partition or more clients"


def _feasible_classes(task: Task) -> Iterator[int]:
    """Yield the numbers of classes of a client that work, the nearest to the one wanted first."""
    wanted, least = task.settings.classes_per_client, math.ceil(task.classes / task.num_clients)
    for count in sorted(range(least, task.classes + 1), key=lambda count: abs(count - wanted)):
        if not _enough(task, count):
            continue
        other = replace(task, settings=replace(task.settings, classes_per_client=count))
        try:
            for seed in range(2):
                _check_pathological(other, seed)
        except (InfeasibleError, ValueError):
            continue
        yield count


def _advise_shard(task: Task, seeds: Sequence[int]) -> str:
    most = len(task.labels) // task.num_clients
    wanted = task.settings.shards_per_client
    return f"shards-per-client = {wanted} asks for more shards than samples; set it to at most {most}"


def _advise_natural(task: Task, seeds: Sequence[int]) -> str:
    return f"the data name {_count_clients(task)} clients; use so many, or partition = clients for fewer"


def _advise_nothing(task: Task, seeds: Sequence[int]) -> str:
    return ""


@dataclass(frozen=True)
class Kind:
    """One partitioner.

    Attributes:
        make: Makes it for a task and a seed.
        advise: Says what would do where it gives no partition by the seeds that were tried, or "".
        tries: How many seeds it gets; 1 where chance does not decide.
        rule: Says what rules a task out whatever the seed, and what would do, or "".
        check: Raises InfeasibleError or ValueError where a part of the draw by a seed tells that it will fail.
    """

    make: Callable[[Task, int], Any]
    advise: Callable[[Task, Sequence[int]], str]
    tries: int = 1
    rule: Callable[[Task], str] = _no_rule
    check: Callable[[Task, int], None] = _no_check


KINDS: dict[str, Kind] = {
    "flwr-iid": Kind(_sized("IidPartitioner"), _advise_nothing),
    "flwr-dirichlet": Kind(_dirichlet, _advise_dirichlet, 3, _rule_dirichlet, _check_dirichlet),  # each of GOES draws
    "flwr-inner-dirichlet": Kind(_inner_dirichlet, _advise_inner, 5),
    "flwr-pathological": Kind(_pathological, _advise_pathological, TRIES, _rule_pathological, _check_pathological),
    "flwr-shard": Kind(_shard, _advise_shard),
    "flwr-natural-id": Kind(_natural, _advise_natural),
    "flwr-grouped-id": Kind(_grouped, _advise_natural),
    "flwr-linear": Kind(_sized("LinearPartitioner"), _fewer),
    "flwr-square": Kind(_sized("SquarePartitioner"), _fewer),
    "flwr-exponential": Kind(_sized("ExponentialPartitioner"), _fewer),
}
