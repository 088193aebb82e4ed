"""The data set ``callable``: what a function of the user's returns.

The setting ``data-callable`` names it as ``module:function``, from a module that ``plugins`` could import. It is called
with ``data-root`` (on a device ``data-path``; "" if there is none) and returns ``(inputs, labels)``, or a mapping with
``inputs`` and ``labels`` and, if it likes, ``clients``, ``domains`` and ``is_test``; with token ids also
``vocabulary``, the number of ids that there are on all clients together.
"""

from __future__ import annotations

import importlib
import operator
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapp.config import DataSettings, SettingError
from fedapp.datasets.base import Bools, Pool, Source
from fedapp.datasets.own.reading import BadRows, Rows, as_text, to_pool

COLUMNS = ("labels", "clients", "domains", "is_test")
KEYS = ("inputs", *COLUMNS, "vocabulary")


def load(settings: DataSettings) -> Pool:
    """Return the pool of what the function returns.

    Inputs are arrays or tensors: uint8 (N, H, W, 1 or 3) images, whole numbers (N, L) tokens, other numbers (N, ...).

    Args:
        settings: The data settings.

    Raises:
        SettingError: If there is no such function, or it returns something else.
    """
    name = settings.own.data_callable
    made = _called(name, settings.data_root)
    inputs = _inputs(_array(made, "inputs", name), name)
    columns = {key: _array(made, key, name) for key in COLUMNS if key == "labels" or made.get(key) is not None}
    for key, column in columns.items():
        if column.shape != (len(inputs),):
            raise SettingError(
                f"{name} returned {key} of shape {column.shape} for {len(inputs)} inputs; return one each"
            )
    bad = BadRows(settings.own.bad_rows)
    kept = np.ones(len(inputs), dtype=np.bool_)
    if inputs.dtype == np.float32:
        kept = np.isfinite(inputs.reshape(len(inputs), -1)).all(axis=1)
        for row in np.flatnonzero(~kept).tolist():
            bad.add(f"{name} row {row}", "it holds values that are not finite")
    rows = np.flatnonzero(kept)
    texts = {key: [as_text(value) for value in columns[key][rows].tolist()] for key in columns if key != "is_test"}
    read = Rows(
        inputs=inputs[rows],
        labels=texts["labels"],
        where=lambda row: f"{name} row {rows[row]}",
        clients=texts.get("clients"),
        domains=texts.get("domains"),
        is_test=_flags(columns["is_test"], name)[rows] if "is_test" in columns else None,
        vocabulary=_vocabulary(inputs, made.get("vocabulary"), name),
    )
    pool = to_pool(read, settings.own, bad)
    bad.log(settings.dataset)
    return pool


def _called(name: str, root: str) -> Mapping[str, Any]:
    """Import the function, call it and return its mapping."""
    module, colon, function = name.partition(":")
    if not colon or not function:
        raise SettingError(f"data-callable = {name!r} must be module:function, as my_data:load")
    try:
        call = getattr(importlib.import_module(module), function)
    except Exception as error:  # importing runs the user's module, which may raise anything
        raise SettingError(
            f"data-callable = {name!r} cannot be imported ({type(error).__name__}: {error}); mend it, install it where "
            "the app runs, or put its folder on PYTHONPATH before the SuperLink or SuperNode starts"
        ) from error
    try:
        made = call(root)
    except Exception as error:  # so may the function
        raise SettingError(
            f"data-callable = {name!r} raised {type(error).__name__}: {error}; mend it so that {function}({root!r}) "
            "returns (inputs, labels)"
        ) from error
    if isinstance(made, tuple) and len(made) == 2:
        made = dict(zip(KEYS, made, strict=False))
    if not isinstance(made, Mapping) or not {"inputs", "labels"} <= set(made) <= set(KEYS):
        raise SettingError(
            f"{name} returned {type(made).__name__}; it must return (inputs, labels), or a mapping of "
            f"inputs, labels and, if need be, {', '.join(KEYS[2:])}"
        )
    return made


def _array(made: Mapping[str, Any], key: str, name: str) -> NDArray[Any]:
    try:
        return np.asarray(made[key])
    except (TypeError, ValueError, RuntimeError) as error:  # ragged lists; tensors on a GPU or with a gradient
        raise SettingError(f"{name} returned {key} that are no array: {error}; return arrays or tensors") from error


def _inputs(array: NDArray[Any], name: str) -> NDArray[Any]:
    if array.ndim >= 2 and len(array):
        if array.dtype == np.uint8 and array.ndim == 4 and array.shape[-1] in (1, 3):
            return array
        if array.ndim == 2 and np.issubdtype(array.dtype, np.integer) and array.dtype != np.uint8:
            return array.astype(np.int64)
        if np.issubdtype(array.dtype, np.floating):
            return array.astype(np.float32)
    raise SettingError(
        f"{name} returned inputs {array.shape} of {array.dtype}; return images as uint8 (N, H, W, 1 or 3), tokens as "
        "int64 (N, L), or numbers as float32 (N, ...)"
    )


def _flags(array: NDArray[Any], name: str) -> Bools:
    if array.dtype != np.bool_ and not np.isin(array, (0, 1)).all():  # texts are true, "False" among them
        raise SettingError(f"{name} returned is_test of {array.dtype}; return true or false for every sample")
    return array.astype(np.bool_)


def _vocabulary(inputs: NDArray[Any], size: Any, name: str) -> int:
    """Return how many token ids there are, 0 if inputs are no tokens."""
    if inputs.dtype != np.int64:
        return 0
    wrong = (
        f"{name} returned token ids {inputs.min()} to {inputs.max()} and vocabulary {size!r}; return as vocabulary the "
        "number of ids, a whole number; they are to run from 0 (padding) to below it"
    )
    try:
        count = operator.index(size)
    except TypeError as error:
        raise SettingError(wrong) from error
    if not 0 <= int(inputs.min()) <= int(inputs.max()) < count:
        raise SettingError(wrong)
    return count


SOURCE = Source(
    name="callable",
    load=load,
    summary="your own data: what the function data-callable = module:function returns",
    classes=0,
    shape=(),
    own=True,
)
