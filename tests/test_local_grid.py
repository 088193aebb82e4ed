import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from fedapp import node
from fedapp.local_grid import LocalGrid
from fedapp.strategies import FedAvg, FedSAF
from tests.conftest import message, setup, tiny


def echo(received, context):
    config = dict(received.content.config_records.get("in", ConfigRecord()))
    answer = {"node": context.node_id, "value": config.get("value", "")}
    return Message(RecordDict({"out": ConfigRecord(answer)}), reply_to=received)


def asking(value, to):
    return message("query", RecordDict({"in": ConfigRecord({"value": value})}), to)


@pytest.mark.parametrize("serialise", [False, True])
def test_replies_belong_to_the_messages_they_answer(serialise):
    grid = LocalGrid(echo, 3, serialise=serialise)
    nodes = list(grid.get_node_ids())
    sent = [asking(f"to {to}", to) for to in (nodes[2], nodes[0], nodes[2])]
    replies = list(grid.send_and_receive(sent))
    assert [reply.metadata.reply_to_message_id for reply in replies] == [one.metadata.message_id for one in sent]
    assert len({one.metadata.message_id for one in sent}) == 3
    assert [dict(reply.content["out"]) for reply in replies] == [
        {"node": to, "value": f"to {to}"} for to in (nodes[2], nodes[0], nodes[2])
    ]


def test_replies_are_handed_out_once():
    grid = LocalGrid(echo, 2)
    first, second = grid.push_messages([asking("a", 1000), asking("b", 1001)])
    assert [reply.content["out"]["value"] for reply in grid.pull_messages([second])] == ["b"]
    assert [reply.content["out"]["value"] for reply in grid.pull_messages([first, second, "unknown"])] == ["a"]
    assert list(grid.pull_messages([first, second])) == []


@pytest.mark.parametrize("serialise", [False, True])
def test_a_client_that_raises_gives_an_error_reply_and_the_others_go_on(serialise):
    def app(received, context):
        if context.node_config["partition-id"] == 1:
            raise ValueError("boom")
        return echo(received, context)

    grid = LocalGrid(app, 3, serialise=serialise)
    replies = list(grid.send_and_receive([asking("x", to) for to in grid.get_node_ids()]))
    assert [reply.has_error() for reply in replies] == [False, True, False]
    assert (replies[1].error.code, replies[1].error.reason) == (2, "<class 'ValueError'>:<'boom'>")
    assert replies[1].metadata.reply_to_message_id


def test_a_message_to_nobody_gives_an_error_reply():
    grid = LocalGrid(echo, 1)
    (reply,) = grid.send_and_receive([asking("x", 4711)])
    assert reply.has_error()
    assert "4711" in reply.error.reason


def test_every_node_knows_its_place_and_the_run_config():
    grid = LocalGrid(echo, 3, {"seed": 4})
    contexts = list(grid.contexts.values())
    assert [context.node_config["partition-id"] for context in contexts] == [0, 1, 2]
    assert {context.node_config["num-partitions"] for context in contexts} == {3}
    assert all(node.simulated(context) for context in contexts)
    assert all(context.run_config == {"seed": 4} for context in contexts)
    assert [context.node_id for context in contexts] == list(grid.get_node_ids())
    contexts[0].run_config["seed"] = 5
    assert contexts[1].run_config == {"seed": 4}


def test_a_nodes_state_lasts_from_message_to_message_and_is_its_own():
    def app(received, context):
        record = context.state.config_records.setdefault("n", ConfigRecord({"count": 0}))
        record["count"] += 1
        return Message(RecordDict({"out": ConfigRecord({"value": record["count"]})}), reply_to=received)

    grid = LocalGrid(app, 2)
    replies = list(grid.send_and_receive([asking("x", to) for to in (1000, 1000, 1001, 1000)]))
    assert [reply.content["out"]["value"] for reply in replies] == [1, 2, 1, 3]


def test_messages_made_by_the_grid_are_answered():
    grid = LocalGrid(echo, 1)
    made = grid.create_message(RecordDict({"in": ConfigRecord({"value": "v"})}), "query", 1000, "3")
    (reply,) = grid.send_and_receive([made], timeout=1.0)
    assert (made.metadata.group_id, reply.content["out"]["value"]) == ("3", "v")
    assert grid.run.run_id == 1


def test_serialised_content_is_a_copy_so_a_client_cannot_reach_the_servers_objects():
    received = []

    def app(arrived, context):
        received.append(arrived.content["in"])
        return echo(arrived, context)

    sent = asking("x", 1000)
    LocalGrid(app, 1, serialise=True).send_and_receive([sent])
    assert dict(received[0]) == {"value": "x"}
    assert received[0] is not sent.content["in"]


@pytest.mark.parametrize("strategy", [FedAvg, FedSAF])
def test_serialising_changes_no_bit_of_the_result(strategy, tmp_path):
    def run(serialise):
        folder = tmp_path / str(serialise)
        app = node.client_app(lambda context: setup(node.client_id(context), norm=True))
        server = strategy(memory=str(folder), run="r", build=lambda client, name: tiny(norm=True))
        result = server.start(LocalGrid(app, 3, serialise=serialise), num_rounds=2)
        metrics = {number: dict(record) for number, record in result.evaluate_metrics_clientapp.items()}
        for record in metrics.values():
            del record["evaluate-seconds"], record["cpu-seconds"]
        return server.state(), metrics

    (plain, plain_metrics), (wired, wired_metrics) = run(False), run(True)
    assert plain_metrics == wired_metrics
    assert list(plain) == list(wired)
    for name in plain:
        np.testing.assert_array_equal(plain[name], wired[name])


def test_what_flower_cannot_send_is_an_error_reply_when_serialised():
    def app(received, context):
        return Message(RecordDict({"out": ConfigRecord({"value": 2**70})}), reply_to=received)

    (reply,) = LocalGrid(app, 1, serialise=True).send_and_receive([asking("x", 1000)])
    assert reply.has_error()
