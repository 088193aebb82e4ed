"""What holds for every model of images in the table."""

import pytest
import torch
from torch import nn

from fedapp import models
from fedapp.config import SettingError

# Total parameters and elements of BatchNorm buffers at 100 classes, 3x32x32 and 512 features, as HtFLlib's
# models have them. Models of our own are counted in the tests of their families.
COUNTS = {
    "fedavgcnn": (924_708, 0),
    "resnet4": (134_820, 387),
    "resnet6": (364_964, 1_158),
    "resnet8": (1_284_004, 2_697),
    "resnet10": (4_957_092, 5_772),
    "resnet18": (11_227_812, 9_620),
    "resnet34": (21_335_972, 17_060),
    "resnet50": (23_559_332, 53_173),
    "resnet101": (42_551_460, 105_448),
    "resnet152": (58_195_108, 151_579),
    "googlenet": (5_651_204, 14_617),
    "mobilenetv2": (2_275_172, 34_164),
    "vit-b-16": (85_651_200 + 470_884, 0),
    "vit-b-32": (87_418_368 + 470_884, 0),
}
HUGE = ("resnet101", "resnet152", "vit-b-16", "vit-b-32")
IMAGES = tuple(name for name, entry in models.MODELS.items() if models.IMAGES in entry.takes)
MODERATE = tuple(name for name in IMAGES if name not in (*HUGE, "resnet34", "resnet50"))
CONVOLUTIONAL = (*MODERATE, "resnet50")


def built(name, num_classes=10, input_shape=(3, 32, 32), feature_dim=512, device="cpu"):
    torch.manual_seed(0)
    with torch.device(device):
        return models.build(name, num_classes=num_classes, input_shape=input_shape, feature_dim=feature_dim)


def images(batch=2, shape=(3, 32, 32), device="cpu"):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, *shape, generator=generator).to(device)


@pytest.mark.parametrize("name", COUNTS)
def test_the_counts_are_the_benchmarks(name):
    model = built(name, num_classes=100, device="meta")
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert (parameters, sum(buffer.numel() for buffer in model.buffers())) == COUNTS[name]


def test_fedavgcnn_has_the_benchmarks_count_at_64_pixels():
    model = built("fedavgcnn", num_classes=100, input_shape=(3, 64, 64), device="meta")
    assert sum(parameter.numel() for parameter in model.parameters()) == 5_643_300


@pytest.mark.parametrize("name", IMAGES)
def test_native_features_features_and_logits_have_their_shapes_in_float32(name):
    model = built(name, device="meta")
    native = model.extractor(images(device="meta"))
    z = model.pool(native)
    assert native.shape == (2, models.MODELS[name].native_dim)
    logits = model.head(z)
    assert (z.shape, z.dtype) == ((2, 512), torch.float32)
    assert (logits.shape, logits.dtype) == ((2, 10), torch.float32)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


@pytest.mark.parametrize("name", MODERATE)
def test_the_feature_dimension_is_free(name):
    model = built(name, feature_dim=500, device="meta")
    z = model.features(images(device="meta"))
    assert (z.shape, model.head(z).shape) == ((2, 500), (2, 10))


@pytest.mark.parametrize("name", CONVOLUTIONAL)
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 64, 64), (2, 40, 33)])
def test_the_first_layer_adapts_to_channels_and_image_size(name, shape):
    model = built(name, input_shape=shape, device="meta")
    assert model(images(shape=shape, device="meta")).shape == (2, 10)


@pytest.mark.parametrize(("name", "shape"), [("vit-b-16", (1, 48, 48)), ("vit-b-32", (1, 64, 64))])
def test_a_vision_transformer_adapts_to_channels_and_multiples_of_its_patch(name, shape):
    model = built(name, input_shape=shape, device="meta")
    assert model(images(shape=shape, device="meta")).shape == (2, 10)


@pytest.mark.parametrize(
    ("name", "shape", "rule"),
    [
        ("fedavgcnn", (3, 8, 8), "at least 16x16"),
        ("fedavgcnn", (3, 32, 15), "at least 16x16"),
        ("googlenet", (1, 14, 14), "at least 15x15"),
        ("vit-b-16", (1, 28, 28), "divisible by 16"),
        ("vit-b-32", (3, 48, 48), "divisible by 32"),
        ("vit-b-16", (3, 32, 64), "square"),
    ],
)
def test_images_a_model_cannot_take_are_refused_with_its_name_and_their_shape(name, shape, rule):
    with pytest.raises(SettingError) as caught:
        built(name, input_shape=shape)
    for part in (repr(name), rule, str(shape)):
        assert part in str(caught.value)


@pytest.mark.parametrize(("name", "side"), [("fedavgcnn", 16), ("googlenet", 15)])
def test_the_smallest_image_stated_is_accepted(name, side):
    model = built(name, input_shape=(3, side, side), device="meta")
    assert model(images(shape=(3, side, side), device="meta")).shape == (2, 10)


@pytest.mark.parametrize("name", MODERATE)
def test_the_gradient_of_head_and_features_reaches_every_parameter(name):
    model = built(name)
    z = model.features(images(4))
    (nn.functional.cross_entropy(model.head(z), torch.arange(4)) + z.square().mean()).backward()
    first = next(model.parameters())
    assert first.grad.abs().max() > 0
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("name", ["resnet50", "vit-b-16"])
def test_the_graph_of_a_large_model_reaches_every_parameter(name):
    model = built(name, device="meta")
    model(images(device="meta")).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("name", MODERATE)
def test_evaluation_is_deterministic_and_survives_a_state_dict_round_trip(name):
    model = built(name)
    other = models.build(name, num_classes=10, input_shape=(3, 32, 32))  # other weights
    with torch.no_grad():
        model(images(4))  # moves the statistics of BatchNorm away from their start
        other.load_state_dict(model.state_dict(), strict=True)
        for network in (model, other):
            network.eval()
        logits = model(images(3))
        assert torch.equal(logits, model.head(model.features(images(3))))
        assert torch.equal(logits, other(images(3)))
        # A sample's logits do not depend on its batch.
        torch.testing.assert_close(model(images(3)[:1]), logits[:1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", [*models.GROUPS["small4"], "googlenet", "mobilenetv2"])
def test_the_callers_seed_decides_the_weights(name):
    first, again = built(name).state_dict(), built(name).state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)
    torch.manual_seed(7)
    third = models.build(name, num_classes=10, input_shape=(3, 32, 32)).state_dict()
    assert not torch.equal(first["head.weight"], third["head.weight"])


@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_no_activation_works_in_place(name):
    assert not any(
        getattr(module, "inplace", False)
        for module in built(name, device="meta").modules()
        if not isinstance(module, nn.Dropout)
    )


@pytest.mark.parametrize("name", models.GROUPS["small4"])
def test_a_demo_model_learns_four_separable_patterns(name):
    generator = torch.Generator().manual_seed(2)
    patterns = torch.randn(4, 3, 32, 32, generator=generator)
    y = torch.arange(4).repeat(8)
    x = patterns[y] + 0.3 * torch.randn(32, 3, 32, 32, generator=generator)
    model = built(name, num_classes=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(15):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert (model(x).argmax(1) == y).float().mean() > 0.9


def test_the_demo_models_have_four_different_structures():
    kinds = {name: frozenset(type(module) for module in built(name).modules()) for name in models.GROUPS["small4"]}
    assert len(set(kinds.values())) == 4
