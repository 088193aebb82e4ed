import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedapp.datasets as data
from fedapp.datasets import NodeData, Samples, load_node, node_cache
from fedapp.datasets.node_cache import LEAST_BYTES, NodeCache, node_cache_bytes
from fedapp.doctor import packing
from tests.datasets.test_loading import nodes_of, small_pool

NODE_BYTES = 10 * (3 * 8 * 8 * 4 + 8)


def node(samples: int = 1, test: Samples | None = None) -> NodeData:
    """A node of 16 bytes a training sample."""
    train = Samples(torch.zeros(samples, 2), torch.zeros(samples, dtype=torch.int64))
    empty = Samples(torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64))
    return NodeData(train, test or empty, None, 2, (2,), ("a", "b"), None, np.array([samples, 0]))


def limit(monkeypatch: pytest.MonkeyPatch, value: int) -> None:
    monkeypatch.setattr(node_cache, "node_cache_bytes", lambda: value)


def hits(cache: NodeCache, group: str, indices: range) -> list[int]:
    """Visit every node once, as a round does, and return which were kept."""
    found = []
    for index in indices:
        if cache.get(group, index) is not None:
            found.append(index)
        else:
            cache.put(group, index, node())
    return found


def test_as_many_nodes_as_fit_are_there_in_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, 3 * 16)
    cache = NodeCache()
    rounds = [hits(cache, "run", range(10)) for _ in range(4)]
    assert rounds == [[], [0, 1, 2], [0, 1, 2], [0, 1, 2]]


def test_nodes_of_other_settings_go_first_and_the_longest_rested_before_all(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, 6 * 16)
    cache = NodeCache()
    for group in ("first", "second", "first"):
        hits(cache, group, range(3))  # "second" has rested since
    assert hits(cache, "third", range(2)) == []
    assert [cache.get("first", index) is not None for index in range(3)] == [True] * 3
    assert [cache.get("second", index) is not None for index in range(3)] == [True, False, False]
    hits(cache, "third", range(8))
    assert hits(cache, "third", range(8)) == list(range(6))
    assert all(cache.get(group, index) is None for group in ("first", "second") for index in range(3))


def test_the_only_node_of_a_device_is_kept_whatever_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, 16)
    cache = NodeCache()
    cache.put("other", 0, node())
    large = node(100)
    cache.put("device", 0, large)
    assert cache.get("device", 0) is large
    assert cache.get("other", 0) is None


def test_samples_that_nodes_share_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, 10 * 16 + 4 * 16)
    cache, shared = NodeCache(), node(10).train
    for index in range(6):
        cache.put("run", index, node(1, shared))
    assert [cache.get("run", index) is not None for index in range(6)] == [True] * 4 + [False] * 2
    for index in range(14):  # the shared ones go with the last node that has them
        cache.put("next", index, node())
    assert [cache.get("next", index) is not None for index in range(14)] == [True] * 14


def test_a_node_put_twice_counts_once_and_a_cleared_cache_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, 2 * 16)
    cache, first = NodeCache(), node()
    cache.put("run", 0, first)
    cache.put("run", 0, node())
    cache.put("run", 1, node())
    assert cache.get("run", 0) is first
    assert cache.get("run", 1) is not None
    cache.clear()
    assert hits(cache, "run", range(2)) == []
    assert hits(cache, "run", range(2)) == [0, 1]


def test_loaded_nodes_are_bounded_by_bytes(registry: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first = nodes_of(small_pool(), 10, partition="iid")
    assert {sum(part.nbytes for part in made.parts) for made in first} == {NODE_BYTES}
    limit(monkeypatch, 3 * NODE_BYTES)
    first = nodes_of(small_pool(), 10, partition="iid")
    settings = data.DataSettings(dataset="small", partition="iid")
    again = [load_node(settings, index, 10) for index in range(10)]
    assert [one is other for one, other in zip(first, again, strict=True)] == [True] * 3 + [False] * 7
    assert all(torch.equal(one.train.x, other.train.x) for one, other in zip(first, again, strict=True))


@pytest.mark.parametrize(
    ("pages", "container", "cores", "expected"),
    [
        (2**36 // 4096, "max\n", 8, 2**31),  # 64 GiB / 4 / 8
        (2**36 // 4096, f"{2**33}\n", 2, 2**30),  # a container of 8 GiB
        (2**36 // 4096, None, 64, LEAST_BYTES),
        (-1, None, 1, LEAST_BYTES),  # a system that does not tell
    ],
)
def test_the_limit_is_a_quarter_of_the_memory_among_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pages: int, container: str | None, cores: int, expected: int
) -> None:
    if container is not None:
        (tmp_path / "memory.max").write_text(container)
    monkeypatch.setattr(node_cache, "CONTAINER_LIMIT", tmp_path / "memory.max")
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": pages, "SC_PAGE_SIZE": 4096}.__getitem__)
    monkeypatch.setattr(node_cache, "cpus", lambda: cores)
    assert node_cache_bytes() == expected


def test_a_system_without_sysconf_keeps_the_least(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sysconf")
    assert node_cache_bytes() == LEAST_BYTES


def test_the_doctor_counts_with_the_same_limit() -> None:
    assert packing.node_cache_bytes is node_cache_bytes
