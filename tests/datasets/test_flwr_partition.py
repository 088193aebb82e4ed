import dataclasses
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedapp.datasets as data
from fedapp.config import PARTITIONS, DataSettings, SettingError
from fedapp.datasets import Pool, partition
from fedapp.datasets.flwr_partition import KINDS, Task, share
from fedapp.datasets.sharing import share_out


def task(kind: str, count: int, clients: int, classes: int = 10, **changes: Any) -> Task:
    rng = np.random.RandomState(0)
    labels = np.concatenate([np.arange(classes), rng.randint(classes, size=count - classes)])
    owners = np.concatenate([np.arange(clients), rng.randint(clients, size=count - clients)])
    return Task(kind, labels, owners, clients, DataSettings(**changes))


FEW = np.concatenate([np.arange(10), np.repeat(np.arange(9), 10)])  # one sample of class 9


def message(made: Task, seed: int = 0) -> str:
    with pytest.raises(SettingError) as caught:
        share(made, np.random.RandomState(seed))
    return str(caught.value)


def test_every_name_of_the_setting_is_a_partition() -> None:
    assert set(PARTITIONS) == {"auto", "iid", "dirichlet", "domains", "clients", *KINDS}


@pytest.mark.parametrize("kind", PARTITIONS)
@settings(max_examples=6, deadline=None)
@given(
    count=st.integers(30, 80),
    clients=st.integers(1, 5),
    classes=st.integers(2, 5),
    alpha=st.floats(0.05, 10),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_partition_by_name_is_disjoint_and_complete(
    kind: str, count: int, clients: int, classes: int, alpha: float, seed: int
) -> None:
    made = task(kind, count, clients, classes)
    assert made.clients is not None
    pool = Pool(
        inputs=np.zeros((count, 1), dtype=np.float32),
        labels=made.labels + 2,  # class numbers need not begin at 0 nor be all in use
        class_names=tuple(map(str, range(classes + 4))),
        clients=made.clients,
        client_names=tuple(map(str, range(clients))),
        domains=made.clients,
        domain_names=tuple(map(str, range(clients))),
    )
    chosen = DataSettings(
        partition=kind, dirichlet_alpha=alpha, partition_seed=seed, classes_per_client=min(2, classes), own=OWN
    )
    try:
        shares = share_out(pool, chosen, clients)
    except SettingError:
        assert kind.rpartition("-")[2] in ("dirichlet", "pathological", "square", "exponential")
        return
    held = np.concatenate([part for one in shares for part in (one.train, one.test, one.validation)])
    assert len(shares) == clients
    assert sorted(held.tolist()) == list(range(count))
    assert all(len(one.train) for one in shares)
    again = share_out(pool, chosen, clients)
    assert [one.train.tolist() for one in again] == [one.train.tolist() for one in shares]


OWN = DataSettings().own


def test_pathological_clients_hold_so_many_classes() -> None:
    made = task("flwr-pathological", 400, 12, classes_per_client=3)
    assert {len(set(made.labels[part])) for part in share(made, np.random.RandomState(0))} == {3}


def test_shards_that_do_not_come_out_even_are_still_complete() -> None:
    made = task("flwr-shard", 103, 4, shards_per_client=3)
    parts = share(made, np.random.RandomState(0))
    assert sorted(map(len, parts)) == [25, 26, 26, 26]  # 12 shards of 8, and the last 7 samples in turn


def test_size_skewed_clients_grow_by_their_number_and_mix_a_sorted_set() -> None:
    made = dataclasses.replace(task("flwr-square", 1000, 4), labels=np.repeat(np.arange(10), 100))
    parts = share(made, np.random.RandomState(0))
    assert list(map(len, parts)) == [33, 133, 300, 534]  # 1, 4, 9, 16 of 30
    assert all(len(set(made.labels[part])) == 10 for part in parts[1:])


@pytest.mark.parametrize("kind", ["flwr-natural-id", "clients"])
def test_natural_clients_keep_their_own(kind: str) -> None:
    made = task("flwr-natural-id", 60, 5)
    parts = share(made, np.random.RandomState(0)) if kind != "clients" else partition.by_client(made.clients, 5)
    assert made.clients is not None
    assert sorted(made.clients[part].tolist() for part in parts) == sorted(
        [name] * int((made.clients == name).sum()) for name in range(5)
    )


def test_fewer_clients_than_by_nature_take_several_each() -> None:
    parts = partition.by_client(["c", "a", "b", "a"], 2)
    assert [part.tolist() for part in parts] == [[0, 1, 3], [2]]


@pytest.mark.parametrize(
    ("made", "advice"),
    [
        (task("flwr-dirichlet", 1797, 100, min_partition_size=10), "set dirichlet-alpha to at least"),
        (task("flwr-dirichlet", 1797, 20, min_partition_size=50), "set min-partition-size to at most"),
        (task("flwr-exponential", 200, 20), "use at most 5 clients"),
        (task("flwr-shard", 100, 10, shards_per_client=11), "set it to at most 10"),
        (task("flwr-pathological", 400, 12, classes_per_client=11), "set it to at most 10"),
        (task("flwr-pathological", 60, 3), "gives at most 6 of 10 classes a client; set it to"),
        (task("flwr-pathological", 60, 5), "in none of 10 tries; set it to"),
        (dataclasses.replace(task("flwr-pathological", 60, 50), labels=np.arange(60) % 10), "asks for 100 samples"),
        (dataclasses.replace(task("flwr-pathological", 60, 21), labels=FEW), "use at most 19 clients"),
        (task("flwr-dirichlet", 60, 5, min_partition_size=13), "set it to at most 12, or use fewer clients"),
        *((dataclasses.replace(task(kind, 60, 5), num_clients=61), "61 clients cannot share 60") for kind in KINDS),
        (dataclasses.replace(task("flwr-natural-id", 60, 5), num_clients=4), "the data name 5 clients; use so many"),
        (dataclasses.replace(task("flwr-natural-id", 60, 5), clients=None), "does not say; use another partition"),
    ],
)
def test_what_is_not_possible_is_refused_with_what_is(made: Task, advice: str) -> None:
    assert advice in message(made)


def test_advice_of_a_dirichlet_partition_holds() -> None:
    words = message(task("flwr-dirichlet", 1797, 20, min_partition_size=60)).split()
    alpha = float(words[words.index("dirichlet-alpha") + 4].rstrip(","))
    share(task("flwr-dirichlet", 1797, 20, min_partition_size=60, dirichlet_alpha=alpha), np.random.RandomState(0))


@pytest.mark.parametrize(("alpha", "seed"), [(1e-6, 4), (1e-6, 5), (5.0, 0), (1.0, 1)])
def test_least_size_that_a_dirichlet_partition_advises_is_smaller_and_works(alpha: float, seed: int) -> None:
    # so small an alpha deals out whole classes: only by chance, 5!/5^5 = 4 % of the draws, one to each client
    labels = np.repeat(np.arange(5), 20)
    made = Task("flwr-dirichlet", labels, None, 5, DataSettings(dirichlet_alpha=alpha, min_partition_size=20))
    found = re.search(r"set min-partition-size to at most (\d+)", message(made, seed))
    assert (found is None) == (alpha < 1)
    if found:
        chosen = dataclasses.replace(made.settings, min_partition_size=int(found[1]))
        parts = share(dataclasses.replace(made, settings=chosen), np.random.RandomState(seed))
        assert 20 > min(map(len, parts)) >= int(found[1]) > 0


def test_advice_of_a_pathological_partition_holds() -> None:
    for clients in (2, 3, 5, 7):
        named = int(message(task("flwr-pathological", 200, clients, classes_per_client=1)).split()[-1])
        share(task("flwr-pathological", 200, clients, classes_per_client=named), np.random.RandomState(1))


def outcome(made: Task, seed: int) -> str:
    try:
        return str([part.tolist() for part in share(made, np.random.RandomState(seed))])
    except SettingError as error:
        return str(error)


@pytest.mark.parametrize("kind", ["flwr-dirichlet", "flwr-pathological"])
def test_what_a_part_of_the_draw_decides_is_what_the_whole_draw_would(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [(60, 5), (60, 7), (60, 9), (40, 14)]
    tasks = [task(kind, count, clients, dirichlet_alpha=0.5, min_partition_size=2) for count, clients in sizes]
    quick = [outcome(made, seed) for made in tasks for seed in range(2)]
    monkeypatch.setitem(KINDS, kind, dataclasses.replace(KINDS[kind], check=lambda made, seed: None))
    assert quick == [outcome(made, seed) for made in tasks for seed in range(2)]
    assert len({text[0] for text in quick}) == 2  # some are shared out, some refused


def test_exhausted_inner_dirichlet_says_what_to_use_instead() -> None:
    made = task("flwr-inner-dirichlet", 60, 2, classes=3, dirichlet_alpha=1e-4)
    assert "use flwr-dirichlet" in message(made)


def test_more_clients_than_by_nature_is_an_error() -> None:
    with pytest.raises(SettingError, match="names 2 clients, not 3; use at most 2"):
        partition.by_client([0, 1, 0], 3)
    with pytest.raises(SettingError, match="does not say whose each sample is"):
        partition.by_client(None, 3)


def test_data_that_say_whose_each_sample_is_are_partitioned_by_it(registry: Any) -> None:
    pool = Pool(
        inputs=np.zeros((9, 2), dtype=np.float32),
        labels=np.zeros(9, dtype=np.int64),
        class_names=("one",),
        clients=np.repeat([0, 1, 2], 3),
        client_names=("a", "b", "c"),
    )
    registry["natural"] = data.Source("natural", lambda _: pool, "a pool for tests", 1, (2,))
    shares = data.load_shares(DataSettings(dataset="natural"), 3)
    assert [sorted([*one.train, *one.test]) for one in shares] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
