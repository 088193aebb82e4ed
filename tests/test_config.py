import dataclasses
import math
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedapp.config import (
    DataSettings,
    RunConfig,
    SettingError,
    TrainingSettings,
    check,
    closest,
    defaults,
    flatten,
    join_pairs,
    key_of,
    keys,
    lookup,
    parse,
    setting,
    split_pairs,
)
from fedapp.strategies import METHODS

REPOSITORY = Path(__file__).resolve().parents[1]


@dataclasses.dataclass(frozen=True)
class Inner:
    keep_ratio: float = setting(1.0, "share of the channels kept", above=0, high=1)

    def __post_init__(self):
        check(self)


@dataclasses.dataclass(frozen=True)
class Outer:
    color: str = setting("red", "the color", choices=("red", "green"))
    count: int = setting(2, "how many", low=1)
    fast: bool = setting(False, "whether it hurries")
    rate: float = setting(0.5, "units a second", key="speed.rate")
    note: str = setting("", "any text")
    inner: Inner = dataclasses.field(default_factory=Inner)

    def __post_init__(self):
        check(self)


def message_of(call, *arguments, **options):
    with pytest.raises(SettingError) as caught:
        call(*arguments, **options)
    return str(caught.value)


def test_keys_are_kebab_names_or_explicit_and_nested_settings_are_flat():
    assert list(keys(Outer)) == ["color", "count", "fast", "speed.rate", "note", "keep-ratio"]
    assert defaults(Outer) == {
        "color": "red", "count": 2, "fast": False, "speed.rate": 0.5, "note": "", "keep-ratio": 1.0
    }  # fmt: skip


def test_no_two_settings_of_a_run_share_a_key():
    def count(cls):
        inner = [f.default_factory for f in dataclasses.fields(cls) if dataclasses.is_dataclass(f.default_factory)]
        own = [f for f in dataclasses.fields(cls) if f.metadata.get("doc")]
        assert len(own) + len(inner) == len(dataclasses.fields(cls))
        return len(own) + sum(count(part) for part in inner)

    assert len(keys(RunConfig)) == count(RunConfig)


def test_unknown_key_names_the_key_the_valid_keys_and_the_closest():
    text = message_of(parse, Outer, {"colour": "red"})
    assert "unknown setting 'colour'" in text
    assert "color, count, fast, keep-ratio, note, speed.rate" in text
    assert "did you mean color?" in text


def test_unknown_key_says_what_a_key_is_called():
    assert "unknown fedsaf parameter 'x'" in message_of(parse, Outer, {"x": 1}, what="fedsaf parameter")


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({"color": "gren"}, ["color", "'gren'", "green, red", "did you mean green?"]),
        ({"count": 0}, ["count", "at least 1", "got 0", "how many"]),
        ({"keep-ratio": 0.0}, ["keep-ratio", "greater than 0", "got 0.0", "share of the channels kept"]),
        ({"keep-ratio": 1.5}, ["keep-ratio", "at most 1", "got 1.5", "share of the channels kept"]),
        ({"count": "three"}, ["count", "a whole number", "'three'", "how many"]),
        ({"count": 2.5}, ["count", "a whole number", "2.5"]),
        ({"count": "inf"}, ["count", "a whole number", "'inf'"]),
        ({"count": True}, ["count", "a number", "True"]),
        ({"speed.rate": "fast"}, ["speed.rate", "a number", "'fast'", "units a second"]),
        ({"speed.rate": math.nan}, ["speed.rate", "a finite number", "nan", "units a second"]),
        ({"speed.rate": "nan"}, ["speed.rate", "a finite number", "nan"]),
        ({"speed.rate": "inf"}, ["speed.rate", "a finite number", "inf"]),
        ({"fast": "yes"}, ["fast", "true or false", "'yes'", "whether it hurries"]),
        ({"fast": 1}, ["fast", "true or false", "got 1"]),
    ],
)
def test_bad_value_names_the_key_the_value_and_the_rule(values, parts):
    text = message_of(parse, Outer, values)
    for part in parts:
        assert part in text


def test_a_value_that_breaks_its_rule_is_refused_on_construction_too():
    assert "at least 1" in message_of(TrainingSettings, batch_size=0)


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("False", False), (" TRUE ", True), (True, True), (False, False)]
)
def test_booleans_are_read_from_text_in_any_case(text, value):
    assert parse(Outer, {"fast": text}).fast is value


@pytest.mark.parametrize("text", ["3", 3, 3.0, " 3 ", "3.0", "3e0"])
def test_whole_numbers_stay_int_and_numbers_become_float(text):
    count, rate = parse(Outer, {"count": text}).count, parse(Outer, {"speed.rate": text}).rate
    assert (count, type(count)) == (3, int)
    assert (rate, type(rate)) == (3.0, float)


@pytest.mark.parametrize("seed", [2**53 + 1, 2**62 + 3])
def test_large_whole_numbers_keep_every_digit(seed):
    assert parse(RunConfig, {"seed": seed}).seed == seed
    assert parse(RunConfig, {"seed": str(seed)}).seed == seed


def test_a_seed_that_flower_cannot_send_is_refused_before_the_run():
    assert parse(RunConfig, {"seed": 2**63 - 1}).seed == 2**63 - 1
    assert "seed must be at most 9.22337e+18" in message_of(parse, RunConfig, {"seed": 2**63})


def test_text_is_taken_as_it_is_and_numbers_become_text():
    assert parse(Outer, {"note": "  a b  "}).note == "  a b  "
    assert parse(Outer, {"note": 2024}).note == "2024"


@pytest.mark.parametrize(
    ("given", "held"),
    [(40, 40), ("40", 40), (0, 0), ("0", 0), ("", 0), ("10%", "10%"), (" 2.5% ", "2.5%"), ("100%", "100%")],
)
def test_a_count_may_be_a_per_cent_which_stays_a_text(given, held):
    config = parse(RunConfig, {"samples-per-client": given})
    assert config.data.samples_per_client == held
    assert parse(RunConfig, flatten(config)) == config


@pytest.mark.parametrize(
    ("value", "part"),
    [
        (-1, "samples-per-client must be at least 0, got -1"),
        ("0%", "samples-per-client: '0%' is neither a whole number above 0 nor a per cent"),
        ("-5%", "neither a whole number above 0 nor a per cent"),
        ("ten%", "neither a whole number above 0 nor a per cent"),
        ("101%", "samples-per-client must be a whole number or at most 100%, got '101%'"),
        ("many", "samples-per-client must be a whole number, got 'many'"),
        (True, "samples-per-client must be a number"),
    ],
)
def test_a_count_that_is_neither_number_nor_per_cent_is_refused(value, part):
    assert part in message_of(parse, RunConfig, {"samples-per-client": value})


def test_other_numbers_are_no_per_cents():
    assert "batch-size must be a whole number, got '10%'" in message_of(parse, RunConfig, {"batch-size": "10%"})
    assert "at most 100%, got '40'" in message_of(DataSettings, samples_per_client="40")


outers = st.builds(
    Outer,
    color=st.sampled_from(["red", "green"]),
    count=st.integers(1, 2**63 - 1),
    fast=st.booleans(),
    rate=st.floats(allow_nan=False, allow_infinity=False),
    note=st.text(),
    inner=st.builds(Inner, keep_ratio=st.floats(0, 1, exclude_min=True)),
)


@given(outers)
@settings(max_examples=60, deadline=None)
def test_parse_undoes_flatten_also_through_text(outer):
    flat = flatten(outer)
    assert list(flat) == list(keys(Outer))
    assert parse(Outer, flat) == outer
    assert parse(Outer, {key: str(value) for key, value in flat.items()}) == outer
    assert parse(Outer, split_pairs(join_pairs(flat))) == outer


@given(st.dictionaries(st.from_regex(r"[a-z][a-z0-9.-]{0,9}", fullmatch=True), st.text(), max_size=4))
@settings(max_examples=150, deadline=None)
def test_split_pairs_undoes_join_pairs(pairs):
    assert split_pairs(join_pairs(pairs)) == pairs


@pytest.mark.parametrize("name", sorted(METHODS))
def test_method_parameters_survive_the_text_they_travel_as(name):
    params_type = METHODS[name].strategy.params_type
    assert parse(params_type, split_pairs(join_pairs(flatten(params_type())))) == params_type()


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("alignment", "'alignment' is not of the form key=value"),
        ("=rcsa", "'=rcsa' is not of the form key=value"),
        ("a=1 a=2", "'a' is given twice"),
        ("a='1", "write key=value pairs"),
    ],
)
def test_pairs_that_cannot_be_read_say_why(text, part):
    assert part in message_of(split_pairs, text)


def test_pairs_may_be_quoted_empty_and_hold_equals_signs():
    assert split_pairs("a='x y' b= c=k=v") == {"a": "x y", "b": "", "c": "k=v"}
    assert split_pairs("") == {}


def test_lookup_lists_the_names_and_the_closest():
    text = message_of(lookup, {"fedsaf": 1, "fedavg": 2}, "fedsaff", "method")
    assert text == "unknown method 'fedsaff'; valid names: fedavg, fedsaf; did you mean fedsaf?"


def test_closest_looks_past_upper_case():
    assert closest("FedSAF", ["fedsaf", "fedavg"]).endswith("did you mean fedsaf?")


def test_nothing_close_gives_the_list_only():
    assert closest("qqq", ["fedsaf"]) == "valid names: fedsaf"


def test_settings_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        RunConfig().seed = 1


def test_every_setting_is_documented_and_has_a_scalar_default_that_parses():
    for key, field in keys(RunConfig).items():
        assert field.metadata["doc"].strip(), key
        assert type(field.default) in (bool, int, float, str), key
        assert key == key_of(field)
    assert parse(RunConfig, {}) == RunConfig() == parse(RunConfig, defaults(RunConfig))


def test_nested_settings_of_a_run_arrive_where_they_belong():
    config = parse(RunConfig, {"dataset": "mnist", "local-epochs": 3, "min-replies": "2"})
    assert config.data == DataSettings(dataset="mnist")
    assert (config.training.local_epochs, config.server.min_replies) == (3, 2)


def test_pyproject_declares_every_setting_with_its_default():
    table = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["tool"].get("flwr")
    if table is None:
        pytest.skip("pyproject.toml has no [tool.flwr.app.config] yet")
    declared = table["app"]["config"]
    assert declared == defaults(RunConfig)
    assert {key: type(value) for key, value in declared.items()} == {
        key: type(value) for key, value in defaults(RunConfig).items()
    }
