"""What crosses the network, as named arrays and plain scalars. No Flower, no torch.

The server sends an :class:`Instruction` (which method, which round, a :class:`Downlink`); a client answers
with an :class:`Uplink`, or with a :class:`ClientInfo` when it is asked who it is. An :class:`ArraySpec` says
what an array of an uplink must look like; ``wire`` enforces it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

Arrays = Mapping[str, npt.NDArray[Any]]
Metrics = Mapping[str, float]


@dataclass(frozen=True)
class Downlink:
    """What a strategy sends to one client: named arrays and the scalars that go with them."""

    arrays: Arrays = field(default_factory=dict)
    settings: Mapping[str, str | int | float | bool] = field(default_factory=dict)


@dataclass(frozen=True)
class Instruction:
    """One message to one client: the method and its parameters, the round, and the downlink.

    Attributes:
        method: Name in the table of methods.
        params: The method's parameters as text, as :func:`fedapp.config.split_pairs` reads it.
        run: Name of the run; keys the client's memory.
        round: Current round, from 1 (0: evaluation before any training).
        num_rounds: Rounds of the run, for schedules.
        seed: Seed of the run; every random stream of a client derives from (seed, round, client).
        base: The user's directory, for relative paths in a simulation; real devices ignore it.
        memory: Folder where clients of a simulation keep their memory; real devices choose their own.
        downlink: What the method sends.
        agreed: Settings that all clients lay their data out by, as :func:`fedapp.agreement.unite` writes them.
    """

    method: str
    params: str = ""
    run: str = "run"
    round: int = 1
    num_rounds: int = 1
    seed: int = 0
    base: str = ""
    memory: str = ""
    downlink: Downlink = field(default_factory=Downlink)
    agreed: str = ""


@dataclass(frozen=True)
class Uplink:
    """What a client sends back.

    Attributes:
        client: Stable id of the client.
        num_examples: Samples that the reply rests on (trained or evaluated).
        arrays: Named arrays of the method; empty for an evaluation.
        metrics: Named numbers, e.g. ``loss``, ``accuracy``, ``seconds``.
    """

    client: str
    num_examples: int
    arrays: Arrays = field(default_factory=dict)
    metrics: Metrics = field(default_factory=dict)


@dataclass(frozen=True)
class ClientInfo:
    """Who a client is: its answer to the first question of a run.

    Attributes:
        client: Stable id, never Flower's node id, which changes from run to run.
        model: Name of its architecture.
        num_classes: Classes of the task, C.
        feature_dim: Width of its features, D.
        input_shape: Shape of one sample.
        num_examples: Training samples.
        num_test: Test samples.
        domain: Name of its domain, "" if there is none.
        owner: In a simulation, the name that the data give it (``client-column``), "" if none or several.
        vocabulary: Number of token ids of texts, 0 if samples are not texts.
        tier: Name of its simulated device tier, "" if there is none.
        keep_ratio: Share of a model's channels that it can hold, in (0, 1]; 0 if it leaves that to the server.
        model_layout: Layout of its whole model, as :func:`layout` writes it.
        head_layout: Layout of its head.
        label_counts: Training samples of every class (C,), in a simulation only: a device keeps them to itself.
        num_clients: Clients that the engine announces, 0 if it does not.
        announced: Names that it holds and all clients must agree on, as :func:`fedapp.agreement.announce` writes them.
        digest: SHA-256 of its current model, where asked for.
        error: Why it cannot take part, "" if it can.
    """

    client: str
    model: str = ""
    num_classes: int = 0
    feature_dim: int = 0
    input_shape: tuple[int, ...] = ()
    num_examples: int = 0
    num_test: int = 0
    domain: str = ""
    owner: str = ""
    vocabulary: int = 0
    tier: str = ""
    keep_ratio: float = 0.0
    model_layout: str = ""
    head_layout: str = ""
    label_counts: tuple[int, ...] = ()
    num_clients: int = 0
    announced: str = ""
    digest: str = ""
    error: str = ""


@dataclass(frozen=True)
class ArraySpec:
    """What an array of an uplink must look like.

    Attributes:
        shape: One entry an axis: a size, or a letter that stands for one free size within an uplink.
        dtype: Name of the numpy dtype.
        optional: True if an uplink may lack the array.
    """

    shape: tuple[int | str, ...]
    dtype: str = "float32"
    optional: bool = False


def layout(arrays: Arrays) -> str:
    """Write names, dtypes and shapes of arrays as one text, so that two models can be compared.

    Example:
        >>> import numpy as np
        >>> layout({"weight": np.zeros((2, 3), np.float32)})
        'weight:float32:2x3'
    """
    return " ".join(f"{name}:{array.dtype}:{'x'.join(map(str, array.shape))}" for name, array in arrays.items())


def specs_of(text: str) -> dict[str, ArraySpec]:
    """Return the specifications that a :func:`layout` text stands for.

    Example:
        >>> specs_of("weight:float32:2x3")
        {'weight': ArraySpec(shape=(2, 3), dtype='float32', optional=False)}
    """
    specs = {}
    for word in text.split():
        name, dtype, shape = word.rsplit(":", 2)
        specs[name] = ArraySpec(tuple(int(size) for size in shape.split("x") if size), dtype)
    return specs


def order(client: str) -> tuple[int, int, str]:
    """Key that sorts client ids: whole numbers by value first, then names.

    Example:
        >>> sorted(["10", "9", "pi-kitchen"], key=order)
        ['9', '10', 'pi-kitchen']
    """
    return (0, int(client), client) if client.isascii() and client.isdigit() else (1, 0, client)
