"""Compact networks against masked training of the full one, plans, costs."""

import copy
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from fedapp.client_update import arrays_of, load_arrays
from fedapp.functional.channels import trace
from fedapp.functional.submodel import costs, extract, gather, masked, plan, scatter
from fedapp.models import build
from fedapp.models.resnet import Layout, ResNet
from fedapp.models.split import with_linear_head

from .networks import DeepNet, PlainNet, PreactivationNet, random_mask, randomised

SHAPE = (3, 16, 16)
NARROW = (8, 10, 12, 14)


def narrow(blocks, feature_dim=NARROW[-1], widths=NARROW):
    layout = Layout(widths, blocks=blocks, kernel=3, stride=1, maxpool=False, fan_out=False)
    return with_linear_head(ResNet(layout, 3), 10, feature_dim)


def named(name, **options):
    return partial(build, name, num_classes=10, input_shape=SHAPE, **options)


SMALL = {
    "resnet10-cifar, narrow": partial(narrow, 1),
    "resnet18-cifar, narrow": partial(narrow, 2),
    "resnet18-cifar, narrow, pooled features": partial(narrow, 2, 20),
    "small-resnet": named("small-resnet"),
    "small-cnn": named("small-cnn"),
    "pre-activation": PreactivationNet,
    "seven writers": DeepNet,
    "plain": PlainNet,
}
LARGE = {
    name: named(name) for name in ("resnet4", "resnet6", "resnet8", "resnet10", "fedavgcnn", "resnet18", "resnet34")
}


def prepared(make, keep=0.4, seed=0, coupling="none"):
    torch.manual_seed(seed)
    model = randomised(make(), seed)
    graph = trace(model, SHAPE)
    return model, graph, plan(graph, random_mask(graph, keep, seed, coupling))


def batch(size=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, *SHAPE, generator=generator, dtype=torch.float64)
    return x, torch.randint(10, (size,), generator=generator)


def floating(model):
    return {name: array.copy() for name, array in arrays_of(model).items() if array.dtype.kind == "f"}


def train(network, x, y, rate, after_step=lambda: None, steps=5):
    """Cross-entropy and a penalty on the norm of the features."""
    optimizer = torch.optim.SGD(network.parameters(), lr=rate, momentum=0.9, weight_decay=5e-4)
    for _ in range(steps):
        optimizer.zero_grad()
        z = network.features(x)
        loss = F.cross_entropy(network.head(z), y) + 0.01 * z.square().sum(dim=1).mean()
        loss.backward()
        optimizer.step()
        after_step()


def check_training(make, keep, coupling="none", rate=0.01, steps=5):
    model, graph, chosen = prepared(make, keep, coupling=coupling)
    sent = floating(model)
    compact, oracle = extract(model, graph, chosen), masked(model, graph, chosen)
    x, y = batch()
    train(compact, x, y, rate, steps=steps)
    train(oracle, x, y, rate, oracle.hold, steps)
    ours, theirs = floating(compact), floating(oracle)
    assert list(ours) == list(graph.entries)
    assert theirs.keys() == sent.keys()
    for name, wanted in gather(chosen, theirs).items():
        np.testing.assert_allclose(ours[name], wanted, atol=1e-10, rtol=0, err_msg=name)
    for name, array in scatter(chosen, gather(chosen, sent), theirs).items():
        assert np.array_equal(array, sent[name]), f"{name} changed off the plan"
    assert any(not np.array_equal(theirs[name], sent[name]) for name in graph.trainable)


@pytest.mark.parametrize("keep", [0.2, 0.6])
@pytest.mark.parametrize("name", SMALL)
def test_training_equals_masked_training_for_independent_masks(name, keep):
    check_training(SMALL[name], keep)


@pytest.mark.parametrize("name", LARGE)
def test_training_equals_masked_training_for_the_models_of_the_table(name):
    check_training(LARGE[name], 0.3, rate=1e-3, steps=2 if name == "resnet34" else 5)


@pytest.mark.parametrize("coupling", ["shortcut", "stage"])
@pytest.mark.parametrize("name", ["resnet18-cifar, narrow", "pre-activation", "seven writers"])
def test_training_equals_masked_training_for_coupled_masks(name, coupling):
    check_training(SMALL[name], 0.5, coupling)


def test_bottleneck_blocks_train_like_the_masked_model():
    from torchvision.models.resnet import Bottleneck
    from torchvision.models.resnet import ResNet as Reference

    def make():
        network = Reference(Bottleneck, [1, 2, 1, 1], num_classes=1, width_per_group=4)
        network.fc = nn.Identity()
        return with_linear_head(network, 10, 32)

    check_training(make, 0.3, rate=1e-3)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", SMALL)
def test_outputs_and_feature_norms_equal_the_masked_models(name, training):
    model, graph, chosen = prepared(SMALL[name])
    compact = extract(model, graph, chosen).train(training)
    oracle = masked(model, graph, chosen).train(training)
    x, _ = batch()
    z, reference = compact.features(x), oracle.features(x)
    torch.testing.assert_close(compact.head(z), oracle.head(reference), atol=1e-10, rtol=0)
    torch.testing.assert_close(z.square().sum(dim=1), reference.square().sum(dim=1), atol=1e-10, rtol=1e-12)


def test_everything_kept_is_the_model_itself():
    model, graph, chosen = prepared(SMALL["resnet18-cifar, narrow"], keep=1.0)
    assert dict(chosen.shapes) == dict(graph.entries)
    compact = extract(model, graph, chosen)
    for name, array in arrays_of(model).items():
        assert np.array_equal(arrays_of(compact)[name], array), name
    x, _ = batch()
    torch.testing.assert_close(compact.features(x), model.features(x), atol=1e-12, rtol=0)


def test_features_are_compact_before_a_linear_head_and_native_before_a_pooling():
    x, _ = batch()
    for feature_dim, width, columns in ((14, None, None), (20, 20, 20)):
        model, graph, chosen = prepared(partial(narrow, 1, feature_dim))
        last = [layer for layer, at in enumerate(graph.layers) if "layer4.0" in at.name][1:]
        dropped = sorted({*range(14)} - {*chosen.rows[last[0]], *chosen.rows[last[1]]})
        union = 14 - len(dropped)
        assert extract(model, graph, chosen).features(x).shape == (8, width or union)
        assert chosen.shapes["head.weight"] == (10, columns or union)
        assert dropped
        assert not masked(model, graph, chosen).extractor(x)[:, dropped].any()


def test_a_compact_network_keeps_module_paths_and_holds_the_models_values():
    model, graph, chosen = prepared(SMALL["resnet10-cifar, narrow"])
    compact = extract(model, graph, chosen)
    assert [name for name, _ in compact.named_modules()] == [name for name, _ in model.named_modules()]
    assert [name for name, _ in compact.named_parameters()] == [name for name, _ in model.named_parameters()]
    assert isinstance(compact.head, nn.Linear)
    assert all(module.training for module in compact.modules())
    for layer, rows in zip(graph.layers, chosen.rows, strict=True):
        convolution, norm = compact.get_submodule(layer.name), compact.get_submodule(layer.norm)
        assert convolution.out_channels == norm.num_features == len(rows)
        assert torch.equal(norm.bias, model.get_submodule(layer.norm).bias[rows])
    for name, array in gather(chosen, floating(model)).items():
        assert np.array_equal(floating(compact)[name], array)


def test_extracting_and_masking_leave_the_model_and_the_random_state_alone():
    model, graph, chosen = prepared(SMALL["pre-activation"])
    model.eval()
    before, x = copy.deepcopy(model), batch()[0]
    state = torch.get_rng_state()
    compact, oracle = extract(model, graph, chosen), masked(model, graph, chosen)
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(module.training for module in model.modules())
    assert torch.equal(model.features(x), before.features(x))
    compact.features(x)
    assert all(np.array_equal(array, arrays_of(before)[name]) for name, array in arrays_of(model).items())
    assert oracle.linear.weight is model.linear.weight


def test_small_arrays_load_by_name_and_a_copy_computes_the_same():
    model, graph, chosen = prepared(SMALL["seven writers"])
    other = randomised(DeepNet(), seed=1)
    compact = extract(model, graph, chosen)
    load_arrays(compact, gather(chosen, floating(other)))
    twin, x = copy.deepcopy(compact), batch()[0]
    expected = extract(other, graph, chosen).features(x)
    assert torch.equal(compact.features(x), expected)
    assert torch.equal(twin.features(x), expected)
    with torch.no_grad():
        twin.features[0].weight.zero_()
    assert bool(compact.features[0].weight.any())


def test_a_hook_on_a_batch_norm_sees_what_the_masked_model_computes_there():
    model, graph, chosen = prepared(SMALL["resnet10-cifar, narrow"])
    seen = []
    networks = extract(model, graph, chosen), masked(model, graph, chosen)
    x, y = batch()
    for network in networks:
        for layer in graph.layers:
            network.get_submodule(layer.norm).register_forward_hook(
                lambda *call: seen.append(call[-1].detach().clone())
            )
        train(network, x, y, rate=0.0, steps=1)
    for layer, rows in enumerate(chosen.rows):
        ours, theirs = seen[layer], seen[len(graph.layers) + layer]
        torch.testing.assert_close(ours, theirs[:, torch.from_numpy(rows)], atol=1e-10, rtol=0)


def test_autocast_computes_in_bfloat16_like_the_masked_model():
    model, graph, chosen = prepared(SMALL["resnet18-cifar, narrow"])
    model, x = model.float(), batch()[0].float()
    compact, oracle = extract(model, graph, chosen), masked(model, graph, chosen)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        results = [network.head(network.features(x)) for network in (compact, oracle)]
    assert results[0].dtype == results[1].dtype == torch.bfloat16
    results[0].float().sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in compact.parameters())


def test_hold_returns_to_what_was_kept_last():
    model, graph, chosen = prepared(SMALL["small-cnn"])
    oracle = masked(model, graph, chosen)
    with torch.no_grad():
        oracle.extractor[0].weight.fill_(2.0)
    oracle.keep()
    with torch.no_grad():
        oracle.extractor[0].weight.fill_(3.0)
    oracle.hold()
    kept = chosen.active[graph.slices[0]].copy()
    assert bool((model.extractor[0].weight[kept] == 3).all())
    assert bool((model.extractor[0].weight[~kept] == 2).all())


def test_a_plan_worked_by_hand():
    """Two convolutions a, b meet: a keeps 0 and 2, b keeps 1 and 2, so the linear layer reads 0, 2, 1."""

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.head = nn.Conv2d(1, 3, 1), nn.Conv2d(1, 3, 1), nn.Linear(12, 2)

        def features(self, x):
            return torch.flatten(self.a(x) + self.b(x), 1)

    model = Two()
    graph = trace(model, (1, 2, 2))
    chosen = plan(graph, [True, False, True, False, True, True])
    assert [rows.tolist() for rows in chosen.rows] == [[0, 2], [2, 1]]
    rows, columns = chosen.index["head.weight"]
    assert rows is None
    assert columns.tolist() == [0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7]
    assert chosen.shapes["head.weight"] == (2, 12)
    full = {"b.bias": np.array([5.0, 6.0, 7.0])}
    assert gather(chosen, full)["b.bias"].tolist() == [7, 6]
    assert scatter(chosen, {"b.bias": np.array([1.0, 2.0])}, full)["b.bias"].tolist() == [5, 2, 1]
    assert full["b.bias"].tolist() == [5, 6, 7]


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6), keep=st.floats(0.01, 1.0), coupling=st.sampled_from(["none", "shortcut", "stage"]))
def test_scattering_what_was_gathered_changes_nothing(seed, keep, coupling):
    graph = GRAPHS.setdefault("deep", trace(DeepNet(), SHAPE))
    chosen = plan(graph, random_mask(graph, keep, seed, coupling))
    rng = np.random.default_rng(seed)
    full = {name: rng.normal(size=shape) for name, shape in graph.entries.items()}
    small = gather(chosen, full)
    assert {name: array.shape for name, array in small.items()} == dict(chosen.shapes)
    back = scatter(chosen, small, {name: np.zeros_like(array) for name, array in full.items()})
    for name, array in scatter(chosen, small, full).items():
        assert np.array_equal(array, full[name])
        assert (back[name] != 0).sum() == small[name].size
    for layer, part, rows in zip(graph.layers, graph.slices, chosen.rows, strict=True):
        assert sorted(rows) == np.flatnonzero(chosen.active[part]).tolist(), layer.name


GRAPHS = {}


def test_costs_of_resnet10_are_the_papers():
    graph = trace(build("resnet10-cifar", num_classes=10, input_shape=(3, 32, 32)), (3, 32, 32))
    full = costs(graph, None)
    assert (full.parameters, full.bytes) == (4_903_242, 4 * 4_903_242)
    assert full.macs == pytest.approx(253.4e6, rel=1e-3)
    for keep, share in ((0.2, 0.042), (0.4, 0.165), (0.6, 0.367), (0.8, 0.650)):
        coupled = costs(graph, plan(graph, random_mask(graph, keep, coupling="stage")))
        assert coupled.macs / full.macs == pytest.approx(share, abs=5e-4)
        assert costs(graph, plan(graph, random_mask(graph, keep))).macs > coupled.macs


@pytest.mark.parametrize("name", ["resnet10-cifar, narrow", "resnet18-cifar, narrow", "small-resnet", "seven writers"])
def test_costs_count_what_a_network_has_and_keeps(name):
    model, graph, chosen = prepared(SMALL[name])
    compact = extract(model.float(), graph, chosen)
    for network, counted in ((model, costs(graph, None)), (compact, costs(graph, chosen))):
        assert counted.parameters == sum(p.numel() for p in network.parameters())
        assert counted.activations == pytest.approx(kept_numbers(network), rel=0.02)


def kept_numbers(network, size=64):
    """Numbers that autograd keeps for one sample, beside parameters."""
    owned = {p.untyped_storage().data_ptr() for p in network.parameters()}
    storages = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in owned:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    x, y = batch(size)
    x = x.float()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = F.cross_entropy(network.head(network.features(x)), y)
    assert loss.requires_grad
    return sum(storages.values()) / 4 / size


def test_misfits_are_refused_by_name():
    model, graph, chosen = prepared(SMALL["small-cnn"])
    with pytest.raises(ValueError, match=r"active must be 48 booleans, .* got shape \(47,\) of bool"):
        plan(graph, np.ones(47, bool))
    with pytest.raises(ValueError, match=r"active must be 48 booleans, .* of int64"):
        plan(graph, np.ones(48, int))
    active = np.ones(48, bool)
    active[16:] = False
    with pytest.raises(ValueError, match=r"layer extractor.2 has no active channel of 32"):
        plan(graph, active)
    with pytest.raises(ValueError, match="count is no entry of the plan"):
        gather(chosen, {"count": np.zeros(1)})
    with pytest.raises(ValueError, match=r"head.bias of shape \(9,\) does not fit its plan \(10,\)"):
        scatter(chosen, {"head.bias": np.zeros(9)}, floating(model))
    with pytest.raises(ValueError, match="the full model's array is missing"):
        scatter(chosen, {"head.bias": np.zeros(10)}, {})
    for use in (extract, masked):
        with pytest.raises(ValueError, match="the plan holds 48 channels"):
            use(DeepNet(), trace(DeepNet(), SHAPE), chosen)
