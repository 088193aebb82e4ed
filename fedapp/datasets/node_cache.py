"""The nodes' tensors that a process keeps, so that rounds after the first read and convert nothing."""

from __future__ import annotations

import os
import threading
from collections import Counter, OrderedDict
from collections.abc import Hashable
from pathlib import Path

from fedapp.datasets.base import NodeData

LEAST_BYTES = 512 * 2**20
PART = 1 / 4  # of the memory, all workers together
CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")


def cpus() -> int:
    """Return the CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def node_cache_bytes() -> int:
    """Return how much a process keeps: a quarter of the memory shared by a worker a CPU, but at least 512 MiB.

    The memory is the machine's, or what a container may use of it; where neither is known, the least is kept.
    """
    return max(LEAST_BYTES, int(PART * _memory() / cpus()))


def _memory() -> int:
    try:
        found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not a POSIX system, or one that does not tell
        return 0
    try:
        return min(found, int(CONTAINER_LIMIT.read_text(encoding="ascii")))
    except (OSError, ValueError):  # no container, or "max"
        return found


class NodeCache:
    """Nodes by index, in groups that were made by the same settings; threads may share it.

    Where they exceed :func:`node_cache_bytes`, nodes of other groups go first, those of the group that rested longest
    before all. If the nodes of one group alone exceed it, a further one is not kept: clients take turns, so that of
    the least recent ones every one would be gone when its turn comes, while those that stay are there every time.
    """

    def __init__(self) -> None:
        self._groups: OrderedDict[Hashable, dict[int, NodeData]] = OrderedDict()
        self._users: Counter[int] = Counter()  # nodes that hold each part, by its id: clients may share test samples
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, group: Hashable, index: int) -> NodeData | None:
        """Return a node that is kept, else None."""
        with self._lock:
            if group in self._groups:
                self._groups.move_to_end(group)
            return self._groups.get(group, {}).get(index)

    def put(self, group: Hashable, index: int, node: NodeData) -> None:
        """Keep a node if there is room, or if it is the only one of its group."""
        limit = node_cache_bytes()
        with self._lock:
            own = self._groups.setdefault(group, {})
            self._groups.move_to_end(group)
            if index in own:
                return
            self._add(own, index, node)
            while self._bytes > limit and len(self._groups) > 1:
                oldest = next(iter(self._groups))
                self._remove(self._groups[oldest], next(reversed(self._groups[oldest])))
                if not self._groups[oldest]:
                    del self._groups[oldest]
            if self._bytes > limit and len(own) > 1:
                self._remove(own, index)

    def clear(self) -> None:
        """Forget all nodes."""
        with self._lock:
            self._groups.clear()
            self._users.clear()
            self._bytes = 0

    def _add(self, nodes: dict[int, NodeData], index: int, node: NodeData) -> None:
        nodes[index] = node
        for part in node.parts:
            self._bytes += part.nbytes if not self._users[id(part)] else 0
            self._users[id(part)] += 1

    def _remove(self, nodes: dict[int, NodeData], index: int) -> None:
        for part in nodes.pop(index).parts:
            self._users[id(part)] -= 1
            if not self._users[id(part)]:
                del self._users[id(part)]
                self._bytes -= part.nbytes
