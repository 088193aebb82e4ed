"""The settings under which submodels were made, and those that differ from their profile's."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from fedapp.config import SettingError, flatten, key_of, parse
from fedapp.report.markup import NOTHING, Html, details, join, note, table, tag

PROFILES = {"edge": "what was measured to work on edge devices", "paper": "the most literal reading of the paper"}


def settings(values: Mapping[str, Any]) -> Html:
    """Return the profile, what differs from it, and every setting with what it decides."""
    if not values:
        return Html("")
    usual, differing, meaning = _profile(values)
    profile = str(values.get("profile", "unknown"))
    words: list[object] = ["This run used the profile ", tag("b", profile)]
    words.append(f", {PROFILES[profile]}. " if profile in PROFILES else ". ")
    if not usual:
        words.append("Its settings are not those of this version of fedapp, so they cannot be compared with it.")
    elif differing:
        changed = join((tag("b", f"{key} = {_text(value)}") for key, value in differing.items()), ", ")
        words += ["Set otherwise: ", changed, "."]
    else:
        words.append("Every setting is the profile's own.")
    rows = [_row(key, value, usual.get(key, value), meaning.get(key, "")) for key, value in values.items()]
    listing = details(
        f"All {len(rows)} settings of the method", table(["setting", "value", "what it decides"], rows, 2)
    )
    return tag("h3", "Settings of the method") + note(*words) + listing


def _row(key: str, value: Any, usual: Any, meaning: str) -> tuple[object, ...]:
    if value == usual:
        return key, _text(value), meaning
    return tag("b", key), join([tag("b", _text(value)), f" (profile: {_text(usual)})"]), meaning


def _profile(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, str]]:
    """Return by key the profile's own values, what differs, and what settings decide; empty if this version cannot."""
    from fedapp.strategies.fedsap.params import FedSAPParams, differences  # here, because torch comes with it

    try:
        params = parse(FedSAPParams, values, what="fedsap parameter")
    except SettingError:
        return {}, {}, {}
    meaning = {key_of(field): field.metadata["doc"] for field in dataclasses.fields(params)}
    return flatten(FedSAPParams(params.profile)), differences(params), meaning


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else (str(value) or NOTHING)
