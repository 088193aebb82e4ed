"""Nodes that come late, do not fit, or never say who they are."""

from fedapp.config import ServerSettings
from tests.strategies.federation import Federation, TamperedGrid, drive


class MuteNode(TamperedGrid):
    """A grid on which nothing arrives from the last client until it is awake; remembers the waits for it."""

    def __init__(self, federation):
        super().__init__(federation)
        self.awake = False
        self.waits = []

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        silent = [message for message in messages if self.client_of(message.metadata.dst_node_id) == "2"]
        self.waits += [(message.metadata.message_type, timeout) for message in silent]
        return super().send_and_receive(messages, timeout=timeout)

    def pull_messages(self, message_ids):
        sender = {key: self.client_of(reply.metadata.src_node_id) for key, reply in self._replies.items()}
        return super().pull_messages([key for key in message_ids if self.awake or sender.get(key) != "2"])


def test_a_node_that_never_says_who_it_is_costs_one_wait_and_not_one_a_phase(tmp_path):
    made = Federation(tmp_path)
    grid = MuteNode(made)
    outcome = made.run("local", grid=grid, num_rounds=3, settings=ServerSettings(min_nodes=2, node_timeout=0.3))
    assert list(outcome.strategy.clients) == ["0", "1"]
    assert len(grid.waits) == 1


def test_an_answer_that_comes_after_the_wait_is_taken_without_waiting_again(tmp_path):
    made = Federation(tmp_path)
    grid = MuteNode(made)
    strategy = made.strategy("local", settings=ServerSettings(min_nodes=2, node_timeout=0.3))
    drive(strategy, grid, (1,))
    assert list(strategy.clients) == ["0", "1"]
    grid.awake = True
    drive(strategy, grid, (2,))
    assert list(strategy.clients) == ["0", "1", "2"]
    assert [kind for kind, _ in grid.waits].count("query") == 1


def test_a_node_that_comes_late_takes_part_from_then_on(tmp_path):
    made = Federation(tmp_path)
    grid = made.grid()
    everybody = dict(grid.contexts)
    grid.contexts = dict(list(everybody.items())[:2])
    strategy = made.strategy("fedsaf", settings=ServerSettings(min_nodes=2, node_timeout=0.3))
    drive(strategy, grid, (1,))
    assert [reply.client for reply in strategy.record.trained] == ["0", "1"]
    grid.contexts = everybody
    drive(strategy, grid, (2,))
    assert [reply.client for reply in strategy.record.trained] == ["0", "1", "2"]


def test_a_client_that_comes_back_on_another_node_goes_on(tmp_path):
    made = Federation(tmp_path)
    grid = made.grid()
    strategy = made.strategy("fedsaf")
    drive(strategy, grid, (1,))
    context = grid.contexts.pop(1002)
    grid.contexts[2002] = context
    grid.client_of = lambda node: str(node % 1000)
    drive(strategy, grid, (2,))
    assert [reply.client for reply in strategy.record.trained] == ["0", "1", "2"]
    assert strategy.record.failures == []


def test_a_late_client_that_does_not_fit_is_left_out(tmp_path):
    made = Federation(tmp_path, kinds=("plain", "plain", "batch-norm"))
    grid = made.grid()
    everybody = dict(grid.contexts)
    grid.contexts = dict(list(everybody.items())[:2])
    strategy = made.strategy("fedavg", settings=ServerSettings(min_nodes=2, node_timeout=0.3))
    drive(strategy, grid, (1,))
    grid.contexts = everybody
    drive(strategy, grid, (2,))
    assert [reply.client for reply in strategy.record.trained] == ["0", "1"]
    assert [(failure.client, failure.kind) for failure in strategy.roster.failures] == [("2", "SettingError")]
