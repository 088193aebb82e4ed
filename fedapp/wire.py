"""Payload <-> Flower's ``RecordDict``. The only module that knows record keys.

Everything that arrives is checked here: names, shapes, dtypes and finiteness. What breaks a rule is a
:class:`RejectedMessage`, and the sender's name stands in it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, get_type_hints

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedapp.payload import Arrays, ArraySpec, ClientInfo, Downlink, Instruction, Uplink

SCHEMA = 1
Packed = dict[int, tuple[Arrays, ArrayRecord]]
SIMULATION_ONLY = ("base", "memory")
SIZES = ("input_shape", "label_counts")
ARRAYS, ABOUT, SETTINGS, METRICS = "arrays", "about", "settings", "metrics"


class RejectedMessage(ValueError):  # noqa: N818 - what happened, not what went wrong in the code
    """A message that breaks a rule of the wire; it changes nothing on the receiving side."""


def pack_instruction(instruction: Instruction, packed: Packed | None = None) -> RecordDict:
    """Pack an instruction into a fresh ``RecordDict``: one a node, never shared.

    Args:
        instruction: What to send.
        packed: Arrays serialised before in one round of messages, by identity (each beside its source, so that the
            identity cannot be reused); a mapping sent to many clients is serialised once.
    """
    about = {
        field.name: getattr(instruction, field.name)
        for field in dataclasses.fields(Instruction)
        if field.name != "downlink"
    }
    downlink = instruction.downlink
    records: dict[str, Any] = {ABOUT: ConfigRecord({"schema": SCHEMA, **about})}
    if downlink.settings:
        records[SETTINGS] = ConfigRecord(dict(downlink.settings))
    if downlink.arrays:
        packed = {} if packed is None else packed
        key = id(downlink.arrays)
        if key not in packed:
            packed[key] = (downlink.arrays, _pack_arrays(downlink.arrays))
        records[ARRAYS] = packed[key][1]
    return RecordDict(records)


def unpack_instruction(content: RecordDict) -> Instruction:
    """Read what :func:`pack_instruction` wrote.

    Raises:
        RejectedMessage: If the content was not written by this version's :func:`pack_instruction`.
    """
    about = _about(content, "the server")
    settings: dict[str, Any] = dict(content.config_records.get(SETTINGS, ConfigRecord()))
    downlink = Downlink(_unpack_arrays(content, "the server"), settings)
    try:
        return Instruction(downlink=downlink, **about)
    except TypeError as error:
        raise RejectedMessage(f"the server's instruction does not fit: {error}") from None


def pack_info(info: ClientInfo) -> RecordDict:
    """Pack a client's answer to the question who it is."""
    about = dataclasses.asdict(info)
    about.update({name: "x".join(map(str, getattr(info, name))) for name in SIZES})
    return RecordDict({ABOUT: ConfigRecord({"schema": SCHEMA, **about})})


def unpack_info(content: RecordDict) -> ClientInfo:
    """Read what :func:`pack_info` wrote.

    Raises:
        RejectedMessage: If the content was not written by this version's :func:`pack_info`.
    """
    about = _about(content, "a node")
    try:
        sizes: dict[str, Any] = {
            name: tuple(int(size) for size in str(about.pop(name)).split("x") if size) for name in SIZES
        }
        info = ClientInfo(**sizes, **about)
        for name, kind in get_type_hints(ClientInfo).items():
            if name in about and type(about[name]) is not kind:
                raise TypeError(f"{name} must be {kind.__name__}, got {about[name]!r}")
        return info
    except (KeyError, TypeError, ValueError) as error:
        raise RejectedMessage(f"a node's answer does not say who it is: {error}") from None


def pack_uplink(uplink: Uplink) -> RecordDict:
    """Pack a client's reply."""
    about: dict[str, Any] = {"schema": SCHEMA, "client": uplink.client, "num_examples": uplink.num_examples}
    metrics: dict[str, Any] = {name: float(value) for name, value in uplink.metrics.items()}
    records: dict[str, Any] = {ABOUT: ConfigRecord(about), METRICS: MetricRecord(metrics)}
    if uplink.arrays:
        records[ARRAYS] = _pack_arrays(uplink.arrays)
    return RecordDict(records)


def unpack_uplink(content: RecordDict, client: str, specs: Mapping[str, ArraySpec]) -> Uplink:
    """Read and check a client's reply.

    Args:
        content: Content of the reply.
        client: The client that was asked; a reply in another name is foreign.
        specs: What each array must look like.

    Returns:
        The uplink, with every array on its specification and finite.

    Raises:
        RejectedMessage: Naming the client, the array, what came and what the rule is.
    """
    sender = f"client {client!r}"
    about = _about(content, sender)
    if about.get("client") != client:
        raise RejectedMessage(f"{sender} was asked, but the reply is from {about.get('client')!r}")
    num_examples = about.get("num_examples")
    if not isinstance(num_examples, int) or isinstance(num_examples, bool) or num_examples < 0:
        raise RejectedMessage(f"{sender}: num_examples must be a whole number of at least 0, got {num_examples!r}")
    arrays = _unpack_arrays(content, sender)
    check_arrays(arrays, specs, sender)
    metrics: dict[str, Any] = dict(content.metric_records.get(METRICS, MetricRecord()))
    for name, value in metrics.items():
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise RejectedMessage(f"{sender}: metric {name} must be a finite number, got {value!r}")
    return Uplink(client, num_examples, arrays, metrics)


def check_arrays(arrays: Arrays, specs: Mapping[str, ArraySpec], sender: str) -> None:
    """Check names, dtypes, shapes and finiteness of arrays.

    Raises:
        RejectedMessage: Naming the sender, the array and the rule.
    """
    missing = [name for name, spec in specs.items() if name not in arrays and not spec.optional]
    foreign = [name for name in arrays if name not in specs]
    if missing or foreign:
        raise RejectedMessage(f"{sender}: arrays missing: {missing or 'none'}; not asked for: {foreign or 'none'}")
    letters: dict[str, int] = {}
    for name, array in arrays.items():
        spec = specs[name]
        if str(array.dtype) != spec.dtype:
            raise RejectedMessage(f"{sender}: {name} must be {spec.dtype}, got {array.dtype}")
        wanted = [
            letters.setdefault(w, s) if isinstance(w, str) else w for w, s in zip(spec.shape, array.shape, strict=False)
        ]
        if len(array.shape) != len(spec.shape) or list(array.shape) != wanted:
            raise RejectedMessage(f"{sender}: {name} must have shape {spec.shape} ({letters}), got {array.shape}")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise RejectedMessage(f"{sender}: {name} holds values that are not finite")


def payload_bytes(content: RecordDict) -> int:
    """Count the bytes of the arrays in a message: elements times element size, no headers."""
    return sum(
        max(math.prod(array.shape), 0) * _itemsize(array.dtype)
        for record in content.array_records.values()
        for array in record.values()
    )


def header_bytes(content: RecordDict) -> int:
    """Count what a message carries beyond its payload: array headers, names, metrics and settings.

    The folders that only a simulation sends are left out: no device would receive them.
    """
    total = -payload_bytes(content)
    for record in content.array_records.values():
        total += sum(len(name.encode()) + len(array.data) for name, array in record.items())
    scalars: list[Mapping[str, Any]] = [*content.metric_records.values(), *content.config_records.values()]
    for record_of_scalars in scalars:
        kept = {name: value for name, value in record_of_scalars.items() if name not in SIMULATION_ONLY}
        total += sum(len(name.encode()) + _size(value) for name, value in kept.items())
    return total


def _itemsize(dtype: str) -> int:
    try:
        return np.dtype(dtype).itemsize
    except (TypeError, ValueError, SyntaxError):  # a foreign encoding; the message is going to be rejected
        return 0


def _size(value: Any) -> int:
    if isinstance(value, list):
        return sum(_size(item) for item in value)
    if isinstance(value, str | bytes):
        return len(value.encode() if isinstance(value, str) else value)
    return 1 if isinstance(value, bool) else 8


def _pack_arrays(arrays: Arrays) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def _unpack_arrays(content: RecordDict, sender: str) -> dict[str, npt.NDArray[Any]]:
    record = content.array_records.get(ARRAYS, ArrayRecord())
    return {name: _decoded(array, f"{sender}: {name}") for name, array in record.items()}


def _decoded(array: Array, what: str) -> npt.NDArray[Any]:
    try:
        decoded: Any = array.numpy()
    except Exception as error:  # numpy's reader raises nearly anything on foreign bytes, MemoryError too
        raise RejectedMessage(f"{what} cannot be read: {type(error).__name__}: {error}") from None
    if not isinstance(decoded, np.ndarray) or (str(decoded.dtype), decoded.shape) != (array.dtype, tuple(array.shape)):
        raise RejectedMessage(f"{what} is not what it says it is, {array.dtype} of shape {tuple(array.shape)}")
    return decoded


def _about(content: RecordDict, sender: str) -> dict[str, Any]:
    about = dict(content.config_records.get(ABOUT, {}))
    schema = about.pop("schema", None)
    if schema != SCHEMA:
        raise RejectedMessage(
            f"{sender} sent schema {schema!r}, this side speaks {SCHEMA}; install the same fedapp on both sides"
        )
    return about
