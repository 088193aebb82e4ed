"""Text models: counts, what padding does (nothing), equations by hand, gradients, determinism."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedapp import models
from fedapp.models.text import LAYOUTS, packed_left, sinusoids

VOCABULARY, LENGTH, CLASSES = 50, 12, 4
# Parameters without embedding and head, as HtFLlib's models have them.
COUNTS = {
    "fasttext": 262_656,
    "lstm": 4_202_496,
    "bilstm": 4_727_296,
    "transformer": 6_304_768,
    "text-logreg": 0,
    "gru": 3_151_872,
}
LEGACY = tuple(name for name in LAYOUTS if name.endswith("-legacy"))
QUICK = (*models.GROUPS["small3-txt"], "text-logreg", "bilstm", "char-lstm", "fasttext-legacy")


def built(name, **changes):
    torch.manual_seed(0)
    sizes = {"num_classes": CLASSES, "input_shape": (LENGTH,), "vocabulary": VOCABULARY} | changes
    return models.build(name, **sizes)


def texts(count=6, length=LENGTH, seed=1):
    """Rows of tokens of unlike lengths, padded on the right."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(1, VOCABULARY, (count, length), generator=generator)
    lengths = torch.randint(1, length + 1, (count, 1), generator=generator)
    return x * (torch.arange(length) < lengths)


def features(model, x):
    model.eval()
    with torch.no_grad():
        return model.features(x)


def test_the_family_is_in_the_table_with_its_native_dimensions():
    rows = {name: entry.native_dim for name, entry in models.MODELS.items() if entry.takes == (models.TOKENS,)}
    assert rows == {name: layout.native_dim for name, layout in LAYOUTS.items()}


@pytest.mark.parametrize("name", COUNTS)
def test_the_counts_are_the_benchmarks(name):
    with torch.device("meta"):
        model = built(name, num_classes=100)
    counts = {key: parameter.numel() for key, parameter in model.named_parameters()}
    assert counts.pop("extractor.embedding.weight") == VOCABULARY * 512
    assert sum(counts.pop(f"head.{key}") for key in ("weight", "bias")) == (512 + 1) * 100
    assert sum(counts.values()) == COUNTS[name]


def test_the_character_model_has_leafs_layers():
    with torch.device("meta"):
        model = built("char-lstm", vocabulary=82, num_classes=80, feature_dim=256)
    lstm = sum(4 * (inputs * 256 + 256 * 256 + 2 * 256) for inputs in (8, 256))
    assert sum(parameter.numel() for parameter in model.parameters()) == 82 * 8 + lstm + (256 + 1) * 80


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("feature_dim", [512, 100])
def test_features_and_logits_have_their_shapes_in_float32(name, feature_dim):
    model = built(name, feature_dim=feature_dim)
    native = model.extractor(texts())
    assert native.shape == (6, LAYOUTS[name].native_dim)
    z = features(model, texts())
    assert (z.shape, z.dtype) == ((6, feature_dim), torch.float32)
    assert model.head(z).shape == (6, CLASSES)
    assert model.features(texts()[:0]).shape == (0, feature_dim)


@pytest.mark.parametrize("name", LAYOUTS)
def test_more_padding_leaves_features_unchanged_wherever_it_stands(name):
    model, x = built(name), texts()
    wide = torch.zeros(6, 2 * LENGTH + 7, dtype=torch.int64)
    wide[:, 3 : 2 * LENGTH + 3 : 2] = x
    expected = features(model, x)
    torch.testing.assert_close(features(model, wide), expected, atol=1e-6, rtol=1e-6)
    # and so do rows of other lengths in the batch
    torch.testing.assert_close(features(model, x[2:3]), expected[2:3], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_the_embedding_of_padding_holds_does_not_matter(name):
    model, x = built(name), texts()
    expected = features(model, x)
    with torch.no_grad():
        model.extractor.embedding.weight[0] = 1e3
    torch.testing.assert_close(features(model, x), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", QUICK)
def test_a_text_without_a_token_has_finite_features_and_gradients(name):
    model = built(name)
    model(torch.zeros(3, LENGTH, dtype=torch.int64)).sum().backward()
    assert features(model, torch.zeros(3, LENGTH, dtype=torch.int64)).isfinite().all()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_gradient_reaches_every_parameter_and_of_the_embedding_the_tokens_that_occur(name):
    model, x = built(name), texts()
    (nn.functional.cross_entropy(model(x), torch.arange(6) % CLASSES)).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    touched = model.extractor.embedding.weight.grad.abs().amax(1) > 0
    assert touched.nonzero().flatten().tolist() == sorted(set(x.flatten().tolist()) - {0})


@pytest.mark.parametrize("name", QUICK)
def test_evaluation_is_deterministic_and_the_callers_seed_decides_the_weights(name):
    first, again = built(name), built(name)
    assert torch.equal(features(first, texts()), features(first, texts()))
    assert torch.equal(features(first, texts()), features(again, texts()))
    other = models.build(name, num_classes=CLASSES, input_shape=(LENGTH,), vocabulary=VOCABULARY)
    assert not torch.equal(features(first, texts()), features(other, texts()))
    other.load_state_dict(first.state_dict(), strict=True)
    assert torch.equal(features(first, texts()), features(other, texts()))


@pytest.mark.parametrize("name", QUICK)
def test_a_text_model_runs_under_bf16(name):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        built(name)(texts()).float().sum().backward()


def test_the_means_are_over_tokens_only():
    model = built("text-logreg")
    words = model.extractor.embedding.weight
    z = features(model, torch.tensor([[4, 9, 4, 0, 0]]))
    torch.testing.assert_close(z[0], (2 * words[4] + words[9]) / 3, atol=1e-6, rtol=1e-6)
    model = built("small-fasttext", feature_dim=64)
    words, layer = model.extractor.embedding.weight, model.extractor.reader.after
    z = features(model, torch.tensor([[4, 9, 0]]))
    expected = layer.weight @ ((words[4] + words[9]) / 2) + layer.bias
    torch.testing.assert_close(z[0], expected, atol=1e-6, rtol=1e-6)


def test_a_recurrent_model_hands_on_the_state_after_the_last_token():
    model = built("char-lstm", feature_dim=256)
    with torch.no_grad():
        states, _ = model.extractor.reader.rnn(model.extractor.embedding(torch.tensor([[3, 8, 5]])))
    z = features(model, torch.tensor([[3, 8, 5, 0, 0], [1, 2, 3, 4, 5]]))
    torch.testing.assert_close(z[0], states[0, -1], atol=1e-6, rtol=1e-6)


def test_the_bidirectional_model_joins_the_ends_of_both_directions():
    model = built("bilstm")
    with torch.no_grad():
        states, _ = model.extractor.reader.rnn(model.extractor.embedding(torch.tensor([[3, 8, 5]])))
        expected = model.extractor.reader.after(torch.cat([states[0, -1, :512], states[0, 0, 512:]]))
    z = features(model, torch.tensor([[3, 8, 5, 0, 0], [1, 2, 3, 4, 5]]))
    torch.testing.assert_close(z[0], expected, atol=1e-6, rtol=1e-6)


def test_the_transformer_knows_the_order_of_words_and_the_means_do_not():
    x, y = torch.tensor([[3, 8, 5]]), torch.tensor([[3, 5, 8]])
    for name, same in (("small-transformer", False), ("small-gru", False), ("small-fasttext", True)):
        model = built(name)
        assert torch.allclose(features(model, x), features(model, y), atol=1e-6) == same


def test_the_transformers_layers_start_from_weights_of_their_own():
    first, second = built("small-transformer").extractor.reader.layers
    assert not torch.equal(first.linear1.weight, second.linear1.weight)


def test_positions_are_the_papers_sinusoids():
    table = sinusoids(30, 8)
    for t, i in ((0, 0), (29, 0), (7, 3)):
        angle = t / 10000 ** (2 * i / 8)
        assert table[t, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-5)
        assert table[t, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-5)


@pytest.mark.parametrize("name", LEGACY)
def test_legacy_features_are_the_true_ones_through_log_softmax(name):
    legacy, true = built(name), built(name.removesuffix("-legacy"))
    assert legacy.state_dict().keys() == true.state_dict().keys()
    z, raw = features(legacy, texts()), features(true, texts())
    torch.testing.assert_close(z.exp().sum(1), torch.ones(6), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(z, raw - raw.exp().sum(1, keepdim=True).log(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(legacy(texts()[:1]), legacy.head(z[:1]), atol=1e-5, rtol=1e-5)


def test_only_the_four_models_with_the_quirk_have_a_legacy_form():
    group, legacy = models.GROUPS["htfe6-txt"], models.GROUPS["htfe6-txt-legacy"]
    changed = [new for old, new in zip(group, legacy, strict=True) if old != new]
    assert sorted(changed) == sorted(LEGACY)
    assert [name.removesuffix("-legacy") for name in legacy] == list(group)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(0, 3), min_size=5, max_size=5), min_size=1, max_size=4))
def test_tokens_move_to_the_left_in_their_order(rows):
    packed, lengths = packed_left(torch.tensor(rows))
    for row, moved, length in zip(rows, packed.tolist(), lengths.tolist(), strict=True):
        tokens = [token for token in row if token]
        assert moved[: len(tokens)] == tokens
        assert not any(moved[len(tokens) :])
        assert length == max(len(tokens), 1)
    assert packed.shape[1] == max(lengths)


@pytest.mark.parametrize("name", models.GROUPS["small3-txt"])
def test_a_small_model_learns_which_word_occurs(name):
    x = texts(64, seed=3).clamp(max=30)
    y = torch.arange(64) % CLASSES
    x[:, 0] = 40 + y
    model = built(name, feature_dim=64)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(25):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert (model.eval()(x).argmax(1) == y).float().mean() > 0.9
