"""FedSAP: what a client measures of its channels and of its domain, against the same computed another way."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedapp.client_update import load_arrays
from fedapp.config import SettingError, TrainingSettings
from fedapp.strategies.fedsap import FedSAPParams
from fedapp.strategies.fedsap.signals import laid_out
from tests.strategies.federation import INPUTS, MODELS
from tests.strategies.rounds_of_submodels import Rounds

PENALTY = 0.1
TRAINING = TrainingSettings(learning_rate=0.1, batch_size=5, local_epochs=2, shuffle=False, device="cpu")


def network(rounds, client, arrays):
    """The full model with masks behind BatchNorm, holding ``arrays`` (full width, NaN = not held)."""
    model, graph = MODELS["conv"](), rounds.server.graph
    load_arrays(model, {name: np.nan_to_num(array) for name, array in arrays.items()})
    active = rounds.server._sent[client].plan.active
    for layer, part in zip(graph.layers, graph.slices, strict=True):
        mask = torch.tensor(active[part]).float().view(-1, 1, 1)
        model.get_submodule(layer.norm).register_forward_hook(lambda module, x, y, mask=mask: y * mask)
    return model


def objective(model, x, y):
    z = model.features(x)
    return F.cross_entropy(model.head(z), y) + PENALTY * z.square().sum(dim=1).mean()


STAGES = {
    "conv1_grad": ["conv1"],
    "layer1_grad": ["layer1.conv1", "layer1.conv2", "layer1.shortcut.0"],
    "layer2_grad": ["layer2.conv1", "layer2.conv2"],
    "layer3_grad": ["layer3.0"],
}


@pytest.mark.parametrize("execution", ["compact", "masked"])
@pytest.mark.parametrize("at", ["received-model", "after-local"])
@pytest.mark.parametrize("signal", STAGES)
def test_gradient_signals_are_the_gradients_of_the_whole_data(signal, at, execution):
    params = FedSAPParams(signal=signal, at=at, keep_ratios="1,0.5", penalty=PENALTY, execution=execution)
    rounds = Rounds(params, train=Rounds(params).train[:2], training=TRAINING)
    received = {name: array.copy() for name, array in rounds.weights.items()}
    rounds.round(1)
    for client in rounds.clients:
        after = {name: rounds.laid_out(client, name) for name in received}
        model = network(rounds, client, received if at == "received-model" else after).eval()
        held = rounds.train[int(client)]
        objective(model, held.x, held.y).backward()
        expected = np.concatenate([model.get_submodule(n).weight.grad.numpy().ravel() for n in STAGES[signal]])
        found = laid_out(rounds.uplinks[client].arrays["signal"], params, rounds.server.graph,
                         rounds.server._sent[client].plan)  # fmt: skip
        known = ~np.isnan(found)
        assert known.sum() == len(rounds.uplinks[client].arrays["signal"])
        assert (client == "0") == known.all()
        np.testing.assert_allclose(found[known], expected[known], atol=1e-6)
        np.testing.assert_allclose(expected[~known], 0, atol=1e-7)  # nothing reaches what was dropped
        np.testing.assert_array_equal(np.isnan(rounds.members[client].signal), ~known)


def test_frozen_weights_have_a_gradient_signal_and_still_do_not_train():
    def signal(frozen):
        rounds = Rounds(FedSAPParams(signal="conv1_grad", keep_ratios="0.5"))
        update = rounds.update("0")
        update.full.conv1.weight.requires_grad_(not frozen)
        downlink = rounds.server.downlink(rounds.server.clients["0"])
        uplink = update.train(downlink, rounds.train[0])
        trained = not np.array_equal(uplink.arrays["conv1.weight"], downlink.arrays["conv1.weight"])
        return uplink.arrays["signal"], trained

    (found, trained), (expected, _) = signal(True), signal(False)
    assert not trained
    np.testing.assert_allclose(found, expected, atol=1e-7)


def test_statistics_of_the_first_layer_are_taken_through_the_servers_whole_filters():
    rounds = Rounds(FedSAPParams(keep_ratios="0.5"))
    received = rounds.weights["conv1.weight"].copy()
    rounds.round(1)
    for client in rounds.clients:
        x = rounds.train[int(client)].x.reshape(-1, 1, 1, INPUTS)
        y = F.conv2d(x, torch.from_numpy(received), padding=(0, 1)).double().numpy()
        expected = np.concatenate([y.mean(axis=(0, 2, 3)), y.std(axis=(0, 2, 3))])
        np.testing.assert_allclose(rounds.uplinks[client].arrays["signal"], expected, atol=1e-5)


@pytest.mark.parametrize("execution", ["compact", "masked"])
def test_statistics_after_training_are_the_running_ones_of_the_channels_held(execution):
    params = FedSAPParams(keep_ratios="0.5", at="after-local", execution=execution)
    rounds = Rounds(params).run(1)
    for client in rounds.clients:
        arrays = rounds.uplinks[client].arrays
        expected = np.concatenate([arrays["bn1.running_mean"], np.sqrt(arrays["bn1.running_var"])])
        np.testing.assert_allclose(arrays["signal"], expected, atol=1e-6)


def test_a_model_without_the_stage_that_a_signal_names_is_refused():
    with pytest.raises(SettingError, match=r"dga.signal = layer2_grad needs .* called 'layer2', the model has conv;"):
        Rounds(FedSAPParams(signal="layer2_grad"), kind="pixel")


# ---- magnitudes of channels (Eq. 5, 6) --------------------------------------------------------------


def outputs_of(model, places, x):
    """Return what some submodules return for inputs, by path."""
    seen = {}
    hooks = [
        model.get_submodule(place).register_forward_hook(lambda m, i, y, place=place: seen.update({place: y.detach()}))
        for place in places
    ]
    with torch.no_grad():
        model.features(x)
    for hook in hooks:
        hook.remove()
    return seen


@pytest.mark.parametrize("execution", ["compact", "masked"])
@pytest.mark.parametrize("mode", ["eval-received", "eval-trained"])
@pytest.mark.parametrize("site", ["post-relu", "post-bn", "pre-bn"])
def test_activations_are_means_over_samples_and_positions(site, mode, execution):
    params = FedSAPParams(site=site, mode=mode, keep_ratios="1,0.5,0.5", penalty=PENALTY, execution=execution)
    rounds = Rounds(params, training=TRAINING)
    received = {name: array.copy() for name, array in rounds.weights.items()}
    rounds.round(1)
    graph = rounds.server.graph
    for client in rounds.clients:
        after = {name: rounds.laid_out(client, name) for name in received}
        model = network(rounds, client, received if mode == "eval-received" else after).eval()
        places = [layer.name if site == "pre-bn" else layer.norm for layer in graph.layers]
        seen = outputs_of(model, places, rounds.train[int(client)].x)
        rows = rounds.server._sent[client].plan.rows
        kept = [seen[place][:, torch.from_numpy(row)] for place, row in zip(places, rows, strict=True)]
        size = [y.clamp(min=0) if site == "post-relu" else y.abs() for y in kept]
        expected = np.concatenate([y.double().mean(dim=(0, 2, 3)).numpy() for y in size])
        np.testing.assert_allclose(rounds.uplinks[client].arrays["statistics/activation"], expected, atol=1e-5)


def test_activations_while_training_are_those_of_the_last_epoch():
    rounds = Rounds(FedSAPParams(mode="train", keep_ratios="1", penalty=PENALTY), training=TRAINING)
    received = {name: array.copy() for name, array in rounds.weights.items()}
    rounds.round(1)
    seen = trained_by_hand(rounds, received, lambda model, x: outputs_of_training(model, rounds, x))
    expected = np.concatenate([part.clamp(min=0).double().mean(dim=(0, 2, 3)).numpy() for part in seen])
    np.testing.assert_allclose(rounds.uplinks["0"].arrays["statistics/activation"], expected, atol=1e-5)


def outputs_of_training(model, rounds, x):
    """Return BatchNorm's outputs in training mode; the model's own running statistics are put back."""
    kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    seen = outputs_of(model, [layer.norm for layer in rounds.server.graph.layers], x)
    model.load_state_dict(kept)
    return [seen[layer.norm] for layer in rounds.server.graph.layers]


def trained_by_hand(rounds, received, look, after=None):
    """Train client "0" for two epochs over batches of 5 and 3; look at every batch of the last one."""
    model = network(rounds, "0", received).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    held, seen = rounds.train[0], []
    for epoch in range(2):
        for rows in (slice(0, 5), slice(5, 8)):
            if epoch and look:
                seen.append(look(model, held.x[rows]))
            optimizer.zero_grad()
            objective(model, held.x[rows], held.y[rows]).backward()
            optimizer.step()
            if epoch and after:
                seen.append(after(model))
    return [torch.cat(parts) for parts in zip(*seen, strict=True)] if look else seen


@pytest.mark.parametrize("kind", ["l2", "mean-abs", "abs-mean", "taylor"])
def test_gradients_are_means_over_the_batches_of_the_last_epoch(kind):
    rounds = Rounds(FedSAPParams(gradient=kind, keep_ratios="1", penalty=PENALTY), training=TRAINING)
    received = {name: array.copy() for name, array in rounds.weights.items()}
    rounds.round(1)

    def magnitudes(model):
        found = []
        for layer in rounds.server.graph.layers:
            weight = model.get_submodule(layer.name).weight
            g, w = (t.detach().double().numpy().reshape(len(weight), -1) for t in (weight.grad, weight))
            found.append({
                "l2": np.sqrt((g**2).sum(axis=1) / g.shape[1]),
                "mean-abs": np.abs(g).mean(axis=1),
                "abs-mean": np.abs(g.mean(axis=1)),
                "taylor": np.abs((w * g).mean(axis=1)),
            }[kind])  # fmt: skip
        return np.concatenate(found)

    batches = trained_by_hand(rounds, received, None, magnitudes)
    np.testing.assert_allclose(rounds.uplinks["0"].arrays["statistics/gradient"], np.mean(batches, axis=0), atol=1e-5)


@pytest.mark.parametrize("execution", ["compact", "masked"])
def test_a_frozen_batch_norm_keeps_its_statistics_while_a_client_trains(execution):
    rounds = Rounds(FedSAPParams(keep_ratios="0.5", execution=execution))
    for entry, array in rounds.weights.items():
        if entry.startswith("bn1.running"):
            array += 1
    update, held = rounds.update("0"), rounds.train[0]
    for parameter in update.full.bn1.parameters():
        parameter.requires_grad_(False)
    downlink = rounds.server.downlink(rounds.server.clients["0"])
    uplink = update.train(downlink, held)
    for name in ("bn1.running_mean", "bn1.running_var", "bn1.weight"):
        np.testing.assert_array_equal(uplink.arrays[name], downlink.arrays[name])
    other = f"{rounds.server.graph.layers[1].norm}.running_mean"
    assert not np.array_equal(uplink.arrays[other], downlink.arrays[other])
