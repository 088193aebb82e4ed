"""What every method of the table keeps: one battery, so that no method can forget a promise."""

import functools
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import Strategy

from fedapp.client_update import ClientUpdate
from fedapp.config import ServerSettings, SettingError
from fedapp.strategies import METHODS
from fedapp.strategies.roster import NodesMissingError
from fedapp.wire import ABOUT, ARRAYS
from tests.strategies.federation import (
    QUICK,
    Federation,
    copied,
    drive,
    fingerprint,
    kinds_for,
    samples,
)

NAMES = tuple(METHODS)
WAIT = {"node_timeout": 20.0}
every_method = pytest.mark.parametrize("name", NAMES)


@pytest.fixture
def federation(tmp_path):
    def make(name, **changes):
        return Federation(tmp_path, **{"kinds": kinds_for(name), **changes})

    return make


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    """The undisturbed run of a method, made once; with ``keep`` the run in which only these clients exist."""

    @functools.cache
    def run(name, num_rounds=2, keep=("0", "1", "2")):
        made = Federation(tmp_path_factory.mktemp("usual"), kinds=kinds_for(name))
        where = [made.clients.index(client) for client in keep]
        fields = {field: [getattr(made, field)[index] for index in where] for field in ("kinds", "train", "test")}
        return replace(made, clients=keep, **fields).run(name, num_rounds=num_rounds)

    return run


def shifted(arrays):
    """A server state that differs from the method's own first one, where it has any."""
    moved = {
        name: value + value.dtype.type(0.25) if value.dtype.kind == "f" else value for name, value in arrays.items()
    }
    return ArrayRecord({name: Array(value) for name, value in moved.items()})


# ---- two rounds -------------------------------------------------------------------------------------


@every_method
def test_two_rounds_give_finite_metrics_for_every_client(usual, name):
    outcome = usual(name)
    assert [record.round for record in outcome.records] == [1, 2]
    assert all(record.aggregated for record in outcome.records)
    assert outcome.failures == []
    assert len(outcome.metrics()) == 2 * 2 * 3
    for _, phase, _, count, values in outcome.metrics():
        assert count > 0
        assert {"loss"} if phase == "train" else {"loss", "accuracy"} <= values.keys()
        assert np.isfinite(list(values.values())).all(), values
    assert set(outcome.result.train_metrics_clientapp) == {1, 2}
    assert set(outcome.result.evaluate_metrics_clientapp) == {1, 2}
    assert all(np.isfinite(np.asarray(value, float)).all() for value in outcome.strategy.state().values())


@every_method
def test_training_changes_every_client_and_the_rounds_go_on_from_one_another(usual, name):
    digests = [usual(name, rounds).digests for rounds in (0, 1, 2)]
    for client in Federation.clients:
        assert len({found[client] for found in digests}) == 3


@every_method
def test_same_seed_gives_the_same_bits_and_another_seed_does_not(federation, usual, name):
    made = federation(name)
    first, again, other = usual(name), made.run(name), made.run(name, seed=1)
    assert first.bits() == again.bits()
    assert len(first.digests) == 3
    assert all(first.digests[client] != other.digests[client] for client in first.digests)


@every_method
def test_the_order_of_arrival_changes_no_bit(federation, usual, name):
    made = federation(name)
    grid = made.grid()
    grid.arrange = lambda replies: replies[1:][::-1] + replies[:1]
    assert made.run(name, grid=grid).bits() == usual(name).bits()


@every_method
def test_the_position_of_a_node_changes_no_bit(federation, usual, name):
    made = federation(name)
    turned = {field: tuple(getattr(made, field))[::-1] for field in ("kinds", "clients", "train", "test")}
    assert replace(made, **turned).run(name).bits() == usual(name).bits()


@every_method
def test_serialised_messages_give_the_same_bits(federation, usual, name):
    made = federation(name)
    assert made.run(name, grid=made.grid(serialise=True)).bits() == usual(name).bits()


@every_method
def test_ids_that_are_numbers_sort_by_value(federation, name):
    outcome = federation(name, clients=("10", "9", "pi-kitchen")).run(name)
    assert list(outcome.strategy.clients) == ["9", "10", "pi-kitchen"]
    assert [reply.client for reply in outcome.records[0].trained] == ["9", "10", "pi-kitchen"]


@every_method
def test_one_client_is_enough(federation, name):
    outcome = federation(name, clients=("0",)).run(name)
    assert outcome.failures == []
    assert [reply.client for record in outcome.records for reply in record.evaluated] == ["0", "0"]


# ---- replies that are lost or bad -------------------------------------------------------------------


@every_method
def test_a_client_that_raises_is_named_and_the_others_go_on(federation, name):
    def refuse(client, phase):
        if client == "1" and phase == "train":
            raise RuntimeError("boom")

    outcome = federation(name, refuse=refuse).run(name)
    for record in outcome.records:
        assert [(f.client, f.phase, f.kind, f.reason) for f in record.failures] == [
            ("1", "train", "RuntimeError", "boom")
        ]
        assert [reply.client for reply in record.trained] == ["0", "2"]
        assert record.aggregated


@every_method
def test_a_client_that_never_answers_is_named_and_the_others_go_on(federation, usual, name):
    made = federation(name)
    grid = made.grid()
    grid.tamper = lambda client, reply: [] if client == "1" else [reply]
    outcome = made.run(name, grid=grid)
    for record in outcome.records:
        found = [(f.client, f.phase, f.kind) for f in record.failures]
        assert found == [("1", "train", "NoReply"), ("1", "evaluate", "NoReply")]
        assert [reply.client for reply in record.evaluated] == ["0", "2"]
    assert outcome.bits("0", "2") == usual(name, keep=("0", "2")).bits()


def arrays_in(content):
    record = content.array_records.get(ARRAYS, ArrayRecord())
    return {name: array.numpy().copy() for name, array in record.items()}


def put(content, arrays):
    content[ARRAYS] = ArrayRecord({name: Array(array) for name, array in arrays.items()})


def spoil_with_nan(content):
    arrays = arrays_in(content) or {"foreign": np.zeros(1, np.float32)}
    next(array for array in arrays.values() if array.dtype.kind == "f" and array.size).flat[-1] = np.nan
    put(content, arrays)


def spoil_shape(content):
    arrays = arrays_in(content) or {"foreign": np.zeros(1, np.float32)}
    first = next(iter(arrays))
    put(content, {**arrays, first: np.repeat(np.atleast_1d(arrays[first]), 2, axis=-1)})


def spoil_dtype(content):
    arrays = arrays_in(content) or {"foreign": np.zeros(1, np.float32)}
    put(content, {name: array.astype(np.float64) for name, array in arrays.items()})


def leave_one_out(content):
    arrays = arrays_in(content)
    if not arrays:
        del content[ABOUT]
        return
    arrays.pop(next(iter(arrays)))
    put(content, arrays)


def add_an_array(content):
    put(content, {**arrays_in(content), "foreign": np.zeros(1, np.float32)})


def speak_for_another(content):
    content[ABOUT] = ConfigRecord({**content[ABOUT], "client": "0"})


def claim_less_than_nothing(content):
    content[ABOUT] = ConfigRecord({**content[ABOUT], "num_examples": -5})


SPOILERS = (
    spoil_with_nan,
    spoil_shape,
    spoil_dtype,
    leave_one_out,
    add_an_array,
    speak_for_another,
    claim_less_than_nothing,
)


@every_method
@pytest.mark.parametrize("spoil", SPOILERS, ids=lambda spoil: spoil.__name__)
def test_a_bad_upload_is_rejected_by_name_and_changes_nothing(federation, usual, name, spoil):
    def tamper(client, reply):
        if client == "2" and reply.metadata.message_type == "train":
            spoil(reply.content)
        return [reply]

    made = federation(name)
    grid = made.grid()
    grid.tamper = tamper
    outcome = made.run(name, grid=grid, num_rounds=1)
    assert [(f.client, f.phase, f.kind) for f in outcome.failures] == [("2", "train", "RejectedMessage")]
    assert "client '2'" in outcome.failures[0].reason
    assert [reply.client for reply in outcome.records[0].trained] == ["0", "1"]
    assert outcome.bits("0", "1") == usual(name, 1, keep=("0", "1")).bits()


@every_method
def test_an_upload_that_comes_twice_counts_once_and_is_reported(federation, usual, name):
    made = federation(name)
    grid = made.grid()
    grid.tamper = lambda client, reply: [reply] * (2 if client == "1" else 1)
    outcome = made.run(name, grid=grid)
    for record in outcome.records:
        found = [(f.client, f.phase, f.kind) for f in record.failures]
        assert found == [("1", phase, "RejectedMessage") for phase in ("train", "evaluate")]
        assert "twice" in record.failures[0].reason
    assert outcome.bits() == usual(name).bits()


@every_method
def test_a_reply_to_another_round_is_rejected(federation, usual, name):
    made = federation(name)
    grid = made.grid()
    late = []

    def tamper(client, reply):
        arrived = [reply, *late]
        late[:] = [reply] if client == "1" and reply.metadata.message_type == "train" else []
        return arrived

    grid.tamper = tamper
    outcome = made.run(name, grid=grid)
    assert {f.kind for f in outcome.failures} == {"RejectedMessage"}
    assert outcome.bits() == usual(name).bits()


@every_method
def test_too_few_replies_change_nothing(federation, usual, name):
    def refuse(client, phase):
        if client != "0" and phase == "train":
            raise RuntimeError("boom")

    settings = ServerSettings(min_replies=2, **WAIT)
    made = federation(name, refuse=refuse)
    outcome = made.run(name, settings=settings)
    assert [record.aggregated for record in outcome.records] == [False, False]
    assert outcome.result.train_metrics_clientapp == {}
    assert set(outcome.result.evaluate_metrics_clientapp) == {1, 2}
    assert fingerprint(outcome.strategy.state()) == fingerprint(usual(name, num_rounds=0).strategy.state())


# ---- who takes part ---------------------------------------------------------------------------------


@every_method
def test_clients_that_are_not_sampled_keep_their_models(federation, usual, name):
    made = federation(name)
    settings = ServerSettings(fraction_train=0.5, **WAIT)
    before = usual(name, num_rounds=0).digests
    outcome = made.run(name, settings=settings, num_rounds=1)
    trained = {reply.client for reply in outcome.records[0].trained}
    assert len(trained) == 2  # 0.5 * 3, rounded half up
    assert {client for client in before if outcome.digests[client] != before[client]} == trained


@every_method
def test_sampling_depends_on_seed_and_round_only(federation, name):
    made = federation(name)

    def sampled(**options):
        settings = ServerSettings(fraction_train=0.34, fraction_evaluate=0, **WAIT)
        outcome = made.run(name, settings=settings, num_rounds=4, **options)
        return [tuple(reply.client for reply in record.trained) for record in outcome.records]

    first = sampled()
    assert len(set(first)) > 1
    assert first == sampled()
    assert first != sampled(seed=1)


def test_sampling_is_the_same_for_every_method(federation):
    settings = ServerSettings(fraction_train=0.34, fraction_evaluate=0.34, **WAIT)
    drawn = set()
    for name in NAMES:
        records = federation(name).run(name, settings=settings, num_rounds=3).records
        drawn.add(tuple(reply.client for record in records for reply in (*record.trained, *record.evaluated)))
    assert len(drawn) == 1


@every_method
def test_evaluation_comes_every_so_many_rounds_and_after_the_last(federation, name):
    settings = ServerSettings(evaluate_every=2, **WAIT)
    outcome = federation(name).run(name, settings=settings, num_rounds=3)
    assert [bool(record.evaluated) for record in outcome.records] == [False, True, True]


@every_method
def test_no_client_is_evaluated_if_none_is_asked_for(federation, name):
    outcome = federation(name).run(name, settings=ServerSettings(fraction_evaluate=0, **WAIT))
    assert all(not record.evaluated and record.trained for record in outcome.records)


@every_method
def test_zero_rounds_only_evaluate(federation, name):
    outcome = federation(name).run(name, num_rounds=0)
    assert [(record.round, len(record.trained), len(record.evaluated)) for record in outcome.records] == [(0, 0, 3)]
    assert not any(message.metadata.message_type == "train" for message in outcome.grid.sent)


@every_method
def test_a_node_that_cannot_start_is_reported_and_left_out(federation, usual, name):
    def refuse(client, phase):
        if client == "2" and phase == "load":
            raise FileNotFoundError("no data here")

    made = federation(name, refuse=refuse)
    outcome = made.run(name)
    failure = outcome.strategy.roster.failures[0]
    assert (failure.client, failure.phase, failure.kind, failure.reason) == (
        "2", "start", "FileNotFoundError", "no data here",
    )  # fmt: skip
    assert outcome.bits("0", "1") == usual(name, keep=("0", "1")).bits()


@every_method
def test_a_run_in_which_no_node_can_start_says_why(federation, name):
    def refuse(client, phase):
        raise FileNotFoundError("no data here")

    with pytest.raises(NodesMissingError, match="no data here"):
        federation(name, refuse=refuse).run(name)


@every_method
def test_two_nodes_with_one_client_id_are_an_error(federation, name):
    with pytest.raises(NodesMissingError, match="client '1'"):
        federation(name, clients=("0", "1", "1")).run(name)


@pytest.mark.parametrize(
    ("requirement", "kinds"),
    [("equal-models", ("plain", "batch-norm", "plain")), ("equal-heads", ("plain", "deep-head", "plain")),
     ("equal-features", ("plain", "linear", "plain"))],
)  # fmt: skip
@every_method
def test_clients_that_do_not_fit_together_are_listed(federation, name, requirement, kinds):
    made = federation(name, kinds=kinds)
    if requirement in METHODS[name].strategy.requires:
        with pytest.raises(SettingError, match=rf"{name} needs clients with .*0 \(plain\).*1 \({kinds[1]}\)"):
            made.run(name, num_rounds=1)
    elif METHODS[name].strategy.requires == ("equal-classes",):
        made.run(name, num_rounds=1)  # a method that does not say so must not care


# ---- who is left out --------------------------------------------------------------------------------


@every_method
def test_a_client_left_out_is_for_the_others_as_if_it_did_not_exist(federation, usual, name):
    made = federation(name)
    outcome = made.run(name, settings=ServerSettings(leave_clients="0", **WAIT))
    assert outcome.bits() == usual(name, keep=("1", "2")).bits()
    assert outcome.failures == []
    assert made.kept(outcome.strategy, "0") == {}
    for record, alone in zip(outcome.records, usual(name, keep=("1", "2")).records, strict=True):
        assert [reply.client for reply in record.left_out] == ["0"]
        assert record.left_out[0].num_examples == len(Federation.test[0].y)
        left_out = {key: found for key, found in record.evaluations.items() if key.startswith("left-out")}
        assert ("left-out" in left_out, "left-out-adapted" in left_out) == (True, METHODS[name].update.adapts)
        assert all(0 <= found["all"] <= 1 for found in left_out.values())
        assert {key: found for key, found in record.evaluations.items() if key not in left_out} == alone.evaluations
        assert ("evaluate", "0") in record.traffic
        assert ("train", "0") not in record.traffic


@every_method
def test_a_newcomer_trains_afresh_in_every_round_and_the_others_go_on_as_if_it_had_not(federation, usual, name):
    settings = ServerSettings(leave_clients="0", **WAIT)
    trained, again = (federation(name).run(name, settings=settings) for _ in range(2))
    idle = federation(name, training=replace(QUICK, newcomer_epochs=0)).run(name, settings=settings)
    assert trained.bits() == again.bits() == idle.bits()
    for one, same, without in zip(trained.records, again.records, idle.records, strict=True):
        assert one.evaluations == same.evaluations
        metrics = one.left_out[0].metrics
        assert all(np.isfinite(value) for value in metrics.values())
        assert not any(key.startswith("adapted-") for key in without.left_out[0].metrics)
        assert without.evaluations == {key: v for key, v in one.evaluations.items() if "adapted" not in key}
        adapts = METHODS[name].update.adapts
        assert ("adapted-accuracy" in metrics) == ("left-out-adapted" in one.evaluations) == adapts
        assert not adapts or metrics["adapted-loss"] != metrics["loss"]
        assert ("adapted-prototype-accuracy" in metrics) == (adapts and "prototype-accuracy" in metrics)


@every_method
def test_a_left_out_client_that_never_answers_is_named_and_changes_nothing(federation, usual, name):
    made = federation(name)
    grid = made.grid()
    grid.tamper = lambda client, reply: [] if client == "0" else [reply]
    outcome = made.run(name, grid=grid, settings=ServerSettings(leave_clients="0", **WAIT))
    for record in outcome.records:
        assert [(f.client, f.phase, f.kind) for f in record.failures] == [("0", "evaluate", "NoReply")]
        assert not any(key.startswith("left-out") for key in record.evaluations)
    assert outcome.bits() == usual(name, keep=("1", "2")).bits()


# ---- uneven data ------------------------------------------------------------------------------------


@every_method
def test_uneven_classes_and_tiny_clients_are_survived(federation, name):
    outcome = federation(
        name,
        clients=("0", "1", "2", "3", "4"),
        kinds=(*kinds_for(name), *(kinds_for(name)[1],) * 2),
        train=(samples(9, 0, [5]), samples(9, 1, [3, 7]), samples(1, 2, [2]), samples(13, 3), samples(12, 4)),
        test=(samples(4, 5, [5]), samples(4, 6, [3, 7]), samples(1, 7, [2]), samples(0, 8), samples(6, 9)),
    ).run(name)
    assert outcome.failures == []
    for _, phase, client, count, values in outcome.metrics():
        assert (count == 0) == (client == "3" and phase == "evaluate")
        assert np.isfinite(list(values.values())).all()
    assert all(np.isfinite(np.asarray(value, float)).all() for value in outcome.strategy.state().values())
    assert np.isfinite(outcome.result.evaluate_metrics_clientapp[2]["accuracy"])


@every_method
def test_a_client_without_training_samples_counts_for_nothing(federation, usual, name):
    train = (*Federation.train[:2], samples(0, 2))
    outcome = federation(name, train=train).run(name)
    assert outcome.failures == []
    assert outcome.bits("0", "1")[:2] == usual(name, keep=("0", "1")).bits()[:2]


# ---- state ------------------------------------------------------------------------------------------


@every_method
def test_saved_state_continues_bit_for_bit(federation, name):
    made = federation(name)
    whole, broken = (made.strategy(name, run=run) for run in ("whole", "broken"))
    whole.num_rounds = broken.num_rounds = 4
    measured = drive(whole, made.grid(), (1, 2, 3, 4))
    first = drive(broken, made.grid(), (1, 2))
    saved = {key: array.numpy() for key, array in broken._state_record().items()}
    resumed = made.strategy(name, run="broken")
    resumed.num_rounds = 4
    resumed.load_state(saved)
    assert first + drive(resumed, made.grid(), (3, 4)) == measured
    assert fingerprint(resumed.state()) == fingerprint(whole.state())
    for client in made.clients:
        assert fingerprint(made.kept(resumed, client)) == fingerprint(made.kept(whole, client))


@every_method
def test_state_that_was_returned_does_not_change_any_more(federation, name):
    made = federation(name)
    strategy, grid = made.strategy(name), made.grid()
    strategy.num_rounds = 2
    drive(strategy, grid, (1,))
    state = strategy.state()
    before = copied(state)
    drive(strategy, grid, (2,))
    assert fingerprint(state) == fingerprint(before)


@every_method
def test_state_can_be_loaded_after_the_beginning_too(federation, name):
    made = federation(name)
    strategy = made.run(name).strategy
    state = copied(strategy.state())
    drive(strategy, made.grid(), (3,))
    strategy.load_state(state)
    assert fingerprint(strategy.state()) == fingerprint(state)


# ---- other people's loops ---------------------------------------------------------------------------


@every_method
def test_flowers_own_loop_gives_the_same_run(federation, usual, name):
    made = federation(name)
    initial = shifted(usual(name, 0).strategy.state())
    ours, theirs = made.strategy(name), made.strategy(name)
    mine = ours.start(made.grid(), initial, num_rounds=2)
    stock = Strategy.start(theirs, made.grid(), initial, num_rounds=2)
    assert fingerprint(theirs.state()) == fingerprint(ours.state())
    for number in (1, 2):
        for part in ("train_metrics_clientapp", "evaluate_metrics_clientapp"):
            assert untimed_record(getattr(stock, part)[number]) == untimed_record(getattr(mine, part)[number])
    assert {k: v.numpy().tobytes() for k, v in stock.arrays.items()} == {
        k: v.numpy().tobytes() for k, v in mine.arrays.items()
    }


def untimed_record(metrics):
    return {name: value for name, value in metrics.items() if not name.endswith("-seconds")}


@every_method
def test_flowers_own_loop_survives_a_schedule_over_rounds(federation, name):
    made = federation(name, training=replace(QUICK, schedule="linear"))
    strategy, grid, failures = made.strategy(name), made.grid(), []
    for number in (1, 2, 3):
        drive(strategy, grid, (number,))
        failures += strategy.record.failures
    assert failures == []


@every_method
def test_scalars_of_the_caller_reach_the_clients(federation, name):
    made = federation(name)
    strategy, grid = made.strategy(name), made.grid()
    strategy.start(
        grid, num_rounds=1, train_config=ConfigRecord({"mark": 7}), evaluate_config=ConfigRecord({"mark": 8})
    )
    marks = {
        (message.metadata.message_type, message.content["settings"]["mark"])
        for message in grid.sent
        if message.metadata.message_type != "query"
    }
    assert marks == {("train", 7), ("evaluate", 8)}


@every_method
def test_the_servers_own_evaluation_sees_every_state_from_round_zero(federation, name):
    made = federation(name)
    strategy = made.strategy(name)
    seen = []
    strategy.start(made.grid(), num_rounds=2, evaluate_fn=lambda number, arrays: seen.append((number, sorted(arrays))))
    assert [number for number, _ in seen] == [0, 1, 2]
    assert seen[-1][1] == sorted(strategy.state())


@every_method
def test_no_two_clients_share_a_record(usual, name):
    grid = usual(name).grid
    assert len({id(message.content) for message in grid.sent}) == len(grid.sent)


@every_method
def test_the_row_of_the_table_says_what_the_files_hold(name):
    method = METHODS[name]
    assert method.name == method.strategy.name == name
    assert issubclass(method.update, ClientUpdate)
    assert method.paper
    assert method.summary
    assert method.travels
    assert isinstance(method.strategy().params, method.strategy.params_type)
