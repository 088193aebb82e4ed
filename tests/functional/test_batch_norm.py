import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedapp.functional.batch_norm import Moments, install, moments, pooled, total_variance

EVERY = ("conv.1", "dense.2")


class Net(nn.Module):
    """A convolution and a linear layer with BatchNorm, dropout between them, and BatchNorm that is never called."""

    def __init__(self, dropout=0.5):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        self.dense = nn.Sequential(nn.Dropout(dropout), nn.Linear(4, 3), nn.BatchNorm1d(3))
        self.unused = nn.BatchNorm1d(3)
        self.stateless = nn.BatchNorm1d(3, track_running_stats=False)

    def features(self, x):
        return self.stateless(self.dense(self.conv(x).mean(dim=(2, 3))))


def network(seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    model = Net().to(dtype)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is not None:
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
    return model


def images(count, seed=1, dtype=torch.float64):
    return torch.randn(count, 2, 6, 5, generator=torch.Generator().manual_seed(seed), dtype=dtype) * 3 - 1


def seen_by(model, batches):
    """The inputs of both layers, with the first normalising by its batch, in numpy."""
    first = [model.conv[0](x).detach().numpy() for x in batches]
    second = []
    for a in first:
        mean, var = a.mean(axis=(0, 2, 3), keepdims=True), a.var(axis=(0, 2, 3), keepdims=True)
        weight, bias = (p.detach().numpy().reshape(1, 4, 1, 1) for p in (model.conv[1].weight, model.conv[1].bias))
        normal = (a - mean) / np.sqrt(var + model.conv[1].eps) * weight + bias
        dense = model.dense[1]
        second.append(
            np.maximum(normal, 0).mean(axis=(2, 3)) @ dense.weight.detach().numpy().T + dense.bias.detach().numpy()
        )
    return np.concatenate([a.transpose(0, 2, 3, 1).reshape(-1, 4) for a in first]), np.concatenate(second)


def assert_moments(part, values, tolerance=1e-10):
    assert part.count == len(values)
    np.testing.assert_allclose(part.mean, values.mean(axis=0), rtol=0, atol=tolerance)
    np.testing.assert_allclose(part.variance, values.var(axis=0), rtol=0, atol=tolerance)
    assert part.mean.dtype == part.variance.dtype == np.float64


def state(model):
    buffers = {name: value.numpy().tobytes() for name, value in model.state_dict().items()}
    return buffers, [(module.training, getattr(module, "momentum", None)) for module in model.modules()]


@pytest.mark.parametrize("sizes", [(9,), (5, 3), (2, 8, 4)])
def test_moments_equal_numpy_over_all_that_the_layers_see(sizes):
    model, batches = network(), list(images(sum(sizes)).split(sizes))
    measured = moments(model, batches)
    assert tuple(measured) == EVERY  # not the unused, nor the stateless one
    for part, values in zip(measured.values(), seen_by(model, batches), strict=True):
        assert_moments(part, values)


def test_single_precision_agrees_to_1e_5():
    model, x = network(), images(20)
    double, single = moments(model, [x]), moments(model.float(), [x.float()])
    for path in EVERY:
        np.testing.assert_allclose(single[path].mean, double[path].mean, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(single[path].variance, double[path].variance, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_the_model_and_the_random_state_are_left_as_they_were(training):
    model = network().train(training)
    model.dense.train(not training)  # mixed modes come back one by one
    model.conv[1].momentum = None
    before, random = state(model), torch.get_rng_state()
    moments(model, (images(4, seed) + torch.randn(1) for seed in (1, 2)))
    assert state(model) == before
    assert torch.equal(torch.get_rng_state(), random)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_an_error_in_the_middle_leaves_the_model_as_it_was():
    model = network()
    before = state(model)
    with pytest.raises(RuntimeError):
        moments(model, [images(4), torch.zeros(4, 7, 6, 5, dtype=torch.float64)])
    assert state(model) == before
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_running_statistics_of_a_broken_model_do_not_leak_in():
    model, x = network(), images(6)
    expected = moments(model, [x])
    model.conv[1].running_mean.fill_(float("nan"))
    model.conv[1].running_var.fill_(float("inf"))
    for path, part in moments(model, [x]).items():
        np.testing.assert_array_equal(part.mean, expected[path].mean)


def test_a_single_value_a_channel_counts_and_is_normalised_by_the_running_statistics():
    layer = nn.BatchNorm1d(2).double()
    layer.running_mean.copy_(torch.tensor([1.0, -1.0]))
    model, after = nn.Module(), []
    model.features = nn.Sequential(layer)
    layer.register_forward_hook(lambda module, inputs, output: after.append(output))
    x = torch.tensor([[1.0, 2.0], [3.0, -2.0], [8.0, 9.0]], dtype=torch.float64)
    measured = moments(model, [x[:2], x[2:], x[:0]])
    assert_moments(measured["features.0"], x.numpy())
    np.testing.assert_allclose(after[1].numpy(), [[7 / np.sqrt(1 + 1e-5), 10 / np.sqrt(1 + 1e-5)]], atol=1e-12)
    alone = moments(model, [x[2:]])
    assert alone["features.0"].count == 1
    before = state(model)
    install(model, alone)  # tells nothing of a spread
    assert state(model) == before


@pytest.mark.parametrize("batches", [[], [images(0)]])
def test_no_image_is_refused(batches):
    with pytest.raises(ValueError, match="at least one image"):
        moments(network(), batches)


def test_evaluation_after_install_normalises_by_the_exact_moments():
    model, x = network(), images(7)
    measured = moments(model, [x])
    install(model, measured)
    first, _ = seen_by(model, [x])
    n = len(first)
    normal = (first - first.mean(axis=0)) / np.sqrt(first.var(axis=0) * n / (n - 1) + model.conv[1].eps)
    expected = normal * model.conv[1].weight.detach().numpy() + model.conv[1].bias.detach().numpy()
    model.eval()
    got = model.conv[1](model.conv[0](x)).detach().numpy().transpose(0, 2, 3, 1).reshape(-1, 4)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-10)


def test_one_batch_gives_what_torch_stores_and_equal_batches_the_mean_of_its_cumulative_average():
    model, batches = network(), list(images(12).split(4))
    cumulative = network()
    for layer in (cumulative.conv[1], cumulative.dense[2]):
        layer.momentum = None
        layer.reset_running_stats()
    cumulative.conv.train()
    cumulative.dense[0].eval()
    with torch.no_grad():
        cumulative.features(batches[0])
    install(model, moments(model, batches[:1]))
    for ours, theirs in zip((model.conv[1], model.dense[2]), (cumulative.conv[1], cumulative.dense[2]), strict=True):
        torch.testing.assert_close(ours.running_mean, theirs.running_mean, rtol=0, atol=1e-12)
        torch.testing.assert_close(ours.running_var, theirs.running_var, rtol=1e-12, atol=0)
    with torch.no_grad():
        for x in batches[1:]:
            cumulative.features(x)
    measured = moments(network(), batches)
    np.testing.assert_allclose(measured["conv.1"].mean, cumulative.conv[1].running_mean.numpy(), rtol=0, atol=1e-10)
    np.testing.assert_allclose(measured["dense.2"].mean, cumulative.dense[2].running_mean.numpy(), rtol=0, atol=1e-10)


def test_pooled_moments_of_clients_are_those_of_all_their_batches():
    model, batches = network(), list(images(14).split((3, 6, 5)))
    together = moments(model, batches)
    for path, part in pooled([moments(model, [x]) for x in batches]).items():
        assert part.count == together[path].count
        np.testing.assert_allclose(part.mean, together[path].mean, rtol=0, atol=1e-12)
        np.testing.assert_allclose(part.variance, together[path].variance, rtol=1e-12, atol=0)


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(0, 10**6))
def test_pooling_equals_numpy_over_the_concatenation(sizes, seed):
    generator = np.random.default_rng(seed)
    samples = [generator.normal(generator.normal() * 4, 2, size=(n, 3)) for n in sizes]
    parts = [{"bn": Moments(len(x), x.mean(axis=0), x.var(axis=0))} for x in samples]
    assert_moments(pooled(parts)["bn"], np.concatenate(samples))
    assert_moments(pooled(parts[::-1])["bn"], np.concatenate(samples))


def test_clients_that_disagree_are_refused():
    part = Moments(2, np.zeros(3), np.ones(3))
    with pytest.raises(ValueError, match=r"client 1 and client 0: \['b'\]"):
        pooled([{"a": part}, {"a": part, "b": part}])
    with pytest.raises(ValueError, match="at least one client"):
        pooled([])


def test_moments_that_do_not_fit_the_model_change_nothing():
    model = network()
    before = state(model)
    good, wide = Moments(9, np.zeros(4), np.ones(4)), Moments(9, np.zeros(5), np.ones(5))
    with pytest.raises(ValueError, match=r"moments of 'head' must fit the model, got \(4,\) for no such layer among"):
        install(model, {"conv.1": good, "head": good})
    with pytest.raises(ValueError, match=r"moments of 'conv.1' must fit the model, got \(5,\) for 4 channels"):
        install(model, {"conv.1": wide})
    assert state(model) == before


def test_total_variance_worked_by_hand_with_absent_channels():
    nan = np.nan
    means = np.array([[2.0, nan, nan], [6.0, -1.0, nan]])
    variances = np.array([[0.0, nan, nan], [4.0, 3.0, nan]])
    mean, variance = total_variance(means, variances, np.array([1.0, 3.0]))
    np.testing.assert_allclose(mean, [5, -1, nan], rtol=0, atol=1e-12)  # (2 + 18) / 4
    np.testing.assert_allclose(variance, [6, 3, nan], rtol=0, atol=1e-12)  # (1 * (0 + 9) + 3 * (4 + 1)) / 4


@pytest.mark.parametrize(
    ("means", "variances", "weights", "message"),
    [
        ([[1.0]], [[1.0]], [0.0], "weights must be finite and > 0"),
        ([[1.0]], [[1.0]], [1.0, 1.0], r"\(1, 1\), \(1, 1\) and \(2,\)"),
        ([1.0], [1.0], [1.0], r"\(1,\), \(1,\) and \(1,\)"),
        ([[1.0]], [[-1.0]], [1.0], "finite and >= 0"),
        ([[np.inf]], [[1.0]], [1.0], "means must be finite"),
        ([[np.nan]], [[1.0]], [1.0], "NaN in both"),
    ],
)
def test_bad_means_and_variances_are_refused(means, variances, weights, message):
    with pytest.raises(ValueError, match=message):
        total_variance(np.array(means), np.array(variances), np.array(weights))
