"""Check: how many clients fit on this machine at once, and why no more?

Ray starts as many clients as their *declared* resources allow, one a CPU unless told otherwise; on a machine with
many CPUs they then run out of memory together. Here the peak of one real training step decides.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedapp.config import flatten
from fedapp.datasets.node_cache import cpus, node_cache_bytes
from fedapp.doctor.base import Case, Finding, UnwellError, size

HEADROOM = 0.9  # of a memory may be planned with: the server, the allocator and the system need theirs
STEP_SECONDS = 600.0


@dataclass(frozen=True)
class Machine:
    """What there is: CPUs, free memory in bytes, and the bytes of each GPU that clients train on."""

    cpus: int
    memory: float
    gpus: tuple[float, ...] = ()


@dataclass(frozen=True)
class Peak:
    """What one client takes at its worst, in bytes: memory of the process, and of its GPU."""

    memory: float
    gpu_memory: float = 0.0


@dataclass(frozen=True)
class Limit:
    """How many clients one resource (cpu, memory or gpu) has room for, and how that was counted."""

    resource: str
    count: int
    reason: str


def limits(machine: Machine, peak: Peak, cpus_a_client: int = 1) -> list[Limit]:
    """Return how many clients fit at once by CPUs, by memory and by GPU memory.

    Args:
        machine: What there is.
        peak: What one client takes.
        cpus_a_client: CPUs that a client declares.

    Example:
        >>> GB = 10**9
        >>> crowded = limits(Machine(128, 512 * GB, (24 * GB, 24 * GB)), Peak(2 * GB, 4 * GB))
        >>> [limit.count for limit in crowded]
        [128, 230, 10]
        >>> min(crowded, key=lambda limit: limit.count).reason
        '2 GPUs, 5 on each: 90 % of 22.4 GiB / 3.7 GiB a client'
    """
    found = [
        Limit("cpu", machine.cpus // cpus_a_client, f"{machine.cpus} CPUs, {cpus_a_client} a client"),
        Limit(
            "memory",
            _room(machine.memory, peak.memory),
            f"{HEADROOM * 100:.0f} % of {size(machine.memory)} free memory / {size(peak.memory)} a client",
        ),
    ]
    if machine.gpus and peak.gpu_memory:
        room = [_room(gpu, peak.gpu_memory) for gpu in machine.gpus]
        each = str(room[0]) if len(set(room)) == 1 else "/".join(map(str, room))
        plural = f"{len(room)} GPUs, {each} on each" if len(room) > 1 else f"1 GPU, {each} on it"
        sizes = size(min(machine.gpus))
        reason = f"{plural}: {HEADROOM * 100:.0f} % of {sizes} / {size(peak.gpu_memory)} a client"
        found.append(Limit("gpu", sum(room), reason))
    return found


def _room(there: float, each: float) -> int:
    return int(HEADROOM * there // each) if each > 0 else sys.maxsize


def gpu_share(on_each: int) -> float:
    """Return the share of a GPU to declare so that ``on_each`` clients fit; rounded down, for rounding up loses one.

    Example:
        >>> gpu_share(5), gpu_share(6)
        (0.2, 0.1666)
    """
    return math.floor(10_000 / on_each) / 10_000


def advice(machine: Machine, peak: Peak, clients: int) -> Finding | None:
    """Return what is wrong if Ray, left alone, would start more clients than fit; None if all is well.

    Example:
        >>> GB = 10**9
        >>> found = advice(Machine(16, 24 * GB), Peak(4 * GB), clients=20)
        >>> found.problem
        '16 clients would train at once, but only 5 fit: 90 % of 22.4 GiB free memory / 3.7 GiB a client'
        >>> found.cure
        'fedapp run --set workers=5, or flwr run . --federation-config "num-supernodes=20 client-resources-num-cpus=3"'
        >>> advice(Machine(16, 24 * GB), Peak(4 * GB), clients=5) is None
        True
    """
    counted = limits(machine, peak)
    least = min(counted, key=lambda limit: limit.count)
    wanted = min(clients, machine.cpus)
    if least.count >= wanted:
        return None
    if least.count == 0:
        text = f"not even one client fits: {least.reason}"
        return Finding(text, "use smaller models or batches, or another machine")
    a_client = f"client-resources-num-cpus={machine.cpus // (least.count + 1) + 1}"  # the least that starts no more
    ours = f"--set workers={least.count}"
    if least.resource == "gpu":
        on_each = max(1, min(_room(gpu, peak.gpu_memory) for gpu in machine.gpus))
        a_client = f"client-resources-num-cpus=1 client-resources-num-gpus={gpu_share(on_each)}"
        ours = f"--set client-gpus={gpu_share(on_each)}"
    text = f"{wanted} clients would train at once, but only {least.count} fit: {least.reason}"
    plain = f'flwr run . --federation-config "num-supernodes={clients} {a_client}"'
    return Finding(text, f"fedapp run {ours}, or {plain}")


def look(case: Case) -> str:
    """Measure one training step of the biggest model and pack the machine with it."""
    biggest = case.biggest.info.model
    measured = measure(case, biggest)
    data = 0 if case.pool is None else min(4 * case.pool.inputs.size, node_cache_bytes())
    peak = Peak(measured["memory"] + data, measured["gpu_memory"])
    machine = Machine(cpus(), available_memory(), tuple(measured["gpus"]))
    if finding := advice(machine, peak, case.clients):
        raise UnwellError(finding)
    least = min(limits(machine, peak), key=lambda limit: limit.count)
    at_once = min(least.count, case.clients)
    why = least.reason if at_once == least.count else "there are no more"
    gpu = f" and {size(peak.gpu_memory)} of GPU memory" if peak.gpu_memory else ""
    return (
        f"{at_once} of {case.clients} clients at once ({why}); {biggest}, the biggest model, takes "
        f"{size(peak.memory)}{gpu} a worker, data included"
    )


def measure(case: Case, model: str) -> dict[str, Any]:
    """Train and evaluate one batch in a child process and return its peak memory and the GPUs it saw, in bytes.

    Raises:
        UnwellError: If the step fails.
    """
    asked = {"settings": flatten(case.config), "model": model}
    path = os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-m", "fedapp.doctor.step"]
    cure = "use smaller models or batches; see the message"
    try:
        done = subprocess.run(
            command, input=json.dumps(asked), capture_output=True, text=True, timeout=STEP_SECONDS, check=False,
            env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        text = f"one training step of {model} takes more than {STEP_SECONDS:g} s"
        raise UnwellError(Finding(text, "use smaller models or batches, or a GPU")) from None
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"ended with code {done.returncode}, perhaps out of memory"]
        raise UnwellError(Finding(f"one training step of {model} fails: {last[0]}", cure))
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


def available_memory() -> float:
    """Return the bytes of memory that are free for new processes, within the limit of a container."""
    found = math.inf
    try:
        rows = dict(line.split(":") for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
        found = float(rows["MemAvailable"].split()[0]) * 1024
        limit, used = (Path("/sys/fs/cgroup", name).read_text().strip() for name in ("memory.max", "memory.current"))
        return min(found, found if limit == "max" else float(limit) - float(used))
    except (OSError, KeyError, ValueError):  # not Linux, or no such control group
        return found
