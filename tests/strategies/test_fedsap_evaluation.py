"""FedSAP's named evaluations: consensus, group and deployed, with BatchNorm as averaged and re-estimated."""

import numpy as np
import pytest
import torch

from fedapp.client_update import load_arrays
from fedapp.functional.roles import PRIVATE
from fedapp.strategies.fedsap import FedSAPParams
from tests.strategies.federation import MODELS, Federation, samples

DOMAINS = ("a", "b", "a", "b")
PRIVATE_SOON = {"warmup": 0, "tau": 0.0, "global_target": 0.2}


def federation(path, **changes):
    train = tuple(samples(12 + 2 * index, index) for index in range(4))
    test = tuple(samples(9 + index, 50 + index) for index in range(4))
    fields = {"kinds": ("conv",) * 4, "clients": tuple("0123"), "domains": DOMAINS, "train": train, "test": test}
    return Federation(path, **{**fields, **changes})


class Held:
    def __init__(self, train, test):
        self.train, self.test = train, test


def held_by(made):
    return lambda info: Held(made.train[int(info.client)], made.test[int(info.client)])


def loaded(arrays):
    model = MODELS["conv"]()
    load_arrays(model, arrays)
    return model.eval()


def accuracy(model, parts):
    x, y = torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts])
    with torch.no_grad():
        return float((model.head(model.features(x)).argmax(dim=1) == y).double().mean())


def re_estimated(model, parts):
    """Give every BatchNorm the moments of what reaches it when each client's samples are one batch."""
    norms = {path: layer for path, layer in model.named_modules() if isinstance(layer, torch.nn.BatchNorm2d)}
    seen = {path: [] for path in norms}
    hooks = [
        layer.register_forward_pre_hook(lambda m, i, path=path: seen[path].append(i[0].transpose(0, 1).flatten(1)))
        for path, layer in norms.items()
    ]
    model.train()
    with torch.no_grad():
        for part in parts:
            model.features(part.x)
    for hook in hooks:
        hook.remove()
    for path, layer in norms.items():
        values = torch.cat(seen[path], dim=1).double()
        layer.running_mean.copy_(values.mean(dim=1))
        layer.running_var.copy_(values.var(dim=1))
    return model.eval()


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    made = federation(tmp_path_factory.mktemp("run"))
    params = FedSAPParams(**PRIVATE_SOON, grouping=False, keep_ratios="1,0.6")
    return made, made.run("fedsap", params, num_rounds=2, held=held_by(made))


def of_domain(made, domain):
    return [made.test[index] for index in range(4) if DOMAINS[index] == domain]


@pytest.mark.parametrize("again", [False, True])
def test_the_consensus_is_w_g_where_anybody_shares_a_row_and_the_mean_of_the_pools_elsewhere(measured, again):
    made, outcome = measured
    strategy = outcome.strategy
    arrays = {name: array.copy() for name, array in strategy.shared.arrays.items()}
    roles = {client: member.roles for client, member in strategy.assignment.members.items()}
    replaced = 0
    for layer, part in zip(strategy.graph.layers, strategy.graph.slices, strict=True):
        for row in np.flatnonzero(~strategy.shared.shared_by[part]):
            holders = [int(c) for c, held in roles.items() if held[part][row] == PRIVATE]
            for name in layer.entries:
                pools = {k: strategy.shared.pools[name][k] for k in holders if k in strategy.shared.pools[name]}
                own = {k: p.values[list(p.index).index(row)] for k, p in pools.items() if row in p.index}
                if own:
                    weights = [len(made.train[k].y) for k in own]
                    arrays[name][row] = np.average(list(own.values()), axis=0, weights=weights)
                    replaced += 1
    assert replaced
    for name, array in strategy.consensus().items():
        np.testing.assert_allclose(array, arrays[name], atol=1e-6)
    model = loaded(arrays)
    if again:
        model = re_estimated(model, made.train)
    found = outcome.records[-1].evaluations["consensus-recalibrated" if again else "consensus"]
    assert found == {domain: pytest.approx(accuracy(model, of_domain(made, domain))) for domain in "ab"}


@pytest.mark.parametrize("again", [False, True])
def test_deployed_models_are_measured_by_the_clients_and_averaged_by_domain(measured, again):
    made, outcome = measured
    strategy, record = outcome.strategy, outcome.records[-1]
    right = dict.fromkeys("ab", 0.0)
    for index, client in enumerate(made.clients):
        roles = strategy.assignment.members[client].roles
        arrays = strategy.shared.full(roles, strategy.assignment.group_of(client))
        model = loaded(arrays)
        for layer, part in zip(strategy.graph.layers, strategy.graph.slices, strict=True):
            mask = torch.from_numpy(roles[part] > 0).float().view(-1, 1, 1)
            model.get_submodule(layer.norm).register_forward_hook(lambda m, x, y, mask=mask: y * mask)
        if again:
            model = re_estimated(model, [made.train[index]])
        own = accuracy(model, [made.test[index]])
        metrics = next(reply.metrics for reply in record.evaluated if reply.client == client)
        assert metrics["accuracy-recalibrated" if again else "accuracy-averaged"] == pytest.approx(own)
        assert metrics["accuracy"] == metrics["accuracy-recalibrated"]
        right[DOMAINS[index]] += own * len(made.test[index].y)
    total = {domain: sum(len(part.y) for part in of_domain(made, domain)) for domain in "ab"}
    expected = {domain: pytest.approx(right[domain] / total[domain]) for domain in "ab"}
    assert record.evaluations["deployed-recalibrated" if again else "deployed"] == expected


def test_a_domain_is_answered_by_the_model_of_most_of_its_clients(tmp_path):
    made = federation(tmp_path)
    params = FedSAPParams(**PRIVATE_SOON, keep_ratios="1,0.6", grouping=False)
    outcome = made.run("fedsap", params, held=held_by(made))
    strategy = outcome.strategy
    for client, group in zip("0123", (2, 3, 2, 3), strict=True):
        strategy.assignment.members[client].group = group
    found = strategy.evaluations([])
    for domain, group in (("a", 2), ("b", 3)):
        arrays = {name: array.copy() for name, array in strategy.shared.arrays.items()}
        held = [strategy.assignment.members[c].roles for c, d in zip("0123", DOMAINS, strict=True) if d == domain]
        private = np.any([roles == PRIVATE for roles in held], axis=0)
        for layer, part in zip(strategy.graph.layers, strategy.graph.slices, strict=True):
            for name in layer.entries:
                pool = strategy.shared.pools[name][group]
                rows = [row for row in pool.index if private[part][row]]
                arrays[name][rows] = pool.values[np.searchsorted(pool.index, rows)]
        assert found["group"][domain] == pytest.approx(accuracy(loaded(arrays), of_domain(made, domain)))
        again = re_estimated(loaded(arrays), [made.train[i] for i in range(4) if DOMAINS[i] == domain])
        assert found["group-recalibrated"][domain] == pytest.approx(accuracy(again, of_domain(made, domain)))


def test_samples_that_clients_of_a_domain_share_count_once(tmp_path):
    shared = (samples(8, 1), samples(6, 2))
    made = federation(tmp_path, test=(*shared, *shared))
    outcome = made.run("fedsap", FedSAPParams(**PRIVATE_SOON), num_rounds=1, held=held_by(made))
    expected = accuracy(loaded(outcome.strategy.consensus()), [shared[0]])
    assert outcome.records[0].evaluations["consensus"]["a"] == pytest.approx(expected)


def test_a_client_without_training_samples_is_evaluated_as_averaged(tmp_path):
    train = (*(samples(12, index) for index in range(3)), samples(0, 3))
    made = federation(tmp_path, train=train)
    outcome = made.run("fedsap", FedSAPParams(**PRIVATE_SOON), num_rounds=1, held=held_by(made))
    assert outcome.failures == []
    metrics = outcome.records[0].evaluated[3].metrics
    assert metrics["accuracy"] == metrics["accuracy-averaged"] == metrics["accuracy-recalibrated"]
    assert outcome.records[0].evaluations.keys() >= {"consensus-recalibrated", "group-recalibrated"}


@pytest.mark.parametrize("execution", ["compact", "masked"])
def test_on_devices_the_consensus_is_evaluated_by_full_ones_alone(tmp_path, execution):
    made = federation(tmp_path)
    params = FedSAPParams(**PRIVATE_SOON, grouping=False, keep_ratios="1,0.6,0.6,0.6", execution=execution)
    outcome = made.run("fedsap", params)
    record, strategy = outcome.records[-1], outcome.strategy
    expected = accuracy(loaded(strategy.consensus()), [made.test[0]])
    assert record.evaluations["consensus"] == {"a": pytest.approx(expected)}
    assert record.evaluations.keys() == {"consensus", "deployed", "deployed-recalibrated"}
    assert [reply.client for reply in record.evaluated if "consensus-accuracy" in reply.metrics] == ["0"]


def test_on_devices_without_a_full_one_the_consensus_is_not_evaluated(tmp_path):
    outcome = federation(tmp_path).run("fedsap", FedSAPParams(keep_ratios="0.6"), num_rounds=1)
    assert outcome.records[0].evaluations.keys() == {"deployed", "deployed-recalibrated"}


def test_the_paper_profile_answers_with_averaged_statistics(tmp_path):
    outcome = federation(tmp_path).run("fedsap", FedSAPParams("paper", warmup=0), num_rounds=1)
    for reply in outcome.records[0].evaluated:
        assert reply.metrics["accuracy"] == reply.metrics["accuracy-averaged"]
        assert "accuracy-recalibrated" in reply.metrics


def test_statistics_that_never_travel_make_no_averaged_consensus(tmp_path):
    made = federation(tmp_path)
    local = FedSAPParams(keep_ratios="1,0.6", bn_stats="local")
    found = made.run("fedsap", local, num_rounds=1, held=held_by(made)).records[0].evaluations
    assert {name for name in found if not name.startswith("deployed")} == {
        "consensus-recalibrated",
        "group-recalibrated",
    }
    assert "consensus" not in made.run("fedsap", local, num_rounds=1).records[0].evaluations
