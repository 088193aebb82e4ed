from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedapp.config import DataSettings, SettingError
from fedapp.datasets import Pool, domains
from fedapp.datasets.sharing import share_out

NAMES = ("mnist", "usps", "svhn", "syn")


def generator(seed: int = 0) -> np.random.RandomState:
    return np.random.RandomState(seed)


def pool_of(sizes: dict[int, tuple[int, int]], **changes: Any) -> Pool:
    """A pool of five classes with (train, test) samples of every domain."""
    held = [(domain, part) for part in (0, 1) for domain, size in sizes.items() for _ in range(size[part])]
    domain, part = np.array(held).T
    values: dict[str, Any] = {"is_test": part.astype(bool), "native_split_only": True, **changes}
    return Pool(
        inputs=np.arange(len(held), dtype=np.float32)[:, None],
        labels=np.arange(len(held)) % 5,
        class_names=tuple("abcde"),
        domains=domain,
        domain_names=NAMES[: len(sizes)],
        **values,
    )


def test_cyclic_map_gives_client_i_domain_i_mod_d() -> None:
    assert domains.client_domains("cyclic", NAMES, 6, generator()).tolist() == [0, 1, 2, 3, 0, 1]


def test_last_clients_of_the_drawn_map_hold_every_domain_once() -> None:
    drawn = domains.client_domains("drawn-then-each", NAMES, 10, generator(5))
    assert drawn[6:].tolist() == [0, 1, 2, 3]
    np.testing.assert_array_equal(drawn[:6], generator(5).randint(4, size=6))


def test_drawn_map_may_leave_a_domain_out() -> None:
    maps = [domains.client_domains("drawn", NAMES, 4, generator(seed)) for seed in range(5)]
    assert min(len(np.unique(drawn)) for drawn in maps) < 4


@pytest.mark.parametrize("rule", ["usps,mnist,mnist", "usps mnist=2", "usps=1,mnist=2"])
def test_map_can_be_named(rule: str) -> None:
    assert domains.client_domains(rule, NAMES, 3, generator()).tolist() == [1, 0, 0]


OFFICE_HOME = ("Art", "Clipart", "Product", "Real World")


@pytest.mark.parametrize(
    ("rule", "owners"),
    [
        ("Real World=2,Art=1", [3, 3, 0]),
        (" Real World = 2 , Art ", [3, 3, 0]),
        ("Real World=3", [3, 3, 3]),
        ("Art,Real World,Art", [0, 3, 0]),
    ],
)
def test_names_of_domains_with_blanks_are_split_at_commas_alone(rule: str, owners: list[int]) -> None:
    assert domains.client_domains(rule, OFFICE_HOME, 3, generator()).tolist() == owners


def test_amounts_of_domains_with_blanks_or_equals_signs_in_their_names() -> None:
    text = "Art=1,Clipart = 2,Product=3, Real World=10%"
    assert domains.counts_of(text, OFFICE_HOME, np.array([100] * 4)).tolist() == [1, 2, 3, 10]
    assert domains.counts_of("a=b=3,c=4", ("a=b", "c"), np.array([9, 9])).tolist() == [3, 4]
    assert domains.client_domains("a=b,c", ("a=b", "c"), 2, generator()).tolist() == [0, 1]
    assert domains.client_domains("Real World", ("Art", "Real World"), 1, generator()).tolist() == [1]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("cylcic", "no rule and no domain.*did you mean cyclic"),
        ("usps,minst,mnist", "unknown domain 'minst'.*did you mean mnist"),
        ("usps,mnist", "gives domains to 2 clients, but there are 3"),
        ("usps=x,mnist", "'usps=x' must give a whole number"),
        ("drawn-then-each", "needs a client for each of 4 domains, got 3"),
    ],
)
def test_map_that_does_not_fit_is_an_error(rule: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        domains.client_domains(rule, NAMES, 3, generator())


def test_one_per_cent_is_what_the_papers_clients_draw() -> None:
    sizes = np.array([60_000, 7_291, 73_257, 10_000])
    assert domains.counts_of("1%", NAMES, sizes).tolist() == [600, 72, 732, 100]


def test_amounts_can_be_given_by_domain_in_numbers_and_per_cent() -> None:
    sizes = np.array([1000, 200, 50, 10])
    assert domains.counts_of("usps=10%,mnist=7 svhn=100%,syn=0.1%", NAMES, sizes).tolist() == [7, 20, 50, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mnist=5,usps=5", "says nothing of svhn, syn"),
        ("0", "neither a whole number above 0 nor a per cent"),
        ("0%", "neither a whole number above 0 nor a per cent"),
        ("many", "neither a whole number above 0 nor a per cent"),
        ("snist=5", "unknown domain 'snist'.*did you mean mnist"),
    ],
)
def test_amount_that_cannot_be_read_is_an_error(text: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        domains.counts_of(text, NAMES, np.array([10, 10, 10, 10]))


@settings(max_examples=25, deadline=None)
@given(
    owners=st.lists(st.integers(0, 2), min_size=1, max_size=6), count=st.integers(1, 10), seed=st.integers(0, 2**32 - 1)
)
def test_draws_are_disjoint_and_of_the_clients_domain(owners: list[int], count: int, seed: int) -> None:
    held, labels = np.arange(240) % 3, np.arange(240) // 3 % 4
    shares = domains.draw(held, labels, np.array(owners), np.full(3, count), generator(seed))
    assert [len(share) for share in shares] == [count] * len(owners)
    for share, owner in zip(shares, owners, strict=True):
        assert (held[share] == owner).all()
        assert count < 4 or set(labels[share]) == {0, 1, 2, 3}
    together = np.concatenate(shares)
    assert len(np.unique(together)) == len(together)


def test_class_that_nobody_else_can_spare_stays_missing() -> None:
    labels = np.array([0] * 19 + [1])
    shares = domains.draw(np.zeros(20, dtype=int), labels, np.zeros(2, dtype=int), np.array([5]), generator())
    assert [sorted(set(labels[share])) for share in shares] == [[0, 1], [0]]


def test_more_draws_than_samples_is_an_error_that_names_what_fits() -> None:
    pool = pool_of({0: (50, 9), 1: (20, 9)})
    chosen = DataSettings(samples_per_domain="7", domain_map="mnist,usps=3")
    with pytest.raises(SettingError, match=r"3 clients cannot draw 7 samples .* 20 .* of domain usps; draw at most 6"):
        share_out(pool, chosen, 4)
    chosen = DataSettings(samples_per_domain="7", domain_map="mnist,usps=21")
    with pytest.raises(SettingError, match=r"21 clients cannot draw .* of domain usps; let fewer clients hold it"):
        share_out(pool, chosen, 22)


@pytest.mark.parametrize(
    ("rule", "sizes", "message"),
    [
        ("mnist,usps=3", (5, 2), "3 clients cannot share 2 samples of domain usps; use fewer clients"),
        ("cyclic", (9, 1), "2 clients cannot share 1 samples of domain usps"),
    ],
)
def test_domain_too_small_for_its_clients_is_called_by_its_name(
    rule: str, sizes: tuple[int, int], message: str
) -> None:
    pool = pool_of({0: (sizes[0], 0), 1: (sizes[1], 0)}, is_test=None, native_split_only=False)
    with pytest.raises(SettingError, match=message):
        share_out(pool, DataSettings(domain_map=rule), 4)


def test_domain_with_fewer_tests_than_clients_is_called_by_its_name() -> None:
    pool = pool_of({0: (50, 9), 1: (20, 1)})
    with pytest.raises(SettingError, match="2 clients cannot share 1 samples to test on of domain usps"):
        share_out(pool, DataSettings(samples_per_domain="5"), 4)


def test_even_choice_takes_small_classes_whole_and_the_rest_evenly() -> None:
    labels = np.repeat([0, 1, 2], [100, 3, 50])
    chosen = labels[domains.even_choice(labels, 43, generator())]
    assert np.bincount(chosen).tolist() == [20, 3, 20]
    assert len(domains.even_choice(labels, 0, generator())) == 153


def test_clients_of_a_domain_share_its_test_images_and_no_training_image() -> None:
    pool = pool_of({0: (100, 60), 1: (50, 40)})
    chosen = DataSettings(samples_per_domain="10", test_samples_per_domain=20, domain_map="mnist=3,usps=2")
    shares = share_out(pool, chosen, 5)
    trained = np.concatenate([share.train for share in shares])
    assert len(np.unique(trained)) == len(trained) == 50
    assert pool.is_test is not None
    assert pool.domains is not None
    for number, share in enumerate(shares):
        own = 0 if number < 3 else 1
        assert (pool.domains[share.train] == own).all()
        assert (pool.domains[share.test] == own).all()
        assert pool.is_test[share.test].all()
        assert not pool.is_test[share.train].any()
        assert np.bincount(pool.labels[share.test]).tolist() == [4] * 5
        np.testing.assert_array_equal(share.test, shares[0 if own == 0 else 3].test)


def test_cap_on_a_client_leaves_shared_tests_alone() -> None:
    pool = pool_of({0: (100, 60)})
    share = share_out(pool, DataSettings(test_split="shared", samples_per_client=8), 2)[0]
    assert (len(share.train), len(share.test)) == (8, 60)


def test_without_a_test_part_one_is_set_aside_for_all() -> None:
    pool = pool_of({0: (100, 0), 1: (40, 0)}, is_test=None, native_split_only=False)
    shares = share_out(pool, DataSettings(test_split="shared", train_fraction=0.8), 4)
    assert [(len(share.train), len(share.test)) for share in shares] == [(40, 20), (16, 8)] * 2
    np.testing.assert_array_equal(shares[0].test, shares[2].test)
    assert not set(shares[0].test) & set(shares[0].train) | set(shares[0].test) & set(shares[2].train)


def test_dealt_test_samples_stay_disjoint_beside_drawn_training_samples() -> None:
    pool = pool_of({0: (100, 60), 1: (50, 40)})
    shares = share_out(pool, DataSettings(samples_per_domain="10%"), 4)
    assert [(len(share.train), len(share.test)) for share in shares] == [(10, 30), (5, 20)] * 2
    held = np.concatenate([np.concatenate([share.train, share.test]) for share in shares])
    assert len(np.unique(held)) == len(held)


def test_draws_follow_the_partition_seed_alone() -> None:
    pool = pool_of({0: (100, 60), 1: (50, 40)})
    first, again, other = (
        share_out(pool, DataSettings(samples_per_domain="10", domain_map="drawn", partition_seed=seed), 4)
        for seed in (1, 1, 2)
    )
    assert all((a.train == b.train).all() for a, b in zip(first, again, strict=True))
    assert not all((a.train == b.train).all() for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"partition": "iid", "samples_per_domain": "5"}, "need partition = domains"),
        ({"test_split": "client", "test_samples_per_domain": 5}, "needs test-split = shared"),
        ({"samples_per_domain": "5", "clients": 1}, "1 clients cannot hold one of 2 domains each"),
    ],
)
def test_settings_that_do_not_go_together_are_an_error(chosen: dict[str, Any], message: str) -> None:
    clients = chosen.pop("clients", 4)
    with pytest.raises(SettingError, match=message):
        share_out(pool_of({0: (100, 60), 1: (50, 40)}), DataSettings(**chosen), clients)
