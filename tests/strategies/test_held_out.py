"""Clients that take no part in training: who they are, what they are sent, and what they answer."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedapp.client_update import load_arrays
from fedapp.config import ServerSettings, SettingError
from fedapp.payload import ClientInfo, Uplink
from fedapp.strategies.fedavg import FedAvgParams
from fedapp.strategies.fedproto import FedProtoParams
from fedapp.strategies.fedsap import FedSAPParams
from fedapp.strategies.fml import FMLParams
from fedapp.strategies.held_out import HeldOut
from tests.strategies.federation import (
    MODELS,
    Federation,
    array_bytes,
    arrays_of_samples,
    class_means,
    drive,
    first_weights,
    samples,
    worked,
)

WAIT = {"node_timeout": 20.0}


def leaving(domain="", clients="", **changes):
    return ServerSettings(leave_domain=domain, leave_clients=clients, **{**WAIT, **changes})


def described(**domains):
    return {client: ClientInfo(client, domain=domain) for client, domain in domains.items()}


def share(scores, y):
    return float((np.asarray(scores).argmax(axis=1) == np.asarray(y)).mean())


def loaded(kind, arrays):
    model = MODELS[kind]()
    load_arrays(model, arrays)
    return model.eval()


def answered(model, held):
    with torch.no_grad():
        return share(model.head(model.features(held.x)), held.y)


# ---- who takes part ---------------------------------------------------------------------------------


def test_domains_and_ids_are_taken_out_together_and_the_others_stay_in_order():
    clients = described(a="east", b="west", c="", d="north", e="east")
    held_out = HeldOut(leaving(" west, north", "e"))
    held_out.check(clients)
    held_out.take(clients)
    assert list(clients) == ["a", "c"]
    assert list(held_out.clients) == ["b", "d", "e"]
    assert held_out.in_words() == "b (west), d (north), e (east)"


def test_a_name_that_the_data_give_a_client_goes_before_an_id():
    """With names 1, 2, 3 of the clients 0, 1, 2, the 2 of a user is the client with that name."""
    clients = {str(i): ClientInfo(str(i), owner=str(i + 1)) for i in range(3)}
    held_out = HeldOut(leaving(clients="2,0"))
    held_out.check(clients)
    held_out.take(clients)
    assert list(clients) == ["2"]
    assert held_out.in_words() == "0 (1), 1 (2)"


def test_names_that_hold_commas_are_given_as_a_json_list():
    clients = {
        "0": ClientInfo("0", owner="Smith, John"),
        "1": ClientInfo("1", domain="Real, World"),
        "2": ClientInfo("2"),
    }
    held_out = HeldOut(leaving('["Real, World"]', '["Smith, John", "Smith, John"]'))
    held_out.check(clients)
    held_out.take(clients)
    assert (list(held_out.clients), list(clients)) == (["0", "1"], ["2"])
    with pytest.raises(SettingError, match=r"leave-clients = '\['.*cannot be read.*write JSON"):
        HeldOut(leaving(clients="["))


def test_an_unknown_name_is_answered_with_ids_and_names():
    clients = {"0": ClientInfo("0", owner="berlin"), "1": ClientInfo("1", owner="rome")}
    with pytest.raises(
        SettingError, match=r"leave-clients = 'roma': .*valid names: 0, 1, berlin, rome; did you mean rome"
    ):
        HeldOut(leaving(clients="roma")).check(clients)
    clients["1"] = ClientInfo("1", owner="rome, south")
    with pytest.raises(SettingError, match="a name with a comma goes into a JSON list"):
        HeldOut(leaving(clients="rome, south")).check(clients)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (leaving("wset"), r"leave-domain = 'wset': no client holds .* valid names: east, west; did you mean west"),
        (leaving("east,"), ""),
        (leaving(clients="7"), r"leave-clients = '7': there is no such client; valid names: 0, 1, 2 .*min-nodes"),
        (leaving("east,west", "2"), r"leave out all of the clients 0, 1, 2 \(domains: east, west\); leave somebody in"),
    ],
)
def test_settings_that_do_not_fit_the_clients_name_those_that_are_there(tmp_path, settings, message):
    made = Federation(tmp_path, domains=("east", "west", ""))
    if not message:
        made.run("local", settings=settings, num_rounds=1)
        return
    with pytest.raises(SettingError, match=message):
        made.run("local", settings=settings, num_rounds=1)


def test_leaving_a_domain_out_where_there_are_none_points_to_the_clients(tmp_path):
    with pytest.raises(SettingError, match="leave-domain = 'east': the clients have no domains; use leave-clients"):
        Federation(tmp_path).run("local", settings=leaving("east"), num_rounds=1)


def test_a_client_left_out_has_to_fit_the_method_as_any_other(tmp_path):
    made = Federation(tmp_path, kinds=("plain", "plain", "batch-norm"))
    with pytest.raises(SettingError, match=r"fedavg needs clients with the same model.*2 \(batch-norm\)"):
        made.run("fedavg", settings=leaving(clients="2"), num_rounds=1)


def test_more_replies_than_the_others_can_give_are_refused(tmp_path):
    with pytest.raises(SettingError, match="min-replies = 3 can never be reached: 2 of 2 clients"):
        Federation(tmp_path).run("local", settings=leaving(clients="2", min_replies=3), num_rounds=1)


def late(path, kinds=("plain",) * 3):
    """Two of three nodes are there at first; return the grid, and what lets the third one in."""
    grid = Federation(path, kinds=kinds, domains=("east", "west", "west")).grid()
    everybody = dict(grid.contexts)
    grid.contexts = dict(list(everybody.items())[:2])
    return grid, lambda: grid.contexts.update(everybody)


def test_a_client_of_the_domain_that_comes_late_is_held_out_too(tmp_path):
    grid, let_in = late(tmp_path)
    strategy = grid.federation.strategy("fedsaf", settings=leaving("west", min_nodes=2))
    drive(strategy, grid, (1,))
    assert [reply.client for reply in strategy.record.left_out] == ["1"]
    let_in()
    drive(strategy, grid, (2,))
    assert [reply.client for reply in strategy.record.trained] == ["0"]
    assert [reply.client for reply in strategy.record.left_out] == ["1", "2"]
    assert strategy.record.failures == strategy.roster.failures == []


def test_a_late_client_of_the_domain_that_does_not_fit_is_named_once(tmp_path):
    grid, let_in = late(tmp_path, ("plain", "plain", "batch-norm"))
    strategy = grid.federation.strategy("fedavg", settings=leaving("west", min_nodes=2))
    drive(strategy, grid, (1,))
    let_in()
    drive(strategy, grid, (2, 3))
    assert [reply.client for reply in strategy.record.left_out] == ["1"]
    assert [(failure.client, failure.kind) for failure in strategy.roster.failures] == [("2", "SettingError")]


def test_a_client_left_out_that_comes_back_on_another_node_stays_out(tmp_path):
    grid = Federation(tmp_path).grid()
    strategy = grid.federation.strategy("fedsaf", settings=leaving(clients="2"))
    drive(strategy, grid, (1,))
    grid.contexts[2002] = grid.contexts.pop(1002)
    grid.client_of = lambda node: str(node % 1000)
    drive(strategy, grid, (2,))
    assert [reply.client for reply in strategy.record.trained] == ["0", "1"]
    assert [reply.client for reply in strategy.record.left_out] == ["2"]
    assert strategy.record.failures == []


def test_a_client_left_out_that_comes_back_with_another_model_is_named_and_forgotten(tmp_path):
    grid = Federation(tmp_path, kinds=("plain",) * 3).grid()
    strategy = grid.federation.strategy("fedavg", settings=leaving(clients="2"))
    drive(strategy, grid, (1,))
    grid.contexts[2002] = grid.contexts.pop(1002)
    grid.client_of = lambda node: str(node % 1000)
    grid.federation.kinds = ("plain", "plain", "batch-norm")
    drive(strategy, grid, (2, 3))
    assert strategy.record.left_out == []
    assert [(failure.client, failure.kind) for failure in strategy.roster.failures] == [("2", "SettingError")]


def test_a_client_left_out_that_cannot_start_is_named_and_the_others_go_on(tmp_path):
    def refuse(client, phase):
        if client == "2" and phase == "load":
            raise FileNotFoundError("no data here")

    outcome = Federation(tmp_path, refuse=refuse).run("local", settings=leaving(clients="2"), num_rounds=1)
    assert [(failure.client, failure.kind) for failure in outcome.strategy.roster.failures] == [
        ("2", "FileNotFoundError")
    ]
    assert [reply.client for reply in outcome.records[0].trained] == ["0", "1"]
    assert outcome.records[0].left_out == []


# ---- when they are evaluated ------------------------------------------------------------------------


def test_they_are_evaluated_whenever_the_others_are(tmp_path):
    made = Federation(tmp_path)
    every_other = made.run("local", settings=leaving(clients="2", evaluate_every=2), num_rounds=3)
    assert [len(record.left_out) for record in every_other.records] == [0, 1, 1]
    a_third = made.run("local", settings=leaving(clients="2", fraction_evaluate=0.34), num_rounds=2)
    assert [(len(record.evaluated), len(record.left_out)) for record in a_third.records] == [(1, 1), (1, 1)]
    nobody = made.run("local", settings=leaving(clients="2", fraction_evaluate=0), num_rounds=1)
    assert nobody.records[0].left_out == nobody.records[0].evaluated == []


def test_accuracies_are_pooled_by_domain_and_those_without_samples_count_for_nothing():
    held_out = HeldOut(leaving(clients="a,b,c,d"))
    held_out.clients = described(a="east", b="east", c="", d="west")
    counted = (("a", 1, 0.0), ("b", 3, 1.0), ("c", 2, 0.5), ("d", 0, 1.0))
    uplinks = [Uplink(client, count, metrics={"accuracy": right}) for client, count, right in counted]
    found = held_out.evaluations(uplinks, {"left-out": "accuracy", "left-out-prototype": "prototype-accuracy"})
    assert found == {"left-out": {"east": 0.75, "all": 0.5}}


# ---- what a newcomer stands on, worked by hand ------------------------------------------------------


def test_without_anything_shared_a_newcomer_answers_with_its_first_weights(tmp_path):
    made = worked(tmp_path, "bilinear")
    outcome = made.run("local", settings=leaving(clients="1"), num_rounds=2)
    weights = first_weights("1", "bilinear")
    x, y = arrays_of_samples(made.test[1])
    expected = share(x @ weights["features.weight"].T @ weights["head.weight"].T, y)
    assert [record.evaluations["left-out"]["all"] for record in outcome.records] == [expected] * 2


def test_the_global_model_of_fedavg_is_what_a_newcomer_answers_with(tmp_path):
    made = Federation(tmp_path, kinds=("batch-norm",) * 3, test=tuple(samples(40, 60 + i) for i in range(3)))
    outcome = made.run("fedavg", FedAvgParams(), settings=leaving(clients="0,2"))
    model = loaded("batch-norm", outcome.strategy.state())
    held = [made.test[0], made.test[2]]
    expected = np.mean([answered(model, part) for part in held])
    assert outcome.records[-1].evaluations["left-out"] == {"all": pytest.approx(expected)}
    assert expected != pytest.approx(np.mean([answered(MODELS["batch-norm"](), part) for part in held]))


@pytest.mark.parametrize("evaluate_by", ["head", "prototype", "both"])
def test_a_newcomer_answers_by_its_head_and_by_the_nearest_prototype_whatever_the_others_do(tmp_path, evaluate_by):
    made = replace(worked(tmp_path, "bilinear"), test=(samples(5, 2), samples(40, 3)))
    outcome = made.run("fedproto", FedProtoParams(evaluate_by=evaluate_by), settings=leaving(clients="1"), num_rounds=1)
    (x, y), weights = arrays_of_samples(made.test[1]), first_weights("1", "bilinear")
    z = x @ weights["features.weight"].T
    trained = arrays_of_samples(made.train[0])
    means, counts = class_means(trained[0] @ first_weights("0", "bilinear")["features.weight"].T, trained[1])
    distances = np.square(z[:, None] - means).sum(axis=2)
    distances[:, counts == 0] = np.inf
    found = outcome.records[0].evaluations
    assert found["left-out"]["all"] == share(z @ weights["head.weight"].T, y)
    assert found["left-out-prototype"]["all"] == share(-distances, y)
    assert [reply.metrics.keys() & {"prototype-accuracy"} for reply in outcome.records[0].evaluated] == [
        {"prototype-accuracy"} if evaluate_by == "both" else set()
    ]


def test_prototypes_are_sent_to_newcomers_alone_where_heads_predict(tmp_path):
    made = Federation(tmp_path)
    outcome = made.run("fedsaf", settings=leaving(clients="2"), num_rounds=1)
    asked = [message for message in outcome.grid.sent if message.metadata.message_type == "evaluate"]
    sent = {outcome.grid.client_of(message.metadata.dst_node_id): message for message in asked}
    assert array_bytes(sent["0"]) == array_bytes(sent["1"]) == 0
    rows = outcome.strategy.state()["known"].sum()
    assert array_bytes(sent["2"]) == 4 * rows * (outcome.strategy.first_client.feature_dim + 1)
    assert outcome.records[0].traffic["evaluate", "2"].payload_down == array_bytes(sent["2"])


def test_before_there_are_prototypes_a_newcomer_answers_by_its_head_alone(tmp_path):
    outcome = Federation(tmp_path).run("fedsaf", settings=leaving(clients="2"), num_rounds=0)
    assert outcome.records[0].evaluations.keys() == {"left-out", "left-out-adapted"}


def test_the_shared_model_of_fml_is_what_a_newcomer_answers_with(tmp_path):
    made = Federation(tmp_path, test=tuple(samples(40, 60 + i) for i in range(3)))
    outcome = made.run("fml", FMLParams(shared_model="batch-norm"), settings=leaving(clients="2"))
    expected = answered(loaded("batch-norm", outcome.strategy.state()), made.test[2])
    assert outcome.records[-1].evaluations["left-out"] == {"all": pytest.approx(expected)}


@pytest.mark.parametrize("execution", ["compact", "masked"])
@pytest.mark.parametrize("profile", ["edge", "paper"])
def test_the_consensus_of_fedsap_is_what_a_newcomer_answers_with(tmp_path, profile, execution):
    test = tuple(samples(40, 60 + index) for index in range(3))
    made = Federation(tmp_path, kinds=("conv",) * 3, test=test, domains=("a", "b", "c"))
    params = FedSAPParams(profile, execution=execution, warmup=0, tau=0.0, global_target=0.2, grouping=False)
    outcome = made.run("fedsap", replace(params, keep_ratios="0.6"), settings=leaving("c"))
    model = loaded("conv", outcome.strategy.consensus())
    found = outcome.records[-1].evaluations
    assert found["left-out"] == {"c": pytest.approx(answered(model, made.test[2]))}
    norms = [layer for layer in model.modules() if isinstance(layer, torch.nn.BatchNorm2d)]
    for layer in norms:
        layer.momentum = 1.0
        layer.register_forward_pre_hook(biased)
    with torch.no_grad():
        model.train()
        model.features(made.train[2].x)
        for layer in norms:
            layer.running_var.copy_(layer.seen)
        assert found["left-out-recalibrated"] == {"c": pytest.approx(answered(model.eval(), made.test[2]))}
    assert "2" not in outcome.strategy.assignment.members
    assert {domain for name, values in found.items() if "left" not in name for domain in values} == {"a", "b"}


def biased(layer, inputs):
    """Keep the variance over a batch without Bessel's correction."""
    if layer.training:
        layer.seen = inputs[0].var(dim=(0, 2, 3), correction=0)
