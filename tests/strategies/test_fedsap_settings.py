"""FedSAP's settings: every one is read, every choice runs a round, profiles give way to what is given."""

import dataclasses

import numpy as np
import pytest

from fedapp.config import SettingError, keys, parse
from fedapp.strategies.fedsap import FedSAPParams
from fedapp.strategies.fedsap.params import PAPER, differences
from tests.strategies.federation import samples
from tests.strategies.rounds_of_submodels import Rounds

CHOICES = [
    (key, choice)
    for key, field in keys(FedSAPParams).items()
    for choice in (field.metadata["choices"] or (("true", "false") if isinstance(field.default, bool) else ()))
    if str(choice) != str(field.default).lower()
]
NUMBERS = {
    "budget.temperature": 0.5,
    "budget.multiple-of": 2,
    "mask.every": 2,
    "mask.freeze-after": 1,
    "mask.explore": 0.25,
    "stats.lambda-a": 0,
    "stats.lambda-g": 0,
    "sgp.global-target": 0.5,
    "sgp.tau": 0.1,
    "sgp.beta": 0.9,
    "sgp.ddof": 1,
    "dga.threshold": 0.2,
    "dga.every": 1,
    "dga.min-group": 1,
    "dga.max-groups": 2,
    "dga.min-spread": 0,
    "warmup.rounds": 0,
    "feature-penalty": 0.1,
}
TEXTS = {"budget.keep-ratios": "0.7,0.5", "mask.exempt": "conv1"}


def test_every_setting_is_tried():
    tried = {key for key, _ in CHOICES} | NUMBERS.keys() | TEXTS.keys()
    assert tried == set(keys(FedSAPParams))


@pytest.mark.parametrize(("key", "value"), [*CHOICES, *NUMBERS.items(), *TEXTS.items()], ids=str)
def test_every_setting_is_read_and_runs_a_round(key, value):
    params = parse(FedSAPParams, {"warmup.rounds": 0, "budget.keep-ratios": "1,0.5", key: value})
    field = keys(FedSAPParams)[key]
    assert str(getattr(params, field.name)).lower() == str(type(field.default)(value) if key in NUMBERS else value)
    rounds = Rounds(params, train=(samples(6, 0), samples(5, 1))).run(1)
    assert all(np.isfinite(array).all() for array in rounds.server.state().values() if array.dtype.kind == "f")
    consensus, before = rounds.server.consensus(), rounds.fresh_server().consensus()
    assert any(not np.array_equal(consensus[name], before[name]) for name in before)


def test_profiles_differ_where_they_should_and_what_is_given_wins():
    edge, paper = FedSAPParams(), FedSAPParams("paper")
    assert {f.name for f in dataclasses.fields(edge) if getattr(edge, f.name) != getattr(paper, f.name)} == {
        "profile", *PAPER,
    }  # fmt: skip
    for params in (edge, paper):  # Table 3, main configuration
        assert (params.global_target, params.tau, params.beta, params.temperature) == (0.9, 0.05, 0.5, 1.0)
        assert (params.activation_weight, params.gradient_weight, params.penalty) == (0.5, 0.5, 0.01)
        assert (params.adaptive, params.regroup_every, params.every, params.freeze_after) == (True, 5, 1, 0)
    assert (paper.signal, paper.at, paper.threshold, paper.linkage) == ("conv1_grad", "after-local", 0.5, "components")
    for profile in ("edge", "paper"):
        mixed = parse(
            FedSAPParams, {"profile": profile, "agg.entry": "row", "warmup.rounds": 7, "bn.recalibrate": True}
        )
        assert (mixed.profile, mixed.matching, mixed.warmup, mixed.recalibrate) == (profile, "row", 7, True)
    assert parse(FedSAPParams, {"profile": "paper"}).matching == "row"
    assert differences(FedSAPParams("paper", matching="row", tau=0.1)) == {"sgp.tau": 0.1}


def test_the_fixed_mask_reference_is_a_handful_of_settings():
    given = {"profile": "paper", "budget.adaptive": False, "mask.freeze-after": 10, "sgp.tau": 0.1, "sgp.beta": 0.3}
    assert differences(parse(FedSAPParams, given)) == {key: value for key, value in given.items() if key != "profile"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sgp.tua": 1}, "unknown setting 'sgp.tua'.*did you mean sgp.tau"),
        ({"agg.entry": "rows"}, "agg.entry = 'rows' is not valid.*did you mean row"),
        ({"sgp.global-target": 1.5}, "sgp.global-target must be at most 1"),
        ({"budget.keep-ratios": "1,0"}, r"budget.keep-ratios must be numbers in \(0, 1\].*got '1,0'"),
        ({"budget.keep-ratios": "1,1.5"}, r"numbers in \(0, 1\]"),
        ({"budget.keep-ratios": "1;0.5"}, r"numbers in \(0, 1\]"),
        ({"mask.every": 0}, "mask.every must be at least 1"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(SettingError, match=message):
        parse(FedSAPParams, settings)


def test_an_unknown_field_is_named_with_the_closest():
    with pytest.raises(SettingError, match=r"unknown fedsap parameter 'tua'; .*did you mean tau"):
        FedSAPParams(tua=1)
