"""Perceptrons on rows of numbers: bags of words and tables."""

import pytest
import torch
from torch import nn

from fedapp import models
from fedapp.models.mlp import LAYOUTS

BOW, TABULAR = models.GROUPS["mlp-bow"], models.GROUPS["tabular3"]


def built(name, device="cpu", **sizes):
    torch.manual_seed(0)
    with torch.device(device):
        return models.build(name, **({"num_classes": 2, "input_shape": (12,)} | sizes))


def test_the_family_is_in_the_table_with_its_native_dimensions():
    rows = {name: entry.native_dim for name, entry in models.MODELS.items() if models.NUMBERS in entry.takes}
    assert rows == {name: layout.widths[-1] for name, layout in LAYOUTS.items()}


def test_the_bag_of_words_models_have_the_benchmarks_counts():
    counts = [sum(p.numel() for p in built(name, "meta", input_shape=(5000,)).extractor.parameters()) for name in BOW]
    # 5000 words, the hidden layers, 100 features; a bias for each unit.
    assert counts == [
        500_100,
        5001 * 200 + 201 * 100,
        5001 * 500 + 501 * 100,
        5001 * 1000 + 1001 * 500 + 501 * 100,
        5_621_800,
    ]


def test_the_tabular_models_have_their_hand_counts():
    counts = [sum(p.numel() for p in built(name).extractor.parameters()) for name in TABULAR]
    assert counts == [13 * 256, 13 * 128 + 129 * 128, 13 * 64 + 3 * 65 * 64]


@pytest.mark.parametrize("name", [*BOW, *TABULAR, "mlp"])
@pytest.mark.parametrize("shape", [(12,), (3, 4), (1,)])
def test_a_perceptron_takes_numbers_of_any_shape_and_its_gradient_reaches_every_parameter(name, shape):
    model = built(name, input_shape=shape, feature_dim=60)
    x = torch.randn(8, *shape, generator=torch.Generator().manual_seed(1))
    z = model.features(x)
    assert (z.shape, model.head(z).shape) == ((8, 60), (8, 2))
    nn.functional.cross_entropy(model.head(z), torch.arange(8) % 2).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert model.features(x[:0]).shape == (0, 60)


@pytest.mark.parametrize("name", TABULAR)
def test_a_tabular_model_learns_which_of_two_columns_is_larger(name):
    x = torch.randn(64, 12, generator=torch.Generator().manual_seed(2))
    y = (x[:, 0] > x[:, 1]).long()
    model = built(name, feature_dim=64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(40):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert (model(x).argmax(1) == y).float().mean() > 0.9
