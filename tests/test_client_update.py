import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedapp.client_update import (
    EVALUATION_BATCH,
    ClientUpdate,
    DivergedError,
    Local,
    arrays_of,
    batches,
    frozen_batch_norm,
    load_arrays,
    make_optimizer,
    round_rate,
)
from fedapp.config import TrainingSettings
from fedapp.memory import digest
from fedapp.payload import Downlink
from tests.conftest import CLASSES, INPUTS, WIDTH, Samples, local, samples, tiny


def split(count, batch_size, *, seed=0, **options):
    return batches(count, TrainingSettings(batch_size=batch_size, **options), torch.Generator().manual_seed(seed))


def lengths(*arguments, **options):
    return [len(rows) for rows in split(*arguments, **options)]


def trained(model, data, **changes):
    update = ClientUpdate(None, local(model, **changes))
    return update, update.train(Downlink(), data)


class Fixed(nn.Module):
    """Features are the inputs; the head is the identity: logits are what the test writes down."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.head = nn.Identity()

    def features(self, x):
        return x * self.scale


# ---- batches ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "batch_size", "expected"),
    [
        (0, 4, []),
        (1, 4, [1]),
        (3, 4, [3]),
        (4, 4, [4]),
        (5, 4, [5]),  # a last batch of one joins the one before
        (6, 4, [4, 2]),
        (9, 4, [4, 5]),
        (11, 10, [11]),
        (3, 1, [1, 1, 1]),
        (1, 1, [1]),
    ],
)
def test_a_last_batch_of_one_joins_the_batch_before_it(count, batch_size, expected):
    assert lengths(count, batch_size) == expected


@pytest.mark.parametrize(
    ("count", "batch_size", "expected"),
    [(0, 4, []), (1, 4, [1]), (3, 4, [3]), (5, 4, [4]), (7, 4, [4]), (8, 4, [4, 4])],
)
def test_drop_last_leaves_out_the_incomplete_batch_but_never_the_only_one(count, batch_size, expected):
    assert lengths(count, batch_size, drop_last=True) == expected


@given(st.integers(0, 60), st.integers(1, 20), st.booleans(), st.booleans(), st.integers(0, 2**31))
@settings(max_examples=150, deadline=None)
def test_every_sample_is_in_exactly_one_batch(count, batch_size, shuffle, drop_last, seed):
    parts = split(count, batch_size, seed=seed, shuffle=shuffle, drop_last=drop_last)
    rows = [int(row) for part in parts for row in part]
    assert len(set(rows)) == len(rows)
    assert set(rows) <= set(range(count))
    if drop_last:
        assert len(rows) == (count - count % batch_size if count >= batch_size else count)
    else:
        assert len(rows) == count
    assert all(part.dtype == torch.int64 and len(part) for part in parts)
    if batch_size > 1 and count > 1:
        assert all(len(part) > 1 for part in parts)


def test_unshuffled_batches_are_the_same_in_every_epoch():
    generator = torch.Generator().manual_seed(0)
    fixed = TrainingSettings(batch_size=4, shuffle=False)
    for _ in range(2):
        assert [rows.tolist() for rows in batches(6, fixed, generator)] == [[0, 1, 2, 3], [4, 5]]


def test_shuffled_batches_differ_between_epochs_and_repeat_with_the_seed():
    generator = torch.Generator().manual_seed(3)
    shuffled = TrainingSettings(batch_size=8)
    first, second = (torch.cat(batches(32, shuffled, generator)) for _ in range(2))
    assert not torch.equal(first, second)
    assert torch.equal(first, torch.cat(split(32, 8, seed=3)))


def test_batches_depend_on_the_round_and_the_client_and_not_on_the_process():
    def order(client, round_number):
        seen = []

        class Watch(ClientUpdate):
            def loss(self, x, y):
                seen.extend(x[:, 0].tolist())
                return super().loss(x, y)

        training = TrainingSettings(batch_size=4, local_epochs=1, device="cpu")
        torch.manual_seed(len(seen) + hash(client) % 97)
        Watch(None, Local(client, tiny(), CLASSES, training, round=round_number)).train(Downlink(), samples(12))
        return seen

    assert order("a", 1) == order("a", 1)
    assert order("a", 1) != order("a", 2)
    assert order("a", 1) != order("b", 1)


# ---- batches of one --------------------------------------------------------------------------------


def test_a_batch_of_one_trains_and_leaves_running_statistics_alone():
    model = tiny(norm=True)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    weights = digest(dict(model.named_parameters()))
    _, uplink = trained(model, samples(1), local_epochs=3)
    assert math.isfinite(uplink.metrics["loss"])
    assert digest(dict(model.named_parameters())) != weights
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, before[name]), name
    assert all(module.training for module in model.modules())


def test_batches_of_more_than_one_do_update_running_statistics():
    model = tiny(norm=True)
    trained(model, samples(9))
    assert int(model.body[1].num_batches_tracked) == 2


def test_batch_norm_of_a_batch_of_one_uses_the_running_statistics():
    model = tiny(norm=True)
    data = samples(1)
    expected = F.cross_entropy(model.eval().head(model.features(data.x)), data.y)
    _, uplink = trained(model, data)
    assert uplink.metrics["loss"] == pytest.approx(float(expected.detach()), abs=1e-6)


def test_training_mode_comes_back_even_after_an_error():
    model = tiny(norm=True).train()
    modes = []

    class Broken(ClientUpdate):
        def loss(self, x, y):
            modes.extend([self.model.body[1].training, self.model.head.training])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Broken(None, local(model)).train(Downlink(), samples(1))
    assert modes == [False, True]
    assert model.body[1].training


def test_a_batch_norm_that_was_frozen_before_stays_frozen():
    model = tiny(norm=True).train()
    model.body[1].eval()
    with frozen_batch_norm([model]):
        pass
    assert not model.body[1].training


# ---- optimisers and schedules ----------------------------------------------------------------------

W, G = torch.tensor([[1.0, -2.0, 0.5]]), torch.tensor([[0.3, -0.7, 0.0]])


def one_step(rate=0.1, **options):
    parameter = nn.Parameter(W.clone())
    optimizer = make_optimizer([parameter], TrainingSettings(**options), rate)
    parameter.grad = G.clone()
    optimizer.step()
    return parameter.detach(), optimizer, parameter


def test_sgd_steps_down_the_gradient_with_decay():
    moved, _, _ = one_step(optimizer="sgd", weight_decay=0.5)
    torch.testing.assert_close(moved, W - 0.1 * (G + 0.5 * W), atol=1e-7, rtol=0)


def test_momentum_of_sgd_accumulates():
    _, optimizer, parameter = one_step(optimizer="sgd", momentum=0.9)
    parameter.grad = G.clone()
    optimizer.step()
    torch.testing.assert_close(parameter.detach(), W - 0.1 * G - 0.1 * (0.9 * G + G), atol=1e-6, rtol=0)


def test_the_first_step_of_adam_is_the_rate_in_the_direction_of_the_gradients_sign():
    moved, _, _ = one_step(optimizer="adam")
    torch.testing.assert_close(moved, W - 0.1 * torch.sign(G), atol=1e-6, rtol=0)


def test_adam_adds_decay_to_the_gradient_and_adamw_shrinks_the_weights():
    coupled, _, _ = one_step(optimizer="adam", weight_decay=0.5)
    torch.testing.assert_close(coupled, W - 0.1 * torch.sign(G + 0.5 * W), atol=1e-6, rtol=0)
    decoupled, _, _ = one_step(optimizer="adamw", weight_decay=0.5)
    torch.testing.assert_close(decoupled, W * (1 - 0.1 * 0.5) - 0.1 * torch.sign(G), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [1, 1, 1, 1, 1, 1, 1, 1]),
        ("linear", [1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8]),
        ("cosine", [(1 + math.cos(math.pi * k / 8)) / 2 for k in range(8)]),
        ("step", [1, 1, 1, 1, 0.1, 0.1, 0.01, 0.01]),
    ],
)
def test_schedules_over_eight_rounds(schedule, expected):
    schedule = TrainingSettings(learning_rate=0.4, schedule=schedule)
    rates = [round_rate(schedule, number, 8) for number in range(1, 9)]
    np.testing.assert_allclose(rates, np.array(expected) * 0.4, atol=1e-12)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine", "step"])
def test_a_run_of_no_rounds_and_the_round_before_the_first_use_the_full_rate(schedule):
    assert round_rate(TrainingSettings(learning_rate=0.4, schedule=schedule), 0, 0) == pytest.approx(0.4)


def test_one_epoch_of_training_equals_the_loop_written_out():
    model, twin, data = tiny(1), tiny(1), samples(10)
    _, uplink = trained(model, data, shuffle=False, learning_rate=0.2, schedule="linear", round=2, num_rounds=4)
    losses = []
    for rows in (slice(0, 4), slice(4, 8), slice(8, 10)):
        loss = -F.log_softmax(twin.head(torch.tanh(twin.body(data.x[rows]))), 1).gather(1, data.y[rows, None]).mean()
        gradients = torch.autograd.grad(loss, list(twin.parameters()))
        losses.append(float(loss.detach()))
        with torch.no_grad():
            for parameter, gradient in zip(twin.parameters(), gradients, strict=True):
                parameter -= 0.2 * 0.75 * gradient
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter, twin.get_parameter(name), atol=1e-6, rtol=0)
    assert uplink.metrics["loss"] == pytest.approx(sum(losses) / 3, abs=1e-6)
    assert (uplink.client, uplink.num_examples, dict(uplink.arrays)) == ("7", 10, {})


@pytest.mark.parametrize("clip_norm", [0.05, 1e6])
def test_a_gradient_longer_than_clip_norm_is_shortened_to_it(clip_norm):
    model, twin, data = tiny(), tiny(), samples(4)
    trained(model, data, clip_norm=clip_norm, learning_rate=1.0)
    loss = F.cross_entropy(twin.head(twin.features(data.x)), data.y)
    gradients = torch.autograd.grad(loss, list(twin.parameters()))
    norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients))
    assert norm > 0.05
    scale = min(1.0, clip_norm / norm)
    for before, after, gradient in zip(twin.parameters(), model.parameters(), gradients, strict=True):
        torch.testing.assert_close(after, before - scale * gradient, atol=1e-5, rtol=0)


# ---- hooks -----------------------------------------------------------------------------------------


def test_hooks_run_in_the_documented_order():
    called = []

    class Watch(ClientUpdate):
        def receive(self, downlink):
            called.append("receive")

        def begin(self):
            called.append("begin")

        def loss(self, x, y):
            called.append(f"loss {self.epoch}")
            return super().loss(x, y)

        def after_step(self):
            called.append("after_step")

        def end(self, samples):
            called.append("end")
            return {"n": np.array(len(samples.y))}

    update = Watch(None, local(tiny(), local_epochs=2))
    uplink = update.train(Downlink(), samples(6))
    step = ["after_step"]
    assert called == ["receive", "begin", *(["loss 0", *step] * 2), *(["loss 1", *step] * 2), "end"]
    assert int(uplink.arrays["n"]) == 6
    called.clear()
    update.evaluate(Downlink(), samples(3))
    assert called == ["receive"]


def test_training_without_samples_changes_nothing_and_measures_nothing():
    model = tiny(norm=True)
    before = digest(model.state_dict())
    _, uplink = trained(model, samples(0))
    assert digest(model.state_dict()) == before
    assert (uplink.num_examples, dict(uplink.metrics)) == (0, {})


def test_parameters_that_need_no_gradient_stay():
    model = tiny()
    model.head.requires_grad_(False)
    before = model.head.weight.clone()
    trained(model, samples(8))
    assert torch.equal(model.head.weight, before)


def test_a_method_that_needs_a_companion_says_how_to_provide_one():
    with pytest.raises(RuntimeError, match=r"'meme'.*Setup a `companion` function"):
        local(tiny()).companion("meme")
    assert isinstance(local(tiny(), build=lambda name: tiny(len(name))).companion("meme"), nn.Module)


# ---- divergence ------------------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_is_an_error_that_says_what_to_change():
    data = samples(8)
    data.x[3, 0] = math.nan
    with pytest.raises(DivergedError, match=r"client '7' diverged in round 1 .*lower learning-rate, or set clip-norm"):
        trained(tiny(), data)


def test_a_last_step_into_infinity_is_divergence_although_every_loss_was_finite():
    with pytest.raises(DivergedError, match="client '7' diverged in round 1"):
        trained(Fixed(), Samples(samples(4).x[:, :CLASSES] * 100, samples(4).y), learning_rate=3e38)


# ---- precision -------------------------------------------------------------------------------------


def test_bf16_hands_float32_features_and_logits_to_the_loss():
    seen = []

    class Watch(ClientUpdate):
        def forward(self, model, x):
            z, logits = super().forward(model, x)
            seen.append((z.dtype, logits.dtype, logits.detach().clone()))
            return z, logits

    model = tiny()
    exact = model.head(model.features(samples(4).x)).detach()
    update = Watch(None, local(model, precision="bf16"))
    update.train(Downlink(), samples(4))
    z_dtype, logits_dtype, logits = seen[0]
    assert z_dtype == logits_dtype == torch.float32
    assert set(map(float, logits.flatten())) <= set(map(float, logits.bfloat16().float().flatten()))  # rounded
    torch.testing.assert_close(logits.sort(0).values, exact.sort(0).values, atol=0.03, rtol=0)
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


# ---- evaluation ------------------------------------------------------------------------------------


def test_accuracy_and_loss_by_hand():
    logits = torch.tensor([[2.0, -1.0, 0.0], [0.0, 1.0, 0.0], [-1.0, 0.0, 3.0]])
    labels = torch.tensor([0, 2, 2])  # right, wrong, right
    uplink = ClientUpdate(None, local(Fixed())).evaluate(Downlink(), Samples(logits, labels))
    exp = math.exp
    losses = [
        -math.log(exp(2) / (exp(2) + exp(-1) + 1)),
        -math.log(1 / (1 + exp(1) + 1)),
        -math.log(exp(3) / (exp(-1) + 1 + exp(3))),
    ]
    assert (uplink.num_examples, dict(uplink.arrays)) == (3, {})
    assert uplink.metrics["accuracy"] == pytest.approx(2 / 3)
    assert uplink.metrics["loss"] == pytest.approx(sum(losses) / 3, abs=1e-6)


def test_evaluation_in_several_batches_counts_every_sample_once():
    count = EVALUATION_BATCH * 2 + 1
    data, model = samples(count), tiny()
    uplink = ClientUpdate(None, local(model)).evaluate(Downlink(), data)
    with torch.no_grad():
        logits = model.head(model.features(data.x))
    assert uplink.metrics["accuracy"] == pytest.approx(float((logits.argmax(1) == data.y).double().mean()))
    assert uplink.metrics["loss"] == pytest.approx(float(F.cross_entropy(logits, data.y)), abs=1e-5)


def test_evaluation_changes_nothing_in_the_model():
    model = tiny(norm=True).train()
    before = digest(model.state_dict())
    ClientUpdate(None, local(model)).evaluate(Downlink(), samples(5))
    assert digest(model.state_dict()) == before
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_client_without_test_samples_reports_no_metric():
    uplink = ClientUpdate(None, local(tiny())).evaluate(Downlink(), samples(0))
    assert (uplink.num_examples, dict(uplink.metrics)) == (0, {})


# ---- arrays in and out of a model ------------------------------------------------------------------


def test_arrays_of_a_model_go_into_another_and_back():
    source, target = tiny(1, norm=True), tiny(2, norm=True)
    trained(source, samples(9))
    load_arrays(target, dict(reversed(arrays_of(source).items())))  # by name, whatever the order
    assert digest(target.state_dict()) == digest(source.state_dict())
    tracked = arrays_of(source)["body.1.num_batches_tracked"]
    assert (tracked.dtype, tracked.shape, int(tracked)) == (np.int64, (), 2)


def test_entries_that_do_not_come_stay():
    model = tiny(1)
    before = model.body[0].weight.clone()
    load_arrays(model, {"head.bias": np.array([1.0, -2.0, 3.0], np.float32)})
    assert model.head.bias.tolist() == [1.0, -2.0, 3.0]
    assert torch.equal(model.body[0].weight, before)


@pytest.mark.parametrize(
    ("bad", "parts"),
    [
        ({"head.weight": np.zeros((CLASSES, WIDTH + 1), np.float32)}, ["head.weight", "(3, 6)", "(3, 5)"]),
        ({"head.weight": np.zeros((CLASSES,), np.float32)}, ["head.weight", "(3,)", "(3, 5)"]),
        ({"head.wight": np.zeros((CLASSES, WIDTH), np.float32)}, ["head.wight", "(3, 5)", "no such entry"]),
    ],
)
def test_arrays_that_do_not_fit_are_named_with_both_shapes_and_load_nothing(bad, parts):
    model = tiny()
    before = digest(model.state_dict())
    with pytest.raises(ValueError, match="does not fit this client's model") as caught:
        load_arrays(model, {"head.bias": np.ones(CLASSES, np.float32), **bad})
    for part in parts:
        assert part in str(caught.value)
    assert digest(model.state_dict()) == before


def test_loaded_arrays_are_copies():
    model, array = tiny(), np.ones(CLASSES, np.float32)
    load_arrays(model, {"head.bias": array})
    array[:] = 9
    assert model.head.bias.tolist() == [1.0, 1.0, 1.0]
    assert model.head.bias.requires_grad


def test_a_head_that_is_a_method_cannot_travel_and_the_message_says_so():
    with pytest.raises(TypeError, match="make the model's head a submodule"):
        arrays_of(tiny().features)


def test_inputs_of_the_tiny_model_are_what_the_tests_say():
    assert samples(3).x.shape == (3, INPUTS)


def test_training_sees_augmented_images_and_the_same_ones_with_the_same_seed():
    class Watching(nn.Module):
        def __init__(self):
            super().__init__()
            self.features, self.head, self.seen = nn.Flatten(), nn.Linear(12, CLASSES), []
            self.features.register_forward_hook(lambda module, inputs, output: self.seen.append(inputs[0].clone()))

    generator = torch.Generator().manual_seed(3)
    data = Samples(torch.rand(6, 1, 3, 4, generator=generator) + 0.1, torch.arange(6) % CLASSES)

    def seen(**options):
        torch.manual_seed(0)
        model = Watching()
        ClientUpdate(None, local(model, batch_size=6, local_epochs=1, shuffle=False, **options)).train(Downlink(), data)
        return model.seen[0]

    assert torch.equal(seen(), data.x)
    flipped = seen(augment="flip")
    mirrored = [torch.equal(row, original.flip(-1)) for row, original in zip(flipped, data.x, strict=True)]
    same = [torch.equal(row, original) for row, original in zip(flipped, data.x, strict=True)]
    assert [a != b for a, b in zip(mirrored, same, strict=True)] == [True] * 6
    assert any(mirrored)
    assert torch.equal(flipped, seen(augment="flip"))


def test_a_client_with_few_samples_takes_the_least_number_of_steps():
    class Counting(ClientUpdate):
        steps = 0

        def after_step(self):
            self.steps += 1

    counts = {}
    for least in (0, 7):
        update = Counting(None, local(tiny(), batch_size=4, local_epochs=2, min_local_steps=least))
        update.train(Downlink(), samples(8))
        counts[least] = update.steps, update.epochs
    assert counts == {0: (4, 2), 7: (8, 4)}
