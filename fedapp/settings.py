"""Settings as frozen, validated dataclasses: one engine for run settings and for method parameters.

A setting is a dataclass field made with :func:`setting`; its key is the field's name in kebab case (or an
explicit, possibly dotted key). :func:`parse` turns flat text or scalars into the dataclass and reports an
unknown key or a bad value with the value, the rule and the way out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import json
import math
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, get_type_hints

Scalar = bool | int | float | str
T = TypeVar("T")


class SettingError(ValueError):
    """A setting, name or option that the user has to change; the message says to what."""


def closest(name: str, names: Iterable[str]) -> str:
    """Return a hint that lists the valid names and the one nearest to ``name``.

    Example:
        >>> closest("fedsaff", ["fedsaf", "fedavg"])
        'valid names: fedavg, fedsaf; did you mean fedsaf?'
    """
    valid = sorted(names)
    lowered = {candidate.lower(): candidate for candidate in valid}
    near = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.5)
    listing = "valid names: " + ", ".join(valid)
    return f"{listing}; did you mean {lowered[near[0]]}?" if near else listing


def lookup(table: Mapping[str, T], name: str, kind: str) -> T:
    """Return ``table[name]``.

    Args:
        table: A registry.
        name: The entry wanted.
        kind: What the registry holds, for the message ("method", "model", ...).

    Raises:
        SettingError: If ``name`` is not in ``table``; lists the valid names and the closest one.

    Example:
        >>> lookup({"fedavg": 1}, "fedavg", "method")
        1
    """
    if name not in table:
        raise SettingError(f"unknown {kind} {name!r}; {closest(name, table)}")
    return table[name]


def setting(
    default: Any,
    doc: str,
    *,
    key: str = "",
    choices: tuple[str, ...] = (),
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    per_cent: bool = False,
) -> Any:
    """Declare one validated setting of a frozen dataclass.

    Args:
        default: The default; its type (bool, int, float or str) is the setting's type.
        doc: One sentence for the documentation and for error messages, units included.
        key: The key in flat text; the field's name in kebab case if empty.
        choices: The valid strings, if the setting is a choice.
        low: The smallest valid number.
        high: The largest valid number.
        above: A number that the value must exceed.
        per_cent: Whether a whole number may also be a per cent, which stays a text, as ``10%``; empty = the default.
    """
    bounds = {"low": low, "high": high, "above": above, "per_cent": per_cent}
    return dataclasses.field(default=default, metadata={"doc": doc, "key": key, "choices": choices, **bounds})


def key_of(field: dataclasses.Field[Any]) -> str:
    """Return the flat key of a field: its explicit key, or its name in kebab case."""
    return str(field.metadata.get("key") or field.name.replace("_", "-"))


def keys(cls: type[Any]) -> dict[str, dataclasses.Field[Any]]:
    """Return the settings of a dataclass by key, in order; nested dataclasses are flattened."""
    hints = get_type_hints(cls)
    found: dict[str, dataclasses.Field[Any]] = {}
    for field in dataclasses.fields(cls):
        if dataclasses.is_dataclass(hints[field.name]):
            found.update(keys(hints[field.name]))
        elif field.metadata.get("doc"):
            found[key_of(field)] = field
    return found


def defaults(cls: type[Any]) -> dict[str, Scalar]:
    """Return the default of every setting of ``cls`` by key."""
    return {key: _default(field) for key, field in keys(cls).items()}


def _default(field: dataclasses.Field[Any]) -> Scalar:
    value: Any = field.default
    return value  # type: ignore[no-any-return]


def check(instance: Any) -> None:
    """Check every setting of a dataclass instance against its rule; call it from ``__post_init__``.

    Raises:
        SettingError: For the first value that breaks its rule.
    """
    for field in dataclasses.fields(instance):
        if field.metadata.get("doc"):
            _check_value(key_of(field), getattr(instance, field.name), field)


def _check_value(key: str, value: Any, field: dataclasses.Field[Any]) -> None:
    rules = field.metadata
    if rules["choices"] and value not in rules["choices"]:
        raise SettingError(f"{key} = {value!r} is not valid; {closest(str(value), rules['choices'])}")
    if rules["per_cent"] and isinstance(value, str):
        if not value.endswith("%") or count_of(value, 10**9, key) > 10**9:
            raise SettingError(f"{key} must be a whole number or at most 100%, got {value!r}; {rules['doc']}")
        return
    if isinstance(value, float) and not math.isfinite(value):
        raise SettingError(f"{key} must be a finite number, got {value}; {rules['doc']}")
    low, high, above = rules["low"], rules["high"], rules["above"]
    broken = ""
    if low is not None and value < low:
        broken = f"at least {low:g}"
    elif high is not None and value > high:
        broken = f"at most {high:g}"
    elif above is not None and value <= above:
        broken = f"greater than {above:g}"
    if broken:
        raise SettingError(f"{key} must be {broken}, got {value!r}; {rules['doc']}")


def _convert(key: str, value: Any, field: dataclasses.Field[Any]) -> Scalar:
    """Convert a scalar or its text to the type of the field's default."""
    kind = type(_default(field))
    text = str(value).strip()
    if kind is str:
        if value is None or isinstance(value, Mapping):
            raise SettingError(f"{key} must be a text, got {value!r}; {field.metadata['doc']}")
        return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    if field.metadata["per_cent"] and (not text or text.endswith("%")):
        return text or _default(field)
    if kind is bool:
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise SettingError(f"{key} must be true or false, got {value!r}; {field.metadata['doc']}")
    if isinstance(value, bool):
        raise SettingError(f"{key} must be a number, got {value!r}; {field.metadata['doc']}")
    if kind is int:
        with contextlib.suppress(ValueError):  # exact, where float would round beyond 2**53
            return int(text)
    try:
        number = float(text)
        if kind is int and number != int(number):
            raise ValueError
        return int(number) if kind is int else number
    except (ValueError, OverflowError):
        noun = "a whole number" if kind is int else "a number"
        raise SettingError(f"{key} must be {noun}, got {value!r}; {field.metadata['doc']}") from None


def count_of(text: str, size: int, key: str) -> int:
    """Read a whole number, or a per cent of ``size``, rounded down as the papers' code does, to 1 at least.

    Args:
        text: The number or the per cent, above 0.
        size: What a per cent is of.
        key: The setting, for the message.

    Raises:
        SettingError: If it is neither.

    Example:
        >>> count_of("600", 7_291, "samples"), count_of("1%", 7_291, "samples"), count_of("0.1%", 10, "samples")
        (600, 72, 1)
    """
    match = re.fullmatch(r"(\d+)|(\d+(?:\.\d+)?)%", text)
    if not match or not float(text.rstrip("%")):
        raise SettingError(f"{key}: {text!r} is neither a whole number above 0 nor a per cent, as 1%")
    return int(match[1]) if match[1] else max(1, math.floor(round(float(match[2]) * size, 6) / 100))


def parse(cls: type[T], values: Mapping[str, Any], *, what: str = "setting") -> T:
    """Build the dataclass ``cls`` from flat values by key.

    Args:
        cls: A dataclass of :func:`setting` fields, possibly with nested such dataclasses.
        values: Scalars, or their text, by key; keys that are absent keep their default.
        what: What a key is called in messages ("setting", "fedsaf parameter").

    Raises:
        SettingError: For an unknown key, a value of the wrong type, or one that breaks its rule.
    """
    known = keys(cls)
    for key in values:
        if key not in known:
            raise SettingError(f"unknown {what} {key!r}; {closest(key, known)}")
    return _build(cls, values)


def _build(cls: type[T], values: Mapping[str, Any]) -> T:
    hints = get_type_hints(cls)
    arguments: dict[str, Any] = {}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        key = key_of(field)
        if dataclasses.is_dataclass(hints[field.name]):
            arguments[field.name] = _build(hints[field.name], values)
        elif field.metadata.get("doc") and key in values:
            arguments[field.name] = _convert(key, values[key], field)
    return cls(**arguments)


def flatten(instance: Any) -> dict[str, Scalar]:
    """Return every setting of a dataclass instance by key: the inverse of :func:`parse`."""
    flat: dict[str, Scalar] = {}
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)
        if dataclasses.is_dataclass(value):
            flat.update(flatten(value))
        elif field.metadata.get("doc"):
            flat[key_of(field)] = value
    return flat


def listed_names(text: str, key: str) -> tuple[str, ...]:
    """Return the names in a setting: separated by commas, or a JSON list for names that hold commas.

    Raises:
        SettingError: If the list cannot be read.

    Example:
        >>> listed_names("cat, dog,cat", "label-names"), listed_names('["Smith, John", "c"]', "leave-clients")
        (('cat', 'dog', 'cat'), ('Smith, John', 'c'))
    """
    if not text.lstrip().startswith("["):
        return tuple(filter(None, (name.strip() for name in text.split(","))))
    listed = json_of(text, key)
    if not all(isinstance(name, str) for name in listed):
        raise SettingError(f"{key} = {text!r} must list texts; put each name in quotes")
    return tuple(listed)


def json_of(text: str, key: str) -> Any:
    """Return what a setting holds as JSON.

    Raises:
        SettingError: If it cannot be read.
    """
    try:
        return json.loads(text)
    except ValueError as error:
        raise SettingError(f"{key} = {text!r} cannot be read: {error}; write JSON") from None


def split_pairs(text: str) -> dict[str, str]:
    """Split ``"alignment=rcsa proto-weight=5"`` into a mapping; values may be quoted.

    Raises:
        SettingError: If a word is not of the form key=value, or a key stands twice.

    Example:
        >>> split_pairs("alignment=rcsa proto-weight=5")
        {'alignment': 'rcsa', 'proto-weight': '5'}
    """
    pairs: dict[str, str] = {}
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise SettingError(f"{text!r} cannot be read: {error}; write key=value pairs") from None
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise SettingError(f"{word!r} is not of the form key=value (in {text!r})")
        if key in pairs:
            raise SettingError(f"{key!r} is given twice in {text!r}; give it once")
        pairs[key] = value
    return pairs


def join_pairs(values: Mapping[str, Any]) -> str:
    """Return the text that :func:`split_pairs` reads back.

    Example:
        >>> join_pairs({"alignment": "rcsa", "proto-weight": 5.0})
        'alignment=rcsa proto-weight=5.0'
    """
    return " ".join(f"{key}={shlex.quote(str(value))}" for key, value in values.items())
