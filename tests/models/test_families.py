"""What is particular to one family: hand counts, pooling, initialisation."""

import math

import pytest
import torch
from torch import nn

from fedapp.models import build
from fedapp.models.split import FeaturePool, adapt_channels


def parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("native_dim", [64, 128, 256, 512, 768, 1024, 1280, 2048, 30])
@pytest.mark.parametrize("feature_dim", [512, 100, 7])
def test_feature_pooling_is_adaptive_average_pooling(native_dim, feature_dim):
    z = torch.randn(3, native_dim, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    ours, reference = FeaturePool(feature_dim)(z), nn.AdaptiveAvgPool1d(feature_dim)(z)
    torch.testing.assert_close(ours, reference, atol=1e-12, rtol=0)
    weights = torch.randn(3, feature_dim, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    gradients = [torch.autograd.grad((pooled * weights).sum(), z)[0] for pooled in (ours, reference)]
    torch.testing.assert_close(*gradients, atol=1e-12, rtol=0)


def test_feature_pooling_repeats_exactly_what_is_narrower_and_keeps_what_fits():
    z = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(FeaturePool(512)(z), z.repeat_interleave(8, dim=1))
    assert torch.equal(FeaturePool(64)(z), z)


def test_feature_pooling_accepts_an_empty_batch():
    assert FeaturePool(512)(torch.zeros(0, 64)).shape == (0, 512)


def test_resnet4_features_live_in_a_subspace_of_64_dimensions():
    torch.manual_seed(0)
    model = build("resnet4", num_classes=10, input_shape=(3, 32, 32))
    z = model.features(torch.randn(100, 3, 32, 32)).detach()
    assert torch.linalg.matrix_rank(z) <= 64


@pytest.mark.parametrize(("name", "expected"), [("resnet10-cifar", 4_903_242), ("resnet18-cifar", 11_173_962)])
def test_the_cifar_resnets_have_fedsaps_counts_at_ten_classes(name, expected):
    assert parameters(build(name, num_classes=10, input_shape=(3, 32, 32))) == expected


def test_the_quarter_wide_resnet10_has_its_hand_count():
    stem = 3 * 9 * 16 + 2 * 16
    first = 2 * (16 * 9 + 2) * 16
    halving = sum((i * 9 + 2) * o + (o * 9 + 2) * o + (i + 2) * o for i, o in ((16, 32), (32, 64), (64, 128)))
    model = build("resnet10-cifar-quarter", num_classes=10, input_shape=(3, 32, 32), feature_dim=128)
    assert parameters(model) == stem + first + halving + 128 * 10 + 10


def test_resnet18_cifar_differs_from_torchvisions_only_in_the_stem():
    cifar, imagenet = (
        {key: value.shape for key, value in build(name, num_classes=10, input_shape=(3, 32, 32)).state_dict().items()}
        for name in ("resnet18-cifar", "resnet18")
    )
    stem = "extractor.conv1.weight"
    assert (cifar.pop(stem), imagenet.pop(stem)) == ((64, 3, 3, 3), (64, 3, 7, 7))
    assert cifar == imagenet


def test_our_basic_blocks_compute_what_torchvisions_compute():
    from torchvision.models.resnet import BasicBlock as Reference
    from torchvision.models.resnet import ResNet

    torch.manual_seed(0)
    ours = build("resnet10", num_classes=10, input_shape=(3, 32, 32)).extractor
    reference = ResNet(Reference, [1, 1, 1, 1])
    reference.fc = nn.Identity()
    reference.load_state_dict(ours.state_dict(), strict=True)
    x = torch.randn(4, 3, 32, 32)
    torch.testing.assert_close(ours(x), reference(x), atol=1e-6, rtol=1e-6)


def test_the_small_networks_have_their_hand_counts():
    head = 512 * 10 + 10
    convolutions = (3 * 25 + 1) * 16 + (16 * 9 + 1) * 32
    expected = {
        "small-cnn": convolutions + (32 * 8 * 8 + 1) * 128 + head,
        "mlp": (3 * 32 * 32 + 1) * 256 + (256 + 1) * 128 + head,
        # Stem, then for each block a depthwise 3x3 and a pointwise convolution; two numbers per BatchNorm channel.
        "separable-cnn": (3 * 9 + 2) * 16
        + sum((9 + 2) * i + (i + 2) * o for i, o in ((16, 32), (32, 64), (64, 128)))
        + head,
    }
    counts = {name: parameters(build(name, num_classes=10, input_shape=(3, 32, 32))) for name in expected}
    assert counts == expected


def test_dropout_remains_in_googlenet_and_leaves_mobilenet_with_its_classifier():
    def dropouts(name):
        with torch.device("meta"):
            modules = build(name, num_classes=10, input_shape=(3, 32, 32)).modules()
        return [module.p for module in modules if isinstance(module, nn.Dropout)]

    assert dropouts("googlenet") == [0.2]
    assert dropouts("mobilenetv2") == []


def test_a_vision_transformer_has_a_two_layer_head():
    with torch.device("meta"):
        head = build("vit-b-16", num_classes=100, input_shape=(3, 32, 32)).head
    assert [type(module) for module in head] == [nn.Linear, nn.Tanh, nn.Linear]
    assert parameters(head) == (512 + 1) * 768 + (768 + 1) * 100


def test_an_adapted_first_convolution_keeps_all_but_its_channels():
    first = nn.Conv2d(3, 16, 5, stride=2, padding=1)
    assert adapt_channels(first, 3, nn.init.zeros_) is first
    adapted = adapt_channels(first, 1, nn.init.ones_)
    assert adapted.weight.shape == (16, 1, 5, 5)
    assert (adapted.stride, adapted.padding) == ((2, 2), (1, 1))
    assert adapted.weight.min() == 1
    assert not adapted.bias.any()


@pytest.mark.parametrize(
    ("name", "spread"),
    [
        ("resnet18", math.sqrt(2 / (64 * 49))),  # He: gain sqrt(2) over fan-out
        ("googlenet", 0.01),
        ("resnet10", math.sqrt(2 / (64 * 49))),
        ("mobilenetv2", math.sqrt(2 / (32 * 9))),
    ],
)
@pytest.mark.parametrize("channels", [1, 3])
def test_the_first_convolution_is_drawn_by_the_networks_rule_at_any_channel_count(name, spread, channels):
    torch.manual_seed(0)
    model = build(name, num_classes=2, input_shape=(channels, 32, 32))
    first = next(module for module in model.modules() if isinstance(module, nn.Conv2d))
    assert first.in_channels == channels
    assert first.weight.std().item() == pytest.approx(spread, rel=0.15)
