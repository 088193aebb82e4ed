import dataclasses
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

import fedapp.datasets as data
from fedapp.config import DataSettings, SettingError
from fedapp.datasets import NodeData, Pool, Source, load_node, load_pool, load_shares, register
from tests.datasets.conftest import REPOSITORY

HEAVY = "torch datasets sklearn matplotlib mlxtend PIL pyarrow pandas"


def small_pool(size: int = 100, **changes: Any) -> Pool:
    rng = np.random.default_rng(0)
    pool = Pool(
        inputs=rng.integers(256, size=(size, 8, 8, 3), dtype=np.uint8),
        labels=np.arange(size) % 10,
        class_names=tuple("abcdefghij"),
    )
    return dataclasses.replace(pool, **changes)


def source_of(pool: Pool, name: str = "small") -> Source:
    return Source(name, lambda _: pool, "a pool for tests", len(pool.class_names), (3, 8, 8), pool.domains is not None)


def nodes_of(pool: Pool, num_clients: int, **settings: Any) -> list[NodeData]:
    data._shares.cache_clear()
    data._nodes.clear()
    data._pool.cache_clear()
    data.DATASETS["small"] = source_of(pool)
    chosen = DataSettings(dataset="small", **settings)
    return [load_node(chosen, index, num_clients) for index in range(num_clients)]


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = f"import sys, fedapp.datasets; print([name for name in '{HEAVY}'.split() if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


@pytest.mark.parametrize("name", data.DATASETS)
def test_row_of_the_registry_is_in_order(name: str) -> None:
    source = data.DATASETS[name]
    assert source.name == name
    assert source.summary
    assert "\n" not in source.summary
    assert source.own or len(source.shape) == 1 or source.shape[0] in (1, 3)
    assert not source.vocabulary or len(source.shape) == 1


def test_unknown_data_set_lists_the_names_and_the_closest() -> None:
    with pytest.raises(SettingError, match=r"valid names: .*did you mean cifar10"):
        load_pool(DataSettings(dataset="cifar-10"))


def test_same_source_registers_twice_and_another_does_not(registry: dict[str, Source]) -> None:
    source = source_of(small_pool())
    register("own", source)
    register("own", source)
    assert registry["own"] is source
    with pytest.raises(SettingError, match="'own' is registered already"):
        register("own", source_of(small_pool()))
    with pytest.raises(SettingError, match="'digits4' is registered already"):
        register("digits4", source)


def test_tensors_are_those_of_torchvisions_transform_bit_for_bit(registry: Any) -> None:
    from torchvision.transforms import Compose, Normalize, ToTensor

    pool = small_pool(inputs=np.arange(100 * 8 * 8 * 3, dtype=np.uint32).astype(np.uint8).reshape(100, 8, 8, 3))
    node = nodes_of(pool, 1, partition="iid")[0]
    share = load_shares(DataSettings(dataset="small", partition="iid"), 1)[0]
    transform = Compose([ToTensor(), Normalize([0.5] * 3, [0.5] * 3)])
    want = torch.stack([transform(image) for image in pool.inputs[share.train]])
    assert torch.equal(node.train.x, want)
    assert node.train.x.dtype == torch.float32
    assert node.train.x.is_contiguous()
    assert torch.equal(node.train.y, torch.from_numpy(pool.labels[share.train]))
    assert node.train.x.min() == -1
    assert node.train.x.max() == 1


def test_nodes_hold_every_sample_once(registry: Any) -> None:
    for kind in ("iid", "dirichlet"):
        nodes = nodes_of(small_pool(1000), 7, partition=kind, dirichlet_alpha=1.0)
        images = torch.cat([part.x for node in nodes for part in (node.train, node.test)])
        assert len(torch.unique(images.flatten(1), dim=0)) == len(images) == 1000


def test_split_continues_the_stream_of_the_partition(registry: Any) -> None:
    from sklearn.model_selection import train_test_split

    from fedapp.datasets.partition import dirichlet

    pool = small_pool(2000)
    nodes_of(pool, 5)
    rng = np.random.RandomState(1)
    shares = dirichlet(pool.labels, 5, 0.1, 0, rng)
    want = [train_test_split(share, train_size=0.75, shuffle=True, random_state=rng) for share in shares]
    got = load_shares(DataSettings(dataset="small"), 5)
    assert [[s.train.tolist(), s.test.tolist()] for s in got] == [[a.tolist(), b.tolist()] for a, b in want]


def test_papers_869_pairs_come_out_of_the_loader(registry: Any) -> None:
    labels = np.concatenate([np.repeat(np.arange(100), 500), np.repeat(np.arange(100), 100)])
    names = tuple(map(str, range(100)))
    pool = Pool(inputs=np.zeros((60_000, 1, 1, 1), dtype=np.uint8), labels=labels, class_names=names)
    nodes = nodes_of(pool, 20, min_partition_size=400)
    assert sum(int((node.label_counts > 0).sum()) for node in nodes) == 869


def test_domains_are_the_partition_of_a_set_that_has_them() -> None:
    nodes = [load_node(DataSettings(), index, 10) for index in range(10)]
    assert [node.domain for node in nodes[:5]] == ["optical", "mnist", "mnistm", "rendered", "optical"]
    pool = load_pool(DataSettings())
    assert pool.is_test is not None
    for share, node in zip(load_shares(DataSettings(), 10), nodes, strict=True):
        assert not pool.is_test[share.train].any()
        assert pool.is_test[share.test].all()
        assert np.ptp(node.label_counts) <= 4
        assert len(node.test) > 100


def test_node_of_several_domains_names_none() -> None:
    assert load_node(DataSettings(), 0, 2).domain is None


@pytest.mark.parametrize("kind", ["iid", "dirichlet"])
def test_set_with_domains_can_be_partitioned_otherwise(kind: str) -> None:
    shares = load_shares(DataSettings(partition=kind), 20)
    assert sum(len(share.train) + len(share.test) for share in shares) == 8797


def test_domains_asked_of_a_set_without_them_is_an_error(registry: Any) -> None:
    with pytest.raises(SettingError, match=r"small has no domains; .*digits4"):
        nodes_of(small_pool(), 2, partition="domains")


def test_native_split_asked_of_a_set_without_one_is_an_error(registry: Any) -> None:
    with pytest.raises(SettingError, match="no test part of its own"):
        nodes_of(small_pool(), 2, test_split="native")


def test_native_split_deals_training_and_test_samples_evenly(registry: Any) -> None:
    nodes = nodes_of(small_pool(is_test=np.arange(100) >= 80), 10, test_split="native", partition="iid")
    assert {(len(node.train), len(node.test)) for node in nodes} == {(8, 2)}


@pytest.mark.parametrize("kind", ["iid", "dirichlet"])
def test_every_client_with_one_sample_trains_on_it(registry: Any, kind: str) -> None:
    nodes = nodes_of(small_pool(10), 10 if kind == "iid" else 1, partition=kind, samples_per_client=1)
    for node in nodes:
        assert (len(node.train), len(node.test)) == (1, 0)
        assert node.test.x.shape == (0, 3, 8, 8)
        assert node.test.y.dtype == torch.int64
        assert node.label_counts.sum() == 1


def test_one_class_and_gaps_among_labels_are_fine(registry: Any) -> None:
    node = nodes_of(small_pool(labels=np.full(100, 4)), 3, partition="dirichlet", dirichlet_alpha=5.0)[0]
    assert node.num_classes == 10
    assert np.flatnonzero(node.label_counts).tolist() == [4]
    nodes = nodes_of(small_pool(labels=np.where(np.arange(100) % 2, 3, 7)), 2, dirichlet_alpha=5.0)
    assert {label for node in nodes for label in node.train.y.tolist()} == {3, 7}


def test_samples_per_client_keeps_the_ratio_and_a_part_of_the_same_share(registry: Any) -> None:
    whole = nodes_of(small_pool(1000), 5, partition="iid")
    capped = nodes_of(small_pool(1000), 5, partition="iid", samples_per_client=40)
    for all_of_it, part in zip(whole, capped, strict=True):
        assert (len(part.train), len(part.test)) == (30, 10)
        assert torch.equal(part.train.x, all_of_it.train.x[:30])


def test_samples_per_client_may_be_a_per_cent_of_each_clients_own_share(registry: Any) -> None:
    whole = nodes_of(small_pool(1000), 3, partition="dirichlet", dirichlet_alpha=1.0)
    thinned = nodes_of(small_pool(1000), 3, partition="dirichlet", dirichlet_alpha=1.0, samples_per_client="10%")
    assert len({len(node.train) for node in whole}) == 3  # so that a per cent is another number for everyone
    for all_of_it, part in zip(whole, thinned, strict=True):
        kept = len(all_of_it.train) // 10
        assert (len(part.train), len(part.test)) == (kept, len(all_of_it.test) * kept // len(all_of_it.train))
        assert torch.equal(part.train.x, all_of_it.train.x[:kept])


def test_a_per_cent_of_few_samples_leaves_one_to_train_and_one_to_test(registry: Any) -> None:
    for node in nodes_of(small_pool(20), 5, partition="iid", samples_per_client="1%"):
        assert (len(node.train), len(node.test)) == (1, 1)  # of 3 and 1


def test_validation_comes_out_of_the_training_part(registry: Any) -> None:
    without = nodes_of(small_pool(), 1, partition="iid")[0]
    node = nodes_of(small_pool(), 1, partition="iid", validation_fraction=0.2)[0]
    assert without.validation is None
    assert node.validation is not None
    assert (len(node.train), len(node.validation), len(node.test)) == (60, 15, 25)
    assert torch.equal(torch.cat([node.train.y, node.validation.y]), without.train.y)
    assert node.label_counts.sum() == 60


def test_more_clients_than_samples_is_an_error_with_both_numbers(registry: Any) -> None:
    with pytest.raises(SettingError, match="101 clients cannot share 100 samples"):
        nodes_of(small_pool(), 101)


@pytest.mark.parametrize("index", [-1, 4])
def test_index_out_of_range_is_an_error(index: int) -> None:
    with pytest.raises(SettingError, match=r"must be in \[0, 4\)"):
        load_node(DataSettings(), index, 4)


def test_another_seed_gives_another_partition(registry: Any) -> None:
    first, second = (nodes_of(small_pool(), 2, partition="iid", partition_seed=seed) for seed in (1, 2))
    assert not torch.equal(first[0].train.x, second[0].train.x)


def test_second_load_gives_the_same_object() -> None:
    first = load_node(DataSettings(), 1, 4)
    assert load_node(DataSettings(), 1, 4) is first


def test_clients_that_share_test_samples_share_the_tensors(registry: Any) -> None:
    pool = small_pool(is_test=np.arange(100) >= 60)
    first, second = nodes_of(pool, 2, partition="iid", test_split="shared")
    assert first.test is second.test
    assert (len(first.train), len(first.test)) == (30, 40)
    assert torch.equal(first.test.y, torch.from_numpy(pool.labels[60:]))
