import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedapp.config import DataSettings, SettingError
from fedapp.datasets import Pool, partition
from fedapp.datasets.sharing import share_out

COUNTS = json.loads((Path(__file__).parent / "cifar100_dir0.1_n20_counts.json").read_text())


def cifar100_labels() -> np.ndarray:
    return np.concatenate([np.repeat(np.arange(100), 500), np.repeat(np.arange(100), 100)])


def assert_disjoint_and_complete(shares: list[np.ndarray], total: int) -> None:
    assert sorted(np.concatenate(shares).tolist()) == list(range(total))


def counts(labels: np.ndarray, share: np.ndarray) -> list[list[int]]:
    return [
        [int(label), int(count)] for label, count in zip(*np.unique(labels[share], return_counts=True), strict=True)
    ]


def papers_partition(labels: np.ndarray, num_clients: int, alpha: float, least: float, seed: int) -> list[list[int]]:
    """The rule of the papers, written plainly with lists."""
    rng = np.random.RandomState(seed)
    while True:
        held: list[list[int]] = [[] for _ in range(num_clients)]
        for label in range(labels.max() + 1):
            members = [i for i in range(len(labels)) if labels[i] == label]
            members = np.array(members)
            rng.shuffle(members)
            p = rng.dirichlet([alpha] * num_clients)
            p = np.array([p[j] if len(held[j]) < len(labels) / num_clients else 0 for j in range(num_clients)])
            ends = [int(end) for end in np.cumsum(p / p.sum()) * len(members)]
            starts = [0, *ends[:-1]]
            ends[-1] = len(members)
            for j in range(num_clients):
                held[j] += members[starts[j] : ends[j]].tolist()
        if min(len(indices) for indices in held) >= least:
            return held


def test_dirichlet_gives_the_papers_cifar100_partition_bit_for_bit() -> None:
    labels = cifar100_labels()
    shares = partition.dirichlet(labels, num_clients=20, alpha=0.1, min_size=400, seed=1)
    assert [counts(labels, share) for share in shares] == COUNTS


def test_papers_counts_do_not_depend_on_the_order_of_the_samples() -> None:
    labels = np.random.RandomState(7).permutation(cifar100_labels())
    shares = partition.dirichlet(labels, num_clients=20, alpha=0.1, min_size=400, seed=1)
    assert [counts(labels, share) for share in shares] == COUNTS


@pytest.mark.parametrize("splitter", ["ours", "scikit-learn"])
def test_stream_continued_through_the_split_trains_on_869_pairs_of_client_and_class(splitter: str) -> None:
    from sklearn.model_selection import train_test_split

    labels, rng = cifar100_labels(), np.random.RandomState(1)
    pairs = 0
    for share in partition.dirichlet(labels, 20, 0.1, 400, rng):
        if splitter == "ours":
            train, _ = partition.split_random(share, 0.75, rng)
        else:
            train, _ = train_test_split(share, train_size=0.75, shuffle=True, random_state=rng)
        pairs += len(np.unique(labels[train]))
    assert pairs == 869


@pytest.mark.parametrize(("num_clients", "alpha", "least", "seed"), [(3, 0.1, 20, 0), (5, 1.0, 30, 3), (8, 0.3, 2, 5)])
def test_dirichlet_equals_the_rule_written_plainly_retries_included(
    num_clients: int, alpha: float, least: int, seed: int
) -> None:
    labels = np.random.RandomState(seed).randint(4, size=200)
    ours = partition.dirichlet(labels, num_clients, alpha, least, seed)
    assert [share.tolist() for share in ours] == papers_partition(labels, num_clients, alpha, least, seed)


def test_least_size_zero_means_the_papers_rule() -> None:
    labels = np.repeat(np.arange(10), 60)
    rule = partition.dirichlet(labels, 10, 0.1, min_size=0, seed=1)
    explicit = partition.dirichlet(labels, 10, 0.1, min_size=30, seed=1)
    assert [share.tolist() for share in rule] == [share.tolist() for share in explicit]
    assert partition.papers_min_size(60_000, 20) == 40


@pytest.mark.parametrize("num_classes", [10, 100])
def test_a_thousand_clients_are_all_served(num_classes: int) -> None:
    shares = partition.dirichlet(np.arange(60_000) % num_classes, 1000, 0.1, min_size=1, seed=1)
    assert min(map(len, shares)) >= 1
    assert_disjoint_and_complete(shares, 60_000)


@pytest.mark.parametrize(
    ("num_clients", "alpha", "least"), [(20, 0.1, 50), (100, 0.1, 10), (20, 0.01, 10), (20, 1e-6, 10)]
)
def test_infeasible_dirichlet_ends_and_what_its_error_names_works(num_clients: int, alpha: float, least: int) -> None:
    labels = np.arange(1797) % 10
    with pytest.raises(SettingError, match=r"tries; set .*use fewer clients") as caught:
        partition.dirichlet(labels, num_clients, alpha, least, seed=1)
    words = str(caught.value).replace(",", "").split()
    if "min-partition-size" in words:
        named = int(words[words.index("min-partition-size") + 4])
        assert min(map(len, partition.dirichlet(labels, num_clients, alpha, named, seed=1))) >= named
    named_alpha = float(words[words.index("dirichlet-alpha") + 4])
    assert min(map(len, partition.dirichlet(labels, num_clients, named_alpha, least, seed=1))) >= least


def test_where_no_alpha_is_enough_a_least_size_and_an_alpha_that_go_together_are_named() -> None:
    labels = np.arange(900) % 10
    with pytest.raises(SettingError, match="tries; set min-partition-size to") as caught:
        partition.dirichlet(labels, 150, 0.01, min_size=6, seed=1)
    words = str(caught.value).replace(",", "").split()
    named = int(words[words.index("min-partition-size") + 2])
    alpha = float(words[words.index("dirichlet-alpha") + 2])
    assert min(map(len, partition.dirichlet(labels, 150, alpha, named, seed=1))) >= named > 0


def test_least_size_beyond_the_even_share_is_refused_at_once() -> None:
    with pytest.raises(SettingError, match="set it to at most 10"):
        partition.dirichlet(np.zeros(100, dtype=int), 10, 1.0, min_size=11)


def test_alpha_that_underflows_to_no_probability_at_all_still_shares_everything_out() -> None:
    labels = np.repeat(np.arange(50), 10)
    shares = partition.dirichlet(labels, 5, 1e-9, min_size=1, seed=0)
    assert_disjoint_and_complete(shares, 500)
    assert min(map(len, shares)) >= 1


def test_more_clients_than_samples_is_an_error_with_both_numbers() -> None:
    for shared in (
        lambda: partition.iid(np.zeros(4), 5, 0),
        lambda: partition.by_domain(np.zeros(4), np.zeros(4), 5, 0),
        lambda: partition.dirichlet(np.zeros(4), 5, 1.0),
    ):
        with pytest.raises(SettingError, match="5 clients cannot share 4 samples"):
            shared()


def test_domain_too_small_for_its_clients_is_named() -> None:
    with pytest.raises(SettingError, match="2 clients cannot share 1 samples of domain 1"):
        partition.by_domain([0] * 9 + [1], np.zeros(10), 4, 0)


@pytest.mark.parametrize("num_clients", [0, -1])
def test_no_clients_is_an_error(num_clients: int) -> None:
    with pytest.raises(SettingError, match="at least 1"):
        partition.iid([0, 0], num_clients, 0)


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_seed_beyond_the_generator_is_an_error(seed: int) -> None:
    with pytest.raises(SettingError, match="partition-seed"):
        partition.iid([0, 0], 1, seed)


@settings(max_examples=60, deadline=None)
@given(
    labels=st.lists(st.integers(0, 9), min_size=1, max_size=200),
    num_clients=st.integers(1, 12),
    alpha=st.floats(0.01, 100),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_partition_is_disjoint_and_complete(labels: list[int], num_clients: int, alpha: float, seed: int) -> None:
    few = min(num_clients, max(1, len(labels) // 3))  # every domain has a sample for each of its clients
    domains = np.arange(len(labels)) % 3
    assert_disjoint_and_complete(partition.iid(labels, few, seed), len(labels))
    assert_disjoint_and_complete(partition.by_domain(domains, labels, few, seed), len(labels))
    try:
        shares = partition.dirichlet(labels, few, alpha, 1, seed)
    except SettingError:
        return
    assert_disjoint_and_complete(shares, len(labels))
    assert min(map(len, shares)) >= 1


def test_iid_clients_differ_by_at_most_one_sample() -> None:
    assert sorted(map(len, partition.iid(np.zeros(103), 10, 0))) == [10] * 7 + [11] * 3


def test_client_i_holds_domain_i_mod_d_with_even_labels() -> None:
    labels = np.tile(np.arange(10), 40)
    domains = np.repeat([0, 1, 2, 3], 100)
    shares = partition.by_domain(domains, labels, 10, seed=0)
    for client, share in enumerate(shares):
        assert set(domains[share]) == {client % 4}
        assert np.ptp(np.bincount(labels[share], minlength=10)) <= 1


def test_fewer_clients_than_domains_take_several_domains_each() -> None:
    domains = np.repeat([0, 1, 2, 3], 10)
    shares = partition.by_domain(domains, np.zeros(40), 2, seed=0)
    assert [sorted(set(domains[share])) for share in shares] == [[0, 2], [1, 3]]


@settings(max_examples=40, deadline=None)
@given(size=st.integers(2, 200), fraction=st.floats(0.5, 0.95), seed=st.integers(0, 1000))
def test_random_split_is_that_of_scikit_learn(size: int, fraction: float, seed: int) -> None:
    from sklearn.model_selection import train_test_split

    indices = np.arange(100, 100 + size)
    ours, theirs = np.random.RandomState(seed), np.random.RandomState(seed)
    want = train_test_split(indices, train_size=fraction, shuffle=True, random_state=theirs)
    got = partition.split_random(indices, fraction, ours)
    assert [part.tolist() for part in got] == [part.tolist() for part in want]
    assert ours.randint(2**31) == theirs.randint(2**31)


@pytest.mark.parametrize("fraction", [0.01, 0.75, 1.0])
def test_lone_sample_trains(fraction: float) -> None:
    train, test = partition.split_random(np.array([7]), fraction, np.random.RandomState(0))
    assert (train.tolist(), test.tolist()) == ([7], [])


def test_native_split_keeps_to_the_sources_parts() -> None:
    is_test = np.arange(20) % 4 == 0
    train, test = partition.split_native(np.arange(10), is_test, np.random.RandomState(0))
    assert sorted(train) == [1, 2, 3, 5, 6, 7, 9]
    assert sorted(test) == [0, 4, 8]


def test_native_share_without_training_samples_is_an_error() -> None:
    with pytest.raises(SettingError, match="a client holds 3 samples of the source's test part and none"):
        partition.split_native(np.arange(3), np.ones(3, dtype=bool), np.random.RandomState(0))


@settings(max_examples=100, deadline=None)
@given(num_train=st.integers(1, 50), num_test=st.integers(0, 50), most=st.integers(1, 120))
def test_limit_keeps_the_ratio_and_never_the_last_training_sample_away(
    num_train: int, num_test: int, most: int
) -> None:
    train, test = partition.limit(np.arange(num_train), np.arange(num_test), most)
    total = num_train + num_test
    assert len(train) + len(test) == min(most, total)
    assert len(train) >= 1
    assert abs(len(train) - num_train * min(most, total) / total) <= 1


def test_larger_limit_keeps_what_a_smaller_one_kept() -> None:
    train, test = np.arange(75), np.arange(75, 100)
    small, large = (np.concatenate(partition.limit(train, test, most)).tolist() for most in (8, 40))
    assert set(small) < set(large)


def test_validation_leaves_at_least_one_training_sample() -> None:
    share = partition.hold_out(np.arange(1), np.arange(0), 0.9)
    assert (len(share.train), len(share.validation)) == (1, 0)
    share = partition.hold_out(np.arange(10), np.arange(0), 0.25)
    assert (len(share.train), len(share.validation)) == (8, 2)


def pool_of_people(*rows: tuple[str, int, int]) -> Pool:
    """A pool of people by name, each with so many training and test samples."""
    owners = [number for part in (0, 1) for number, row in enumerate(rows) for _ in range(row[1 + part])]
    tests = sum(row[2] for row in rows)
    return Pool(
        inputs=np.zeros((len(owners), 1), dtype=np.float32),
        labels=np.arange(len(owners)) % 2,
        class_names=("a", "b"),
        clients=np.array(owners),
        client_names=tuple(row[0] for row in rows),
        is_test=np.arange(len(owners)) >= len(owners) - tests,
        native_split_only=True,
    )


def test_who_has_test_samples_only_is_left_out_and_named_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    pool = pool_of_people(("ada", 3, 1), ("bob", 0, 4), ("eve", 5, 2))
    shares = share_out(pool, DataSettings(partition="clients"), 2)
    assert [(len(share.train), len(share.test)) for share in shares] == [(3, 1), (5, 2)]
    assert [pool.owner_of(share.train) for share in shares] == ["ada", "eve"]
    assert "bob holds test samples only and is no client" in caplog.text
    with pytest.raises(SettingError, match=r"names 2 clients with samples to train on, not 3, for bob .*at most 2"):
        share_out(pool, DataSettings(partition="clients"), 3)
    assert len(share_out(pool, DataSettings(partition="clients", test_split="client"), 3)) == 3


def test_several_who_have_test_samples_only_are_named_together(caplog: pytest.LogCaptureFixture) -> None:
    pool = pool_of_people(("ada", 3, 1), ("bob", 0, 4), ("eve", 0, 2))
    assert len(share_out(pool, DataSettings(partition="clients"), 1)) == 1
    assert "bob, eve hold test samples only and are no clients" in caplog.text


def test_client_without_training_samples_is_called_by_number_and_name() -> None:
    pool = pool_of_people(("ada", 3, 1), ("bob", 0, 4))
    with pytest.raises(SettingError, match=r"client 1 \(bob\) holds 4 samples of .*; set test-split = client"):
        share_out(pool, DataSettings(partition="flwr-natural-id"), 2)
