"""Where weights start, and which of them stay: ``init-from`` and ``freeze``."""

import logging

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fedapp import models, paths
from fedapp.client_update import ClientUpdate, Local
from fedapp.config import RunConfig, SettingError, TrainingSettings
from fedapp.models import start
from fedapp.payload import Downlink
from tests.conftest import Samples

SHAPE = (3, 16, 16)


@pytest.fixture(autouse=True)
def unsaid():
    start._say.cache_clear()


def prepared(name="small-resnet", *, num_classes=4, input_shape=SHAPE, vocabulary=0, seed=1, **changes):
    torch.manual_seed(seed)
    config = RunConfig(feature_dim=64, **changes)
    return models.prepare(name, config, num_classes=num_classes, input_shape=input_shape, vocabulary=vocabulary)


def saved(path, model):
    save_file(model.state_dict(), path) if path.suffix == ".safetensors" else torch.save(model.state_dict(), path)
    return str(path)


def agree(first, second, *, but=()):
    others = second.state_dict()
    return {key for key, value in first.state_dict().items() if not torch.equal(value, others[key])} == set(but)


@pytest.mark.parametrize("file", ["start.safetensors", "start.pt"])
def test_a_model_starts_from_every_weight_of_its_checkpoint(tmp_path, file):
    donor = prepared(seed=7)
    assert agree(donor, prepared(init_from=saved(tmp_path / file, donor)))


def test_each_model_of_a_group_has_a_checkpoint_of_its_own(tmp_path):
    donors = {name: prepared(name, seed=7) for name in ("small-cnn", "mlp")}
    for name, donor in donors.items():
        saved(tmp_path / f"{name}.pt", donor)
    for name, donor in donors.items():
        assert agree(donor, prepared(name, init_from=str(tmp_path / "{model}.pt")))


def test_a_relative_path_means_the_users_directory(tmp_path, monkeypatch):
    donor = prepared(seed=7)
    saved(tmp_path / "start.pt", donor)
    monkeypatch.setattr(paths, "_base", tmp_path)
    assert agree(donor, prepared(init_from="start.pt"))


def test_a_head_for_other_classes_is_left_out_whole_and_logged_by_name(tmp_path, caplog):
    donor = prepared(num_classes=9, seed=7)
    with torch.no_grad():
        donor.head.bias.fill_(5.0)
    with caplog.at_level(logging.INFO, logger="flwr"):
        model = prepared(num_classes=4, init_from=saved(tmp_path / "nine.pt", donor))
    assert torch.equal(model.extractor.conv1.weight, donor.extractor.conv1.weight)
    fresh = prepared(num_classes=4)
    assert torch.equal(model.head.weight, fresh.head.weight)
    assert torch.equal(model.head.bias, fresh.head.bias)
    assert "entries left out: head.weight, head.bias" in caplog.text
    assert "entries of the model that stay fresh: head.weight, head.bias" in caplog.text


def test_a_plain_backbone_fits_and_what_has_no_place_is_logged(tmp_path, caplog):
    donor = prepared(seed=7).extractor
    donor.fc = nn.Linear(64, 1000)
    with caplog.at_level(logging.INFO, logger="flwr"):
        model = prepared(init_from=saved(tmp_path / "backbone.pt", donor))
    assert torch.equal(model.extractor.layer3[0].conv2.weight, donor.layer3[0].conv2.weight)
    assert "entries left out: fc.weight, fc.bias" in caplog.text


def test_a_checkpoint_of_a_trainer_and_what_a_client_kept_fit(tmp_path):
    donor = prepared(seed=7)
    torch.save({"state_dict": donor.state_dict(), "epoch": 3}, tmp_path / "trainer.ckpt")
    kept = {f"model/{key}": value for key, value in donor.state_dict().items()}
    save_file(kept | {"state/anchor": torch.ones(2)}, tmp_path / "0.safetensors")
    for file in ("trainer.ckpt", "0.safetensors"):
        assert agree(donor, prepared(init_from=str(tmp_path / file)))


@pytest.mark.parametrize("wrapper", ["state_dict", "model_state_dict", "model"])
@pytest.mark.parametrize("prefix", ["", "module.", "model.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."])
def test_common_wrappers_of_a_state_dict_are_taken_off(tmp_path, wrapper, prefix):
    donor = prepared("mlp", seed=7)
    state = {prefix + key: value for key, value in donor.state_dict().items()}
    torch.save({"epoch": 3, "optimizer": {"state": {0: torch.ones(2)}}, wrapper: state}, tmp_path / "start.pt")
    assert agree(donor, prepared("mlp", init_from=str(tmp_path / "start.pt")))


def test_a_name_of_a_wrapper_that_holds_no_weights_is_passed_over(tmp_path):
    donor = prepared("mlp", seed=7)
    torch.save({"model": {"name": "mlp"}, "model_state_dict": donor.state_dict()}, tmp_path / "start.pt")
    assert agree(donor, prepared("mlp", init_from=str(tmp_path / "start.pt")))


def test_a_backbone_in_a_wrapper_fits_without_its_head(tmp_path, caplog):
    donor = prepared(seed=7).extractor
    donor.fc = nn.Linear(64, 1000)
    torch.save(nn.DataParallel(donor).state_dict(), tmp_path / "start.pt")
    with caplog.at_level(logging.INFO, logger="flwr"):
        model = prepared(init_from=str(tmp_path / "start.pt"))
    assert torch.equal(model.extractor.layer3[0].conv2.weight, donor.layer3[0].conv2.weight)
    assert "entries left out: fc.weight, fc.bias" in caplog.text


def test_a_prefix_stays_where_the_model_has_it_and_where_not_every_entry_has(tmp_path):
    value = torch.zeros(1)
    own = {"model.a": value, "model.b": value}
    assert start._unwrapped(own, own) is own
    mixed = {"module.a": value, "b": value}
    assert start._unwrapped(mixed, {"a": value}) is mixed
    strange = {"module.x": value}
    assert start._unwrapped(strange, {"a": value}) is strange
    doubled = {"model.model.a": value, "model.a": value}  # as it is, one fits; without, both
    assert set(start._unwrapped(doubled, {"model.a": value, "a": value})) == {"model.a", "a"}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300])
def test_weights_that_are_not_finite_are_refused_by_name_and_none_is_placed(tmp_path, value):
    state = {key: entry.double() for key, entry in prepared("mlp", seed=7).state_dict().items()}
    state["extractor.3.bias"][2] = value
    torch.save(state, tmp_path / "start.pt")
    model = prepared("mlp")
    with pytest.raises(
        SettingError, match=r"start.pt for model 'mlp' has values that are not finite .* in extractor.3"
    ):
        start.initialise(model, str(tmp_path / "start.pt"), "mlp")
    assert agree(model, prepared("mlp"))


def test_what_is_not_finite_is_let_pass_where_it_is_not_placed_or_where_the_model_has_it_too(tmp_path):
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.features, self.head = nn.Linear(12, 5), nn.Linear(5, 4)
            self.register_buffer("mask", torch.tensor([0.0, float("-inf")]))

    models.register("masked-for-start", Masked)
    try:
        donor = prepared("masked-for-start", seed=7, input_shape=(12,))
        torch.save({**donor.state_dict(), "momentum": torch.tensor([float("nan")])}, tmp_path / "start.pt")
        assert agree(donor, prepared("masked-for-start", input_shape=(12,), init_from=str(tmp_path / "start.pt")))
    finally:
        models.MODELS.pop("masked-for-start")


def test_a_users_own_model_starts_from_a_checkpoint(tmp_path):
    class Own(nn.Module):
        def __init__(self, num_classes=4):
            super().__init__()
            self.body, self.head = nn.Linear(12, 5), nn.Linear(5, num_classes)

        def features(self, x):
            return self.body(x)

    models.register("own-for-start", Own)
    try:
        donor = prepared("own-for-start", num_classes=7, seed=7, input_shape=(12,))
        path = saved(tmp_path / "own.pt", donor)
        model = prepared("own-for-start", input_shape=(12,), init_from=path, freeze="body.*")
    finally:
        models.MODELS.pop("own-for-start")
    assert torch.equal(model.body.weight, donor.body.weight)
    assert [key for key, p in model.named_parameters() if p.requires_grad] == ["head.weight", "head.bias"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "is not a file; give the absolute path"),
        (b"not a checkpoint", "cannot be read"),
        (torch.ones(3), "is no mapping from names to tensors"),
        (b"hello\n", "cannot be read: .*save the model with"),
        (b"age,label\n1,cat\n", "cannot be read: .*save the model with"),
        ({"a": 1}, "is no mapping from names to tensors"),
        ({"strange": torch.ones(3)}, "has no entry of model 'mlp'; it holds strange, the model has extractor.1.weight"),
        ({"1.weight": torch.ones(2, 2)}, r"extractor.1.weight \(2, 2\), not \(256, 768\)"),
    ],
)
def test_a_checkpoint_that_cannot_serve_is_refused_with_its_path_and_the_reason(tmp_path, content, words):
    path = tmp_path / "start.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        torch.save(content, path)
    with pytest.raises(SettingError, match=words) as caught:
        prepared("mlp", init_from=str(path))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("file", ["start.pt", "start.safetensors"])
@pytest.mark.parametrize(
    ("part", "words"),
    [
        (slice(0), "cannot be read: it is empty; save the model with"),
        (slice(3), "cannot be read: it is damaged, or no checkpoint.*; save the model with"),
        (slice(2000), "cannot be read: it is damaged, or no checkpoint.*; save the model with"),
        (slice(-9), "cannot be read: it is damaged, or no checkpoint.*; save the model with"),
    ],
)
def test_a_file_that_is_empty_or_cut_short_is_said_to_be(tmp_path, file, part, words):
    path = tmp_path / file
    saved(path, prepared("mlp"))
    path.write_bytes(path.read_bytes()[part])
    with pytest.raises(SettingError, match=words) as caught:
        prepared("mlp", init_from=str(path))
    assert "weights_only" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_checkpoint_with_code_in_it_is_not_run_and_the_way_out_is_to_save_tensors_alone(tmp_path, zipped):
    path = tmp_path / "whole.pt"
    torch.save(prepared("mlp"), path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(SettingError) as caught:
        prepared("mlp", init_from=str(path))
    assert str(caught.value) == (
        f"init-from: {path} cannot be read: it holds more than tensors, among it fedapp.models.split.SplitModel, and "
        "code in a checkpoint is never loaded; save the model with safetensors' save_file, or with "
        "torch.save(model.state_dict(), path)"
    )
    assert caught.value.__suppress_context__


def test_torchvisions_weights_come_from_its_cache_and_leave_its_classifier_out(tmp_path, monkeypatch, caplog):
    from torchvision.models import ResNet18_Weights, resnet18

    monkeypatch.setattr(torch.hub, "_hub_dir", str(tmp_path))
    (tmp_path / "checkpoints").mkdir()
    donor = resnet18()
    torch.save(donor.state_dict(), tmp_path / "checkpoints" / ResNet18_Weights.DEFAULT.url.rsplit("/", 1)[1])
    with caplog.at_level(logging.INFO, logger="flwr"):
        model = prepared("resnet18", init_from="torchvision")
    assert torch.equal(model.extractor.layer4[1].conv2.weight, donor.layer4[1].conv2.weight)
    assert "entries left out: fc.weight, fc.bias" in caplog.text
    assert f"is fetched unless torch's cache {tmp_path} has it" in caplog.text


@pytest.mark.parametrize("name", start.PRETRAINED)
def test_every_model_takes_the_entries_that_torchvision_has_for_it(name):
    from torchvision import models as zoo

    with torch.device("meta"):
        theirs = zoo.get_model(start.PRETRAINED[name], **({"init_weights": False} if name == "googlenet" else {}))
        ours = models.build(name, num_classes=4, input_shape=(3, 224, 224))
    shapes = {key: value.shape for key, value in theirs.state_dict().items()}
    body = {key.removeprefix(start.BODY): v.shape for key, v in ours.state_dict().items() if key.startswith(start.BODY)}
    assert body.items() <= shapes.items()
    assert {key.split(".")[0] for key in shapes.keys() - body.keys()} <= {"fc", "classifier", "heads", "aux1", "aux2"}


def test_a_vision_transformers_positions_are_interpolated_to_small_images(monkeypatch):
    positions = torch.randn(1, 1 + 14 * 14, 768, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(start, "pretrained", lambda name: {"encoder.pos_embedding": positions})
    model = prepared("vit-b-16", input_shape=(3, 32, 32), init_from="torchvision")
    fitted = model.extractor.encoder.pos_embedding
    assert fitted.shape == (1, 1 + 2 * 2, 768)
    assert torch.equal(fitted[:, 0], positions[:, 0])  # the class token stays


def test_weights_that_cannot_be_fetched_are_refused_with_place_and_address(tmp_path, monkeypatch):
    def unreachable(*args, **kwargs):
        raise OSError("no network")

    monkeypatch.setattr(torch.hub, "_hub_dir", str(tmp_path))
    monkeypatch.setattr(torch.hub, "download_url_to_file", unreachable)
    with pytest.raises(SettingError, match=r"'resnet18' are not in .* cannot be fetched \(no network\)") as caught:
        prepared("resnet18", init_from="torchvision")
    assert str(tmp_path / "checkpoints") in str(caught.value)
    assert "https://download.pytorch.org/models/resnet18" in str(caught.value)


def test_a_model_unknown_to_torchvision_starts_afresh_and_says_so(caplog):
    with caplog.at_level(logging.INFO, logger="flwr"):
        assert agree(prepared("mlp"), prepared("mlp", init_from="torchvision"))
    assert "torchvision has no weights of 'mlp', which starts afresh" in caplog.text


def test_patterns_freeze_the_parameters_they_match():
    model = prepared(freeze="extractor.layer[12].*, head.bias")
    frozen = {key for key, parameter in model.named_parameters() if not parameter.requires_grad}
    expected = {key for key, _ in model.named_parameters() if ".layer1." in key or ".layer2." in key}
    assert frozen == expected | {"head.bias"}


def test_a_pattern_for_one_model_leaves_the_others_alone():
    pattern = "small-resnet:extractor.layer1.*"
    assert not prepared(freeze=pattern).extractor.layer1[0].conv1.weight.requires_grad
    assert all(parameter.requires_grad for parameter in prepared("mlp", freeze=pattern).parameters())


def test_a_pattern_that_matches_nothing_is_refused_with_the_names():
    with pytest.raises(SettingError, match=r"'layer1.\*' matches no parameter of model 'small-cnn'") as caught:
        prepared("small-cnn", freeze="head.bias,layer1.*")
    assert "extractor.0.weight, extractor.0.bias" in str(caught.value)


def test_a_pattern_for_an_unknown_model_is_refused():
    with pytest.raises(SettingError, match=r"unknown model 'small-resnt'; .*did you mean small-resnet"):
        prepared(freeze="small-resnt:extractor.*")


def test_freezing_everything_is_refused():
    with pytest.raises(SettingError, match=r"freeze = '\*' leaves nothing of model 'mlp' to train"):
        prepared("mlp", freeze="*")


def test_a_round_changes_nothing_frozen_not_even_the_statistics_of_batch_norm():
    model = prepared(freeze="extractor.conv1.*,extractor.bn1.*,extractor.layer1.*,extractor.layer2.0.bn1.weight")
    before = {key: value.clone() for key, value in model.state_dict().items()}
    generator = torch.Generator().manual_seed(2)
    samples = Samples(torch.randn(12, *SHAPE, generator=generator), torch.arange(12) % 4)
    training = TrainingSettings(batch_size=6, local_epochs=1, learning_rate=0.1, weight_decay=0.1, device="cpu")
    ClientUpdate(None, Local("0", model, 4, training=training)).train(Downlink(), samples)
    after = model.state_dict()
    changed = {key for key in before if not torch.equal(before[key], after[key])}
    stay = ("extractor.conv1.", "extractor.bn1.", "extractor.layer1.")
    assert {key for key in before if key.startswith(stay)}.isdisjoint(changed)
    # a layer that is frozen in part only still follows its batches
    assert "extractor.layer2.0.bn1.weight" not in changed
    assert {"extractor.layer2.0.bn1.running_mean", "extractor.layer2.0.bn1.bias", "head.weight"} <= changed
