"""How channels flow: layers, couplings, and what is refused."""

import copy

import pytest
import torch
from torch import nn

from fedapp.functional.channels import UnprunableError, trace
from fedapp.models import build

from .networks import DeepNet, PlainNet, PreactivationNet

SHAPE = (3, 16, 16)


def traced(name, shape=SHAPE, **options):
    return trace(build(name, num_classes=10, input_shape=shape, **options), shape)


def network(*layers, width=4):
    model = nn.Module()
    model.features, model.head = nn.Sequential(*layers), nn.Linear(width, 2)
    return model


def names(graph, groups):
    return [tuple(graph.layers[layer].name.removeprefix("extractor.") for layer in group) for group in groups]


def test_resnet10_has_twelve_layers_and_2880_channels_in_forward_order():
    graph = traced("resnet10-cifar")
    assert (len(graph.layers), graph.total) == (12, 2880)
    assert [layer.name for layer in graph.layers[:6]] == [
        "extractor.conv1",
        *(f"extractor.layer1.0.conv{i}" for i in (1, 2)),
        *(f"extractor.layer2.0.conv{i}" for i in (1, 2)),
        "extractor.layer2.0.downsample.0",
    ]
    assert graph.slices[:3] == (slice(0, 64), slice(64, 128), slice(128, 192))
    assert graph.slices[-1] == slice(2880 - 512, 2880)


def test_a_layer_owns_its_convolution_and_the_batch_norm_that_alone_reads_it():
    layer = traced("resnet10-cifar-quarter").layers[5]
    path = "extractor.layer2.0.downsample"
    norm = [f"{path}.1.{entry}" for entry in ("weight", "bias", "running_mean", "running_var")]
    assert (layer.channels, layer.norm, layer.entries) == (32, f"{path}.1", (f"{path}.0.weight", *norm))


def test_a_convolution_without_batch_norm_owns_its_bias():
    layers = traced("small-cnn").layers
    assert [(layer.norm, layer.entries) for layer in layers] == [
        ("", (f"extractor.{place}.weight", f"extractor.{place}.bias")) for place in (0, 2)
    ]


def test_batch_norms_of_a_stream_belong_to_no_layer():
    layers = {layer.name: layer.norm for layer in trace(PreactivationNet(), SHAPE).layers}
    assert layers == {
        "conv1": "",
        **{f"body.{i}.conv1": f"body.{i}.bn2" for i in range(3)},
        **{f"body.{i}.conv2": "" for i in range(3)},
        "body.2.shortcut": "",
    }


def test_entries_are_the_floating_state_in_its_order_with_full_shapes():
    model = build("resnet18-cifar", num_classes=10, input_shape=SHAPE)
    graph = trace(model, SHAPE)
    assert list(graph.entries.items()) == [
        (name, tuple(tensor.shape)) for name, tensor in model.state_dict().items() if "num_batches" not in name
    ]
    assert graph.trainable == {name for name, _ in model.named_parameters()}


def test_couplings_of_resnet10():
    graph = traced("resnet10-cifar-quarter")
    assert graph.coupled("none") == tuple((layer,) for layer in range(12))
    pairs = [(f"layer{i}.0.conv2", f"layer{i}.0.downsample.0") for i in (2, 3, 4)]
    inner = [(f"layer{i}.0.conv1",) for i in (1, 2, 3, 4)]
    shortcut = names(graph, graph.coupled("shortcut"))
    assert sorted(shortcut) == sorted([("conv1",), ("layer1.0.conv2",), *inner, *pairs])
    assert sorted(names(graph, graph.coupled("stage"))) == sorted([("conv1", "layer1.0.conv2"), *inner, *pairs])
    for coupling in ("none", "shortcut", "stage"):
        groups = graph.coupled(coupling)
        assert [group[0] for group in groups] == sorted(group[0] for group in groups)


def test_couplings_of_resnet18_join_all_writers_of_a_stage():
    graph = traced("resnet18-cifar")
    stages = [group for group in names(graph, graph.coupled("stage")) if len(group) > 1]
    assert stages == [
        ("conv1", "layer1.0.conv2", "layer1.1.conv2"),
        *((f"layer{i}.0.conv2", f"layer{i}.0.downsample.0", f"layer{i}.1.conv2") for i in (2, 3, 4)),
    ]
    pairs = [group for group in names(graph, graph.coupled("shortcut")) if len(group) > 1]
    assert pairs == [(f"layer{i}.0.conv2", f"layer{i}.0.downsample.0") for i in (2, 3, 4)]


def test_an_unknown_coupling_is_refused():
    with pytest.raises(ValueError, match="coupling must be one of none, shortcut, stage, got 'block'"):
        traced("small-cnn").coupled("block")


@pytest.mark.parametrize("make", [PreactivationNet, DeepNet, PlainNet])
def test_tracing_leaves_the_model_and_the_random_state_alone(make):
    torch.manual_seed(0)
    model = make()
    next(iter(model.children())).eval()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = copy.deepcopy(model)
    state = torch.get_rng_state()
    trace(model, SHAPE)
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in model.modules()] == [module.training for module in before.modules()]
    for (name, ours), theirs in zip(model.state_dict().items(), before.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs), name
    assert all(bool((parameter.grad == 1).all()) for parameter in model.parameters())


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        return self.inner(x) if x.sum() > 0 else x


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x):
        return self.conv(self.conv(x)).mean(dim=(2, 3))


class Standardised(nn.Conv2d):
    def forward(self, x):
        return super().forward(x - x.mean())


class Gate(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(x)


class Uneven(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.narrow = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 1, 1)

    def forward(self, x):
        return (self.wide(x) + self.narrow(x)).mean(dim=(2, 3))


def tied():
    model = network(nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model.features[1].weight = model.features[0].weight
    return model


def scored_by_a_convolution():
    model = nn.Module()
    model.features = nn.Conv2d(3, 4, 1)
    model.head = nn.Sequential(nn.Conv2d(4, 2, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return model


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: build("googlenet", num_classes=2, input_shape=SHAPE), r"'cat' in extractor.inception3a"),
        (
            lambda: build("mobilenetv2", num_classes=2, input_shape=SHAPE),
            r"extractor.features.1.conv.0.0 is a .* 32 groups",
        ),
        (
            lambda: build("separable-cnn", num_classes=2, input_shape=SHAPE),
            r"extractor.3 is a convolution in 16 groups",
        ),
        (lambda: build("mlp", num_classes=2, input_shape=SHAPE), "has no Conv2d"),
        (lambda: network(nn.ConvTranspose2d(3, 4, 3)), "features.0 is a ConvTranspose2d"),
        (lambda: network(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4)), "features.1 is not known to keep dropped channels"),
        (lambda: network(nn.Conv2d(3, 4, 3), nn.Sigmoid()), "features.1 is not known"),
        (lambda: network(nn.Conv2d(3, 4, 3), nn.Hardtanh(0.5, 1)), "features.1 does not .* map 0 to 0"),
        (lambda: network(nn.Conv2d(3, 4, 3), nn.Flatten(2)), r"features.1 moves channels from shape \(4, 14, 14\)"),
        (lambda: network(nn.Conv2d(3, 4, 3), nn.Linear(14, 4)), "features.1 moves channels"),
        (lambda: network(nn.Conv2d(3, 4, 16), nn.Flatten(), width=5), "head fails .* takes 5 numbers, got 4"),
        (lambda: network(nn.Conv2d(5, 4, 3)), r"features.0 fails .* takes 5 channels .* got \(3, 16, 16\)"),
        (lambda: network(Standardised(3, 4, 3)), "features.0 is not a plain Conv2d"),
        (lambda: network(Branching()), "features.0 cannot be traced .* control flow"),
        (lambda: network(Twice()), "features.0.conv is called twice"),
        (lambda: network(nn.Conv2d(3, 4, 3), Gate()), "operation 'sigmoid' in features.1"),
        (lambda: network(Uneven()), "operation 'add' in features.0 must add two tensors of one shape"),
        (tied, "features.1.weight and features.0.weight are one tensor"),
        (scored_by_a_convolution, "the class scores come from convolution head.0"),
    ],
)
def test_what_cannot_be_pruned_is_refused_by_name(make, message):
    with pytest.raises(UnprunableError, match=message):
        trace(make(), SHAPE)
