"""FedSAP: its loss, a round worked by hand, and what a server joins and sends."""

import numpy as np
import pytest
import torch

from fedapp.functional.type_matched import Rows
from fedapp.strategies.fedsap import FedSAPParams
from tests.strategies.federation import CLASSES, FEATURES, samples, server_weights, softmax
from tests.strategies.rounds_of_submodels import Rounds, with_arrays

D, G, P = 0, 1, 2


@pytest.mark.parametrize(("norm", "penalty"), [("l2sq", 0.3), ("l2", 0.3), ("l2sq", 0.0)])
def test_loss_is_cross_entropy_plus_the_features_norm_and_so_is_its_gradient(norm, penalty):
    rounds = Rounds(FedSAPParams(penalty=penalty, penalty_norm=norm), kind="pixel")
    update, held = rounds.update("1"), rounds.train[1]
    update.receive(rounds.server.downlink(rounds.server.clients["1"]))
    update.begin()
    update.loss(held.x, held.y).backward()
    loss = update.loss(held.x, held.y).item()
    conv, head = (p.detach().double().numpy() for p in update.model.parameters())
    x, y = held.x.double().numpy().mean(axis=1), held.y.numpy()
    z = x[:, None] * conv.ravel()
    p, size = softmax(z @ head.T), (z**2).sum(axis=1, keepdims=True)
    own = size if norm == "l2sq" else np.sqrt(size)
    pull = 2 * z if norm == "l2sq" else z / np.sqrt(size)
    assert loss == pytest.approx(-np.log(p[np.arange(len(y)), y]).mean() + penalty * own.mean(), abs=1e-6)
    errors = (p - np.eye(CLASSES)[y]) / len(y)
    expected = ((errors @ head + penalty * pull / len(y)) * x[:, None]).sum(axis=0)
    np.testing.assert_allclose(update.model.conv.weight.grad.numpy().ravel(), expected, atol=1e-6)
    np.testing.assert_allclose(update.model.head.weight.grad.numpy(), errors.T @ z, atol=1e-6)


# ---- two clients, one convolution, by hand ----------------------------------------------------------

RATE, GAMMA, TAU = 0.5, 0.02, 0.05


def measured_and_stepped(conv, head, held):
    """Return activation and gradient magnitudes of the channels held, and both weights after one step."""
    x, y = held.x.numpy().astype(np.float64), held.y.numpy()
    activation = np.maximum(x[:, :, None] * conv, 0).mean(axis=(0, 1))
    m = x.mean(axis=1)
    z = m[:, None] * conv
    errors = (softmax(z @ head.T) - np.eye(CLASSES)[y]) / len(y)
    to_conv = ((errors @ head + 2 * GAMMA * z / len(y)) * m[:, None]).sum(axis=0)
    return activation, np.abs(to_conv), conv - RATE * to_conv, head - RATE * errors.T @ z


def scaled(values):
    return (values - values.min()) / (values.max() - values.min())


def test_a_round_of_two_clients_by_hand():
    params = FedSAPParams(
        keep_ratios="1,0.5", warmup=0, grouping=False, utility_scope="client", weighting="samples", tau=TAU,
        global_target=0.25, penalty=GAMMA,
    )  # fmt: skip
    train = (samples(6, 0), samples(10, 1, (1, 2)))
    rounds = Rounds(params, train, kind="pixel")
    rounds.training = rounds.training.__class__(
        learning_rate=RATE, batch_size=100, local_epochs=1, shuffle=False, device="cpu"
    )
    uploads = rounds.round(1)

    first = server_weights("pixel")
    w, h = first["conv.weight"].ravel(), first["head.weight"]
    few = np.sort(np.argsort(-np.abs(w), kind="stable")[:2])  # the second client's first channels, by l1
    held = [np.arange(FEATURES), few]
    a, g, stepped, heads = zip(
        *(measured_and_stepped(w[c], h[:, c], train[i]) for i, c in enumerate(held)), strict=True
    )
    for client, i in (("0", 0), ("1", 1)):
        arrays = uploads[client].arrays
        np.testing.assert_allclose(arrays["statistics/activation"], a[i], atol=1e-6)
        np.testing.assert_allclose(arrays["statistics/gradient"], g[i], atol=1e-6)
        np.testing.assert_allclose(arrays["conv.weight"].ravel(), stepped[i], atol=1e-6)
        np.testing.assert_allclose(arrays["head.weight"], heads[i], atol=1e-6)
    # Eq. 5; what the second client did not hold counts with the first one's utility
    utility = [0.5 * scaled(a[i]) + 0.5 * scaled(g[i]) for i in (0, 1)]
    ranking = utility[0].copy()
    ranking[few] = utility[1]
    # Eq. 6, where both groups have the channel; one layer, so Eq. 2 gives 4 and 2 channels
    means = np.stack([a[0][few], a[1]])
    dispersion = np.zeros(FEATURES)
    dispersion[few] = means.var(axis=0) / (means.mean(axis=0) ** 2 + 1e-8)
    # Eq. 3: up to tau, and at least one of four
    order = np.argsort(dispersion, kind="stable")
    stable = dispersion <= TAU
    stable[order[:1]] = True
    roles = [np.where(stable, G, P), np.full(FEATURES, D)]
    new = np.sort(np.argsort(-ranking, kind="stable")[:2])
    roles[1][new] = np.where(stable, G, P)[new]
    assert 0 < stable.sum() < FEATURES  # or this test would see one kind only
    for client, i in (("0", 0), ("1", 1)):
        np.testing.assert_array_equal(rounds.members[client].roles, roles[i])
    # Eq. 8: what was trained joins under its new role, or under the old one (Global) where it was dropped now
    shared, pools = w.copy(), [w.copy(), w.copy()]
    for c in range(FEATURES):
        joined = [(n, stepped[i][list(held[i]).index(c)], i) for i, n in ((0, 6), (1, 10)) if c in held[i]]
        for_all = [(n, value) for n, value, i in joined if roles[i][c] != P]
        if for_all:
            shared[c] = sum(n * value for n, value in for_all) / sum(n for n, _ in for_all)
        for _, value, i in joined:
            if roles[i][c] == P:
                pools[i][c] = value
    np.testing.assert_allclose(rounds.weights["conv.weight"].ravel(), shared, atol=1e-6)
    head = h.copy()
    for c in range(FEATURES):
        both = c in few
        head[:, c] = (6 * heads[0][:, c] + 10 * heads[1][:, list(few).index(c)]) / 16 if both else heads[0][:, c]
    np.testing.assert_allclose(rounds.weights["head.weight"], head, atol=1e-6)
    # Eq. 9
    for client, i in (("0", 0), ("1", 1)):
        sent = rounds.server.downlink(rounds.server.clients[client]).arrays
        kept = np.flatnonzero(roles[i] != D)
        expected = np.where(roles[i] == P, pools[i], shared)[kept]
        np.testing.assert_allclose(sent["conv.weight"].ravel(), expected, atol=1e-6)
        np.testing.assert_allclose(sent["head.weight"], head[:, kept], atol=1e-6)


# ---- joining ----------------------------------------------------------------------------------------


def private_everywhere(**changes):
    """Three clients, each its own group, all of whose channels but one a layer are Private from round 1 on."""
    return FedSAPParams(warmup=0, grouping=False, tau=0.0, global_target=0.1, **changes)


def test_what_one_group_uploads_leaves_the_private_rows_of_others_bit_equal():
    calm, loud = Rounds(private_everywhere()).run(1), Rounds(private_everywhere()).run(1)

    def tamper(uplink):
        if uplink.client != "2":
            return uplink
        changed = {n: a + 1 for n, a in uplink.arrays.items() if n in loud.weights}
        return with_arrays(uplink, **changed)

    loud.tamper = tamper
    calm.round(2), loud.round(2)
    checked = 0
    for name, pools in ((n, p) for n, p in calm.server.shared.pools.items() if p):
        for group in (0, 1):
            assert pools[group].index.tolist() == loud.server.shared.pools[name][group].index.tolist()
            assert pools[group].values.tobytes() == loud.server.shared.pools[name][group].values.tobytes()
            checked += len(pools[group].index)
        assert not np.array_equal(pools[2].values, loud.server.shared.pools[name][2].values)
    assert checked > 100


def test_what_nobody_trained_keeps_its_bits():
    rounds = Rounds(FedSAPParams(keep_ratios="0.3,0.4"), train=(samples(8, 0), samples(10, 1)))
    before = {name: array.copy() for name, array in rounds.weights.items()}
    rounds.round(1)
    untouched = 0
    for name, old in before.items():
        seen = np.stack([rounds.laid_out(client, name) for client in rounds.clients])
        nobody = np.isnan(seen).all(axis=0)
        assert rounds.weights[name][nobody].tobytes() == old[nobody].tobytes()
        untouched += int(nobody.sum())
    assert untouched > 100


@pytest.mark.parametrize("signal", ["bn_stats", "layer1_grad"])
def test_compact_and_masked_execution_give_the_same_uploads_over_two_rounds(signal):
    def run(execution):
        params = private_everywhere(execution=execution, keep_ratios="0.7,0.5,0.4", signal=signal)
        rounds = Rounds(FedSAPParams(**{**vars(params), "grouping": True, "min_group": 1, "min_spread": 0.0}))
        rounds.training = rounds.training.__class__(
            learning_rate=0.1, momentum=0.9, weight_decay=0.1, batch_size=5, local_epochs=2, device="cpu"
        )
        return rounds, [rounds.round(number) for number in (1, 2)]

    (compact, small), (masked, full) = run("compact"), run("masked")
    for one, other in zip(small, full, strict=True):
        for client, uplink in one.items():
            assert uplink.arrays.keys() == other[client].arrays.keys()
            for name, array in uplink.arrays.items():
                np.testing.assert_allclose(array, other[client].arrays[name], atol=1e-5, err_msg=name)
    assert any(compact.server.shared.pools.values())
    for client in compact.clients:
        np.testing.assert_array_equal(compact.members[client].roles, masked.members[client].roles)


def test_the_head_may_be_shared_in_groups():
    rounds = Rounds(private_everywhere(head="group")).run(1)
    held = rounds.server.shared.pools["head.weight"]
    assert sorted(held) == [0, 1, 2]
    for client in rounds.clients:
        own = np.where(np.isnan(rounds.laid_out(client, "head.weight")), 0, rounds.uplinks[client].num_examples)
        assert own.any()
        trained = ~np.isnan(rounds.laid_out(client, "head.weight"))
        np.testing.assert_allclose(
            held[int(client)].values[trained], rounds.laid_out(client, "head.weight")[trained], atol=1e-6
        )
    weights = np.array([len(one.y) for one in rounds.train], float)
    expected = np.tensordot(weights / weights.sum(), np.stack([held[k].values for k in range(3)]), 1)
    np.testing.assert_allclose(rounds.server.consensus()["head.weight"], expected, atol=1e-6)


def test_running_variances_are_those_of_the_pooled_samples_if_asked_for():
    rounds = Rounds(FedSAPParams("paper", keep_ratios="1", bn_stats="total-variance"))
    generator = np.random.default_rng(3)
    seen = {client: generator.normal(int(client), 2, size=(len(rounds.train[int(client)].y), 5)) for client in "012"}

    def tamper(uplink):
        values = seen[uplink.client].astype(np.float32)
        return with_arrays(uplink, **{"bn1.running_mean": values.mean(0), "bn1.running_var": values.var(0)})

    rounds.tamper = tamper
    rounds.round(1)
    everything = np.concatenate(list(seen.values()))
    np.testing.assert_allclose(rounds.weights["bn1.running_mean"], everything.mean(0), atol=1e-5)
    np.testing.assert_allclose(rounds.weights["bn1.running_var"], everything.var(0), atol=1e-5)


def test_running_variances_of_groups_are_pooled_within_them_and_others_keep_their_bits():
    rounds = Rounds(private_everywhere(bn_stats="total-variance", keep_ratios="1,1,0.5")).run(2)
    pools = rounds.server.shared.pools["bn1.running_var"]
    private = {c: np.flatnonzero(rounds.members[c].roles[:5] == P) for c in rounds.clients}
    for client, rows in private.items():
        trained = [row for row in rows if not np.isnan(rounds.laid_out(client, "bn1.running_var")[row])]
        assert trained
        pool: Rows = pools[int(client)]
        own = pool.values[np.searchsorted(pool.index, trained)]
        np.testing.assert_allclose(own, rounds.laid_out(client, "bn1.running_var")[trained], atol=1e-5)


def test_running_statistics_that_stay_local_never_travel_and_go_on_from_round_to_round():
    rounds = Rounds(FedSAPParams(bn_stats="local", keep_ratios="1,0.5,0.5"))
    rounds.round(1)
    after_one = {client: {n: t.clone() for n, t in state.items()} for client, state in rounds.states.items()}
    rounds.round(2)
    for client in rounds.clients:
        travelled = [*rounds.downlinks[client].arrays, *rounds.uplinks[client].arrays]
        assert not [name for name in travelled if "running" in name]
        own, before = rounds.states[client]["own/bn1.running_mean"], after_one[client]["own/bn1.running_mean"]
        held = rounds.server._sent[client].plan.rows[0]
        assert not torch.equal(own[held], before[held])
        off = np.setdiff1d(np.arange(5), held)
        assert torch.equal(own[off], torch.zeros(len(off)))
    assert not torch.equal(rounds.states["0"]["own/bn1.running_mean"], rounds.states["1"]["own/bn1.running_mean"])


def test_groups_or_true_domains_weigh_alike_if_asked_for():
    train = (samples(4, 0), samples(12, 1), samples(16, 2))
    for weighting, domains in (("group", ()), ("domain", ("a", "a", "b"))):
        rounds = Rounds(FedSAPParams(keep_ratios="1", weighting=weighting), train, domains=domains)
        for client, group in zip("012", (1, 1, 0), strict=True):
            rounds.server.assignment.members[client].group = group
        rounds.server.assignment.params = FedSAPParams(keep_ratios="1", regroup_every=5)
        rounds.round(2)
        values = np.stack([rounds.laid_out(client, "head.bias") for client in "012"])
        expected = (4 / 16 * values[0] + 12 / 16 * values[1] + values[2]) / 2
        np.testing.assert_allclose(rounds.weights["head.bias"], expected, atol=1e-6)


@pytest.mark.parametrize(("weighting", "power"), [("samples", 1), ("sqrt-samples", 0.5), ("uniform", 0)])
def test_clients_weigh_by_samples_their_root_or_alike(weighting, power):
    rounds = Rounds(FedSAPParams(keep_ratios="1", weighting=weighting)).run(1)
    weights = np.array([len(one.y) for one in rounds.train], float) ** power
    values = np.stack([rounds.laid_out(client, "head.bias") for client in "012"])
    np.testing.assert_allclose(rounds.weights["head.bias"], np.average(values, axis=0, weights=weights), atol=1e-6)
